"""A worker takes jobs: the first in line whose queue and key have room, each with a new epoch and a lease."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from longshore.backends.checks import ClaimTerms
from longshore.backends.transaction import KeyState, QueueState, Transaction
from longshore.backends.verbs.keys import refill
from longshore.backends.verbs.writing import expired, write
from longshore.core import transitions
from longshore.core.change import Change, check_lease
from longshore.core.errors import JobNotInflight, LeaseLost
from longshore.core.job import Job, Lease
from longshore.core.lifecycle import JobStatus
from longshore.core.moments import check_moment, optional_moment
from longshore.core.record import Record, job_of, standing_order

MOST_PASSED = 5_000
"""Jobs one transaction takes out of the line on its way (their key is full, or their time is over), so that a long
line never blocks other writers."""


CROWD = 0.95
"""The share of jobs in the way from which on they are parked in bulk: below it a claim of 100 passes at most 2,000,
which costs about as much as claiming them."""
LOOKED_AHEAD = 1_000
"""How many are looked at then, at a time: a few milliseconds of parking."""


class Claim(NamedTuple):
    """What one transaction claimed, and whether it stopped before the end of the line, with more to be had."""

    jobs: list[Job]
    more: bool


def lease_end(tx: Transaction, lease: int | None) -> int | None:
    """When a lease of this length ends, if it began now; InvalidArgument if that is beyond the calendar."""
    return None if lease is None else check_moment("lease", timedelta(microseconds=lease), tx.now)


def dequeue_jobs(tx: Transaction, terms: ClaimTerms) -> Claim:
    """Claims up to `limit` jobs.

    A job met past its `expires_at` is ended here, as the sweep would, and the line is read again: its key may have
    let another step forward.
    """
    assignee_id, tags, limit, queues, lease, token = terms
    states = tx.hold_queues(queues)
    expires_at = lease_end(tx, lease)
    if not tags and not any(state.limited for state in states.values()):
        unpaused = [name for name, state in states.items() if state.eligible and not state.paused]
        jobs = tx.claim_in_line(unpaused, limit, assignee_id, token, expires_at)
        if jobs is not None:
            return Claim(jobs, more=False)
    for state in states.values():
        if state.rate_per_key is not None:
            refill(tx, state, tx.keys_waking(state))
        crowded = state.limits_keys and state.eligible and state.room(tx.now) and not tags
        if crowded and _park_crowd(tx, state, limit) >= MOST_PASSED:
            return Claim([], more=True)
    line = _Line(tx, states, tags)
    chosen = line.first(limit)
    while line.outlived:  # and what this pass blocked was blocked by jobs that never start: it is all begun anew
        write(tx, [expired(record, tx.now) for record in line.outlived])
        if len(line.outlived) == MOST_PASSED:
            return Claim([], more=True)
        line = _Line(tx, tx.hold_queues(queues), tags)
        chosen = line.first(limit)
    tx.park(line.blocked)
    changes = []
    for record in chosen:
        change = Change(record, tx.now)
        transitions.claim(change, assignee_id, token, expires_at)
        changes.append(change)
    if changes:
        tx.claim(changes)
    line.keep_accounts()
    return Claim([job_of(record) for record in chosen], more=len(line.blocked) == MOST_PASSED)


def _park_crowd(tx: Transaction, queue: QueueState, limit: int) -> int:
    """Parks jobs of full keys at the head of the line: a few in passing, and a crowd in bulk; returns how many.

    Passing over one costs little and parking one costs more, but a parked one is passed over for good. So every claim
    parks some, and only where nearly all at the head are in the way are they cleared before anything is claimed.
    """
    parked = tx.park_ahead(queue, 2 * limit)
    if parked < CROWD * 2 * limit:
        return parked
    while parked < MOST_PASSED:
        more = tx.park_ahead(queue, LOOKED_AHEAD)
        parked += more
        if more < CROWD * LOOKED_AHEAD:
            break
    return parked


class _Line:
    """The queues' lines merged into one, with the room that each queue and key has left."""

    def __init__(self, tx: Transaction, states: Mapping[str, QueueState], tags: Sequence[str]) -> None:
        self.tx = tx
        self.tags = tags
        self.blocked: list[Record] = []
        self.outlived: list[Record] = []
        self.room = {name: state.room(tx.now) for name, state in states.items() if state.eligible}
        self.queues = {name: states[name] for name, room in self.room.items() if room > 0}
        self.taken: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.keys: dict[tuple[str, str], KeyState] = {}
        self.touched: set[tuple[str, str]] = set()

    def first(self, limit: int) -> list[Record]:
        """The first `limit` jobs that may start."""
        chosen: list[Record] = []
        for record in self._merged(limit):
            if len(self.blocked) == MOST_PASSED or len(self.outlived) == MOST_PASSED:
                break
            if not self._key_has_room(record):
                if not record.parked:
                    self.blocked.append(record)
                continue
            if record.expires_at is not None and record.expires_at <= self.tx.now:
                self.outlived.append(record)
                continue
            self.room[record.queue] -= 1
            self.taken[record.queue] += 1
            chosen.append(record)
            if len(chosen) == limit:
                break
        return chosen

    def _merged(self, limit: int) -> Iterator[Record]:
        sources = [self.tx.candidates(queue, self.tags, limit) for queue in self.queues.values()]
        if len(sources) == 1:
            queue = next(iter(self.queues))
            for record in sources[0]:
                if self.room[queue] <= 0:
                    return
                yield record
            return
        heads = [
            (standing_order(first), number, first)
            for number, source in enumerate(sources)
            if (first := next(source, None)) is not None
        ]
        heapq.heapify(heads)
        while heads:
            _, number, record = heads[0]
            if self.room[record.queue] <= 0:
                heapq.heappop(heads)
                continue
            yield record
            following = next(sources[number], None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (standing_order(following), number, following))

    def _key_has_room(self, record: Record) -> bool:
        queue = self.queues[record.queue]
        if record.concurrency_key is None or not queue.limits_keys:
            return True
        name = (record.queue, record.concurrency_key)
        state = self.keys.get(name)
        if state is None:
            state = self.keys[name] = self.tx.key_states(record.queue, [record.concurrency_key])[record.concurrency_key]
        if state.room(queue, self.tx.now) <= 0:
            return False
        self.touched.add(name)
        state.holding += 1
        if queue.rate_per_key is not None:
            window = state.window.at(queue.rate_per_key, self.tx.now)
            state.window = window.after(1)
        return True

    def keep_accounts(self) -> None:
        """Stores what the claim used up of rates and keys."""
        for name, queue in self.queues.items():
            if self.taken[name] and queue.rate is not None:
                queue.window = queue.window.at(queue.rate, self.tx.now).after(self.taken[name])
                self.tx.put_queue(queue)
            if queue.limits_keys:
                self.tx.put_keys(queue, [self.keys[pair] for pair in self.touched if pair[0] == name])


def extend_leases(tx: Transaction, leases: Mapping[str, Lease], duration: int) -> dict[str, Lease]:
    """Renews the leases that are still the jobs' own; the others are left out of the answer."""
    expires_at = check_moment("duration", timedelta(microseconds=duration), tx.now)
    renewed: dict[str, Lease] = {}
    records = tx.jobs_to_renew(list(leases))
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
