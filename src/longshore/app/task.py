"""A task: a function that can be called directly, or enqueued with arguments that are checked at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast

from longshore.app.results import JobHandle
from longshore.app.step import PendingResult, results_in
from longshore.core.dependencies import Path
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.job_options import EnqueueOptions, Option, TaskOptions, check_options, job_from
from longshore.core.job_record import JobTemplate, record_of
from longshore.core.validation import check_tags, new_id
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.running_job import RunningJob

if TYPE_CHECKING:
    from longshore.app.arguments import Signature

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

ExecutorName = Literal["auto", "thread", "process", "spark"]
ConcurrencyKey = str | Callable[..., str | None]
"""One key for all jobs of a task, or a function that returns it from the job's arguments."""


class SparkTaskDeclaration(TaskOptions, total=False):
    """The options of `@harbor.spark_task`: those of every job of the task, and these."""

    name: Annotated[str | None, Option(None, "Its name; the function's own if left out.")]
    queue: Annotated[str, Option("default", "The queue of its jobs.")]
    retry_strategy: Annotated[str | Strategy | None, Option(None, "A function, or the name of one the worker has.")]
    concurrency_key: Annotated[ConcurrencyKey | None, Option(None, "A key, or a function of the task's arguments.")]


class TaskDeclaration(SparkTaskDeclaration, total=False):
    """The options of `@harbor.task`."""

    executor: Annotated[ExecutorName, Option("auto", "Where it runs.")]
    memory_limit: Annotated[int | None, Option(None, "Bytes that its process may use.")]


class Sender(Protocol):
    """Enqueues calls of tasks; `app/enqueue.py` implements it."""

    async def send(self, calls: Sequence[Call[R]], connection: object = None) -> list[JobHandle[R]]:
        """Store all or none."""
        ...

    def send_sync(self, calls: Sequence[Call[R]], connection: object = None) -> list[JobHandle[R]]:
        """Like `send`, for code without an event loop."""
        ...

    def handle(self, task: Task[..., R], job_id: str) -> JobHandle[R]:
        """Return the handle of a stored job."""
        ...


