"""Claims jobs for a worker: the first due jobs whose queue and concurrency key have a free slot."""

from __future__ import annotations

import heapq
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from longshore.backends.argument_checks import ClaimTerms
from longshore.backends.operations.persist import expired, refill, write
from longshore.backends.port import Candidate, KeyState, NewLease, QueueState, Transaction, Undecided, operation
from longshore.core.errors import JobNotInflight, LeaseLost
from longshore.core.job import Job, Lease
from longshore.core.job_record import Record
from longshore.core.limits import window_of
from longshore.core.status import JobStatus
from longshore.core.times import check_moment, optional_moment
from longshore.core.transitions import check_lease

MOST_BLOCKED = 5_000
"""The most jobs that one transaction blocks or expires, so that other writers do not wait long."""


MOST_SKIPPED = 50
"""The most unblocked jobs of full keys that a claim skips, and at most half of those it reads. Skipping one is cheap;
blocking and unblocking it costs as much as a claim."""
CROWD = 0.95
"""The share of skipped jobs from which they are blocked in bulk. Below it, a claim of 100 skips at most 2,000, which
costs about as much as claiming them."""
READ_AHEAD = 1_000
"""The jobs that one bulk block reads: a few milliseconds."""
LEAST_READ = 20
"""The jobs that the smallest claim reads."""


class Claim(NamedTuple):
    """What one transaction claimed, and whether it stopped early with more jobs to claim."""

    jobs: list[Job]
    more: bool


def lease_end(tx: Transaction, lease: int | None) -> int | None:
    """When a lease of this length ends, if it starts now; raise InvalidArgument beyond the year 9999."""
    return None if lease is None else check_moment("lease", timedelta(microseconds=lease), tx.now)


@operation(locks=lambda terms: terms.queues)
def dequeue_jobs(tx: Transaction, terms: ClaimTerms) -> Claim:
    """Claim up to `limit` jobs.

    The store claims in bulk, unless there are tags, a limit other than those of one queue's keys, or the answer
    `Undecided`. Then the candidates are read one by one, in claim order, and those that may start are claimed together.
    A job past its `expires_at` ends here, as in the sweep, and the selection starts again: the slot of its key may go
    to another job.
    """
    assignee_id, tags, limit, queues, lease, types = terms
    new = NewLease(assignee_id, tx.token_prefix + secrets.token_hex(16), lease_end(tx, lease))
    if types is not None and not types:
        return Claim([], more=False)
    states = tx.lock_queues(queues)
    limited = any(state.limited for state in states.values())
    if not tags and not limited:
        running = [state for state in states.values() if state.eligible and not state.paused]
        jobs = tx.claim(running, limit, new, types, None)
        if not isinstance(jobs, Undecided):
            return Claim(jobs, more=False)
    for state in states.values():
        if state.rate_per_key is not None and (waking := tx.keys_with_ended_windows(state)):
            refill(tx, state, waking)
    if not tags and len(states) == 1 and limited:
        jobs = _claim_within_keys(tx, states, limit, new, types)
        if not isinstance(jobs, Undecided):
            return Claim(jobs, more=False)
    selection = _Selection(tx, states, tags, limit, types)
    for crowded in selection.crowded():
        if _block_crowd(tx, crowded) >= MOST_BLOCKED:
            return Claim([], more=True)
        selection = _Selection(tx, states, tags, limit, types)
    while selection.expired:  # select again: these jobs used up slots of keys but never start
        ended = tx.jobs_by_uid(selection.expired).values()
        write(tx, [expired(record, tx.now) for record in ended])
        if len(selection.expired) == MOST_BLOCKED:
            return Claim([], more=True)
        selection = _Selection(tx, tx.lock_queues(queues), tags, limit, types)
    if len(selection.blocked) > most_skipped(selection.at_once):
        tx.block(selection.blocked)
    jobs = tx.claim_chosen(selection.chosen, new) if selection.chosen else []
    selection.save_counts()
    return Claim(jobs, more=len(selection.blocked) == MOST_BLOCKED)


def _claim_within_keys(
    tx: Transaction, states: Mapping[str, QueueState], limit: int, new: NewLease, types: Sequence[str] | None
) -> list[Job] | Undecided:
    (queue,) = states.values()
    free_slots = min(limit, queue.free_slots(tx.now))
    if not queue.limits_keys or queue.rate is not None or free_slots < 1:
        return Undecided.FULL_KEYS
    return tx.claim([queue], free_slots, new, types, most_skipped(max(limit, LEAST_READ)))


