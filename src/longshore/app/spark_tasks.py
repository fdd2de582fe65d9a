"""Tasks that run on Spark: where they run, and by which executor."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from longshore.app.routing import SparkSettings, from_spark
from longshore.app.task import ConcurrencyKey, Task
from longshore.core.errors import InvalidArgument
from longshore.core.times import Duration
from longshore.runtime.job_options import BackoffLike
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.running_job import RunningJob

P = ParamSpec("P")
R = TypeVar("R")


class SparkTask(Task[P, R]):
    """A task whose function is handed a Spark session first, in a process and a Java of its own."""

    entry = "run_application"
    jobs_per_process = 1  # a Java that the next job could find in disorder, or that idles with its memory, is no gain
    spark: SparkSettings
    tells_progress: bool

    def __call__(self, spark: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        """Just calls the function, with a session of yours."""
        return self.function(spark, *args, **kwargs)  # type: ignore[no-any-return]  # its own type, by the decorator

    def run_here(self, job: RunningJob) -> Any:
        """In this process, for `harbor.eager()`: with the session that is there, or one that is started."""
        start = from_spark("spark_session", "session")
        return self._called(start(self.name, master=self.spark.master, config=self.spark.config), job)

    def run_application(self, job: RunningJob) -> Any:
        """In a process of the job's own."""
        run = from_spark("executor.application", "run_application")
        return run(
            job,
            self.name,
            lambda spark: self._called(spark, job),
            master=self.spark.master,
            config=self.spark.config,
            tells_progress=self.tells_progress,
        )

    def _called(self, spark: Any, job: RunningJob) -> Any:
        args, kwargs = self.signature.arguments.read(job.record.payload)
        job.results_written_by(self.signature.result.write)
        value = self.function(spark, *args, **kwargs)
        return None if job.said_complete else self.signature.result.write(value)


class SparkTaskDecorator(Protocol):
    """What `@harbor.spark_task(…)` does to a function."""

    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> SparkTask[P, R]: ...


class HarborSpark:
    """For Harbor."""

    _spark: SparkSettings

    _declare: Callable[..., Any]
    """Harbor's own."""

    def use_spark(
        self, *, master: str | None = None, config: Mapping[str, str] | None = None, batch_size: int | None = None
    ) -> None:
        """Where the Spark work of its tasks runs: `master` as Spark names it, settings, and jobs in one batch.

        Without it: a session that is active in the worker's process, what spark-submit says, or this machine.
        """
        self._spark.change(master, config, batch_size)

    @overload
    def spark_task(self, function: Callable[Concatenate[Any, P], R], /) -> SparkTask[P, R]: ...

    @overload
    def spark_task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        attempts: int = 1,
        backoff: BackoffLike | None = None,
        retry_strategy: str | Strategy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        lifo: bool = False,
        tags: Sequence[str] = (),
        max_crashes: int | None = 3,
        remove_on_complete: bool | int = False,
        remove_on_fail: bool | int = False,
        concurrency_key: ConcurrencyKey | None = None,
        progress: bool = True,
    ) -> SparkTaskDecorator: ...

    def spark_task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        attempts: int = 1,
        backoff: BackoffLike | None = None,
        retry_strategy: str | Strategy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        lifo: bool = False,
        tags: Sequence[str] = (),
        max_crashes: int | None = 3,
        remove_on_complete: bool | int = False,
        remove_on_fail: bool | int = False,
        concurrency_key: ConcurrencyKey | None = None,
        progress: bool = True,
    ) -> Any:
        """Makes a function a task that is a Spark application: a worker hands it a session, then its arguments.

        It runs in a process with a Java of its own, which end with it. How many of Spark's tasks are done becomes the
        job's progress, unless the function tells its own and says `progress=False`. The options are those of `task`.
        """
        names = sys._getframe(1).f_locals  # for annotations by names of a function that declares tasks inside
        declared = {
            "queue": queue,
            "attempts": attempts,
            "backoff": backoff,
            "timeout": timeout,
            "priority": priority,
            "lifo": lifo,
            "tags": tags,
            "max_crashes": max_crashes,
            "remove_on_complete": remove_on_complete,
            "remove_on_fail": remove_on_fail,
        }

        def declare(function: Callable[..., Any]) -> Any:
            task = self._declare(
                function,
                names,
                name=name,
                declared=declared,
                executor="process",
                memory_limit=None,
                concurrency_key=concurrency_key,
                retry_strategy=retry_strategy,
                kind=SparkTask,
                asked=_without_the_session(function),
            )
            task.spark, task.tells_progress = self._spark, progress
            return task

        return declare if function is None else declare(function)


def _without_the_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as callers see it: its first parameter is the worker's to give, and may be annotated with anything.

    So a module whose tasks run on Spark can be imported, and its tasks enqueued, where there is no Spark.
    """
    if not inspect.isfunction(function):
        raise InvalidArgument(
            "function", f"must be a function, not {function!r}; options go by name: @harbor.spark_task(queue=…)"
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise InvalidArgument(
            "function", f"{function.__qualname__} takes no session: its first parameter is the SparkSession"
        )
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument("function", f"{function.__qualname__} is async: Spark's calls block, make it a def")
    asked = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    asked.__kwdefaults__ = function.__kwdefaults__
    asked.__qualname__, asked.__module__ = function.__qualname__, function.__module__
    asked.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if name != first.name}
    asked.__signature__ = signature.replace(parameters=parameters[1:])  # type: ignore[attr-defined]  # what inspect looks for
    return asked
