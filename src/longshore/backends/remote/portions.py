"""What is asked for at once by one call, and sent or fetched by requests of a size that a server takes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from longshore.backends import checks
from longshore.backends.contract import Outcome, SettleReport
from longshore.backends.remote import protocol as wire
from longshore.backends.remote.asking import Written
from longshore.backends.remote.records import write_outcome
from longshore.core.errors import InvalidArgument, LongshoreError

R = TypeVar("R")


async def in_pieces(limit: int, piece: Callable[[int], Coroutine[Any, Any, list[R]]]) -> list[R]:
    """As many as asked for, by requests of a size that a server takes; fewer if one fails after the first."""
    found: list[R] = []
    while True:
        most = min(limit - len(found), wire.MOST_AT_ONCE)
        try:
            jobs = await piece(most)
        except LongshoreError:
            if not found:
                raise
            return found  # they were given to nobody else
        found += jobs
        if len(jobs) < most or len(found) >= limit:
            return found


def sorted_out(outcomes: Sequence[Outcome]) -> tuple[Written, dict[str, Any]]:
    """Those that can be sent, written; and those that no store would take, each with the reason."""
    good = Written()
    refused: dict[str, Any] = {}
    for outcome in checks.outcomes(outcomes):
        try:
            good.append(write_outcome(outcome))
        except InvalidArgument as error:
            refused.setdefault(outcome.job_id, error)
    return good, refused


def with_refusals(report: SettleReport, refused: dict[str, Any]) -> SettleReport:
    """The report, with those as well that were never sent."""
    for job_id, error in refused.items():
        report.refused.setdefault(job_id, error)
    return report
