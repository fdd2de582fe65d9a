"""The rules of the audit, each an SQL condition on a step of a history, and the kinds of findings."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Self

from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, LEGAL_PAIRS, JobStatus


class Kind(StrEnum):
    """A kind of finding; programs read the value, people the meaning."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        made = str.__new__(cls, value)
        made._value_, made.meaning = value, meaning
        return made

    ILLEGAL_TRANSITION = "illegal_transition", "a transition that is not in the table of legal transitions"
    BROKEN_CHAIN = "broken_chain", "a transition from a status that the job did not have"
    WRONG_BEGINNING = "wrong_beginning", "a first event that cannot start a history"
    DOUBLE_CLAIM = "double_claim", "claimed while another lease was valid"
    EPOCH_BACK = "epoch_back", "a wrong lease epoch"
    COUNTER_OFF = "counter_off", "a wrong count of executions, failures or crashes"
    STARTED_EARLY = "started_early", "started before it was due"
    GAP = "gap", "events are missing in the middle"
    DOUBLED_EVENT = "doubled_event", "two events have the same number"
    LATE_BEGINNING = "late_beginning", "its first events are missing"
    CHANGED_NAME = "changed_name", "an event has another id or queue"
    BAD_REMOVAL = "bad_removal", "removed before it was final, or still present after its removal"
    LOST = "lost", "in the log but not in the store, without a removal"
    UNRECORDED = "unrecorded", "its last events are missing from the log"
    WITHOUT_EVENTS = "without_events", "in the store but not in the log"
    STANDS_ELSEWHERE = "stands_elsewhere", "the store and the log differ"
    STUCK = "stuck", "its lease or its time to start has expired, and no sweep released it"


PRUNED = frozenset({Kind.LATE_BEGINNING, Kind.WITHOUT_EVENTS})
"""Kinds that are expected if retention removed old events."""

_FIRST = frozenset({JobStatus.CREATED, JobStatus.INITIAL_PENDING, JobStatus.WAITING_CHILDREN})
"""The statuses of a new job."""


def is_legal(source: str, target: str) -> str:
    """SQL: whether the transition is legal."""
    arrows = _texts(f"{before}>{after}" for before, after in LEGAL_PAIRS)
    return f"coalesce(concat({source}, '>', {target}) IN ({arrows}), false)"


def is_one_of(status: str, statuses: Iterable[JobStatus]) -> str:
    """SQL: whether the status in this column is one of these."""
    return f"{status} IN ({_texts(statuses)})"


