"""The storage port: what a store must do inside one write transaction, and what it must read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from longshore.backends.base import WorkerInfo
from longshore.core.clock import ClockStep
from longshore.core.errors import CursorExpired, InvalidArgument
from longshore.core.explain import Holder
from longshore.core.filters import JobFilter
from longshore.core.job import Job, LogEntry
from longshore.core.job_record import Record, Tombstone
from longshore.core.limits import UNUSED, Rate, Window, free_slots_in, free_slots_under
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.transitions import Change, EventRow

T = TypeVar("T", contravariant=True)
P = ParamSpec("P")
R = TypeVar("R", covariant=True)

DAY = 86_400 * 1_000_000
KEY_TTL = DAY
"""How long a removed job's id and idempotency key are remembered."""
KEEP_FINISHED = 7 * DAY
KEEP_DEAD = 30 * DAY
KEEP_EVENTS = 30 * DAY
KEEP_WORKERS = DAY
KEEP_CREATED = 7 * DAY
"""For a job that was stored with `hold` and never accepted."""


@dataclass(slots=True)
class QueueState:
    """A queue's settings, and the counts that its limits apply to."""

    name: str
    paused: bool = False
    running_limit: int | None = None
    per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    window: Window = UNUSED
    keep_finished: int | None = KEEP_FINISHED
    keep_dead: int | None = KEEP_DEAD
    keep_events: int | None = KEEP_EVENTS
    running_count: int = 0
    """Jobs RUNNING or CANCELLING; counted by the store, never written here."""
    eligible: int = 0
    """Jobs in an eligible status, due or not; counted by the store, never written here. A store that would have to
    search for them may report 1, which means that there may be some."""

    @property
    def limits_keys(self) -> bool:
        """Whether concurrency keys matter in this queue."""
        return self.per_key is not None or self.rate_per_key is not None

    @property
    def limited(self) -> bool:
        """Whether a limit can keep a due job of this queue from starting."""
        limits = (self.running_limit, self.rate, self.per_key, self.rate_per_key)
        return any(limit is not None for limit in limits)

    def free_slots(self, now: int) -> int:
        """How many more of its jobs may start now."""
        if self.paused:
            return 0
        return min(free_slots_under(self.running_limit, self.running_count), free_slots_in(self.rate, self.window, now))


@dataclass(slots=True)
class KeyState:
    """One concurrency key of one queue; stored only if the queue limits its keys."""

    queue: str
    key: str
    running_count: int = 0
    window: Window = UNUSED

    def free_slots(self, queue: QueueState, now: int) -> int:
        """How many more of this key's jobs may start now."""
        if queue.rate_per_key is None:
            return free_slots_under(queue.per_key, self.running_count)
        return min(
            free_slots_under(queue.per_key, self.running_count), free_slots_in(queue.rate_per_key, self.window, now)
        )

    def window_ends_at(self, queue: QueueState, now: int) -> int | None:
        """When its next window begins, if it has used any of the current one."""
        rate = queue.rate_per_key
        if rate is None or self.window.at(rate, now).count == 0:
            return None
        return self.window.end(rate)


class Edge(NamedTuple):
    """A dependency of one job on another."""

    dependent_uid: int
    depends_on: str
    policy: str
    state: str
    """`waiting`, `satisfied` or `failed`."""
    position: int
    """Its index in the dependent's list of dependencies."""


class Completion(NamedTuple):
    """A job that completed, with the lease of its claim."""

    job_id: str
    epoch: int
    token: str
    result: bytes | None


@dataclass(slots=True)
class Ended:
    """Jobs that were completed together, their owners, and the keys whose slots are released."""

    job_ids: list[str]
    owners: Counter[str]
    keys: dict[str, Counter[str]]
    """The number of jobs by key, for each queue."""


