"""Concurrency keys: whose room a change takes or gives back, and which parked jobs step back into line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from longshore.backends.transaction import KeyState, QueueState, Transaction
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY
from longshore.core.transitions import Change


def account_for_keys(tx: Transaction, changes: Sequence[Change]) -> None:
    """Keeps the keys' numbers after these changes, and refills the line where a key has room."""
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


def give_room_back(tx: Transaction, keys: Mapping[str, Mapping[str, int]]) -> None:
    """Keeps the keys' numbers after so many jobs of each queue's keys, which were held, have ended."""
    if not keys:
        return
    queues = tx.hold_settings(list(keys))
    for name, given_back in keys.items():
        if queues[name].limits_keys:
            states = tx.give_back_keys(queues[name], given_back)
            if states is not None:
                tx.unpark(name, _rooms(tx, queues[name], states.values()))


def _concerns_line(change: Change) -> bool:
    """Whether the job stood in line, or had or has room: whoever only waited for others took nobody's place."""
    return change.was in ELIGIBLE or change.was in HOLDS_CAPACITY or change.record.status in HOLDS_CAPACITY


def _account_in(tx: Transaction, queue: QueueState, changes: Sequence[Change]) -> None:
    keys = [change.record.concurrency_key or "" for change in changes]
    states = tx.key_states(queue.name, list(dict.fromkeys(keys)))
    for key, change in zip(keys, changes, strict=True):
        state = states[key]
        held, holds = change.was in HOLDS_CAPACITY, change.record.status in HOLDS_CAPACITY
        state.holding += holds - held
    refill(tx, queue, states.values())


def refill(tx: Transaction, queue: QueueState, states: Iterable[KeyState]) -> None:
    """Unparks as many jobs of each key and type as the key has room for, and stores the keys.

    While a key has parked jobs of a type, its unparked jobs of that type must never be fewer than its room, because a
    claim may name that type only. Too many do no harm: the claim that meets them parks them again.
    """
    kept = list(states)
    if tx.any_parked(queue.name):
        tx.unpark(queue.name, _rooms(tx, queue, kept))
    tx.put_keys(queue, kept)


def _rooms(tx: Transaction, queue: QueueState, states: Iterable[KeyState]) -> dict[str, int]:
    rooms = {state.key: state.room(queue, tx.now) for state in states}
    return {key: room for key, room in rooms.items() if room}