def _texts(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


class Rule(NamedTuple):
    """A condition and the finding it means."""

    kind: Kind
    when: str
    detail: str
    """Text with SQL expressions in braces."""


_CLAIMS = "to_status <=> 'RUNNING'"
_MOVES = "(from_status IS NOT NULL OR to_status IS NOT NULL)"
_BEGINS = "(before IS NULL AND job_seq = 1)"
_CONTINUES = "(before IS NOT NULL AND NOT broken)"

ORDER = (
    Rule(Kind.LATE_BEGINNING, "before IS NULL AND job_seq > 1", "its first event here is number {job_seq}"),
    Rule(Kind.DOUBLED_EVENT, "job_seq = before.job_seq", "two events have number {job_seq}"),
    Rule(Kind.GAP, "job_seq > before.job_seq + 1 AND settled", "number {job_seq} follows number {before.job_seq}"),
    Rule(Kind.BAD_REMOVAL, "before.event = 'job.removed'", "comes after the job was removed"),
    Rule(
        Kind.BAD_REMOVAL,
        f"event = 'job.removed' AND NOT {is_one_of('was', FINAL)}",
        "it was {was}, and only a final job is removed",
    ),
)
TRANSITION = (
    Rule(
        Kind.DOUBLE_CLAIM,
        f"{_CLAIMS} AND {is_one_of('was', HOLDS_CAPACITY)}",
        "claimed with epoch {epoch} while it was {was} with epoch {before.epoch}",
    ),
    Rule(
        Kind.WRONG_BEGINNING,
        f"{_BEGINS} AND NOT (from_status IS NULL AND coalesce({is_one_of('to_status', _FIRST)}, false))",
        "its history begins with {from_status} -> {to_status}",
    ),
    Rule(
        Kind.ILLEGAL_TRANSITION,
        f"{_MOVES} AND NOT {_BEGINS} AND NOT {is_legal('from_status', 'to_status')}",
        "{from_status} -> {to_status} is not a legal transition",
    ),
    Rule(
        Kind.BROKEN_CHAIN,
        f"{_MOVES} AND {_CONTINUES} AND was IS NOT NULL AND NOT from_status <=> was",
        "moves from {from_status}, but it was {was}",
    ),
)
EPOCH = (
    Rule(Kind.EPOCH_BACK, "epoch < before.epoch", "its epoch is {epoch}, after {before.epoch}"),
    Rule(
        Kind.EPOCH_BACK,
        f"{_CONTINUES} AND {_CLAIMS} AND epoch = before.epoch",
        "claimed with epoch {epoch}, which the last claim had already",
    ),
    Rule(
        Kind.EPOCH_BACK,
        f"{_CONTINUES} AND NOT {_CLAIMS} AND epoch > before.epoch",
        "its epoch is {epoch}, after {before.epoch}, without a claim",
    ),
)
COUNTERS = (
    Rule(
        Kind.COUNTER_OFF,
        f"execution < before.execution OR {_CONTINUES} AND execution != before.execution + int(event = 'job.active')",
        "{execution} executions after {before.execution}",
    ),
    Rule(
        Kind.COUNTER_OFF,
        "failures != failures_were + int(to_status IS NOT NULL)",
        "{failures} failures after {failures_were}",
    ),
    Rule(
        Kind.COUNTER_OFF, "crashes != crashes_were + 1 AND crashes_were >= 0", "{crashes} crashes after {crashes_were}"
    ),
)
TIME = (
    Rule(
        Kind.STARTED_EARLY,
        "event = 'job.active' AND unix_micros(occurred_at) < due",
        "started at {occurred_at}, but was due at {timestamp_micros(due)}",
    ),
)
NAME = (
    Rule(
        Kind.CHANGED_NAME,
        "before IS NOT NULL AND NOT (job_id <=> before.job_id AND queue <=> before.queue)",
        "was job {before.job_id} of queue {before.queue}",
    ),
)
OF_EVENTS = (ORDER, TRANSITION, EPOCH, COUNTERS, TIME, NAME)

PRESENCE = (
    Rule(
        Kind.LOST,
        "stored_seq IS NULL AND ever_settled AND job_seq = last_seq AND event != 'job.removed'",
        "the log ends at {coalesce(to_status, was)} with number {job_seq}, and the store has no such job",
    ),
    Rule(
        Kind.STANDS_ELSEWHERE,
        "settled AND job_seq = stored_seq + 1",
        "the store has its events up to number {stored_seq}, the log up to {last_seq}",
    ),
)
"""Rules for events, if the jobs are known and the log reaches as far as they do."""

RECORDED = (
    Rule(
        Kind.WITHOUT_EVENTS,
        "before IS NULL",
        "it is {to_status} after {job_seq} events, and none of them is in the log",
    ),
    Rule(
        Kind.UNRECORDED,
        "before.job_seq < job_seq",
        "it has {job_seq} events, and the log ends at number {before.job_seq}",
    ),
)
"""Rules for stored jobs, if the log reaches as far as they do."""

_SAME_MOMENT = "before.job_seq = job_seq"
STANDING = (
    Rule(Kind.BAD_REMOVAL, f"{_SAME_MOMENT} AND before.event = 'job.removed'", "was removed, and is still stored"),
    Rule(
        Kind.STANDS_ELSEWHERE,
        f"{_SAME_MOMENT} AND was IS NOT NULL AND NOT to_status <=> was",
        "the store says {to_status}, the log {was}",
    ),
    Rule(
        Kind.STANDS_ELSEWHERE,
        f"{_SAME_MOMENT} AND (epoch != before.epoch OR execution != before.execution)",
        "the store says epoch {epoch} and {execution} executions, the log {before.epoch} and {before.execution}",
    ),
    Rule(
        Kind.STANDS_ELSEWHERE,
        f"{_SAME_MOMENT} AND (failures != failures_were OR crashes != crashes_were AND crashes_were >= 0)",
        "the store says {failures} failures and {crashes} crashes, the log {failures_were} and {crashes_were}",
    ),
)
"""Rules that compare stored jobs with their last event."""

SWEEP = (
    Rule(
        Kind.STUCK,
        f"{is_one_of('to_status', HOLDS_CAPACITY)} AND lease_expires_at < swept",
        "is {to_status}, its lease ended at {lease_expires_at}, and no sweep released it",
    ),
    Rule(
        Kind.STUCK,
        f"{is_one_of('to_status', ELIGIBLE | {JobStatus.WAITING_CHILDREN})} AND expires_at < swept",
        "is {to_status}, expired at {expires_at}, and no sweep ended it",
    ),
)
"""Rules for stored jobs that a sweep should have handled."""
