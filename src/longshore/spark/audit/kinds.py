"""What an audit can find, and how each is told to people."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What is wrong with a job; the value is what programs read."""

    ILLEGAL_TRANSITION = "illegal_transition"
    BROKEN_CHAIN = "broken_chain"
    WRONG_BEGINNING = "wrong_beginning"
    DOUBLE_CLAIM = "double_claim"
    EPOCH_BACK = "epoch_back"
    COUNTER_OFF = "counter_off"
    STARTED_EARLY = "started_early"
    GAP = "gap"
    DOUBLED_EVENT = "doubled_event"
    LATE_BEGINNING = "late_beginning"
    CHANGED_NAME = "changed_name"
    BAD_REMOVAL = "bad_removal"
    LOST = "lost"
    UNRECORDED = "unrecorded"
    WITHOUT_EVENTS = "without_events"
    STANDS_ELSEWHERE = "stands_elsewhere"
    STUCK = "stuck"


MEANING: dict[Kind, str] = {
    Kind.ILLEGAL_TRANSITION: "a move that the table of legal transitions does not have",
    Kind.BROKEN_CHAIN: "a move from a status that the job was not in",
    Kind.WRONG_BEGINNING: "a life that begins as none may",
    Kind.DOUBLE_CLAIM: "claimed while somebody held it: two leases at one time",
    Kind.EPOCH_BACK: "a lease epoch that is not the one it must be",
    Kind.COUNTER_OFF: "executions, failures or crashes that were not counted as they must be",
    Kind.STARTED_EARLY: "started before its time",
    Kind.GAP: "events missing in between",
    Kind.DOUBLED_EVENT: "two events with one number",
    Kind.LATE_BEGINNING: "its first events are missing",
    Kind.CHANGED_NAME: "an event under another id or queue",
    Kind.BAD_REMOVAL: "removed before its end, or not gone after it was removed",
    Kind.LOST: "the log knows it, the store does not, and nobody removed it",
    Kind.UNRECORDED: "the log ends before the store does: its last events are missing",
    Kind.WITHOUT_EVENTS: "the store has it, and the log knows nothing of it",
    Kind.STANDS_ELSEWHERE: "the store and the log tell different things of it",
    Kind.STUCK: "its lease or its time is over, and no sweep has taken it back",
}

PRUNED = frozenset({Kind.LATE_BEGINNING, Kind.WITHOUT_EVENTS})
"""What is no defect where old events were pruned: then it is what is no longer kept."""
