"""Records as rows and back: the same column order in every dialect."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol, cast

from longshore.backends.port import KeyState, NewLease, QueueState
from longshore.core.job import Job, Lease
from longshore.core.job_record import MutableJob, Record, Tombstone
from longshore.core.limits import Window, rate_of, window_of
from longshore.core.status import ELIGIBLE, JobStatus
from longshore.core.times import from_micros, optional_moment, optional_span
from longshore.core.transitions import Change, EventRow
from longshore.core.validation import unpack

Row = tuple[Any, ...]


class Queries(Protocol):
    """Runs statements on one connection, in one dialect."""

    def rows(self, statement: str, *values: Any) -> Iterator[Row]:
        """The rows that a statement returns."""
        ...

    def one(self, statement: str, *values: Any) -> Row | None:
        """The first row, or None."""
        ...

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement that changes rows; return how many."""
        ...

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        """Run a statement once for each row of values."""
        ...

    def listed(self, values: Iterable[Any]) -> Any:
        """Encode many values as one parameter."""
        ...

    def log_position(self, position: int) -> tuple[Any, ...]:
        """A position in the event log as parameters."""
        ...

    def log_range(self, after: int) -> tuple[Any, ...]:
        """The range of the log after this position as parameters."""
        ...

    def positioned(self, row: Row) -> tuple[int, Row]:
        """Split a row that starts with a log position into the position and the rest."""
        ...


_new_columns = attrgetter(
    "uid", "id", "queue", "type", "payload", "options", "priority", "lifo", "delay", "expires_at", "timeout",
    "max_attempts", "max_crashes", "idempotency_key", "concurrency_key", "parent_id", "on_dependency_failure",
    "schedule_id", "deps_total", "created_at", "deps_left", "status", "run_at", "eligible_at", "sort_key",
    "announce_at", "job_seq", "updated_at",
)  # fmt: skip
_saved_columns = attrgetter(
    "deps_left", "status", "run_at", "eligible_at", "sort_key", "blocked", "executions", "retry_count", "crashes",
    "epoch", "job_seq", "updated_at", "started_at", "finalized_at", "last_retry_at", "assigned_at", "assignee_id",
    "lease_owner", "lease_token", "lease_expires_at", "announce_at", "cancel_asked_at", "result", "error_message",
    "uid",
)  # fmt: skip


class DamagedRow(ValueError):
    """A row has a value that was never written to it."""


class _Statuses(dict[str | None, Any]):
    """Statuses by stored name. A dict, because the enum lookup costs ten times as much and every row needs one."""

    def __missing__(self, name: object) -> None:
        raise DamagedRow(f"a row has the status {name!r}")


STATUS = _Statuses({None: None} | {status.value: status for status in JobStatus})


def record_of_row(row: Row) -> Record:
    """Convert a row of `job_columns`; the reader fills in dependencies."""
    record = Record(*row)
    record.status = STATUS[record.status]
    record.tags = tuple(json.loads(record.tags)) if record.tags else ()  # type: ignore[arg-type]  # text until here
    record.lifo = record.lifo == 1
    record.blocked = record.blocked == 1
    record.relative = record.relative == 1
    return record


def tombstone_of_row(row: Row) -> Tombstone:
    """A row of `tombstones`, without its time."""
    uid, id_, queue, type_, status, key, request = row
    return Tombstone(uid, id_, queue, type_, STATUS[status], key, request)


def inserted_row(record: Record) -> Row:
    """A new job as parameters of `insert_job`."""
    return (*_new_columns(record), json.dumps(record.tags, ensure_ascii=False) if record.tags else "")


def saved_row(change: Change) -> Row:
    """A changed job as parameters of `save_job`: its columns, its uid, and the version it must still have."""
    record = change.record
    return (*_saved_columns(record), record.job_seq - len(change.events))


def tag_rows(record: Record) -> Iterator[Row]:
    """A new job's tags as parameters of `insert_tag`."""
    claimable = record.status in ELIGIBLE
    for tag in record.tags:
        yield (
            tag,
            record.uid,
            record.queue,
            record.priority,
            record.sort_key,
            claimable,
            record.status,
            record.retry_count,
        )


