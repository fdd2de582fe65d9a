"""The store in plain dicts, for tests and as the specification: it scans where other stores use an index."""

from __future__ import annotations

import dataclasses
import heapq
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, ParamSpec, TypeVar

from longshore.backends.base import Capabilities, WorkerInfo
from longshore.backends.change_signal import ChangeSignal
from longshore.backends.engine import TransactionalBackend
from longshore.backends.port import (
    KEEP_WORKERS,
    KEY_TTL,
    Candidate,
    Completion,
    Edge,
    Ended,
    Hold,
    KeyState,
    LogEnds,
    NewLease,
    Operation,
    QueueState,
    Reader,
    Search,
    Tally,
    Transaction,
    Undecided,
    keys_by_queue,
)
from longshore.backends.token_store import SupportsTokens
from longshore.core import transitions
from longshore.core.clock import Clock, ClockStep, micros_of
from longshore.core.errors import DuplicateJob, QueueClosed
from longshore.core.explain import Holder
from longshore.core.filters import matches
from longshore.core.job import Job, LogEntry
from longshore.core.job_record import Record, Tombstone, claim_order, copy_of, job_of, kept_after
from longshore.core.schedule import Schedule
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.times import from_micros, optional_moment, to_micros
from longshore.core.tokens import Token
from longshore.core.transitions import Change, EventRow, added, announce, may_be_accepted_in_bulk

P = ParamSpec("P")
R = TypeVar("R")


