"""The tables of the lake: their names and the columns they are declared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from longshore.core.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EVENTS = "bronze.events"
ATTEMPTS = "silver.attempts"
JOBS = "silver.jobs"
CARRIED = "state.carried"
THROUGHPUT = "gold.throughput"
OUTCOMES = "gold.outcomes"
HISTOGRAM = "gold.duration_histogram"
DURATIONS = "gold.durations"
ERRORS = "gold.errors"
DEPTH = "gold.depth"
WORKERS = "gold.workers"
SCHEDULES = "gold.schedules"
ARCHIVED_JOBS = "archive.jobs"
ARCHIVED_LOGS = "archive.logs"

_JOB = "job_uid bigint, job_id string, queue string, type string"

STEP = f"""{_JOB}, job_seq bigint, event string, from_status string, to_status string, epoch bigint, execution bigint,
    worker string, occurred_at timestamp, until timestamp, error string, final boolean,
    key string, schedule_id string, parent_id string"""

COLUMNS: Mapping[str, str] = {
    EVENTS: f"""xid bigint, number bigint, {_JOB.replace(", queue", ", job_seq bigint, queue")}, event string,
        from_status string, to_status string, epoch bigint, execution bigint, assignee_id string, actor string,
        occurred_at timestamp, detail string, event_date date, batch bigint""",
    ATTEMPTS: f"""{_JOB}, key string, schedule_id string, epoch bigint, execution bigint, worker string,
        eligible_at timestamp, started_at timestamp, ended_at timestamp, waited_seconds double, ran_seconds double,
        outcome string, error string, error_type string, fingerprint string, final boolean, started_seq bigint,
        ended_seq bigint, event_date date""",
    JOBS: f"""{_JOB}, key string, schedule_id string, planned_at timestamp, parent_id string,
        status string, created_at timestamp, started_at timestamp, finalized_at timestamp, attempts bigint,
        failures bigint, crashes bigint, releases bigint, waited_seconds double, ran_seconds double,
        lifetime_seconds double, error string, error_type string, fingerprint string, first_seq bigint,
        last_seq bigint, event_date date""",
    CARRIED: f"{STEP}, event_date date",
    THROUGHPUT: """event_date date, at timestamp, queue string, type string, events bigint, added bigint,
        started bigint, completed bigint, failed bigint, crashed bigint, released bigint, stopped bigint, dead bigint,
        retried bigint, removed bigint, waiting_change bigint, held_change bigint, running_change bigint""",
    OUTCOMES: """event_date date, at timestamp, queue string, type string, key string, attempts bigint,
        completed bigint, failed bigint, crashed bigint, released bigint, stopped bigint, unknown bigint,
        retries bigint, jobs_finished bigint, jobs_completed bigint, jobs_dead bigint, jobs_cancelled bigint,
        failure_rate double, crash_rate double, retry_rate double""",
    HISTOGRAM: """event_date date, at timestamp, queue string, type string, measure string, bucket int, count bigint,
        seconds double, least double, most double""",
    DURATIONS: """event_date date, period string, at timestamp, level string, queue string, type string, key string,
        measure string, count bigint, mean double, least double, p50 double, p75 double, p90 double, p95 double,
        p99 double, most double""",
    ERRORS: """event_date date, queue string, type string, key string, outcome string, fingerprint string,
        error_type string, sample string, count bigint, jobs bigint, first_at timestamp, last_at timestamp""",
    DEPTH: """event_date date, at timestamp, queue string, type string, waiting bigint, held bigint,
        running bigint""",
    WORKERS: """event_date date, at timestamp, worker string, attempts bigint, busy_seconds double,
        most_at_once bigint, utilisation double""",
    SCHEDULES: """event_date date, schedule_id string, queue string, type string, runs bigint, started bigint,
        completed bigint, dead bigint, made_late_p50 double, made_late_most double, late_p50 double, late_p95 double,
        late_most double""",
    ARCHIVED_JOBS: """uid bigint, id string, queue string, type string, status string, priority bigint, lifo boolean,
        tags array<string>, payload binary, result binary, error_message string, progress string, run_at timestamp,
        delay double, expires_at timestamp, timeout double, max_attempts bigint, max_crashes bigint,
        executions bigint, retry_count bigint, crashes bigint, epoch bigint, job_seq bigint, created_at timestamp,
        updated_at timestamp, started_at timestamp, finalized_at timestamp, last_retry_at timestamp,
        assigned_at timestamp, assignee_id string, lease_expires_at timestamp, idempotency_key string,
        concurrency_key string, parent_id string, on_dependency_failure string, schedule_id string, options string,
        event_date date""",
    ARCHIVED_LOGS: """job_uid bigint, job_id string, queue string, type string, number bigint, logged_at timestamp,
        level string, message string, event_date date""",
}

GOLD = tuple(name for name in COLUMNS if name.startswith("gold."))


def check_table(name: str) -> str:
    """Return the name, or raise InvalidArgument if the lake has no such table."""
    if name not in COLUMNS:
        raise InvalidArgument("table", f"{name!r} is not a table of the lake; use one of {', '.join(COLUMNS)}")
    return name


def schema_of(name: str) -> StructType:
    """The Spark schema of a table."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(COLUMNS[check_table(name)])
    assert isinstance(schema, StructType)  # a DDL with column names is a struct
    return schema


def folder_of(name: str) -> str:
    """The folder of a table's pieces in the lake."""
    return name.replace(".", "/", 1)
