"""The storage port: what a store must be able to do inside one write transaction, and what it must be able to read."""

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
"""A job that was stored and never accepted: nobody is coming for it."""


@dataclass(slots=True)
class QueueState:
    """A queue's settings, and what its limits are measured against."""

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
    look for them may say 1 instead, which means that there may be some."""

    @property
    def limits_keys(self) -> bool:
        """Whether concurrency keys matter in this queue."""
        return self.per_key is not None or self.rate_per_key is not None

    @property
    def limited(self) -> bool:
        """Whether anything but a pause can keep a due job of this queue from starting."""
        limits = (self.running_limit, self.rate, self.per_key, self.rate_per_key)
        return any(limit is not None for limit in limits)

    def free_slots(self, now: int) -> int:
        """How many more of its jobs may start now."""
        if self.paused:
            return 0
        return min(free_slots_under(self.running_limit, self.running_count), free_slots_in(self.rate, self.window, now))


@dataclass(slots=True)
class KeyState:
    """One concurrency key of one queue, kept only where the queue limits its keys."""

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
        """When its next window begins and it has more free slots, if it has used up any of this one."""
        rate = queue.rate_per_key
        if rate is None or self.window.at(rate, now).count == 0:
            return None
        return self.window.end(rate)


class Edge(NamedTuple):
    """One job waiting for another."""

    dependent_uid: int
    depends_on: str
    policy: str
    state: str
    """`waiting`, `satisfied` or `failed`."""
    position: int
    """Which of the dependent's dependencies it is, as its caller listed them."""


class Completion(NamedTuple):
    """A job that ended well, under the lease it was claimed with."""

    job_id: str
    epoch: int
    token: str
    result: bytes | None


@dataclass(slots=True)
class Ended:
    """Jobs that were completed together: who held them, and the keys whose slots are free again."""

    job_ids: list[str]
    owners: Counter[str]
    keys: dict[str, Counter[str]]
    """Of each queue the keys that they had."""


def keys_by_queue(pairs: Iterable[tuple[str, str | None]]) -> dict[str, Counter[str]]:
    """How many there are of each key of each queue, from one pair for each job."""
    by_queue: dict[str, Counter[str]] = defaultdict(Counter)
    for (queue, key), jobs in Counter(pairs).items():
        if key is not None:
            by_queue[queue][key] += jobs
    return by_queue


class Candidate(NamedTuple):
    """A job in line, as a claim looks at it; the first three are its standing order."""

    priority: int
    sort_key: int
    uid: int
    queue: str
    key: str | None
    expires_at: int | None
    blocked: bool
    running_count: int | None = None
    """What is known of its key, where that was looked up too: how many are held, and its window."""
    window_start: int = 0
    window_count: int = 0


class Hold(IntEnum):
    """How a queue is locked; each way includes the ones before."""

    SHARED = 1
    """Its settings stay as they are."""
    SLOTS = 2
    """No other transaction uses the free slots that its limits leave."""
    ALONE = 3
    """No other transaction holds it in any way."""


class NewLease(NamedTuple):
    """Who claims, and under which lease."""

    owner: str
    token: str
    expires_at: int | None


class Undecided(Enum):
    """Why a claim has to be decided job by job."""

    EXPIRED = "a job that would be claimed is past its `expires_at`"
    FULL_KEYS = "more jobs of full keys, or of other types, come first than a claim passes over; or none is left"


class Lookups(Protocol):
    """What both a transaction and a reader look up, without a lock."""

    def jobs_seen(self, job_ids: Sequence[str]) -> dict[str, Record]:
        """Those of the ids that exist, as they are."""
        ...

    def jobs_behind(self, pairs: Sequence[tuple[str, str]], since: int, /) -> dict[tuple[str, str], Record | Tombstone]:
        """The jobs behind (queue, idempotency key): as they are, or what is left of those removed after `since`."""
        ...

    def edges_from(self, job_id: str) -> list[Edge]:
        """What this job depends on."""
        ...

    def queue_states(self, names: Sequence[str] | None) -> dict[str, QueueState]:
        """Settings and counts of these queues, or of every queue that has jobs or settings."""
        ...

    def queues_ever_seen(self) -> list[str]:
        """Queues that have jobs, settings or events, by name."""
        ...

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        """What is known of these keys, a fresh state for one never seen."""
        ...