class MemoryBackend(SupportsTokens, TransactionalBackend):
    """Jobs that exist as long as this object."""

    capabilities = Capabilities()

    def __init__(self, clock: Clock | None = None) -> None:
        self._signal = ChangeSignal()
        self._clock = micros_of(clock)
        self._store = MemoryStore(self._clock)
        self._lock = threading.Lock()
        self._closed = False

    async def _write(self, operation: Operation[Transaction, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            self._refuse_if_closed()
            self._store.now = self._clock()
            before = self._store.version
            answer = operation.run(self._store, *args, **kwargs)
            changed = self._store.version != before
        if changed:
            self._signal.notify()
        return answer

    async def _read(self, operation: Operation[Reader, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            self._refuse_if_closed()
            return operation.run(self._store, *args, **kwargs)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise QueueClosed("this backend was closed; open a new one with connect(url)")

    async def _listen(self) -> None:
        self._refuse_if_closed()

    async def close(self) -> None:
        self._closed = True
        self._signal.notify()


class _Tombstone(NamedTuple):
    record: Record
    removed_at: int


class MemoryStore:
    """Transaction and reader in one: the lock around it makes every operation atomic. See docs/write-a-backend.md."""

    token_prefix = ""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.time = clock
        self.now = 0
        self.version = 0
        """Counts changes that wake waiting callers."""
        self._jobs: dict[str, Record] = {}
        self._tombstones: dict[int, _Tombstone] = {}
        self._edges: dict[tuple[int, str], Edge] = {}
        self._queues: dict[str, QueueState] = {}
        self._keys: dict[tuple[str, str], KeyState] = {}
        self._events: dict[int, EventRow] = {}
        self._pruned: dict[str, int] = {}
        self._logs: dict[str, list[LogEntry]] = defaultdict(list)
        self._schedules: dict[str, Schedule] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._tokens: dict[str, Token] = {}
        self._last_uid = 0
        self._last_event = 0
        self._log = secrets.token_hex(4)

    def _where(self, test: Callable[[Record], bool]) -> list[Record]:
        return [copy_of(record) for record in self._jobs.values() if test(record)]

    # -- jobs

    def jobs_by_id(self, job_ids: Sequence[str], *, renew: bool = False) -> dict[str, Record]:  # noqa: ARG002 - no locks
        return {job_id: copy_of(self._jobs[job_id]) for job_id in job_ids if job_id in self._jobs}

    def jobs_by_uid(self, uids: Sequence[int]) -> dict[int, Record]:
        wanted = set(uids)
        return {record.uid: record for record in self._where(lambda record: record.uid in wanted)}

    def jobs_with_tags(self, tags: Sequence[str], queue: str | None) -> list[Record]:
        return self._where(lambda r: set(tags) <= set(r.tags) and queue in (None, r.queue))

    def lock_dependents(self, job_ids: Sequence[str], tags: Sequence[str], queue: str | None) -> None:
        pass  # the lock is exclusive

    def jobs_held(self, owner: str | None, queue: str | None) -> list[Record]:
        return self._where(
            lambda r: r.status in HOLDS_CAPACITY and owner in (None, r.lease_owner) and queue in (None, r.queue)
        )

    def leases_ended(self, limit: int) -> list[Record]:
        def ended(record: Record) -> bool:
            return record.lease_expires_at is not None and record.lease_expires_at <= self.now

        return sorted(self._where(ended), key=lambda record: (record.lease_expires_at, record.uid))[:limit]

    def cancellations_since(self, moment: int, limit: int) -> list[Record]:
        def requested_at(record: Record) -> int:
            return record.cancel_asked_at or 0

        waiting = self._where(lambda r: r.status is JobStatus.CANCELLING and requested_at(r) <= moment)
        return sorted(waiting, key=lambda record: (requested_at(record), record.uid))[:limit]

    def expired_jobs(self, limit: int) -> list[Record]:
        unstarted = ELIGIBLE | {JobStatus.WAITING_CHILDREN}

        def expired(record: Record) -> bool:
            return record.status in unstarted and record.expires_at is not None and record.expires_at <= self.now

        return sorted(self._where(expired), key=lambda record: (record.expires_at, record.uid))[:limit]

    def jobs_ended_before(self, statuses: Iterable[JobStatus], moment: int, queue: str, limit: int) -> list[Record]:
        def since(record: Record) -> int:
            return record.created_at if record.finalized_at is None else record.finalized_at

        wanted = set(statuses)
        old = self._where(lambda r: r.queue == queue and r.status in wanted and since(r) <= moment)
        return sorted(old, key=lambda record: (since(record), record.uid))[:limit]

    def jobs_beyond(self, keep: int, status: JobStatus, queue: str, limit: int) -> list[Record]:
        found = self._where(lambda r: r.queue == queue and r.status is status)
        found.sort(key=lambda record: (record.finalized_at or 0, record.uid))
        return found[: max(0, len(found) - keep)][:limit]

    def new_uids(self, count: int) -> Sequence[int]:
        self._last_uid += count
        return range(self._last_uid - count + 1, self._last_uid + 1)

    def insert(self, records: Sequence[Record], events: Sequence[EventRow]) -> None:
        taken = [record.id for record in records if record.id in self._jobs]
        if taken:
            self._last_uid = records[0].uid - 1
            raise DuplicateJob(taken)
        self._jobs.update({record.id: copy_of(record) for record in records})
        self._append([*(added(record, self.now) for record in records), *events])

    def save(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._jobs[change.record.id] = copy_of(change.record)
            self._append(change.events)

    def announce_due(self, limit: int) -> list[str]:
        def is_due(record: Record) -> bool:
            return record.status in ELIGIBLE and record.announce_at is not None and record.announce_at <= self.now

        due = sorted(self._where(is_due), key=lambda record: (record.announce_at, record.uid))[:limit]
        changes = [Change(record, self.now) for record in due]
        for change in changes:
            announce(change)
        self.save(changes)
        return [record.id for record in due]

    def complete(self, completions: Sequence[Completion], _among: Sequence[str]) -> Ended:
        changes = []
        for job_id, epoch, token, result in completions:
            record = self._jobs.get(job_id)
            if (
                record is not None
                and record.status is JobStatus.RUNNING
                and (record.epoch, record.lease_token) == (epoch, token)
                and (record.lease_expires_at is None or record.lease_expires_at > self.now)
                and kept_after(JobStatus.COMPLETED, record.options) is None
            ):
                change = Change(copy_of(record), self.now)
                transitions.complete(change, result)
                changes.append(change)
        self.save(changes)
        return Ended(
            [change.record.id for change in changes],
            Counter(change.freed for change in changes if change.freed is not None),
            keys_by_queue((change.record.queue, change.record.concurrency_key) for change in changes),
        )

    def accept(self, job_ids: Sequence[str]) -> bool:
        records = self.jobs_by_id(job_ids).values()
        if len(records) < len(job_ids) or not all(may_be_accepted_in_bulk(record) for record in records):
            return False
        changes = [Change(record, self.now) for record in records]
        for change in changes:
            transitions.accept(change)
        self.save(changes)
        return True

    def remove(self, changes: Sequence[Change]) -> None:
        for change in changes:
            record = self._jobs.pop(change.record.id)
            self._tombstones[record.uid] = _Tombstone(record, self.now)
            self._logs.pop(record.id, None)
            self._edges = {pair: edge for pair, edge in self._edges.items() if edge.dependent_uid != record.uid}
            self._append(change.events)

    def _append(self, events: Sequence[EventRow]) -> None:
        for event in events:
            self.version += 1
            self._last_event += 1
            self._events[self._last_event] = event

    # -- identity

    def jobs_by_key(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        removed = {(t.record.queue, t.record.idempotency_key): t.record.id for t in self._remembered()}
        stored = {(record.queue, record.idempotency_key): record.id for record in self._jobs.values()}
        known = removed | stored
        return {pair: known[pair] for pair in pairs if pair in known}

    def records_by_key(self, pairs: Sequence[tuple[str, str]], since: int) -> dict[tuple[str, str], Record | Tombstone]:
        found: dict[tuple[str, str], Record | Tombstone] = {}
        for uid in sorted(self._tombstones):
            record, removed_at = self._tombstones[uid]
            pair = (record.queue, record.idempotency_key or "")
            if removed_at > since and pair in pairs:
                left = (uid, record.id, record.queue, record.type, record.status, pair[1], record.request)
                found[pair] = Tombstone(*left)
        for record in self._where(lambda r: (r.queue, r.idempotency_key) in pairs):
            found[record.queue, record.idempotency_key or ""] = record
        return found

    jobs_seen = jobs_by_id

    def ids_taken(self, job_ids: Sequence[str]) -> set[str]:
        return {job_id for job_id in job_ids if job_id in self._jobs}

    def statuses(self, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, JobStatus]:  # noqa: ARG002 - no locks
        known = {t.record.id: t.record.status for t in self._remembered()}
        known |= {record.id: record.status for record in self._jobs.values()}
        return {job_id: known[job_id] for job_id in job_ids if job_id in known}

    def _remembered(self) -> Iterator[_Tombstone]:
        """Oldest job first, so that the newest of several with one id or key wins."""
        return (stone for _, stone in sorted(self._tombstones.items()) if stone.removed_at > self.now - KEY_TTL)

    # -- dependencies

    def put_edges(self, edges: Sequence[Edge]) -> None:
        for edge in edges:
            self._edges[edge.dependent_uid, edge.depends_on] = edge

    def open_edges(self, depends_on: Sequence[str]) -> list[Edge]:
        wanted = set(depends_on)
        return sorted(edge for edge in self._edges.values() if edge.depends_on in wanted and edge.state != "satisfied")

    def count_down(self, fewer: Mapping[int, int]) -> dict[int, int]:
        left = {}
        for record in self._jobs.values():
            if record.uid in fewer:
                record.deps_left -= fewer[record.uid]
                left[record.uid] = record.deps_left
        return left

    def edges_that_stop(self, uids: Sequence[int]) -> list[Edge]:
        waiting = {r.uid: r.id for r in self._jobs.values() if r.status is JobStatus.WAITING_CHILDREN}
        edges: dict[str, list[Edge]] = defaultdict(list)
        for edge in self._edges.values():
            if edge.state == "waiting" and edge.policy == "stop":
                edges[edge.depends_on].append(edge)
        stopped = dict.fromkeys(uids)
        found: list[Edge] = []
        while stopped:
            uid, _ = stopped.popitem()
            leading_on = edges.pop(waiting[uid], []) if uid in waiting else []
            found += leading_on
            stopped |= dict.fromkeys(edge.dependent_uid for edge in leading_on)
        return sorted(found)

    def unverified_edges(self, _limit: int) -> list[Edge]:
        return []

    def edges_from(self, job_id: str) -> list[Edge]:
        uid = self._jobs[job_id].uid if job_id in self._jobs else None
        return [edge for edge in self._edges.values() if edge.dependent_uid == uid]

    # -- flow control

    def queue_states(self, names: Sequence[str] | None) -> dict[str, QueueState]:
        wanted = {*self._queues, *(record.queue for record in self._jobs.values())} if names is None else names
        return {name: self._queue_state(name) for name in wanted}

    def lock_queues(self, names: Sequence[str] | None, hold: Hold = Hold.SLOTS) -> dict[str, QueueState]:  # noqa: ARG002 - no locks
        return self.queue_states(names)

    def _queue_state(self, name: str) -> QueueState:
        jobs = [record for record in self._jobs.values() if record.queue == name]
        return dataclasses.replace(
            self._queues.get(name) or QueueState(name),
            running_count=sum(record.status in HOLDS_CAPACITY for record in jobs),
            eligible=sum(record.status in ELIGIBLE for record in jobs),
        )

    def known_queues(self) -> list[str]:
        return sorted({*self.queue_states(None), *(event.queue for event in self._events.values())})

    def put_queue(self, state: QueueState) -> None:
        self.version += 1
        self._queues[state.name] = dataclasses.replace(state)

    def claim(
        self,
        queues: Sequence[QueueState],
        limit: int,
        lease: NewLease,
        types: Sequence[str] | None,
        most_skipped: int | None,
    ) -> list[Job] | Undecided:
        chosen: list[Candidate] = []
        passed = 0
        left: dict[str, int] = {}
        keyed = queues[0] if most_skipped is not None else None
        for entry in heapq.merge(*(self.candidates(queue, (), lambda: limit, types) for queue in queues)):
            if keyed is not None and entry.key is not None:
                if entry.key not in left:
                    left[entry.key] = self.key_states(keyed.name, [entry.key])[entry.key].free_slots(keyed, self.now)
                if left[entry.key] <= 0:
                    passed += 1
                    if passed > (most_skipped or 0):
                        return Undecided.FULL_KEYS
                    continue
                left[entry.key] -= 1
            if entry.expires_at is not None and entry.expires_at <= self.now:
                return Undecided.EXPIRED
            chosen.append(entry)
            if len(chosen) == limit:
                break
        if keyed is not None:
            if not chosen:
                return Undecided.FULL_KEYS
            self._use_keys(keyed, Counter(entry.key for entry in chosen if entry.key is not None))
        return self.claim_chosen(chosen, lease)

    def _use_keys(self, queue: QueueState, used: Mapping[str, int]) -> None:
        states = self.key_states(queue.name, list(used))
        for key, starts in used.items():
            states[key].running_count += starts
            if queue.rate_per_key is not None:
                states[key].window = states[key].window.at(queue.rate_per_key, self.now).after(starts)
        self.put_keys(queue, list(states.values()))

    def claim_chosen(self, chosen: Sequence[Candidate], lease: NewLease) -> list[Job]:
        records = self.jobs_by_uid([entry.uid for entry in chosen])
        changes = [Change(records[entry.uid], self.now) for entry in chosen]
        for change in changes:
            transitions.claim(change, *lease)
        self.save(changes)
        return [job_of(change.record) for change in changes]

    def release_keys(self, queue: QueueState, released: Mapping[str, int]) -> None:
        for key, jobs in released.items():
            self._keys.setdefault((queue.name, key), KeyState(queue.name, key)).running_count -= jobs

    def candidates(
        self, queue: QueueState, tags: Sequence[str], _wanted: Callable[[], int], types: Sequence[str] | None = None
    ) -> Iterator[Candidate]:
        def waits(record: Record) -> bool:
            due = record.status in ELIGIBLE and record.eligible_at <= self.now
            known = types is None or record.type in types
            return due and known and record.queue == queue.name and set(tags) <= set(record.tags)

        found = self._where(waits)
        return iter(sorted(Candidate(*claim_order(r), r.queue, r.concurrency_key, r.expires_at, False) for r in found))

    def key_states(self, queue: str, keys: Sequence[str]) -> dict[str, KeyState]:
        return {key: dataclasses.replace(self._keys.get((queue, key)) or KeyState(queue, key)) for key in keys}

    def put_keys(self, _queue: QueueState, states: Sequence[KeyState]) -> None:
        for state in states:
            self._keys[state.queue, state.key] = dataclasses.replace(state)

    def block(self, uids: Sequence[int]) -> None:
        """No-op: this store has no index to keep short."""

    def block_ahead(self, _queue: QueueState, _among: int) -> int:
        return 0

    def any_blocked(self, _queue: str) -> bool:
        return False

    def unblock(self, _queue: str, _slots: Mapping[str, int]) -> None:
        """No-op, as above."""

    def keys_with_ended_windows(self, _queue: QueueState) -> list[KeyState]:
        return []

    def recount_keys(self, queue: QueueState, *, new_windows: bool) -> None:
        kept = {} if new_windows else self._keys
        windows = {pair: state.window for pair, state in kept.items() if pair[0] == queue.name}
        self._keys = {pair: state for pair, state in self._keys.items() if pair[0] != queue.name}
        if queue.limits_keys:
            for record in self._jobs.values():
                if record.queue == queue.name and record.concurrency_key and record.status in HOLDS_CAPACITY:
                    pair = (queue.name, record.concurrency_key)
                    self._keys.setdefault(pair, KeyState(*pair)).running_count += 1
            for pair, window in windows.items():
                self._keys.setdefault(pair, KeyState(*pair)).window = window

    # -- job updates, events, schedules, workers

    def write_progress(self, change: Change) -> None:
        self.save([change])

    write_checkpoint = write_progress

    def write_log(self, change: Change, level: str, message: str) -> None:
        lines = self._logs[change.record.id]
        lines.append(LogEntry(len(lines) + 1, from_micros(self.now), level, message))
        self.save([change])

    def write_leases(self, records: Sequence[Record]) -> None:
        for record in records:
            self._jobs[record.id] = copy_of(record)

    def write_event(self, event: EventRow) -> None:
        self._append([event])

    def schedules(self, ids: Sequence[str] | None) -> list[Schedule]:
        names = self._schedules if ids is None else {name for name in ids if name in self._schedules}
        return [self._schedules[name] for name in sorted(names)]

    def schedules_due(self, after: int, until: int, limit: int) -> list[Schedule]:
        due = [(to_micros(s.next_run_at), s.id, s) for s in self._schedules.values() if s.next_run_at and not s.paused]
        return [schedule for at, _, schedule in sorted(due, key=lambda d: d[:2]) if after < at <= until][:limit]

    def schedules_ahead(self, moment: int, limit: int) -> list[Schedule]:
        ahead = [s for s in self._schedules.values() if s.updated_at and to_micros(s.updated_at) > moment]
        return [schedule for schedule in ahead if not schedule.paused][:limit]

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        self.version += 1
        self._schedules.update((schedule.id, schedule) for schedule in schedules)

    move_schedules = put_schedules

    def remove_schedule(self, schedule_id: str) -> bool:
        return self._schedules.pop(schedule_id, None) is not None

    def put_worker(self, worker: WorkerInfo) -> None:
        self._workers[worker.id] = dataclasses.replace(worker, seen_at=from_micros(self.now))

    def forget_workers(self, limit: int) -> int:
        heard = {w.id: to_micros(w.seen_at) for w in self._workers.values() if w.seen_at is not None}
        gone = [name for name, seen in heard.items() if seen <= self.now - KEEP_WORKERS][:limit]
        for name in gone:
            del self._workers[name]
        return len(gone)

    def forget_tombstones(self, limit: int) -> int:
        old = [uid for uid, t in self._tombstones.items() if t.removed_at <= self.now - KEY_TTL][:limit]
        for uid in old:
            del self._tombstones[uid]
        return len(old)

    def prune_events(self, queue: str, moment: int, limit: int, through: int | None = None) -> int:
        end = self._last_event if through is None else through
        log = ((n, event) for n, event in self._events.items() if n <= end)
        old = [n for n, event in log if event.queue == queue and event.occurred_at <= moment][:limit]
        for number in old:
            del self._events[number]
        if old:
            self._pruned[queue] = old[-1]
        return len(old)

    # -- reads

    def job(self, job_id: str) -> Record | None:
        return self._jobs.get(job_id)

    def page(self, search: Search) -> list[Record]:
        wanted, past, limit, oldest_first, due, now = search

        def shown(record: Record) -> bool:
            beyond = past is None or (record.uid > past if oldest_first else record.uid < past)
            timely = due is None or record.status not in ELIGIBLE or record.is_delayed(now) is not due
            return beyond and timely and matches(wanted, record)

        found = [record for record in self._jobs.values() if shown(record)]
        return sorted(found, key=lambda record: record.uid, reverse=not oldest_first)[:limit]

    def count_delayed(self, queues: Sequence[str] | None, now: int) -> int:
        return len(self._coming(queues, now))

    def next_due(self, queues: Sequence[str] | None, after: int) -> int | None:
        return min([record.eligible_at for record in self._coming(queues, after) if not record.lifo], default=None)

    def _coming(self, queues: Sequence[str] | None, now: int) -> list[Record]:
        return self._where(lambda record: record.is_delayed(now) and (queues is None or record.queue in queues))

    def tallies(self, tags: Sequence[str], queue: str | None) -> dict[JobStatus, Tally]:
        tallies: dict[JobStatus, Tally] = defaultdict(lambda: Tally(0, 0))
        for record in self.jobs_with_tags(tags, queue):
            jobs, retries = tallies[record.status]
            tallies[record.status] = Tally(jobs + 1, retries + record.retry_count)
        return tallies

    def counts_by_queue(self) -> dict[str, dict[JobStatus, int]]:
        counts: dict[str, dict[JobStatus, int]] = defaultdict(lambda: defaultdict(int))
        for record in self._jobs.values():
            counts[record.queue][record.status] += 1
        return counts

    def logs(self, job_id: str, after: int) -> list[LogEntry] | None:
        return self._logs[job_id][after:] if job_id in self._jobs else None

    def log_ends(self, queue: str | None) -> LogEnds:
        anywhere = max(self._pruned.values(), default=0)
        pruned = anywhere if queue is None else self._pruned.get(queue, 0)
        last = self._last_event
        return LogEnds(self._log, pruned, anywhere, last, last, last)

    def events(self, after: int, limit: int, queue: str | None, job_id: str | None) -> list[tuple[int, EventRow]]:
        found = [
            (number, event)
            for number, event in self._events.items()
            if number > after and queue in (None, event.queue) and job_id in (None, event.job_id)
        ]
        return found[:limit]

    def next_firing(self) -> int | None:
        planned = [s.next_run_at for s in self._schedules.values() if s.next_run_at is not None and not s.paused]
        return min(map(to_micros, planned), default=None)

    def rated_queues(self) -> list[QueueState]:
        return [state for state in self._queues.values() if state.rate is not None or state.rate_per_key is not None]

    def next_window_end(self, queue: str, now: int) -> int | None:
        states = [state for (name, _), state in self._keys.items() if name == queue]
        moments = [state.window_ends_at(self._queues[queue], now) for state in states]
        return min((moment for moment in moments if moment is not None and moment > now), default=None)

    def holders(self, queue: str, key: str | None, limit: int) -> list[Holder]:
        held = [r for r in self.jobs_held(None, queue) if key in (None, r.concurrency_key)]
        held.sort(key=lambda record: (record.assigned_at or 0, record.id))
        return [Holder(r.id, r.lease_owner, optional_moment(r.assigned_at)) for r in held][:limit]

    def ahead_of(self, record: Record, now: int, limit: int) -> int:
        def comes_before(other: Record) -> bool:
            eligible = other.queue == record.queue and other.status in ELIGIBLE and other.eligible_at <= now
            return eligible and claim_order(other) < claim_order(record)

        return min(len(self._where(comes_before)), limit)

    def clock_step(self) -> ClockStep | None:
        return None

    def recent_ends(self, queue: str, since: int, limit: int) -> list[int]:
        done = self._where(lambda record: record.queue == queue and record.status is JobStatus.COMPLETED)
        ends = [record.finalized_at for record in done if record.finalized_at is not None]
        return sorted((end for end in ends if end > since), reverse=True)[:limit]

    def workers(self) -> list[WorkerInfo]:
        return [self._workers[name] for name in sorted(self._workers)]

    @property
    def api_tokens(self) -> MemoryTokens:
        """The API tokens."""
        return MemoryTokens(self._tokens, from_micros(self.now))


class MemoryTokens:
    """API tokens in a dict, by id."""

    def __init__(self, known: dict[str, Token], now: datetime) -> None:
        self._known = known
        self._now = now

    def tokens(self) -> list[Token]:
        return sorted(self._known.values(), key=lambda token: (token.name, token.created_at))

    def token(self, token_id: str) -> Token | None:
        return self._known.get(token_id)

    def put_token(self, token: Token) -> None:
        self._known[token.id] = token

    def revoke_token(self, token_id: str) -> None:
        token = self._known[token_id]
        self._known[token_id] = dataclasses.replace(token, revoked_at=token.revoked_at or self._now)

    def touch_tokens(self, token_ids: Sequence[str]) -> None:
        for token_id in token_ids:
            if token_id in self._known:
                self._known[token_id] = dataclasses.replace(self._known[token_id], last_used_at=self._now)

    def forget_tokens(self, ended_by: int) -> None:
        moment = from_micros(ended_by)
        for token in list(self._known.values()):
            if token.ended_at(moment) is not None:
                del self._known[token.id]
