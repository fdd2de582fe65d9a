"""Operations for administrators: retry dead jobs, promote delayed ones, pause queues, set limits and retention."""

from __future__ import annotations

from collections.abc import Mapping

from longshore.backends.base import UNCHANGED, Unchanged
from longshore.backends.operations.persist import change_of, write
from longshore.backends.port import Hold, QueueState, Transaction, operation
from longshore.core import transitions
from longshore.core.actor import actor
from longshore.core.limits import Rate, Window
from longshore.core.times import SECOND
from longshore.core.transitions import note


@operation()
def retry_job(tx: Transaction, job_id: str, reset: bool, actor: str) -> None:
    """Return a DEAD job to the queue."""
    change = change_of(tx, job_id)
    transitions.retry(change, reset=reset, actor=actor)
    write(tx, [change])


@operation()
def promote_job(tx: Transaction, job_id: str) -> None:
    """Make a delayed job due now; change nothing if it is due."""
    change = change_of(tx, job_id)
    transitions.promote(change)
    if change.events:
        write(tx, [change])


@operation()
def set_paused(tx: Transaction, name: str, paused: bool) -> None:
    """Pause or resume a queue; record an event only if that changes it."""
    state = _queue(tx, name)
    if state.paused is not paused:
        state.paused = paused
        tx.put_queue(state)
        event = "queue.paused" if paused else "queue.resumed"
        tx.write_event(note(name, event, tx.now))


@operation()
def set_limits(
    tx: Transaction,
    name: str,
    running: int | Unchanged | None,
    per_key: int | Unchanged | None,
    rate: Rate | Unchanged | None,
    rate_per_key: Rate | Unchanged | None,
) -> None:
    """Change the given limits, and unblock jobs that have free slots now."""
    state = _queue(tx, name)
    before, rate_before = (state.per_key, state.rate_per_key), state.rate
    state.running_limit = state.running_limit if running is UNCHANGED else running
    state.per_key = state.per_key if per_key is UNCHANGED else per_key
    state.rate = state.rate if rate is UNCHANGED else rate
    state.rate_per_key = state.rate_per_key if rate_per_key is UNCHANGED else rate_per_key
    if _other_windows(rate_before, state.rate):
        state.window = Window()
    tx.put_queue(state)
    if (state.per_key, state.rate_per_key) != before:
        tx.recount_keys(state, new_windows=_other_windows(before[1], state.rate_per_key))
    given = {"running": running, "per_key": per_key, "rate": rate, "rate_per_key": rate_per_key}
    _record_change(tx, name, given)


@operation()
def set_retention(
    tx: Transaction,
    name: str,
    finished: int | Unchanged | None,
    dead: int | Unchanged | None,
    events: int | Unchanged | None,
) -> None:
    """Change the given retention periods of the queue."""
    state = _queue(tx, name)
    state.keep_finished = state.keep_finished if finished is UNCHANGED else finished
    state.keep_dead = state.keep_dead if dead is UNCHANGED else dead
    state.keep_events = state.keep_events if events is UNCHANGED else events
    tx.put_queue(state)
    _record_change(tx, name, {"keep_finished": finished, "keep_dead": dead, "keep_events": events})


def _record_change(tx: Transaction, name: str, given: Mapping[str, int | Rate | Unchanged | None]) -> None:
    """Record an event if the caller has an actor: without one, changed settings write no event."""
    if actor():
        detail = {what: _plain(value) for what, value in given.items() if value is not UNCHANGED}
        tx.write_event(note(name, "queue.changed", tx.now, detail))


def _plain(value: int | Rate | Unchanged | None) -> object:
    return {"count": value.count, "per": value.per_micros / SECOND} if isinstance(value, Rate) else value


def _other_windows(before: Rate | None, after: Rate | None) -> bool:
    """Whether the new rate has other windows than the old one, so that counting starts again."""
    return before is None or after is None or before.per != after.per


def _queue(tx: Transaction, name: str) -> QueueState:
    return tx.lock_queues([name], Hold.EXCLUSIVE)[name]
