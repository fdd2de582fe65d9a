"""Outcomes that a store refuses to write together: each is tried alone, so that none holds up the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from longshore.backends.base import Backend, Outcome, SettleReport
from longshore.core.errors import BackendUnavailable, QueueClosed
from longshore.runtime.failures import describe
from longshore.safe_logging import logger

_TRIES = 3

_log = logger("longshore.worker")


class Attempt(NamedTuple):
    """What became of outcomes that were settled one by one."""

    settled: list[Outcome]
    report: SettleReport
    left: list[Outcome]
    """To be tried again."""
    hopeless: list[Outcome]
    """Not to be tried again: their jobs come back when their leases end."""


class OneByOne:
    """Settles outcomes of one worker alone; one that failed so `_TRIES` times, is given up."""

    def __init__(self, backend: Backend, worker_id: str) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._failures: Counter[str] = Counter()
        self.given_up: set[str] = set()
        """Jobs whose outcomes cannot be written."""

    async def settle(self, outcomes: Sequence[Outcome]) -> Attempt:
        """Tries each of them once."""
        attempt = Attempt([], SettleReport(), [], [])
        for number, outcome in enumerate(outcomes):
            try:
                report, _ = await self._backend.settle_and_dequeue([outcome], self._worker_id, limit=0)
            except QueueClosed:
                raise
            except BackendUnavailable:  # it is the store's trouble and no outcome's
                attempt.left.extend(outcomes[number:])
                break
            except Exception as error:  # a constraint, a trigger, a row too large, a store of one's own
                self._failed(attempt, outcome, error)
            else:
                attempt.settled.append(outcome)
                attempt.report.settled.update(report.settled)
                attempt.report.refused.update(report.refused)
                del self._failures[outcome.job_id]
        return attempt

    def _failed(self, attempt: Attempt, outcome: Outcome, error: Exception) -> None:
        self._failures[outcome.job_id] += 1
        if self._failures[outcome.job_id] < _TRIES:
            attempt.left.append(outcome)
            return
        del self._failures[outcome.job_id]
        attempt.hopeless.append(outcome)
        self.given_up.add(outcome.job_id)
        _log.error(
            "the outcome %r of job %s cannot be written and is given up; the job comes back when its lease ends: %s",
            outcome.verb,
            outcome.job_id,
            describe(error).partition("\n")[0],
        )