def most_skipped(at_once: int) -> int:
    """The most jobs that a claim reading `at_once` skips; beyond that, it blocks them."""
    return min(at_once // 2, MOST_SKIPPED)


def _block_crowd(tx: Transaction, queue: QueueState) -> int:
    """Block the first jobs of full keys in bulk; return how many.

    Claims skip a blocked job until its key has a free slot. A claim blocks the jobs that it meets; this function is for
    a queue whose first jobs nearly all have full keys.
    """
    blocked = 0
    while blocked < MOST_BLOCKED:
        more = tx.block_ahead(queue, READ_AHEAD)
        blocked += more
        if more < CROWD * READ_AHEAD:
            break
    return blocked


class _Selection:
    """Selects the jobs that may start: merges the candidates of the queues and counts the free slots of each key."""

    def __init__(
        self,
        tx: Transaction,
        states: Mapping[str, QueueState],
        tags: Sequence[str],
        limit: int,
        types: Sequence[str] | None,
    ) -> None:
        self.tx = tx
        self.tags = tags
        self.types = types
        self.chosen: list[Candidate] = []
        """The first `limit` jobs that may start."""
        self.blocked: list[int] = []
        """Jobs read before them whose key has no free slot, and that are not blocked yet."""
        self.expired: list[int] = []
        """Jobs read before them that are past their `expires_at`."""
        self.free_slots = {name: state.free_slots(tx.now) for name, state in states.items() if state.eligible}
        self.queues = {name: states[name] for name, free_slots in self.free_slots.items() if free_slots > 0}
        self.keys: dict[tuple[str, str], KeyState] = {}
        self.left: dict[tuple[str, str], int] = {}
        """How many more jobs of each key may start."""
        self.starts: dict[tuple[str, str], int] = {}
        self.limit = limit
        self.at_once = max(limit, LEAST_READ)
        self.read: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.skipped: dict[str, int] = dict.fromkeys(self.queues, 0)
        """Of the first `at_once` jobs read of each queue, those whose key was full before this claim."""
        self._choose()

    def crowded(self) -> list[QueueState]:
        """The queues whose first jobs nearly all have full keys."""
        if self.tags:
            return []
        return [self.queues[name] for name, jobs in self.skipped.items() if jobs >= CROWD * self.at_once]

    def _choose(self) -> None:
        now, free_slots, chosen, blocked = self.tx.now, self.free_slots, self.chosen, self.blocked
        keyed = {name for name, queue in self.queues.items() if queue.limits_keys}
        for entry in self._merged():
            if len(blocked) == MOST_BLOCKED or len(self.expired) == MOST_BLOCKED:
                break
            queue = entry.queue
            if queue in keyed and not self._key_has_free_slots(entry):
                if not entry.blocked:
                    blocked.append(entry.uid)
                continue
            if entry.expires_at is not None and entry.expires_at <= now:
                self.expired.append(entry.uid)
                continue
            free_slots[queue] -= 1
            chosen.append(entry)
            if len(chosen) == self.limit:
                break

    def _wanted(self) -> int:
        return self.limit - len(self.chosen)

    def _merged(self) -> Iterator[Candidate]:
        sources = [self.tx.candidates(queue, self.tags, self._wanted, self.types) for queue in self.queues.values()]
        if len(sources) == 1:
            queue = next(iter(self.queues))
            for entry in sources[0]:
                if self.free_slots[queue] <= 0:
                    return
                yield entry
            return
        heads = [(first, number) for number, source in enumerate(sources) if (first := next(source, None)) is not None]
        heapq.heapify(heads)
        while heads:
            entry, number = heads[0]
            if self.free_slots[entry.queue] <= 0:
                heapq.heappop(heads)
                continue
            yield entry
            following = next(sources[number], None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number))

    def _key_has_free_slots(self, entry: Candidate) -> bool:
        name, key = entry.queue, entry.key
        read = self.read[name] = self.read[name] + 1
        if key is None:
            return True
        pair = (name, key)
        left = self.left.get(pair)
        if left is None:
            left = self._slots_of(pair, entry)
        if left == 0:
            if read <= self.at_once and pair not in self.starts:
                self.skipped[name] += 1
            return False
        self.left[pair] = left - 1
        self.starts[pair] = self.starts.get(pair, 0) + 1
        return True

    def _slots_of(self, pair: tuple[str, str], entry: Candidate) -> int:
        """How many more jobs of this key may start."""
        name, key = pair
        if entry.running_count is None:
            state = self.tx.key_states(name, [key])[key]
        else:
            state = KeyState(name, key, entry.running_count, window_of(entry.window_start, entry.window_count))
        self.keys[pair] = state
        return state.free_slots(self.queues[name], self.tx.now)

    def save_counts(self) -> None:
        """Store what the claim used of rates and keys."""
        taken = Counter(entry.queue for entry in self.chosen)
        for name, starts in taken.items():
            queue = self.queues[name]
            if queue.rate is not None:
                queue.window = queue.window.at(queue.rate, self.tx.now).after(starts)
                self.tx.put_queue(queue)
        by_queue: dict[str, list[KeyState]] = defaultdict(list)
        for pair, starts in self.starts.items():
            state, rate = self.keys[pair], self.queues[pair[0]].rate_per_key
            state.running_count += starts
            if rate is not None:
                state.window = state.window.at(rate, self.tx.now).after(starts)
            by_queue[pair[0]].append(state)
        for name, states in by_queue.items():
            self.tx.put_keys(self.queues[name], states)


@operation(urgent=True)
def extend_leases(tx: Transaction, leases: Mapping[str, Lease], duration: int) -> dict[str, Lease]:
    """Renew the leases that are still valid; omit the others from the answer."""
    expires_at = check_moment("duration", timedelta(microseconds=duration), tx.now)
    renewed: dict[str, Lease] = {}
    records = tx.jobs_by_id(list(leases), renew=True)
    kept: list[Record] = []
    for job_id, lease in leases.items():
        record = records.get(job_id)
        if record is None:
            continue
        try:
            check_lease(record, lease, tx.now, JobStatus.RUNNING)
        except (LeaseLost, JobNotInflight):
            continue
        if record.lease_expires_at is not None:
            record.lease_expires_at = expires_at
            kept.append(record)
        cancelling = record.status is JobStatus.CANCELLING
        renewed[job_id] = Lease(lease.token, lease.epoch, optional_moment(record.lease_expires_at), cancelling)
    tx.write_leases(kept)
    return renewed