def queue_of_row(row: Row) -> QueueState:
    """Convert a row of `queue_columns`, without counts."""
    name, paused, running, per_key, count, per, key_count, key_per, start, used, finished, dead, events = row
    return QueueState(
        name,
        paused == 1,
        running,
        per_key,
        rate_of(count, per),
        rate_of(key_count, key_per),
        Window(start, used),
        finished,
        dead,
        events,
    )


def row_of_queue(state: QueueState) -> Row:
    """A state as a row of `queue_columns`."""
    rate, key_rate = state.rate, state.rate_per_key
    return (
        state.name,
        state.paused,
        state.running_limit,
        state.per_key,
        None if rate is None else rate.count,
        None if rate is None else rate.per_micros,
        None if key_rate is None else key_rate.count,
        None if key_rate is None else key_rate.per_micros,
        state.window.start,
        state.window.count,
        state.keep_finished,
        state.keep_dead,
        state.keep_events,
    )


def key_of_row(row: Row) -> KeyState:
    """A row of `concurrency_keys`, without the end of its window."""
    queue, key, running_count, start, count = row
    return KeyState(queue, key, running_count, window_of(start, count))


def event_of_row(row: Row) -> EventRow:
    """A row of `event_columns`, after its position."""
    columns = (*row[:6], STATUS[row[6]], STATUS[row[7]], *row[8:])
    return tuple.__new__(EventRow, columns)  # half the cost of EventRow(...), for thousands of rows


class Delta(NamedTuple):
    """The change of the count of one queue and status."""

    queue: str
    status: JobStatus
    jobs: int
    retries: int


def deltas_of(changes: Iterable[Change], *, removed: bool = False) -> list[Delta]:
    """The changes of counts for changed or removed jobs."""
    counts: dict[tuple[str, JobStatus], list[int]] = defaultdict(lambda: [0, 0])
    for change in changes:
        record = change.record
        was = counts[record.queue, change.was]
        was[0] -= 1
        was[1] -= change.was_retries
        if not removed:
            now = counts[record.queue, record.status]
            now[0] += 1
            now[1] += record.retry_count
    return [Delta(*key, jobs, retries) for key, (jobs, retries) in counts.items() if jobs or retries]


