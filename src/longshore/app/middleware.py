"""Middleware: what an application does around every enqueue and every run, with and without an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.runtime import background
from longshore.runtime.running_job import RunningJob
from longshore.safe_logging import logger

R = TypeVar("R")


def at_once(work: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine that never waits, because everything it awaits blocks the thread."""
    background.refuse_in_event_loop(work)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a coroutine's value by the language's own rule
    work.close()
    raise RuntimeError("something was awaited here that must not be")


async def on_this_loop(answer: Awaitable[Any]) -> Any:
    """Awaits it where it was asked for."""
    return await answer


async def blocking(answer: Awaitable[Any]) -> Any:
    """Waits for it with the thread blocked, so that the caller's coroutine never waits.

    It runs on a new event loop in this thread, because it is user code and may be slow.
    """
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # leaves the thread's own loop, if any, alone
        return runner.run(on_this_loop(answer))


Wait = Callable[[Awaitable[Any]], Awaitable[Any]]
"""How an answer that must be awaited is awaited: on this event loop, or in a blocked thread."""

T = TypeVar("T")

_log = logger("longshore.app")


class Middleware:
    """Hooks around enqueuing and running; override those you need, as `def` or `async def`.

    The first one added is the outermost: its `before_…` comes first and its `after_…` last. An `after_…` is called for
    every `before_…` that returned, also after a failure, with the error. What an `after_…` raises is logged and nothing
    more: the job is stored, or its work done, already.
    """

    def before_enqueue(self, job: Job) -> Any:
        """May return another Job to be stored instead; an exception refuses the job, and the caller gets it."""

    def after_enqueue(self, job: Job, error: BaseException | None) -> Any:
        """The job is stored, or was refused with this error."""

    def before_run(self, job: RunningJob) -> Any:
        """In the worker's process, before the job is run. An exception is the job's failure; Snooze puts it off."""

    def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> Any:
        """The job gave back this result, or ended with this error."""


async def run_within(
    layers: Sequence[Middleware], job: RunningJob, run: Callable[[], Awaitable[Any]], wait: Wait = on_this_loop
) -> Any:
    """Runs the job inside all layers."""
    entered: list[Middleware] = []
    result: Any = None
    error: BaseException | None = None
    try:
        for layer in layers:
            await _answer(layer.before_run(job), wait)
            entered.append(layer)
        result = await run()
    except BaseException as raised:  # a cancellation and an exit, too, are how a run ends
        error = raised
        raise
    else:
        return result
    finally:
        await _leave("after_run", [(layer, (job, result, error)) for layer in reversed(entered)], wait)


async def enqueue_within(
    layers: Sequence[Middleware],
    jobs: Sequence[Job],
    store: Callable[[Sequence[Job]], Awaitable[list[T]]],
    wait: Wait,
) -> list[T]:
    """Stores the jobs inside all layers, and returns the answer of the store for each."""
    if not layers:
        return await store(jobs)
    jobs = list(jobs)
    entered: list[tuple[Middleware, int]] = []
    error: BaseException | None = None
    try:
        for position in range(len(jobs)):
            for layer in layers:
                changed = await _answer(layer.before_enqueue(jobs[position]), wait)
                if changed is not None:
                    jobs[position] = _job(changed, layer)
                entered.append((layer, position))
        return await store(jobs)
    except BaseException as raised:
        error = raised
        raise
    finally:
        await _leave("after_enqueue", [(layer, (jobs[at], error)) for layer, at in reversed(entered)], wait)


def _job(given: object, layer: Middleware) -> Job:
    if not isinstance(given, Job):
        raise InvalidArgument(f"{type(layer).__name__}.before_enqueue", f"must return a Job or None, not {given!r}")
    return given


async def _answer(answer: Any, wait: Wait) -> Any:
    return await wait(answer) if inspect.isawaitable(answer) else answer


async def _leave(hook: str, entered: Sequence[tuple[Middleware, tuple[Any, ...]]], wait: Wait) -> None:
    """Calls the hook of each layer, even if another one failed; raises a cancellation at the end."""
    stopped: BaseException | None = None
    for layer, arguments in entered:
        try:
            await _answer(getattr(layer, hook)(*arguments), wait)
        except Exception:
            _log.exception("%s.%s failed; the job is not affected", type(layer).__name__, hook)
        except BaseException as raised:
            stopped = stopped or raised
    if stopped is not None:
        raise stopped
