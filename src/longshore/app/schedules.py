"""The harbor's operations on schedules."""

from __future__ import annotations

from typing import Any, ParamSpec, overload

from longshore.app.eager import EagerMode
from longshore.app.task import Call, Task, TaskWithOptions
from longshore.core.errors import InvalidArgument
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, check_schedule
from longshore.runtime.job_options import in_words_of_its_job, schedule_from
from longshore.runtime.queue import Queue

P = ParamSpec("P")


class HarborSchedules:
    """What every Harbor can do with schedules; `harbor.queue()` has the verbs to look at them and to change them."""

    _queue: Queue
    _tasks: dict[str, Task[..., Any]]
    _eagerness: EagerMode

    @overload
    async def schedule(self, schedule_id: str, call: Call[Any], repeat: Repeat, /) -> Schedule: ...

    @overload
    async def schedule(
        self,
        schedule_id: str,
        task: Task[P, Any] | TaskWithOptions[P, Any],
        repeat: Repeat,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Schedule: ...

    async def schedule(self, schedule_id: str, task: Any, repeat: Repeat, /, *args: Any, **kwargs: Any) -> Schedule:
        """Has a task called with these arguments again and again: `schedule("nightly", report, Repeat(…), "eu")`.

        The task may carry options of its own, `report.options(queue="night")`, or be a `report.call(…)`. The arguments
        are checked here. Put again under the same id, at every start of a program if you like, it is the same schedule
        as told now, with its runs remembered; one that somebody paused stays paused.
        """
        given = self._schedule(schedule_id, task, repeat, args, kwargs)
        if self._eagerness.on:
            return given
        with in_words_of_its_job("schedule_id"):
            return await self._queue.put_schedule(given, keep_pause=True)

    @overload
    def schedule_sync(self, schedule_id: str, call: Call[Any], repeat: Repeat, /) -> Schedule: ...

    @overload
    def schedule_sync(
        self,
        schedule_id: str,
        task: Task[P, Any] | TaskWithOptions[P, Any],
        repeat: Repeat,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Schedule: ...

    def schedule_sync(self, schedule_id: str, task: Any, repeat: Repeat, /, *args: Any, **kwargs: Any) -> Schedule:
        """Like `schedule`, for code without an event loop."""
        given = self._schedule(schedule_id, task, repeat, args, kwargs)
        if self._eagerness.on:
            return given
        with in_words_of_its_job("schedule_id"):
            return self._queue.sync.put_schedule(given, keep_pause=True)

    def _schedule(
        self, schedule_id: str, task: object, repeat: Repeat, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Schedule:
        call = self._call(task, args, kwargs)
        if call.options.get("job_id") is not None:
            raise InvalidArgument("job_id", "cannot be set here: each run has an id of its own, made of the schedule's")
        with in_words_of_its_job("schedule_id"):
            return check_schedule(schedule_from(call.job(), repeat, schedule_id), 0)

    def _call(self, task: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        call = task
        if isinstance(task, Call) and (args or kwargs):
            raise InvalidArgument("task", "is a call with its arguments already; give them there, or give the task")
        if isinstance(task, Task | TaskWithOptions):
            call = task.call(*args, **kwargs)
        if not isinstance(call, Call) or self._tasks.get(call.task.name) is not call.task:
            raise InvalidArgument("task", f"must be a task of this harbor, or task.call(…) of one; got {task!r}")
        return call