def keys_by_queue(pairs: Iterable[tuple[str, str | None]]) -> dict[str, Counter[str]]:
    """Count the jobs by queue and key, from one pair for each job."""
    by_queue: dict[str, Counter[str]] = defaultdict(Counter)
    for (queue, key), jobs in Counter(pairs).items():
        if key is not None:
            by_queue[queue][key] += jobs
    return by_queue


class Candidate(NamedTuple):
    """An eligible job as a claim reads it; the first three fields are its claim order."""

    priority: int
    sort_key: int
    uid: int
    queue: str
    key: str | None
    expires_at: int | None
    blocked: bool
    running_count: int | None = None
    """The counts of its key, if they were read with it: running jobs and window."""
    window_start: int = 0
    window_count: int = 0


class Hold(IntEnum):
    """How a queue is locked; each way includes the ones before."""

    SHARED = 1
    """Its settings do not change."""
    SLOTS = 2
    """No other transaction uses its free slots."""
    EXCLUSIVE = 3
    """No other transaction holds it."""


class NewLease(NamedTuple):
    """The worker and lease of a claim."""

    owner: str
    token: str
    expires_at: int | None


class Undecided(Enum):
    """Why a claim has to be decided job by job."""

    EXPIRED = "a job that would be claimed is past its `expires_at`"
    FULL_KEYS = "the claim would skip too many jobs of full keys or other types, or it found none"


class Lookups(Protocol):
    """Reads without a lock, shared by a transaction and a reader."""

    def jobs_seen(self, job_ids: Sequence[str]) -> dict[str, Record]:
        """The jobs with these ids."""
        ...

    def records_by_key(
        self, pairs: Sequence[tuple[str, str]], since: int, /
    ) -> dict[tuple[str, str], Record | Tombstone]:
        """The jobs of these (queue, idempotency key) pairs, or the tombstones of those removed after `since`."""
        ...

    def edges_from(self, job_id: str) -> list[Edge]:
        """The dependencies of this job."""
        ...

    def queue_states(self, names: Sequence[str] | None) -> dict[str, QueueState]:
        """Settings and counts of these queues, or of every queue that has jobs or settings."""
        ...

    def known_queues(self) -> list[str]:
        """Queues that have jobs, settings or events, by name."""
        ...

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        """The states of these keys; a new state for an unknown key."""
        ...


