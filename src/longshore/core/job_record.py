"""A job as a store keeps it: plain columns with times in microseconds, and its removal options."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, cast

from longshore.core.dependencies import check_edge_policies, check_policy
from longshore.core.errors import InvalidArgument
from longshore.core.job import DEFAULT_QUEUE, Job, Lease
from longshore.core.retry import backoff_of
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.times import (
    check_datetime,
    check_duration,
    check_moment,
    from_micros,
    optional_moment,
    optional_span,
)
from longshore.core.validation import (
    LARGEST,
    LARGEST_NOTE,
    SMALLEST,
    check_bytes,
    check_json,
    check_name,
    check_names,
    check_number,
    check_status,
    check_tags,
    unpack,
)

_OPTIONS = {JobStatus.COMPLETED: "remove_on_complete", JobStatus.DEAD: "remove_on_fail"}


def check_removal(options: Mapping[str, Any]) -> None:
    """Reject values other than True (remove it), False (keep it) and the number of jobs to keep."""
    for name in _OPTIONS.values():
        value = options.get(name, False)
        if not isinstance(value, bool) and not (isinstance(value, int) and 0 <= value <= LARGEST):
            raise InvalidArgument(
                f"options.{name}", f"must be True, False, or how many to keep, from 0 to {LARGEST}; got {value!r}"
            )


def kept_after(status: JobStatus, options: str) -> int | None:
    """How many jobs with this status its queue keeps after this one: 0 removes this job too, None keeps all."""
    name = _OPTIONS.get(status)
    if name is None or f'"{name}"' not in options:
        return None
    value = json.loads(options).get(name, False)
    if isinstance(value, bool):
        return 0 if value else None
    return int(value)


REQUEST = "request"
"""The job option with the fingerprint of its request, which tells a replay from a different request."""
FINGERPRINT = re.compile("[0-9a-f]{32}")

FRONT = -(2**60)
"""The sort keys of LIFO jobs start here, before every possible time: the year 1 is -2**56 microseconds."""


@dataclass(slots=True)
class Record:
    """One row of `jobs`. An operation changes its copy and saves it. See docs/write-a-backend.md."""

    uid: int = 0
    id: str = ""
    queue: str = ""
    type: str = ""
    payload: bytes = b""
    tags: tuple[str, ...] = ()
    options: str = "{}"
    """JSON text, "{}" for none."""
    priority: int = 0
    lifo: bool = False
    delay: int | None = None
    expires_at: int | None = None
    timeout: int | None = None
    max_attempts: int = 0
    max_crashes: int | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    parent_id: str | None = None
    on_dependency_failure: str = "wait"
    schedule_id: str | None = None
    deps_total: int = 0
    created_at: int = 0
    # columns that change
    deps_left: int = 0
    status: JobStatus = JobStatus.INITIAL_PENDING
    run_at: int | None = None
    eligible_at: int = 0
    """The later of `run_at` and the time it last entered the queue: claimable from this time on."""
    sort_key: int = 0
    """Its order within its priority: smaller is sooner. LIFO jobs come before all others, newest first."""
    blocked: bool = False
    """Excluded from the claim's index because its concurrency key is full; see `backends/operations/persist.py`."""
    executions: int = 0
    retry_count: int = 0
    crashes: int = 0
    epoch: int = 0
    job_seq: int = 0
    updated_at: int = 0
    started_at: int | None = None
    finalized_at: int | None = None
    last_retry_at: int | None = None
    assigned_at: int | None = None
    assignee_id: str | None = None
    lease_owner: str | None = None
    lease_token: str | None = None
    lease_expires_at: int | None = None
    announce_at: int | None = None
    """When to record `job.promoted` for a delayed job; None once recorded. It matters only while the job is
    eligible."""
    cancel_asked_at: int | None = None
    """When its cancellation was requested."""
    result: bytes | None = None
    error_message: str = ""
    # written by the job while it runs, apart from its transitions
    progress: str | None = None
    checkpoint: bytes | None = None
    relative: bool = False
    """Whether `run_at` was given as a duration: a step of the machine's clock then shifts it."""
    # stored in other tables
    depends_on: tuple[str, ...] = ()

    @property
    def request(self) -> str | None:
        """The fingerprint of the request that created it, or None."""
        if f'"{REQUEST}"' not in self.options:
            return None
        found = json.loads(self.options).get(REQUEST)
        return found if isinstance(found, str) and FINGERPRINT.fullmatch(found) else None

    def waits(self, now: int) -> bool:
        """Whether `run_at` is in the future."""
        return self.run_at is not None and self.run_at > now

    def is_delayed(self, now: int) -> bool:
        """Whether it is eligible but not due yet."""
        return self.status in ELIGIBLE and self.eligible_at > now

    def set_sort_key(self, now: int) -> None:
        """Set the sort key for the next claim, from `run_at` and the last retry."""
        came = self.created_at if self.last_retry_at is None else self.last_retry_at
        came = min(came, now)
        self.eligible_at = came if self.run_at is None else max(self.run_at, came)
        self.announce_at = self.run_at if self.status in ELIGIBLE and self.eligible_at > now else None
        self.sort_key = FRONT - self.uid if self.lifo else self.eligible_at
        self.blocked = False


