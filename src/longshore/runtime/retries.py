"""What follows a failure: the job's own strategy or backoff, asked in that order."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping

from longshore.core.backoff import Backoff, backoff_of
from longshore.core.job import Job
from longshore.core.policy import Decision, Ending, StrategyAnswer, decide
from longshore.runtime.failures import RemoteFailure

Strategy = Callable[[int, BaseException], StrategyAnswer | Awaitable[StrategyAnswer]]
"""Told how often the job failed and why the last time: seconds to wait, or False for no further try."""

_log = logging.getLogger("longshore.worker")


def by_error(
    rules: Mapping[type[BaseException], Backoff | float | bool], *, otherwise: Backoff | float | bool = 0.0
) -> Strategy:
    """A strategy from rules per error type; the first whose type fits is taken. False is no further try.

    `by_error({ConnectionError: exponential(1), ValueError: False}, otherwise=fixed(5))`
    """

    def strategy(failures: int, error: BaseException) -> StrategyAnswer:
        rule = next((rule for kind, rule in rules.items() if _is_a(error, kind)), otherwise)
        if isinstance(rule, Backoff):
            return rule.seconds(failures, random.random())
        return 0.0 if rule is True else rule

    return strategy


def _is_a(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether the error is of this type, be it raised here or in a process of its own."""
    if isinstance(error, RemoteFailure):
        return f"{kind.__module__}.{kind.__qualname__}" in error.type_names
    return isinstance(error, kind)


async def what_follows(job: Job, ending: Ending, error: BaseException, strategies: Mapping[str, Strategy]) -> Decision:
    """The decision on a job whose execution has just failed."""
    answer: StrategyAnswer | str = "unset"
    name = job.options.get("retry_strategy") if job.options else None
    if name is not None and not ending.fatal:
        answer = await _asked(job, strategies.get(name), name, error)
    return decide(
        ending,
        failures=job.retry_count + 1,
        max_attempts=job.max_attempts,
        backoff=backoff_of(job.options) if job.options else None,
        strategy=answer,  # type: ignore[arg-type]  # "unset" is the one text there is
        roll=random.random(),
    )


async def _asked(job: Job, strategy: Strategy | None, name: str, error: BaseException) -> StrategyAnswer | str:
    if strategy is None:
        _log.error(
            "job %s asks for the retry strategy %r, which this worker does not have; its backoff decides. "
            "Give it to the worker: strategies={%r: ...}",
            job.id,
            name,
            name,
        )
        return "unset"
    try:
        answer = strategy(job.retry_count + 1, error)
        return await answer if inspect.isawaitable(answer) else answer
    except Exception:
        _log.exception("the retry strategy %r failed on job %s; its backoff decides", name, job.id)
        return "unset"