class Transaction(Lookups, Protocol):
    """A write transaction; `now` is the store's clock in microseconds, the same throughout one operation."""

    now: int
    token_prefix: str
    """The prefix of the tokens of new leases. It differs between a store and a restored copy of it, which may use the
    same epochs again; empty where that cannot happen."""

    # -- jobs
    def jobs_by_id(self, job_ids: Sequence[str], *, renew: bool = False) -> dict[str, Record]:
        """Return and lock the jobs with these ids; with `renew`, the caller ends none of them.

        Records that are read to be changed may lack `depends_on`, here and below: it never changes.
        """
        ...

    def jobs_by_uid(self, uids: Sequence[int]) -> dict[int, Record]:
        """Return and lock the jobs with these uids."""
        ...

    def jobs_with_tags(self, tags: Sequence[str], queue: str | None) -> list[Record]:
        """Return the jobs that have all tags, oldest first; `tags` is never empty."""
        ...

    def lock_dependents(self, job_ids: Sequence[str], tags: Sequence[str], queue: str | None) -> None:
        """Lock the jobs with these ids or all the tags, and the dependents that end or continue with them, in the order
        that every transaction uses. Only a store with several writers needs it."""
        ...

    def jobs_held(self, owner: str | None, queue: str | None) -> list[Record]:
        """Return the RUNNING and CANCELLING jobs, by owner and queue if given."""
        ...

    def leases_ended(self, limit: int) -> list[Record]:
        """Return the jobs whose lease has expired, the longest ago first."""
        ...

    def cancellations_since(self, moment: int, limit: int) -> list[Record]:
        """Return the jobs whose cancellation was requested at `moment` or earlier, the oldest request first."""
        ...

    def expired_jobs(self, limit: int) -> list[Record]:
        """Return unstarted jobs whose `expires_at` has passed."""
        ...

    def jobs_ended_before(self, statuses: Iterable[JobStatus], moment: int, queue: str, limit: int) -> list[Record]:
        """Return jobs in one of these statuses since `moment` or earlier (CREATED: stored since), the oldest first."""
        ...

    def jobs_beyond(self, keep: int, status: JobStatus, queue: str, limit: int, /) -> list[Record]:
        """Return the queue's final jobs in this status except the `keep` that ended last, the oldest first."""
        ...

    def new_uids(self, count: int) -> Sequence[int]:
        """Reserve `count` unused uids, in ascending order."""
        ...

    def insert(self, records: Sequence[Record], events: Sequence[EventRow]) -> None:
        """Store new jobs, each with `job.added` as its first event, and then the further events.

        Raise DuplicateJob with the ids that stored jobs have, in the order of the batch; then nothing is stored.
        """
        ...

    def save(self, changes: Sequence[Change]) -> None:
        """Store changed jobs with their events, and keep the counts exact."""
        ...

    def complete(self, completions: Sequence[Completion], among: Sequence[str], /) -> Ended:
        """Complete the jobs that are RUNNING under the given lease and do not set `remove_on_complete`.

        Other completions are missing in the answer; the caller decides them one by one. `among` are the ids of the
        whole batch: a store with several writers locks all of them, in its order. Dependents and keys are not changed
        here.
        """
        ...

    def accept(self, job_ids: Sequence[str], /) -> bool:
        """Accept these jobs if each is CREATED, has no open dependency and no `run_at`, and is not LIFO.

        False means that nothing was written: the caller decides them one by one.
        """
        ...

    def announce_due(self, limit: int) -> list[str]:
        """Record `job.promoted` for jobs whose `announce_at` has passed, the longest ago first; return their ids.

        Jobs that another transaction is changing may be skipped: that change records its own event, or the next call
        finds them.
        """
        ...

    def remove(self, changes: Sequence[Change]) -> None:
        """Remove jobs permanently, write their last events, and leave tombstones."""
        ...

    # -- identity
    def jobs_by_key(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The job ids of (queue, idempotency key) pairs, of jobs that are stored or were removed within `KEY_TTL`."""
        ...

    def ids_taken(self, job_ids: Sequence[str]) -> set[str]:
        """Return the ids that stored jobs have."""
        ...

    def statuses(self, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, JobStatus]:
        """The statuses of jobs, also of those removed within `KEY_TTL`. With `lock` they do not change until the
        transaction ends, if the store can lock them."""
        ...

    # -- dependencies
    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        """The unsatisfied edges to these jobs, by dependent."""
        ...

    def edges_that_stop(self, uids: Sequence[int]) -> list[Edge]:
        """The waiting edges under `stop` that a failure of these uids propagates along, transitively, each once. Locks
        nothing."""
        ...

    def count_down(self, fewer: Mapping[int, int]) -> dict[int, int]:
        """Subtract from `deps_left` by uid; lock the jobs, and return what is left of those that exist."""
        ...

    def put_edges(self, edges: Sequence[Edge]) -> None:
        """Store new edges, or new states of known ones."""
        ...

    def unverified_edges(self, limit: int) -> list[Edge]:
        """The edges stored while their dependency could change unseen; storing them again marks them as verified.

        Only a store with several writers has any.
        """
        ...

    # -- flow control
    def lock_queues(self, names: Sequence[str] | None, hold: Hold = Hold.SLOTS) -> dict[str, QueueState]:
        """Like `queue_states`, and lock them in this way until the transaction ends."""
        ...

    def put_queue(self, state: QueueState) -> None:
        """Store a queue's settings."""
        ...

    def claim(
        self,
        queues: Sequence[QueueState],
        limit: int,
        lease: NewLease,
        types: Sequence[str] | None,
        most_skipped: int | None,
        /,
    ) -> list[Job] | Undecided:
        """Claim the first due jobs of these queues in bulk, in claim order; with `types`, only those of the types.

        `most_skipped` is None if no queue has a limit. Otherwise there is one queue, which limits its keys: the claim
        uses up their free slots, and skips at most this many jobs. `Undecided` says why nothing was claimed: the claim
        is then decided job by job.
        """
        ...

    def claim_chosen(self, chosen: Sequence[Candidate], lease: NewLease, /) -> list[Job]:
        """Claim these candidates, at least one, and return them in claim order."""
        ...

    def candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None = None, /
    ) -> Iterator[Candidate]:
        """The due, eligible jobs of the queue that are not blocked, in claim order, read one by one.

        `wanted` returns about how many are still wanted. Jobs of full keys may be left out. With tags, blocked jobs are
        included, because unblocking does not take tags into account.
        """
        ...

    def release_keys(self, queue: QueueState, released: Mapping[str, int], /) -> Mapping[str, KeyState] | None:
        """Subtract from the running count of each key, and delete idle keys.

        Return their states if any job of the queue is blocked and may be unblocked. Return None if none is, or if the
        next transaction that locks the queue does it.
        """
        ...

    def put_keys(self, queue: QueueState, /, states: Sequence[KeyState]) -> None:
        """Store the states of keys."""
        ...

    def block(self, uids: Sequence[int]) -> None:
        """Exclude jobs of full keys from claims."""
        ...

    def block_ahead(self, queue: QueueState, among: int, /) -> int:
        """Block all jobs of full keys among the first `among` in claim order; return how many."""
        ...

    def any_blocked(self, queue: str) -> bool:
        """Whether any job of the queue is blocked."""
        ...

    def unblock(self, queue: str, free_slots: Mapping[str, int], /) -> None:
        """Unblock jobs: for each key, the first of every type, as many of each as the key has free slots.

        A claim may name any type, so each type needs that many. The claim checks the key again.
        """
        ...

    def keys_with_ended_windows(self, queue: QueueState, /) -> list[KeyState]:
        """The keys whose rate has a new window, or whose window is in the future because the clock was set back."""
        ...

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        """Start or stop tracking the queue's keys after its limits changed: unblock all jobs and count again.

        With `new_windows` every key's starts count from 0; otherwise the counts are kept.
        """
        ...

    # -- job updates, events, schedules
    def write_progress(self, change: Change) -> None:
        """Store `record.progress` and the events."""
        ...

    def write_checkpoint(self, change: Change) -> None:
        """Store `record.checkpoint`."""
        ...

    def write_log(self, change: Change, level: str, message: str) -> None:
        """Append a line to the job's log, and the events."""
        ...

    def write_leases(self, records: Sequence[Record]) -> None:
        """Store `record.lease_expires_at`."""
        ...

    def write_event(self, event: EventRow) -> None:
        """Append an event of a queue or worker."""
        ...

    def schedules(self, ids: Sequence[str]) -> list[Schedule]:
        """Return and lock the schedules with these ids."""
        ...

    def schedules_due(self, after: int, until: int, limit: int) -> list[Schedule]:
        """Return and lock the unpaused schedules with a next run after `after` and until `until`, the most overdue
        first.

        Schedules that another transaction has locked may be left out.
        """
        ...

    def schedules_ahead(self, moment: int, limit: int) -> list[Schedule]:
        """Return and lock the unpaused schedules that were last changed after this moment.

        Schedules that another transaction has locked may be left out.
        """
        ...

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Store schedules; the caller has locked known ones with one of the methods above."""
        ...

    def move_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Store the next and last run of fired schedules; nothing else of them has changed."""
        ...

    def remove_schedule(self, schedule_id: str) -> bool:
        """Remove it; return False if there was none."""
        ...

    def put_worker(self, worker: WorkerInfo) -> None:
        """Store a worker's report, with the time."""
        ...

    def forget_workers(self, limit: int) -> int:
        """Drop workers without a heartbeat for `KEEP_WORKERS`."""
        ...

    def forget_tombstones(self, limit: int) -> int:
        """Drop tombstones older than `KEY_TTL`."""
        ...

    def prune_events(self, queue: str, moment: int, limit: int, through: int | None = None) -> int:
        """Drop the queue's events older than `moment`, from the start of the log; return how many.

        With `through`, no event after that position is dropped. One call visits a bounded part of the log. If it
        stopped for that reason, it returns at least 1: there is more.
        """
        ...