_ONE_JOB_ONLY = ("job_id", "idempotency_key")


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A call of a task that is not enqueued yet, with checked arguments: `greet.call("Ada")`. See docs/tasks.md."""

    task: Task[..., R_co]
    payload: bytes
    concurrency_key: str | None
    options: Mapping[str, Any]
    taken: Sequence[tuple[Path, PendingResult]] = ()
    """The paths in its arguments of results of other steps; the payload has null there."""

    def job(self) -> Job:
        """Return the job to store."""
        if self.taken:
            raise InvalidArgument(
                self.task.name, f"takes {self.taken[0][1]!r}, which only a step of the same flow can; use flow.add(…)"
            )
        if self.options:
            return self.job_with()
        return self.task._template.job(id=new_id(), payload=self.payload, concurrency_key=self.concurrency_key)

    def job_with(self, **own: Any) -> Job:
        """Return the job to store, with options that override its own."""
        options = _merged(self.task.declared, self.options)
        if self.concurrency_key is not None:
            options.setdefault("concurrency_key", self.concurrency_key)
        return job_from(self.task.name, **{**options, **own}).replace(payload=self.payload)


@contextmanager
def _one_job() -> Iterator[None]:
    """Name a wrong field without `jobs[0].`, for a caller that did not pass a list."""
    try:
        yield
    except InvalidArgument as error:
        error.field = error.field.removeprefix("jobs[0].")
        error.args = (f"{error.field}: {error.problem}",)
        raise


class Enqueueable(Generic[P, R]):
    """A task, or a task with other options for some jobs."""

    _task: Task[P, R]
    _options: Mapping[str, Any]
    _connection: object = None

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that calls the function with these arguments; InvalidArgument names a wrong one."""
        call = self._task.prepare(args, kwargs, self._options)
        with _one_job():
            return (await self._task._enqueuer.send([call], self._connection))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `enqueue`, for code without an event loop; a `connection` is used in the calling thread."""
        call = self._task.prepare(args, kwargs, self._options)
        with _one_job():
            return self._task._enqueuer.send_sync([call], self._connection)[0]

    async def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Store all these calls of the task or none, in one transaction: `[task.call(1), task.call(2)]`.

        A call's own options override these.
        """
        return await self._task._enqueuer.send(self._with_these(calls), self._connection)

    def enqueue_many_sync(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Like `enqueue_many`, for code without an event loop."""
        return self._task._enqueuer.send_sync(self._with_these(calls), self._connection)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call for `enqueue_many`, a flow or a schedule; its arguments are checked here."""
        if self._connection is not None:
            raise InvalidArgument("connection", "is for all calls; use task.options(connection=…).enqueue_many(…)")
        return self._task.prepare(args, kwargs, self._options)

    def _with_these(self, calls: Iterable[Call[R]]) -> list[Call[R]]:
        for name in _ONE_JOB_ONLY:
            if self._options.get(name) is not None:
                raise InvalidArgument(name, f"is for one job; set it for each call: task.options({name}=…).call(…)")
        given = list(calls)
        for position, call in enumerate(given):
            if not isinstance(call, Call):
                raise InvalidArgument(f"calls[{position}]", f"must be {self._task.name}.call(…), not {call!r}")
            if call.task is not self._task:
                raise InvalidArgument(
                    f"calls[{position}]", f"is a call of {call.task.name}; use harbor.enqueue_many for several tasks"
                )
        if not self._options:
            return given
        return [replace(call, options=_merged(self._options, call.options)) for call in given]


class TaskWithOptions(Enqueueable[P, R]):
    """A task with other options for the jobs enqueued through it."""

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        check_options(options, EnqueueOptions.__annotations__)
        given: dict[str, Any] = dict(options)
        self._connection = given.pop("connection", None)
        if "tags" in given:
            given["tags"] = check_tags("tags", given["tags"])
        others = given.get("depends_on", ())
        if isinstance(others, Iterable) and not isinstance(others, str | bytes | Mapping):
            given["depends_on"] = list(others)  # several enqueues may read it
        self._task = task
        self._options = given


class Task(Enqueueable[P, R]):
    """A function declared with `@harbor.task`: `await greet.enqueue("Ada")` enqueues it. See docs/tasks.md."""

    __name__: str
    entry = "run_here"
    """The method that runs it in a separate process."""
    jobs_per_process = 1000

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        enqueuer: Sender,
        *,
        name: str,
        place: str,
        executor: ExecutorName,
        memory_limit: int | None,
        concurrency_key: ConcurrencyKey | None,
        declared: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(cast(Callable[..., Any], self), function)
        self.function = function
        self.signature = signature
        self.name = name
        self.place = place
        self.executor = executor
        self.memory_limit = memory_limit
        self.is_async = inspect.iscoroutinefunction(function)
        self._enqueuer = enqueuer
        self._concurrency_key = concurrency_key
        self.declared = declared
        as_declared = job_from(name, **declared)
        record_of(as_declared, 0)  # refuse a wrong option where the task is declared
        self._template = JobTemplate(as_declared)
        self._task = self
        self._options = {}

    def __repr__(self) -> str:
        return f"<task {self.name} in {self.place}>"

    def options(self, **options: Unpack[EnqueueOptions]) -> TaskWithOptions[P, R]:
        """Return the task with other options for some jobs: `send.options(delay=5).enqueue(to="ada")`."""
        return TaskWithOptions(self, options)

    def handle(self, job_id: str) -> JobHandle[R]:
        """Return the handle of a job of this task that was enqueued before, by any process."""
        return self._enqueuer.handle(self, job_id)

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> Call[R]:
        """Return a call with checked arguments and these options."""
        arguments = self.signature.arguments
        bound = arguments.bind(args, kwargs)
        blanks, taken = results_in(bound) if PendingResult.ever_made else ({}, [])
        if taken:
            payload, values = arguments.write_around(bound, blanks)
            values |= {name: bound[name] for name in blanks}
        else:
            payload, values = arguments.write(bound)
        key = self._concurrency_key
        if callable(key):
            try:
                key = arguments.call(key, values)
            except TypeError as error:  # most likely its parameters differ from those of the task
                raise InvalidArgument(
                    f"{self.name}.concurrency_key", f"must accept the arguments of {self.name}, but raised: {error}"
                ) from error
        return Call(self, payload, key, options, taken)

    def run_here(self, job: RunningJob) -> Any:
        """Call the function for a job and return its result as JSON, or a coroutine of it; for executors."""
        if self.is_async:
            return self.run_async(job)
        args, kwargs = self.signature.arguments.read(job.record.payload)
        job.results_written_by(self.signature.result.write)
        value = self.function(*args, **kwargs)
        return None if job.completed_explicitly else self.signature.result.write(value)

    async def run_async(self, job: RunningJob) -> Any:
        """Like `run_here`, for an `async def`."""
        args, kwargs = self.signature.arguments.read(job.record.payload)
        job.results_written_by(self.signature.result.write)
        value = await self.function(*args, **kwargs)
        return None if job.completed_explicitly else self.signature.result.write(value)


class AsyncTask(Task[P, R]):
    """A task that is an `async def`: calling it returns a coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function directly."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]  # the decorator gives it its own type


class PlainTask(Task[P, R]):
    """A task that is a `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]  # the decorator gives it its own type


def _merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Merge both: the second overrides the first, and tags are added."""
    tags = (*first.get("tags", ()), *then.get("tags", ()))
    return {**first, **then, "tags": tags} if tags else {**first, **then}