class Moves:
    """The columns of a statement that counts and tags need after a bulk transition."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.counted = itemgetter(*map(columns.index, ("queue", "status", "retry_count")))
        self.tags = itemgetter(columns.index("tags"))
        self.tagged = itemgetter(*map(columns.index, ("uid", "retry_count", "sort_key", "tags")))


def deltas_of_moves(moves: Moves, rows: Iterable[Row], status: JobStatus) -> list[Row]:
    """The changes of counts for jobs that all entered one status, as parameters of `add_to_count`."""
    deltas: list[Row] = []
    for (queue, was, retries), jobs in Counter(map(moves.counted, rows)).items():
        deltas.append((queue, STATUS[was], -jobs, -jobs * retries))
        deltas.append((queue, status, jobs, jobs * retries))
    return deltas


def tags_of_moves(moves: Moves, rows: Iterable[Row], status: JobStatus) -> Iterator[Row]:
    """The tags of these jobs, as parameters of `save_tag`."""
    for uid, retries, sort_key, tags in map(moves.tagged, rows):
        for tag in json.loads(tags):
            yield (sort_key, status in ELIGIBLE, status, retries, tag, uid)


CLAIM_COLUMNS = ["sort_key" if spec.name == "updated_at" else spec.name for spec in dataclasses.fields(Job)]
"""The fields of Job, with the status before the claim, and the sort key in place of `updated_at`."""

MOVES = Moves(CLAIM_COLUMNS)
_KEY = CLAIM_COLUMNS.index("concurrency_key")
type_of = itemgetter(CLAIM_COLUMNS.index("type"))
_expires_at = itemgetter(CLAIM_COLUMNS.index("expires_at"))
row_claim_order = itemgetter(*map(CLAIM_COLUMNS.index, ("priority", "sort_key", "uid")))
"""The order in which jobs are claimed, as a key for rows of `claimed_columns`."""


def any_expired(rows: Iterable[Row], now: int) -> bool:
    """Whether one of the jobs is past its `expires_at`, and must not start."""
    return any(end is not None and end <= now for end in map(_expires_at, rows))


class WithinKeys:
    """Chooses the first jobs whose keys have free slots, from rows of `claimed_columns` with the state of each key."""

    def __init__(
        self, queue: QueueState, limit: int, most_skipped: int, now: int, types: Sequence[str] | None = None
    ) -> None:
        self.used: dict[str, int] = {}
        """The number of chosen jobs by key."""
        self._queue = queue
        self._limit = limit
        self._most_skipped = most_skipped
        self._now = now
        self._types = None if types is None else frozenset(types)

    def choose(self, rows: Iterable[Row]) -> list[Row]:
        """Return at most `limit` rows of `claimed_columns`, in their order; none if too many are skipped."""
        chosen: list[Row] = []
        passed = 0
        left: dict[str, int] = {}
        used = self.used
        types = self._types
        for *columns, running_count, start, count in rows:
            if types is not None and type_of(columns) not in types:
                passed += 1
                if passed > self._most_skipped:
                    return []
                continue
            key = columns[_KEY]
            if key is not None:
                free_slots = left.get(key)
                if free_slots is None:
                    state = KeyState(self._queue.name, key, running_count, window_of(start, count))
                    free_slots = state.free_slots(self._queue, self._now)
                if free_slots <= 0:
                    left[key] = 0
                    passed += 1
                    if passed > self._most_skipped:
                        return []
                    continue
                left[key] = free_slots - 1
                used[key] = used.get(key, 0) + 1
            chosen.append(tuple(columns))
            if len(chosen) == self._limit:
                break
        return chosen


def claimed_jobs(
    rows: Iterable[Row],
    lease: NewLease,
    now_micros: int,
    dependencies_of: Callable[[Sequence[int]], Mapping[int, tuple[str, ...]]],
) -> list[Job]:
    """Build the claimed jobs from rows of `claimed_columns`."""
    now = from_micros(now_micros)
    lease_ends = optional_moment(lease.expires_at)
    leases: dict[int, Lease] = {}
    jobs = []
    dependent = []
    for row in rows:
        job = MutableJob(*row)
        job.status = JobStatus.RUNNING
        job.tags = tuple(json.loads(job.tags)) if job.tags else ()
        job.lifo = job.lifo == 1
        job.options = {} if job.options == "{}" else json.loads(job.options)
        if job.depends_on:  # the number of dependencies, so far
            dependent.append(job)
        else:
            job.depends_on = ()
        job.created_at = from_micros(job.created_at)
        at = now if job.assigned_at is None else from_micros(job.assigned_at)
        job.updated_at = job.assigned_at = at
        job.started_at = at if job.started_at is None else from_micros(job.started_at)
        job.assignee_id = lease.owner
        job.lease = leases.get(job.epoch)
        if job.lease is None:  # jobs of one epoch share it
            job.lease = leases[job.epoch] = Lease(lease.token, job.epoch, lease_ends)
        if job.run_at is not None:
            job.run_at = from_micros(job.run_at)
        if job.delay is not None:
            job.delay = optional_span(job.delay)
        if job.expires_at is not None:
            job.expires_at = from_micros(job.expires_at)
        if job.timeout is not None:
            job.timeout = optional_span(job.timeout)
        if job.finalized_at is not None:
            job.finalized_at = from_micros(job.finalized_at)
        if job.last_retry_at is not None:
            job.last_retry_at = from_micros(job.last_retry_at)
        if job.progress is not None:
            job.progress = json.loads(job.progress)
        if job.checkpoint is not None:
            job.checkpoint = unpack(job.checkpoint)
        job.__class__ = Job
        jobs.append(cast(Job, job))
    if dependent:
        names = dependencies_of([job.uid for job in dependent])
        for job in dependent:
            object.__setattr__(job, "depends_on", names.get(job.uid, ()))
    return jobs
