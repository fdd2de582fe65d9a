"""The records of the contract as JSON, both ways and exact: a room for each kind, and here all that the verbs need."""

from longshore.backends.remote.records.facts import FACTS
from longshore.backends.remote.records.filters import FILTER
from longshore.backends.remote.records.history import LOGS, STRETCH, Stretch
from longshore.backends.remote.records.jobs import JOB, JOBS, NEW_JOB, NEW_JOBS, PAGE
from longshore.backends.remote.records.leases import HELD, LEASE, LEASES
from longshore.backends.remote.records.outcomes import FREED, OUTCOMES, REPORT, TURN, write_outcome
from longshore.backends.remote.records.queues import COUNTS, QUEUES, RATE, STATS
from longshore.backends.remote.records.schedules import NEW_SCHEDULE, SCHEDULE, SCHEDULES
from longshore.backends.remote.records.schemas import SCHEMAS
from longshore.backends.remote.records.workers import WORKER, WORKERS

__all__ = [
    "COUNTS",
    "FACTS",
    "FILTER",
    "FREED",
    "HELD",
    "JOB",
    "JOBS",
    "LEASE",
    "LEASES",
    "LOGS",
    "NEW_JOB",
    "NEW_JOBS",
    "NEW_SCHEDULE",
    "OUTCOMES",
    "PAGE",
    "QUEUES",
    "RATE",
    "REPORT",
    "SCHEDULE",
    "SCHEDULES",
    "SCHEMAS",
    "STATS",
    "STRETCH",
    "TURN",
    "WORKER",
    "WORKERS",
    "Stretch",
    "write_outcome",
]
