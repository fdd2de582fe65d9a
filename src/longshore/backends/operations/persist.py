"""Writes changed jobs: saves them, hands released slots to blocked jobs, applies removal options, appends events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from longshore.backends.base import Freed
from longshore.backends.operations.dependencies import changes_that_follow
from longshore.backends.port import Hold, KeyState, QueueState, Transaction
from longshore.core import transitions
from longshore.core.errors import JobNotFound
from longshore.core.job_record import Record, kept_after
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.transitions import Change


def account_for_keys(tx: Transaction, changes: Sequence[Change]) -> None:
    """Keeps the keys' numbers after these changes, and refills the line where a key has free slots."""
    keyed = [change for change in changes if change.record.concurrency_key is not None and _concerns_line(change)]
    if not keyed:
        return
    by_queue: dict[str, list[Change]] = defaultdict(list)
    for change in keyed:
        by_queue[change.record.queue].append(change)
    queues = tx.hold_queues(list(by_queue))
    for name, group in by_queue.items():
        queue = queues[name]
        if queue.limits_keys:
            _account_in(tx, queue, group)


def release_slots(tx: Transaction, keys: Mapping[str, Mapping[str, int]]) -> None:
    """Keeps the keys' numbers after so many jobs of each queue's keys, which were held, have ended."""
    queues = tx.hold_queues(list(keys), Hold.SHARED)
    for name, given_back in keys.items():
        if queues[name].limits_keys:
            states = tx.give_back_keys(queues[name], given_back)
            if states is not None:
                tx.unblock(name, _slots(tx, queues[name], states.values()))


def _concerns_line(change: Change) -> bool:
    """Whether the job stood in line, or had or has free slots: whoever only waited for others took nobody's place."""
    return change.was in ELIGIBLE or change.was in HOLDS_CAPACITY or change.record.status in HOLDS_CAPACITY


def _account_in(tx: Transaction, queue: QueueState, changes: Sequence[Change]) -> None:
    keys = [change.record.concurrency_key or "" for change in changes]
    states = tx.key_states(queue.name, list(dict.fromkeys(keys)))
    for key, change in zip(keys, changes, strict=True):
        state = states[key]
        held, holds = change.was in HOLDS_CAPACITY, change.record.status in HOLDS_CAPACITY
        state.running_count += holds - held
    refill(tx, queue, states.values())


def refill(tx: Transaction, queue: QueueState, states: Iterable[KeyState]) -> None:
    """Unblocks as many jobs of each key and type as the key has free slots for, and stores the keys.

    While a key has blocked jobs of a type, it needs at least as many unblocked jobs of that type as free slots, because
    a claim may name that type only. Too many do no harm: the claim that meets them blocks them again.
    """
    kept = list(states)
    if tx.any_blocked(queue.name):
        tx.unblock(queue.name, _slots(tx, queue, kept))
    tx.put_keys(queue, kept)


def _slots(tx: Transaction, queue: QueueState, states: Iterable[KeyState]) -> dict[str, int]:
    slots = {state.key: state.free_slots(queue, tx.now) for state in states}
    return {key: free_slots for key, free_slots in slots.items() if free_slots}


MOST_REMOVED = 1_000
"""Of the jobs that a finished one leaves behind it, so many go in its own transaction and the rest with the next."""


def remove(tx: Transaction, records: Sequence[Record], actor: str = "") -> None:
    """Takes final jobs out of the store for good, with a last event each."""
    changes = []
    for record in records:
        change = Change(record, tx.now)
        change.tell("job.removed", {"status": record.status}, actor)
        changes.append(change)
    if changes:
        tx.remove(changes)


def apply_removal_policy(tx: Transaction, ended: Iterable[Record]) -> None:
    """What the options of jobs that just ended say: it goes itself, or the oldest beyond the number to be kept."""
    leaving = []
    kept: dict[tuple[str, JobStatus], int] = {}
    for record in ended:
        keep = kept_after(record.status, record.options)
        if keep == 0:
            leaving.append(record)
        elif keep is not None:
            kind = (record.queue, record.status)
            kept[kind] = min(keep, kept.get(kind, keep))
    remove(tx, leaving)
    for (queue, status), keep in kept.items():
        remove(tx, tx.jobs_beyond(keep, status, queue, MOST_REMOVED))


def write(tx: Transaction, changes: Sequence[Change]) -> Freed:
    """Saves the changes and all that follows from them; returns whose capacity the first ones gave back."""
    pending: Sequence[Change] = changes
    while pending:
        tx.save(pending)
        account_for_keys(tx, pending)
        pending = changes_that_follow(tx, _ended(pending))
    freed: Freed = {}
    with_options = []
    for change in changes:
        worker = change.freed
        if worker is not None:
            freed[worker] = freed.get(worker, 0) + 1
        if change.record.options != "{}" and change.record.status is not change.was:
            with_options.append(change.record)
    if with_options:
        apply_removal_policy(tx, with_options)
    return freed


def _ended(changes: Sequence[Change]) -> dict[str, JobStatus]:
    """The jobs that have just come to their end, and to which."""
    return {c.record.id: c.record.status for c in changes if c.record.status.final and c.was is not c.record.status}


def change_of(tx: Transaction, job_id: str) -> Change:
    """The job, ready to be changed, or JobNotFound."""
    return Change(record_by_id(tx, job_id), tx.now)


def record_by_id(tx: Transaction, job_id: str) -> Record:
    """The job, or JobNotFound."""
    record = tx.jobs_by_id((job_id,)).get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    return record


def expired(record: Record, now: int) -> Change:
    """The end of a job that was not started before its `expires_at`."""
    change = Change(record, now)
    transitions.expire(change)
    return change