class Tombstone(NamedTuple):
    """The stored remains of a job that was removed."""

    uid: int
    id: str
    queue: str
    type: str
    status: JobStatus
    idempotency_key: str | None
    request: str | None


_ALL_FIELDS = tuple(Record.__slots__)
_values = attrgetter(*_ALL_FIELDS)


def copy_of(record: Record) -> Record:
    """A copy to change."""
    return Record(*_values(record))


def claim_order(record: Record) -> tuple[int, int, int]:
    """The sort key of the order in which jobs are claimed."""
    return (record.priority, record.sort_key, record.uid)


def record_of(job: object, now: int) -> Record:
    """Build the record of a job to enqueue, or raise InvalidArgument with the field. The store sets uid and status.

    A new job has no history: the counters, owner and result of the caller's `Job` are ignored.
    """
    if not isinstance(job, Job):
        raise InvalidArgument("job", f"must be a Job, not {type(job).__name__}")
    job_id = check_name("id", job.id)
    status = job.status if type(job.status) is JobStatus else check_status("status", job.status)
    if status is not JobStatus.INITIAL_PENDING and status is not JobStatus.CREATED:
        raise InvalidArgument("status", f"of a new job must be INITIAL_PENDING or CREATED, not {status}")
    if job.on_dependency_failure != "wait":
        check_policy("on_dependency_failure", job.on_dependency_failure)
    run_at = None if job.run_at is None else check_moment("run_at", job.run_at, now)
    delay = None if job.delay is None else check_duration("delay", job.delay, positive=False)
    if run_at is None and delay:
        run_at = check_moment("delay", job.delay, now)
    depends_on = () if job.depends_on == () else check_names("depends_on", job.depends_on)
    if job_id in depends_on:
        raise InvalidArgument("depends_on", f"names the job itself: {job_id} -> {job_id}")
    if not isinstance(job.lifo, bool):
        raise InvalidArgument("lifo", f"must be True or False, not {type(job.lifo).__name__}")
    record = Record()
    record.id = job_id
    record.queue = "default" if job.queue is DEFAULT_QUEUE else check_name("queue", job.queue)
    record.type = check_name("type", job.type)
    record.payload = check_bytes("payload", job.payload)
    if job.tags != ():
        record.tags = check_tags("tags", job.tags)
    if job.options != {}:
        record.options = _options_of(job.options, depends_on)
    record.priority = check_number("priority", job.priority, least=SMALLEST)
    record.lifo = job.lifo
    record.delay = delay
    record.run_at = run_at
    record.relative = run_at is not None and not isinstance(job.run_at, datetime)
    if job.expires_at is not None:
        record.expires_at = check_moment("expires_at", job.expires_at, now)
    if job.timeout is not None:
        record.timeout = check_duration("timeout", job.timeout)
    record.max_attempts = check_number("max_attempts", job.max_attempts)
    if job.max_crashes is not None:
        record.max_crashes = check_number("max_crashes", job.max_crashes)
    if job.idempotency_key is not None:
        record.idempotency_key = check_name("idempotency_key", job.idempotency_key)
    if job.concurrency_key is not None:
        record.concurrency_key = check_name("concurrency_key", job.concurrency_key)
    if job.parent_id is not None:
        record.parent_id = check_name("parent_id", job.parent_id)
    if job.schedule_id is not None:
        record.schedule_id = check_name("schedule_id", job.schedule_id)
    record.on_dependency_failure = job.on_dependency_failure
    record.depends_on = depends_on
    record.deps_total = len(depends_on)
    record.status = status
    record.created_at = now if job.created_at is None else check_datetime("created_at", job.created_at)
    record.updated_at = now
    return record


