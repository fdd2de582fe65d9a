"""Coroutines started one after the other: those that end without waiting for anything share one task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from time import monotonic
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

_LONGEST_STEP = 0.005
"""Seconds after which others on the loop get their turn, however many have ended at once."""


class FirstSteps(Generic[_T]):
    """Each gets a context of its own. The first that waits keeps the task, and those behind it begin in another.

    A task for each would cost more than a small job itself does.
    """

    def __init__(self, begin: Callable[[_T, asyncio.Task[None]], Coroutine[Any, Any, None]]) -> None:
        """`begin` gives the coroutine, which is told the task it will run in and must not raise."""
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._line: deque[_T] = deque()
        self._due = False

    def start(self, one: _T) -> None:
        """Begins soon, in the order they came."""
        self._line.append(one)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Called again after the task's first step: whoever is left in line then, must not wait for it."""
        self._due = bool(self._line)
        if self._due:
            # the task's own callbacks keep it alive while it waits, as of any other task
            self._loop.create_task(self._take_steps())
            self._loop.call_soon(self._go_on)

    async def _take_steps(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        until = monotonic() + _LONGEST_STEP
        # a task that was cancelled, by one that ended all the same, would pass that on to the next
        while self._line and not task.cancelling():
            steps = self._begin(self._line.popleft(), task)
            context = copy_context()
            try:
                waits_for = context.run(steps.send, None)
            except StopIteration:
                if monotonic() >= until:
                    return
                continue
            await _Rest(steps, context, waits_for)
            return


class _Rest:
    """What is left of a coroutine after its first step, in the context it began in."""

    def __init__(self, steps: Coroutine[Any, Any, None], context: Context, waits_for: Any) -> None:
        self._steps = steps
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            resume: Callable[[Any], Any]
            try:
                given: Any = yield waits_for
                resume = self._steps.send
            except BaseException as error:  # whatever it is, it is meant for the coroutine
                given, resume = error, self._steps.throw
            try:
                waits_for = self._context.run(resume, given)
            except StopIteration:
                return