class Transaction(Lookups, Protocol):
    """A write transaction; `now` is the store's clock in microseconds, the same throughout one operation."""

    now: int
    token_prefix: str
    """What the tokens of new leases begin with. It differs between a store and a restored copy of it, if the copy may
    use the same epochs again; empty where that cannot happen."""

    # -- jobs
    def jobs_by_id(self, job_ids: Sequence[str], *, renew: bool = False) -> dict[str, Record]:
        """Those of the ids that exist, locked until the end; with `renew` the caller ends none of them.

        Of jobs that are to be changed `depends_on` may be left out, here and below: it never changes.
        """
        ...

    def jobs_by_uid(self, uids: Sequence[int]) -> dict[int, Record]:
        """Those of the uids that exist, locked until the end."""
        ...

    def jobs_with_tags(self, tags: Sequence[str], queue: str | None) -> list[Record]:
        """Jobs that carry all the tags, oldest first; `tags` is never empty."""
        ...

    def lock_dependents(self, job_ids: Sequence[str], tags: Sequence[str], queue: str | None) -> None:
        """Locks the jobs that carry these ids or all the tags, and whoever ends with them or goes on without them, in
        the order in which everybody locks. Only a store with several writers at once has anything to do here."""
        ...

    def jobs_held(self, owner: str | None, queue: str | None) -> list[Record]:
        """Jobs RUNNING or CANCELLING, by owner and queue where given."""
        ...

    def leases_ended(self, limit: int) -> list[Record]:
        """Jobs held under a lease that has ended, the longest ago first."""
        ...

    def cancellations_since(self, moment: int, limit: int) -> list[Record]:
        """Jobs being cancelled since `moment` or earlier, the longest first."""
        ...

    def expired_jobs(self, limit: int) -> list[Record]:
        """Jobs not started whose `expires_at` has passed."""
        ...

    def jobs_ended_before(self, statuses: Iterable[JobStatus], moment: int, queue: str, limit: int) -> list[Record]:
        """Jobs in one of these statuses since `moment` or earlier (CREATED: stored since), the oldest first."""
        ...

    def jobs_beyond(self, keep: int, status: JobStatus, queue: str, limit: int, /) -> list[Record]:
        """Final jobs of the queue in this status, but for the `keep` that ended last; the oldest first."""
        ...

    def new_uids(self, count: int) -> Sequence[int]:
        """So many uids never used before, the smallest first."""
        ...

    def insert(self, records: Sequence[Record], events: Sequence[EventRow]) -> None:
        """Stores new jobs, each with `job.added` as its first event, and then the further events.

        Raises DuplicateJob with the ids that stored jobs have, in the order of the batch; nothing of it stays then.
        """
        ...

    def save(self, changes: Sequence[Change]) -> None:
        """Stores changed jobs with their events, and keeps counts exact."""
        ...

    def complete(self, completions: Sequence[Completion], among: Sequence[str], /) -> Ended:
        """Completes the jobs that are RUNNING under the given lease and do not set `remove_on_complete`.

        Every other completion is left out of the answer, and is then decided on its own. `among` are the ids of the
        whole batch: a store with several writers locks all of them, in its order. Dependents and keys are not changed
        here.
        """
        ...

    def accept(self, job_ids: Sequence[str], /) -> bool:
        """Accepts these jobs if each is CREATED, has no open dependency and no `run_at`, and is not LIFO.

        False means that nothing was written: one of them is to be refused, or has to wait.
        """
        ...

    def announce_due(self, limit: int) -> list[str]:
        """Tells `job.promoted` of jobs whose `announce_at` has come, the longest ago first; returns their ids.

        Whom somebody else is changing just now may be left out: that is news of its own, or the next call finds them.
        """
        ...

    def remove(self, changes: Sequence[Change]) -> None:
        """Removes jobs for good, writes their last events, and leaves tombstones."""
        ...

    # -- identity
    def jobs_by_key(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Job ids behind (queue, idempotency key): of jobs stored, or removed less than `KEY_TTL` ago."""
        ...

    def ids_taken(self, job_ids: Sequence[str]) -> set[str]:
        """The ids among these that stored jobs have."""
        ...

    def statuses(self, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, JobStatus]:
        """The statuses of jobs, or of those removed less than `KEY_TTL` ago; with `lock` they stay so until the end, if
        the store can lock them."""
        ...

    # -- dependencies
    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        """Edges to these jobs that are not satisfied, by dependent."""
        ...

    def edges_that_stop(self, uids: Sequence[int]) -> list[Edge]:
        """Waiting edges under `stop` from jobs to those of these uids that wait themselves, from others to them, and so
        on: all that a failure may run along, each once. Nothing is locked."""
        ...

    def count_down(self, fewer: Mapping[int, int]) -> dict[int, int]:
        """Takes so many from `deps_left` of jobs by uid; returns what is left, of those that exist, now locked."""
        ...

    def put_edges(self, edges: Sequence[Edge]) -> None:
        """Stores new edges, or the new states of known ones."""
        ...

    def unsure_edges(self, limit: int) -> list[Edge]:
        """Edges that were stored while what they depend on could change unseen; putting them makes them sure.

        Only a store with several writers at once has any.
        """
        ...

    # -- flow control
    def hold_queues(self, names: Sequence[str] | None, hold: Hold = Hold.SLOTS) -> dict[str, QueueState]:
        """The same, and locked in this way until the end."""
        ...

    def put_queue(self, state: QueueState) -> None:
        """Stores a queue's settings."""
        ...

    def claim(
        self,
        queues: Sequence[QueueState],
        limit: int,
        lease: NewLease,
        types: Sequence[str] | None,
        most_passed: int | None,
        /,
    ) -> list[Job] | Undecided:
        """Claims the first due jobs of these queues, in claim order, all at once; with `types` only those of the types.

        `most_passed` is None if no queue has a limit. Otherwise there is one queue, which limits its keys: their free
        slots are used up here, and at most so many jobs are passed over. `Undecided` says why nothing was claimed: then
        the claim is decided job by job.
        """
        ...

    def claim_chosen(self, chosen: Sequence[Candidate], lease: NewLease, /) -> list[Job]:
        """Claims these candidates, at least one, and returns them in claim order."""
        ...

    def candidates(
        self, queue: QueueState, tags: Sequence[str], wanted: Callable[[], int], types: Sequence[str] | None = None, /
    ) -> Iterator[Candidate]:
        """Eligible jobs of the queue whose time has come, not blocked, in standing order, read one by one.

        `wanted` tells about how many are wanted yet. Jobs of keys that are full already may be left out. With tags,
        blocked jobs are candidates too: which of them are unblocked when their key has free slots does not depend on
        tags.
        """
        ...

    def give_back_keys(self, queue: QueueState, given_back: Mapping[str, int], /) -> Mapping[str, KeyState] | None:
        """Takes so many from what is held of each key, and forgets those that are idle then.

        Returns them as they are, if any job of the queue is blocked and may step forward; None if none is, or if
        whoever holds the queue next sees to all of it.
        """
        ...

    def put_keys(self, queue: QueueState, /, states: Sequence[KeyState]) -> None:
        """Stores what is known of keys."""
        ...

    def block(self, uids: Sequence[int]) -> None:
        """Takes jobs of full keys out of the way of claims."""
        ...

    def block_ahead(self, queue: QueueState, among: int, /) -> int:
        """Does so for all jobs of full keys among the first so many in line; returns how many they were."""
        ...

    def any_blocked(self, queue: str) -> bool:
        """Whether any job of the queue is blocked."""
        ...

    def unblock(self, queue: str, free_slots: Mapping[str, int], /) -> None:
        """Unblocks jobs: of each key the first of every type, as many of each as it has free slots for.

        A claim may name any type, so each type must have that many; the claim checks the key again.
        """
        ...

    def keys_with_ended_windows(self, queue: QueueState, /) -> list[KeyState]:
        """Keys whose rate lets them go on from now, or that a clock since set back left in the future."""
        ...

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        """Begins (or ends) keeping the queue's keys after its limits changed: all are unblocked and counted anew.

        With new windows every key's starts are counted from 0; otherwise they go on.
        """
        ...

    # -- notes, events, schedules
    def write_progress(self, change: Change) -> None:
        """Stores `record.progress` and the events."""
        ...

    def write_checkpoint(self, change: Change) -> None:
        """Stores `record.checkpoint`."""
        ...

    def write_log(self, change: Change, level: str, message: str) -> None:
        """Appends a line to the job's log, and the events."""
        ...

    def write_leases(self, records: Sequence[Record]) -> None:
        """Stores `record.lease_expires_at`."""
        ...

    def write_event(self, event: EventRow) -> None:
        """Appends an event of a queue or worker."""
        ...

    def schedules(self, ids: Sequence[str]) -> list[Schedule]:
        """Those of the ids that exist, locked until the end."""
        ...

    def schedules_due(self, after: int, until: int, limit: int) -> list[Schedule]:
        """Schedules not paused whose next run is planned after the one moment and until the other, the most overdue
        first; locked until the end.

        Those that somebody else holds at this moment may be left out.
        """
        ...

    def schedules_ahead(self, moment: int, limit: int) -> list[Schedule]:
        """Schedules not paused that were last changed after this moment; locked until the end.

        Those that somebody else holds at this moment may be left out.
        """
        ...

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Stores schedules that were asked for by one of the above before."""
        ...

    def move_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Stores where schedules of `schedules_due` stand after they fired; nothing else of them has changed."""
        ...

    def remove_schedule(self, schedule_id: str) -> bool:
        """Removes it; False if there was none."""
        ...

    def put_worker(self, worker: WorkerInfo) -> None:
        """Stores what a worker says of itself, seen now."""
        ...

    def forget_workers(self, limit: int) -> int:
        """Drops workers not heard of for `KEEP_WORKERS`."""
        ...

    def forget_tombstones(self, limit: int) -> int:
        """Drops tombstones older than `KEY_TTL`."""
        ...

    def prune_events(self, queue: str, moment: int, limit: int, through: int | None = None) -> int:
        """Drops the queue's events older than `moment`, from the start of the log; returns how many.

        With `through` none is dropped beyond that position.

        One call walks only so far along the log. If it stopped for that reason, it returns at least 1: there is more.
        """
        ...


class Tally(NamedTuple):
    """Jobs in one status, and the failures recorded for them."""

    jobs: int
    retries: int


class LogEnds(NamedTuple):
    """Where the event log stands: which log it is, up to where it is pruned, and its last number.

    A position is one number, whatever the store makes it from; positions only grow.
    """

    log: str
    pruned_through: int
    """The last event pruned of the queue that is followed."""
    pruned_anywhere: int
    """The last event pruned of any queue."""
    last: int
    """The last event a follower may read now."""
    end: int
    """No cursor of this log lies beyond this."""
    certain: int
    """Nothing comes in any more before this: all that was committed up to here can be read."""


class Search(NamedTuple):
    """Which jobs a page shall show."""

    wanted: JobFilter
    past: int | None
    """The uid of the last one on the page before."""
    limit: int
    oldest_first: bool = False
    due: bool | None = None
    """Of eligible jobs only those whose time has come (True) or is still to come (False)."""
    now: int = 0


class Reader(Lookups, Protocol):
    """A consistent look at the store."""

    def time(self) -> int:
        """The store's clock, in microseconds."""
        ...

    def clock_step(self) -> ClockStep | None:
        """The last step of the machine's clock, if this store detects them."""
        ...

    def job(self, job_id: str) -> Record | None:
        """The job, if there is one."""
        ...

    def page(self, search: Search) -> list[Record]:
        """The jobs of one page, in order of uid."""
        ...

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        """Jobs in line whose time is still to come."""
        ...

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        """The first time after this one that comes for a job in line, LIFO jobs left out."""
        ...

    def tallies(self, tags: Sequence[str], queue: str | None) -> dict[JobStatus, Tally]:
        """Jobs and retries per status, over jobs that carry all tags."""
        ...

    def counts_by_queue(self) -> dict[str, dict[JobStatus, int]]:
        """Jobs per queue and status, where there are any."""
        ...

    def logs(self, job_id: str, after: int) -> list[LogEntry] | None:
        """The job's log lines after a number; None if there is no such job."""
        ...

    def log_ends(self, queue: str | None) -> LogEnds:
        """Where the event log stands, for a follower of this queue (or of all)."""
        ...

    def events(self, after: int, limit: int, queue: str | None, job_id: str | None) -> list[tuple[int, EventRow]]:
        """Events after a number, with their own numbers."""
        ...

    def schedules(self, ids: Sequence[str] | None) -> list[Schedule]:
        """Those of the ids that exist, or all schedules; by id."""
        ...

    def next_firing(self) -> int | None:
        """When the next run of a schedule that is not paused is planned."""
        ...

    def rated_queues(self) -> list[QueueState]:
        """The settings of queues that have a rate, of their own or for their keys."""
        ...

    def next_window_end(self, queue: str, now: int) -> int | None:
        """When the first key of the queue that has used up any of its rate has its next window."""
        ...

    def holders(self, queue: str, key: str | None, limit: int) -> list[Holder]:
        """Some of those who run in this queue (of this key, if one is named)."""
        ...

    def ahead_of(self, record: Record, now: int, limit: int) -> int:
        """How many jobs of its queue stand in line before this one, counted no further than the limit."""
        ...

    def recent_ends(self, queue: str, since: int, limit: int) -> list[int]:
        """When jobs of this queue completed after `since`, the newest first; removed jobs do not count."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """The workers heard of, by id."""
        ...


@dataclass(frozen=True, slots=True)
class Operation(Generic[T, P, R]):
    """One operation of the contract, and what a store must know of it before it begins."""

    run: Callable[Concatenate[T, P], R]
    """Called with a `Transaction` (or a `Reader`, if it only reads) and the operation's arguments."""
    locks: Callable[..., Sequence[str] | None] | None = None
    """From the arguments the queues that it claims from, or None for all. A store with several writers locks these
    queues before it locks any job."""
    uses_slots: bool = True
    """Whether it may use free slots of those queues, and so has to wait for claims from queues with limits."""
    urgent: bool = False
    """Whether it goes ahead of other operations: a lease is lost if its renewal comes late."""
    follows_log: bool = False
    """Whether it reads the event log in order, and so must not see an event before all earlier ones are visible."""


def operation(
    *,
    locks: Callable[..., Sequence[str] | None] | None = None,
    uses_slots: bool = True,
    urgent: bool = False,
    follows_log: bool = False,
) -> Callable[[Callable[Concatenate[T, P], R]], Operation[T, P, R]]:
    """Declares the function below as an `Operation`."""

    def declare(run: Callable[Concatenate[T, P], R]) -> Operation[T, P, R]:
        return Operation(run, locks, uses_slots, urgent, follows_log)

    return declare


class RunsOperations(ABC):
    """A backend that runs operations on its store."""

    @abstractmethod
    async def _write(self, operation: Operation[Transaction, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the operation in a write transaction, durable when this returns; if it raises, nothing changed."""

    @abstractmethod
    async def _read(self, operation: Operation[Reader, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the operation on a consistent view."""


_EVENT = re.compile(r"([0-9a-f]{8})-([0-9]{1,40})(?:-([0-9]{1,40}))?")
_JOB = re.compile(r"j([0-9]{1,19})")

_HIGHEST = 2**63 - 1


def event_cursor(ends: LogEnds, number: int) -> str:
    """The place of one event in the log.

    Where queues keep their events for different times, others may be pruned beyond this one already; the cursor says
    up to where, so that it expires only when something its holder could still have read is pruned.
    """
    return f"{ends.log}-{number}" + (f"-{ends.pruned_anywhere}" if ends.pruned_anywhere > number else "")


def event_number(cursor: object, ends: LogEnds) -> int:
    """The number after which to go on reading; None is the start, with whatever is still kept."""
    if cursor is None:
        return 0
    found = _EVENT.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidArgument("after", "must be the cursor of an event, or None for the start of the log")
    if found[1] != ends.log:
        raise CursorExpired("this cursor is of another event log (a restored copy begins a new one); start from None")
    number = int(found[2])
    if number > ends.end:
        raise CursorExpired("this cursor is ahead of the log, which was set back to an older copy; start from None")
    if max(number, int(found[3] or 0)) < ends.pruned_through:
        raise CursorExpired("the events after this cursor have been pruned; start from None")
    return number


def comes_after(cursor: str, place: str) -> bool:
    """Whether a cursor is after another one of the same log; True if they cannot be compared."""
    found, before = _EVENT.fullmatch(cursor), _EVENT.fullmatch(place)
    if found is None or before is None or found[1] != before[1]:
        return True
    return int(found[2]) > int(before[2])


def job_cursor(uid: int) -> str:
    """The place of one job in a listing."""
    return f"j{uid}"


def job_number(cursor: object) -> int | None:
    """The uid before which a listing goes on."""
    if cursor is None:
        return None
    found = _JOB.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None or int(found[1]) > _HIGHEST:
        raise InvalidArgument("cursor", "must be the next_cursor of a page, or None for the first page")
    return int(found[1])
