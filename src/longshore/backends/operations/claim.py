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

MOST_PASSED = 5_000
"""Jobs one transaction takes out of the line on its way (their key is full, or their time is over), so that a long
line never blocks other writers."""


MOST_IN_THE_WAY = 50
"""How many jobs of full keys may stand in line unblocked, and half as many as a claim looks at: passing over one costs
little, and to block it and put it back costs as much as to claim it."""
CROWD = 0.95
"""The share of jobs in the way from which on they are blocked in bulk: below it a claim of 100 passes at most 2,000,
which costs about as much as claiming them."""
LOOKED_AHEAD = 1_000
"""How many are looked at then, at a time: a few milliseconds of blocking."""
LEAST_LOOKED_AT = 20
"""How many of the line even the smallest claim looks at."""


class Claim(NamedTuple):
    """What one transaction claimed, and whether it stopped before the end of the line, with more to be had."""

    jobs: list[Job]
    more: bool


def lease_end(tx: Transaction, lease: int | None) -> int | None:
    """When a lease of this length ends, if it began now; InvalidArgument if that is beyond the calendar."""
    return None if lease is None else check_moment("lease", timedelta(microseconds=lease), tx.now)


@operation(locks=lambda terms: terms.queues)
def dequeue_jobs(tx: Transaction, terms: ClaimTerms) -> Claim:
    """Claims up to `limit` jobs.

    The store claims in bulk, unless tags are asked for, a limit other than those of one queue's keys applies, or the
    store answers `Undecided`. Then the jobs are looked at one by one, in claim order, and those that may start are
    claimed together. A job past its `expires_at` is ended here, as the sweep would, and the claim begins again: the
    slot of its key may go to another job.
    """
    assignee_id, tags, limit, queues, lease, types = terms
    new = NewLease(assignee_id, tx.token_prefix + secrets.token_hex(16), lease_end(tx, lease))
    if types is not None and not types:
        return Claim([], more=False)
    states = tx.hold_queues(queues)
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
    line = _Line(tx, states, tags, limit, types)
    for crowded in line.crowded():
        if _block_crowd(tx, crowded) >= MOST_PASSED:
            return Claim([], more=True)
        line = _Line(tx, states, tags, limit, types)
    while line.outlived:  # and what this pass blocked was blocked by jobs that never start: it is all begun anew
        ended = tx.jobs_by_uid(line.outlived).values()
        write(tx, [expired(record, tx.now) for record in ended])
        if len(line.outlived) == MOST_PASSED:
            return Claim([], more=True)
        line = _Line(tx, tx.hold_queues(queues), tags, limit, types)
    if len(line.blocked) > most_in_the_way(line.at_once):
        tx.block(line.blocked)
    jobs = tx.claim_chosen(line.chosen, new) if line.chosen else []
    line.keep_accounts()
    return Claim(jobs, more=len(line.blocked) == MOST_PASSED)


def _claim_within_keys(
    tx: Transaction, states: Mapping[str, QueueState], limit: int, new: NewLease, types: Sequence[str] | None
) -> list[Job] | Undecided:
    (queue,) = states.values()
    free_slots = min(limit, queue.free_slots(tx.now))
    if not queue.limits_keys or queue.rate is not None or free_slots < 1:
        return Undecided.FULL_KEYS
    return tx.claim([queue], free_slots, new, types, most_in_the_way(max(limit, LEAST_LOOKED_AT)))


def most_in_the_way(at_once: int) -> int:
    """How many a claim that looks at so many passes over; from there on it blocks them."""
    return min(at_once // 2, MOST_IN_THE_WAY)


def _block_crowd(tx: Transaction, queue: QueueState) -> int:
    """Blocks the first jobs of full keys in bulk; returns how many.

    Claims skip a blocked job until its key has a free slot. A claim blocks the jobs that it meets; this function is for
    a queue whose first jobs nearly all have full keys.
    """
    blocked = 0
    while blocked < MOST_PASSED:
        more = tx.block_ahead(queue, LOOKED_AHEAD)
        blocked += more
        if more < CROWD * LOOKED_AHEAD:
            break
    return blocked


class _Line:
    """The queues' lines merged into one, the free slots that each queue and key has left, and who of it may start."""

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
        """Those met before them whose key has no free slot, and who are not blocked yet."""
        self.outlived: list[int] = []
        """Those met before them whose time is over."""
        self.free_slots = {name: state.free_slots(tx.now) for name, state in states.items() if state.eligible}
        self.queues = {name: states[name] for name, free_slots in self.free_slots.items() if free_slots > 0}
        self.keys: dict[tuple[str, str], KeyState] = {}
        self.left: dict[tuple[str, str], int] = {}
        """How many more of each key may start."""
        self.starts: dict[tuple[str, str], int] = {}
        self.limit = limit
        self.at_once = max(limit, LEAST_LOOKED_AT)
        self.met: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.in_the_way: dict[str, int] = dict.fromkeys(self.queues, 0)
        """Of the first `at_once` that were met of each queue, those whose key was full before this claim."""
        self._choose()

    def crowded(self) -> list[QueueState]:
        """The queues of which nearly all at the head are in the way."""
        if self.tags:
            return []
        return [self.queues[name] for name, jobs in self.in_the_way.items() if jobs >= CROWD * self.at_once]

    def _choose(self) -> None:
        now, free_slots, chosen, blocked, outlived = (
            self.tx.now,
            self.free_slots,
            self.chosen,
            self.blocked,
            self.outlived,
        )
        keyed = {name for name, queue in self.queues.items() if queue.limits_keys}
        for entry in self._merged():
            if len(blocked) == MOST_PASSED or len(outlived) == MOST_PASSED:
                break
            queue = entry.queue
            if queue in keyed and not self._key_has_free_slots(entry):
                if not entry.blocked:
                    blocked.append(entry.uid)
                continue
            if entry.expires_at is not None and entry.expires_at <= now:
                outlived.append(entry.uid)
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
        met = self.met[name] = self.met[name] + 1
        if key is None:
            return True
        pair = (name, key)
        left = self.left.get(pair)
        if left is None:
            left = self._look_up(pair, entry)
        if left == 0:
            if met <= self.at_once and pair not in self.starts:
                self.in_the_way[name] += 1
            return False
        self.left[pair] = left - 1
        self.starts[pair] = self.starts.get(pair, 0) + 1
        return True

    def _look_up(self, pair: tuple[str, str], entry: Candidate) -> int:
        """How many more of this key may start."""
        name, key = pair
        if entry.running_count is None:
            state = self.tx.key_states(name, [key])[key]
        else:
            state = KeyState(name, key, entry.running_count, window_of(entry.window_start, entry.window_count))
        self.keys[pair] = state
        return state.free_slots(self.queues[name], self.tx.now)

    def keep_accounts(self) -> None:
        """Stores what the claim used up of rates and keys."""
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
    """Renews the leases that are still the jobs' own; the others are left out of the answer."""
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