class Tally(NamedTuple):
    """Jobs in one status, and the failures recorded for them."""

    jobs: int
    retries: int


class LogEnds(NamedTuple):
    """The positions of the event log: its id, up to where it is pruned, and its last number.

    A position is one number in every store, and only grows.
    """

    log: str
    pruned_through: int
    """The last pruned event of the queue that is read."""
    pruned_anywhere: int
    """The last pruned event of any queue."""
    last: int
    """The last event that can be read now."""
    end: int
    """No cursor of this log is beyond this."""
    certain: int
    """All events up to here are visible: none will be added before it."""


class Search(NamedTuple):
    """The jobs to list on a page."""

    wanted: JobFilter
    past: int | None
    """The uid of the last job on the page before."""
    limit: int
    oldest_first: bool = False
    due: bool | None = None
    """Of eligible jobs, only those that are due (True) or delayed (False)."""
    now: int = 0


class Reader(Lookups, Protocol):
    """A consistent snapshot of the store."""

    def time(self) -> int:
        """The store's clock, in microseconds."""
        ...

    def clock_step(self) -> ClockStep | None:
        """The last step of the machine's clock, if this store detects steps."""
        ...

    def job(self, job_id: str) -> Record | None:
        """The job, or None."""
        ...

    def page(self, search: Search) -> list[Record]:
        """The jobs of one page, in order of uid."""
        ...

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        """The number of delayed jobs."""
        ...

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        """The first time after this one at which a delayed job is due, without LIFO jobs."""
        ...

    def tallies(self, tags: Sequence[str], queue: str | None) -> dict[JobStatus, Tally]:
        """Jobs and retries by status, over jobs that have all tags."""
        ...

    def counts_by_queue(self) -> dict[str, dict[JobStatus, int]]:
        """Jobs by queue and status, without zeros."""
        ...

    def logs(self, job_id: str, after: int) -> list[LogEntry] | None:
        """The job's log lines after a number; None if the job does not exist."""
        ...

    def log_ends(self, queue: str | None) -> LogEnds:
        """The positions of the event log, for a reader of this queue (or of all)."""
        ...

    def events(self, after: int, limit: int, queue: str | None, job_id: str | None) -> list[tuple[int, EventRow]]:
        """Events after a position, with their positions."""
        ...

    def schedules(self, ids: Sequence[str] | None) -> list[Schedule]:
        """The schedules with these ids, or all; by id."""
        ...

    def next_firing(self) -> int | None:
        """The next planned time of all schedules that are not paused."""
        ...

    def rated_queues(self) -> list[QueueState]:
        """The settings of queues that have a rate limit, for the queue or its keys."""
        ...

    def next_window_end(self, queue: str, now: int) -> int | None:
        """The earliest end of a window among the queue's keys that have used any of theirs."""
        ...

    def holders(self, queue: str, key: str | None, limit: int) -> list[Holder]:
        """Some running jobs of this queue (and key, if given)."""
        ...

    def ahead_of(self, record: Record, now: int, limit: int) -> int:
        """The number of jobs of its queue before this one in claim order, counted up to `limit`."""
        ...

    def recent_ends(self, queue: str, since: int, limit: int) -> list[int]:
        """When jobs of this queue completed after `since`, newest first; removed jobs do not count."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """The known workers, by id."""
        ...


@dataclass(frozen=True, slots=True)
class Operation(Generic[T, P, R]):
    """One operation of the contract, and what a store must know before it starts. See docs/write-a-backend.md."""

    run: Callable[Concatenate[T, P], R]
    """Called with a `Transaction` (or a `Reader`, if it only reads) and the operation's arguments."""
    locks: Callable[..., Sequence[str] | None] | None = None
    """The queues that it claims from, computed from the arguments; None is all. A store with several writers locks
    these queues before it locks any job."""
    uses_slots: bool = True
    """Whether it may use free slots of those queues, and so must wait for claims from queues with limits."""
    urgent: bool = False
    """Whether it takes precedence over other operations: a late renewal loses the lease."""
    follows_log: bool = False
    """Whether it reads the event log in order, and so must not see an event before all earlier ones are visible."""


