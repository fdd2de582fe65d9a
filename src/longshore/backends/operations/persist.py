"""Writes changed jobs: saves them, unblocks jobs for released slots, applies removal options, appends events."""

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
    """Update the counts of concurrency keys after these changes, and unblock jobs of keys with free slots."""
    keyed = [change for change in changes if change.record.concurrency_key is not None and _affects_claims(change)]
    if not keyed:
        return
    by_queue: dict[str, list[Change]] = defaultdict(list)
    for change in keyed:
        by_queue[change.record.queue].append(change)
    queues = tx.lock_queues(list(by_queue))
    for name, group in by_queue.items():
        queue = queues[name]
        if queue.limits_keys:
            _account_in(tx, queue, group)


def release_slots(tx: Transaction, keys: Mapping[str, Mapping[str, int]]) -> None:
    """Update the counts of keys after held jobs have ended: by queue, the number of jobs of each key."""
    queues = tx.lock_queues(list(keys), Hold.SHARED)
    for name, released in keys.items():
        if queues[name].limits_keys:
            states = tx.release_keys(queues[name], released)
            if states is not None:
                tx.unblock(name, _slots(tx, queues[name], states.values()))


def _affects_claims(change: Change) -> bool:
    """Whether the job was eligible, or held or holds a slot. Otherwise no count of its key changes."""
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
    """Unblock as many jobs of each key and type as the key has free slots, and store the keys.

    While a key has blocked jobs of a type, it needs at least as many unblocked jobs of that type as free slots, because
    a claim may name that type only. Too many do no harm: the next claim blocks them again.
    """
    kept = list(states)
    if tx.any_blocked(queue.name):
        tx.unblock(queue.name, _slots(tx, queue, kept))
    tx.put_keys(queue, kept)


def _slots(tx: Transaction, queue: QueueState, states: Iterable[KeyState]) -> dict[str, int]:
    slots = {state.key: state.free_slots(queue, tx.now) for state in states}
    return {key: free_slots for key, free_slots in slots.items() if free_slots}


MOST_REMOVED = 1_000
"""The most old jobs that one finished job removes in its transaction; the next one removes more."""


def remove(tx: Transaction, records: Sequence[Record], actor: str = "") -> None:
    """Remove final jobs permanently, each with a last event."""
    changes = []
    for record in records:
        change = Change(record, tx.now)
        change.add_event("job.removed", {"status": record.status}, actor)
        changes.append(change)
    if changes:
        tx.remove(changes)


def apply_removal_policy(tx: Transaction, ended: Iterable[Record]) -> None:
    """Apply the removal options of jobs that just ended: remove the job, or the oldest ones beyond the number to
    keep."""
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
    """Save the changes and everything that follows from them; return the slots that the first ones released."""
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
    """The jobs that have just ended, with their final status."""
    return {c.record.id: c.record.status for c in changes if c.record.status.final and c.was is not c.record.status}


def change_of(tx: Transaction, job_id: str) -> Change:
    """The job, ready to be changed; raise JobNotFound."""
    return Change(record_by_id(tx, job_id), tx.now)


def record_by_id(tx: Transaction, job_id: str) -> Record:
    """The job; raise JobNotFound."""
    record = tx.jobs_by_id((job_id,)).get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    return record


def expired(record: Record, now: int) -> Change:
    """The end of a job that was not started before its `expires_at`."""
    change = Change(record, now)
    transitions.expire(change)
    return change