def record_like(job: Job, job_id: str, schedule_id: str, now: int) -> Record:
    """Build the record that `record_of` builds for a copy of this job with other ids, in a third of the time. Schedules
    use it: their template was checked when it was stored, and has no `run_at` and no dependencies."""
    record = Record()
    record.id = job_id
    record.schedule_id = schedule_id
    record.queue = "default" if job.queue is DEFAULT_QUEUE else job.queue
    record.type = job.type
    record.payload = job.payload
    record.tags = tuple(job.tags)
    if job.options:
        record.options = check_json("options", dict(job.options), limit=LARGEST_NOTE).decode()
    record.priority = job.priority
    record.lifo = job.lifo
    if job.delay is not None:
        record.delay = check_duration("delay", job.delay, positive=False)
        record.run_at = check_moment("delay", job.delay, now) if record.delay else None
        record.relative = record.run_at is not None
    if job.expires_at is not None:
        record.expires_at = check_moment("expires_at", job.expires_at, now)
    if job.timeout is not None:
        record.timeout = check_duration("timeout", job.timeout)
    record.max_attempts = job.max_attempts
    record.max_crashes = job.max_crashes
    record.concurrency_key = job.concurrency_key
    record.parent_id = job.parent_id
    record.on_dependency_failure = job.on_dependency_failure
    record.status = JobStatus.INITIAL_PENDING
    record.created_at = record.updated_at = now
    return record


MutableJob = dataclasses.make_dataclass(
    "MutableJob", [(spec.name, spec.type) for spec in dataclasses.fields(Job)], slots=True
)
"""A `Job` that is not frozen: filled at once and then turned into a Job, in a fifth of the time."""


_job_fields = attrgetter(*(spec.name for spec in dataclasses.fields(Job)))
_INDEX_OF = {spec.name: index for index, spec in enumerate(dataclasses.fields(Job))}


class JobTemplate:
    """Creates copies of a job like `job.replace`, in a tenth of the time, for thousands of jobs."""

    def __init__(self, job: Job) -> None:
        self._values = list(_job_fields(job))

    def job(self, **changes: Any) -> Job:
        """Return a copy with these fields changed."""
        values = self._values.copy()
        for name, value in changes.items():
            values[_INDEX_OF[name]] = value
        copy = MutableJob(*values)
        copy.__class__ = Job
        return cast(Job, copy)


@lru_cache(maxsize=1024)  # the jobs of one claim share it
def _lease(token: str, epoch: int, expires_at: int | None, cancelling: bool) -> Lease:
    return Lease(token, epoch, optional_moment(expires_at), cancelling)


_stored_fields = attrgetter(*("lease_token" if name == "lease" else name for name in _INDEX_OF))
_CONVERTED: tuple[tuple[int, Callable[[Any], Any]], ...] = (
    *((_INDEX_OF[name], from_micros) for name in _INDEX_OF if name.endswith("_at")),
    *((_INDEX_OF[name], optional_span) for name in ("delay", "timeout")),
    (_INDEX_OF["progress"], json.loads),
    (_INDEX_OF["checkpoint"], unpack),
    (_INDEX_OF["options"], lambda options: {} if options == "{}" else json.loads(options)),
)
"""The fields of a Job that are stored in another form, by position, with their decoders."""


def job_of(record: Record) -> Job:
    """Return the public record."""
    values = list(_stored_fields(record))
    for position, read in _CONVERTED:
        if values[position] is not None:
            values[position] = read(values[position])
    lease = None
    if record.status in HOLDS_CAPACITY and record.lease_token is not None:
        cancelling = record.status is JobStatus.CANCELLING
        lease = _lease(record.lease_token, record.epoch, record.lease_expires_at, cancelling)
    values[_INDEX_OF["lease"]] = lease
    job = MutableJob(*values)
    job.__class__ = Job
    return cast(Job, job)


def _options_of(options: object, depends_on: Sequence[str]) -> str:
    if not isinstance(options, Mapping):
        raise InvalidArgument("options", f"must be a mapping, not {type(options).__name__}")
    plain: dict[str, Any] = dict(options)
    encoded = check_json("options", plain, limit=LARGEST_NOTE).decode()
    backoff_of(plain)
    check_removal(plain)
    check_edge_policies(plain, depends_on)
    return encoded


def is_repeat(sent: Record, known: Record | Tombstone) -> bool:
    """Whether the job is a replay of the known one, and not another job with its key or id."""
    if (sent.queue, sent.type) != (known.queue, known.type):
        return False
    if sent.idempotency_key not in (None, known.idempotency_key):  # found by id, and it would lose this key
        return False
    if known.request is not None:
        return sent.request == known.request
    return isinstance(known, Tombstone) or sent.payload == known.payload  # a tombstone has no payload to compare