def operation(
    *,
    locks: Callable[..., Sequence[str] | None] | None = None,
    uses_slots: bool = True,
    urgent: bool = False,
    follows_log: bool = False,
) -> Callable[[Callable[Concatenate[T, P], R]], Operation[T, P, R]]:
    """Declare the decorated function as an `Operation`."""

    def declare(run: Callable[Concatenate[T, P], R]) -> Operation[T, P, R]:
        return Operation(run, locks, uses_slots, urgent, follows_log)

    return declare


class RunsOperations(ABC):
    """A backend that runs operations on its store."""

    @abstractmethod
    async def _write(self, operation: Operation[Transaction, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the operation in a write transaction, durable on return; if it raises, nothing changed."""

    @abstractmethod
    async def _read(self, operation: Operation[Reader, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the operation on a consistent snapshot."""


_EVENT = re.compile(r"([0-9a-f]{8})-([0-9]{1,40})(?:-([0-9]{1,40}))?")
_JOB = re.compile(r"j([0-9]{1,19})")

_HIGHEST = 2**63 - 1


def event_cursor(ends: LogEnds, number: int) -> str:
    """The cursor of one event.

    Queues keep their events for different times, so other queues may be pruned beyond this event already. The cursor
    says up to where, so that it expires only when events that its holder could have read are pruned.
    """
    return f"{ends.log}-{number}" + (f"-{ends.pruned_anywhere}" if ends.pruned_anywhere > number else "")


def event_number(cursor: object, ends: LogEnds) -> int:
    """The position to read after; None is the start of what is kept."""
    if cursor is None:
        return 0
    found = _EVENT.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidArgument("after", "must be the cursor of an event; leave it out for the start of the log")
    if found[1] != ends.log:
        raise CursorExpired("this cursor is from another event log (a restored copy starts a new one); start from None")
    number = int(found[2])
    if number > ends.end:
        raise CursorExpired("this cursor is ahead of the log: the store was replaced by an older copy; start from None")
    if max(number, int(found[3] or 0)) < ends.pruned_through:
        raise CursorExpired("the events after this cursor have been pruned; start from None")
    return number


def comes_after(cursor: str, other: str) -> bool:
    """Whether a cursor is after another one of the same log; True if they cannot be compared."""
    found, before = _EVENT.fullmatch(cursor), _EVENT.fullmatch(other)
    if found is None or before is None or found[1] != before[1]:
        return True
    return int(found[2]) > int(before[2])


def job_cursor(uid: int) -> str:
    """The cursor of one job in a listing."""
    return f"j{uid}"


def job_number(cursor: object) -> int | None:
    """The uid after which a listing continues."""
    if cursor is None:
        return None
    found = _JOB.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None or int(found[1]) > _HIGHEST:
        raise InvalidArgument("cursor", "must be the next_cursor of a page; leave it out for the first page")
    return int(found[1])
