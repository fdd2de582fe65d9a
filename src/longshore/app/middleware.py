"""Middleware: hooks around every enqueue and every run, with and without an event loop."""

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


def run_sync(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits, because everything it awaits blocks the thread."""
    background.refuse_in_event_loop(work)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a coroutine's value by the language's own rule
    work.close()
    raise RuntimeError("a coroutine waited inside a blocking call")


async def on_this_loop(answer: Awaitable[Any]) -> Any:
    """Await it on the current loop."""
    return await answer


async def blocking(answer: Awaitable[Any]) -> Any:
    """Block the thread until the answer is there, so that the caller's coroutine never waits.

    It runs on a new event loop in this thread, because it is user code and may be slow.
    """
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # does not touch the thread's own loop
        return runner.run(on_this_loop(answer))


Wait = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits an answer: on this event loop, or by blocking the thread."""

T = TypeVar("T")

_log = logger("longshore.app")


class Middleware:
    """Hooks around enqueuing and running; override those you need, as `def` or `async def`. See docs/tasks.md.

    The first one added is the outermost: its `before_…` runs first and its `after_…` last. An `after_…` runs for every
    `before_…` that returned, also after a failure, with the error. An exception of an `after_…` is only logged: the job
    is already stored or run. Add it with `harbor.add_middleware(Metrics())`.
    """

    def before_enqueue(self, job: Job) -> Any:
        """Run before a job is stored. Return another Job to store it instead; an exception refuses the job."""

    def after_enqueue(self, job: Job, error: BaseException | None) -> Any:
        """Run after the job was stored, or refused with this error."""

    def before_run(self, job: RunningJob) -> Any:
        """Run in the worker before the job. An exception fails the job; Snooze delays it."""

    def after_run(self, job: RunningJob, result: Any, error: BaseException | None) -> Any:
        """Run after the job returned this result, or ended with this error."""


async def run_within(
    layers: Sequence[Middleware], job: RunningJob, run: Callable[[], Awaitable[Any]], wait: Wait = on_this_loop
) -> Any:
    """Run the job inside all layers."""
    entered: list[Middleware] = []
    result: Any = None
    error: BaseException | None = None
    try:
        for layer in layers:
            await _answer(layer.before_run(job), wait)
            entered.append(layer)
        result = await run()
    except BaseException as raised:  # a cancellation or exit also ends a run
        error = raised
        raise
    else:
        return result
    finally:
        await _leave("after_run", [(layer, (job, result, error)) for layer in reversed(entered)], wait)


async def enqueue_within(
    layers: Sequence[Middleware], jobs: Sequence[Job], store: Callable[[Sequence[Job]], Awaitable[list[T]]], wait: Wait
) -> list[T]:
    """Store the jobs inside all layers, and return the store's answer for each."""
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
    """Call the hook of each layer, even if another one failed; raise a cancellation at the end."""
    stopped: BaseException | None = None
    for layer, arguments in entered:
        try:
            await _answer(getattr(layer, hook)(*arguments), wait)
        except Exception:
            _log.exception("%s.%s raised an error; the job is not affected", type(layer).__name__, hook)
        except BaseException as raised:
            stopped = stopped or raised
    if stopped is not None:
        raise stopped
