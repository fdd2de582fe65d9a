"""A worker's turn where claims wait for each other: what completed is settled first, and waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import psycopg

from longshore.backends.checks import ClaimTerms
from longshore.backends.contract import ClaimFailed, Outcome, SettleReport
from longshore.backends.postgres.performing import Performer
from longshore.backends.verbs.claiming import Claim
from longshore.backends.verbs.turnover import complete_first, settle_and_dequeue
from longshore.core.errors import LongshoreError


def take_turn(
    performer: Performer,
    outcomes: Sequence[Outcome],
    terms: ClaimTerms,
    named: Callable[[], ClaimTerms],
    abandoned: threading.Event,
) -> tuple[SettleReport, Claim]:
    """In one transaction, or in two where there are limits: then others claim while this one settles.

    `named` returns the terms with the event log's name in the token; it is called once there is a connection.
    """
    queues = terms.queues if terms.limit else ()
    report, left = SettleReport(), outcomes
    if any(outcome.verb == "complete" for outcome in outcomes) and performer.any_limited(queues):
        report, left = performer.perform(
            lambda tx: complete_first(tx, outcomes, terms), abandoned, queues, uses_room=False
        )
    try:
        rest, claim = performer.perform(lambda tx: settle_and_dequeue(tx, left, named()), abandoned, queues)
    except (psycopg.Error, LongshoreError) as error:
        if not report.settled:
            raise
        raise ClaimFailed(report, performer.explain(error)) from error
    return _both(report, rest) if report.settled else rest, claim


def _both(first: SettleReport, then: SettleReport) -> SettleReport:
    freed = {owner: first.freed.get(owner, 0) + then.freed.get(owner, 0) for owner in first.freed | then.freed}
    return SettleReport(first.settled | then.settled, first.refused | then.refused, freed)
