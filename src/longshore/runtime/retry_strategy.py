"""Decides whether and when a failed job is retried: by its retry strategy or its backoff."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Literal

from longshore.core.job import Job
from longshore.core.retry import Backoff, Decision, Ending, StrategyAnswer, backoff_of, decide
from longshore.runtime.error_text import is_a
from longshore.safe_logging import logger

Answer = StrategyAnswer | Literal["unset"]
"""The answer of a strategy; "unset" leaves the decision to the job's backoff."""
Strategy = Callable[[int, BaseException], Answer | Awaitable[Answer]]
"""Takes the number of failures and the last error; returns seconds to wait, or False for no retry."""

_STRATEGY_TIMEOUT = 30.0
"""Seconds for an async strategy to answer, during which the job holds its slot."""

_log = logger("longshore.worker")


def by_error(
    rules: Mapping[type[BaseException], Backoff | float | bool], *, otherwise: Backoff | float | bool | None = None
) -> Strategy:
    """Return a retry strategy with a rule per error type; the first match applies, and False means no retry.

    `by_error({ConnectionError: exponential(1), ValueError: False}, otherwise=fixed(5))`. For an error without a rule,
    `otherwise=None` means the job's own backoff. See docs/tasks.md.
    """

    def strategy(failures: int, error: BaseException) -> Answer:
        rule = next((rule for kind, rule in rules.items() if is_a(error, kind)), otherwise)
        if rule is None:
            return "unset"
        if isinstance(rule, Backoff):
            return rule.seconds(failures, random.random())
        return 0.0 if rule is True else rule

    return strategy


async def decide_retry(job: Job, ending: Ending, error: BaseException, strategies: Mapping[str, Strategy]) -> Decision:
    """Return the decision for a job whose attempt has just failed."""
    answer: Answer = "unset"
    name = job.options.get("retry_strategy") if job.options else None
    if name is not None and not ending.fatal:
        answer = await _ask_strategy(job, strategies.get(name), name, error)
    return decide(
        ending,
        failures=job.retry_count + 1,
        max_attempts=job.max_attempts,
        backoff=backoff_of(job.options) if job.options else None,
        strategy=answer,
        roll=random.random(),
    )


async def _ask_strategy(job: Job, strategy: Strategy | None, name: str, error: BaseException) -> Answer:
    if strategy is None:
        _log.error(
            "job %s names the retry strategy %r, which this worker does not have; its backoff decides. "
            "Pass it to the worker: strategies={%r: ...}",
            job.id,
            name,
            name,
        )
        return "unset"
    try:
        answer = strategy(job.retry_count + 1, error)
        if inspect.isawaitable(answer):
            async with asyncio.timeout(_STRATEGY_TIMEOUT):
                answer = await answer
        return _check_answer(answer)
    except BaseException:  # whatever it raises, the job needs an outcome
        _log.exception("the retry strategy %r raised an error on job %s; its backoff decides", name, job.id)
        return "unset"


def _check_answer(answer: object) -> Answer:
    if isinstance(answer, timedelta):
        return answer.total_seconds()
    if answer is None or answer is False:
        return answer
    if answer == "unset":
        return "unset"
    if isinstance(answer, int | float) and answer is not True:
        return float(answer)
    raise TypeError(f"a retry strategy must return seconds or False, not {answer!r}")
