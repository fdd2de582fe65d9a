"""A worker's turn: it tells how jobs ended and takes the next ones, in one transaction or in two."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends.checks import ClaimTerms
from longshore.backends.contract import Outcome, SettleReport
from longshore.backends.transaction import Transaction
from longshore.backends.verbs.claiming import Claim, dequeue_jobs, lease_end
from longshore.backends.verbs.settlement import complete_at_once, settle_jobs


def settle_and_dequeue(tx: Transaction, outcomes: Sequence[Outcome], terms: ClaimTerms) -> tuple[SettleReport, Claim]:
    """Settles, then claims: what was just given back or freed counts already."""
    lease_end(tx, terms.lease)  # refused before anything is settled
    report = settle_jobs(tx, outcomes) if outcomes else SettleReport()
    return report, dequeue_jobs(tx, terms) if terms.limit else Claim([], more=False)


def complete_first(
    tx: Transaction, outcomes: Sequence[Outcome], terms: ClaimTerms
) -> tuple[SettleReport, Sequence[Outcome]]:
    """The first of two steps: settles what simply completed, and gives the outcomes that the second has to settle."""
    lease_end(tx, terms.lease)
    return complete_at_once(tx, outcomes)
