"""Tasks that run on Spark: their sessions and executors."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from longshore.app.routing import SparkSettings, from_spark
from longshore.app.task import Task
from longshore.core.errors import InvalidArgument
from longshore.runtime.running_job import RunningJob

P = ParamSpec("P")
R = TypeVar("R")


class SparkTask(Task[P, R]):
    """A task whose function gets a Spark session first, in a separate process with its own Java."""

    entry = "run_application"
    jobs_per_process = 1  # the Java of an earlier job may be in any state, and an idle one keeps its memory
    spark: SparkSettings
    reports_progress: bool

    def __call__(self, spark: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, with your own session."""
        return self.function(spark, *args, **kwargs)  # type: ignore[no-any-return]  # the decorator gives it its own type

    def run_here(self, job: RunningJob) -> Any:
        """Run it in this process for `harbor.eager()`, with the active session or a new one."""
        start = from_spark("spark_session", "session")
        return self._called(start(self.name, master=self.spark.master, config=self.spark.config), job)

    def run_application(self, job: RunningJob) -> Any:
        """Run it in the job's own process."""
        run = from_spark("executor.application", "run_application")
        return run(
            job,
            self.name,
            lambda spark: self._called(spark, job),
            master=self.spark.master,
            config=self.spark.config,
            reports_progress=self.reports_progress,
        )

    def _called(self, spark: Any, job: RunningJob) -> Any:
        args, kwargs = self.signature.arguments.read(job.record.payload)
        job.results_written_by(self.signature.result.write)
        value = self.function(spark, *args, **kwargs)
        return None if job.completed_explicitly else self.signature.result.write(value)


class SparkTaskDecorator(Protocol):
    """The type of `@harbor.spark_task(…)`."""

    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> SparkTask[P, R]: ...


def without_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as callers see it, without its first parameter, which the worker passes.

    So a module with Spark tasks can be imported, and its tasks enqueued, without Spark installed.
    """
    if not inspect.isfunction(function):
        raise InvalidArgument(
            "function", f"must be a function, not {function!r}; pass options by name: @harbor.spark_task(queue=…)"
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise InvalidArgument("function", f"{function.__qualname__} must take the SparkSession as its first parameter")
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            "function", f"{function.__qualname__} is an async def; use a def, because Spark's calls block"
        )
    for_callers = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    for_callers.__kwdefaults__ = function.__kwdefaults__
    for_callers.__qualname__, for_callers.__module__ = function.__qualname__, function.__module__
    for_callers.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if name != first.name}
    for_callers.__signature__ = signature.replace(parameters=parameters[1:])  # type: ignore[attr-defined]  # inspect reads it
    return for_callers
