"""The harbor: one store, the tasks of an application, and the workers that run them."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from longshore.app.enqueue import Enqueuer
from longshore.app.flows import Flow, FlowStore, call_made_by
from longshore.app.middleware import Middleware
from longshore.app.results import FlowHandle, JobHandle
from longshore.app.routing import Router, SparkSettings
from longshore.app.spark_tasks import SparkTask, SparkTaskDecorator, without_session
from longshore.app.task import AsyncTask, Call, Enqueueable, PlainTask, SparkTaskDeclaration, Task, TaskDeclaration
from longshore.backends.base import UNCHANGED, Backend, Unchanged
from longshore.backends.connect import connect
from longshore.core.clock import Clock
from longshore.core.errors import InvalidArgument, QueueClosed
from longshore.core.explain import Explanation
from longshore.core.job_options import check_options, with_options
from longshore.core.limits import Limits, Rate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, check_schedule, schedule_errors, schedule_from
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_name, check_number
from longshore.runtime import background
from longshore.runtime.executors.base import CANCEL_GRACE, refuse_while_importing
from longshore.runtime.queue import Queue
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.scheduler import Scheduler
from longshore.runtime.signals import STOP_GRACE, serve
from longshore.runtime.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
Then = Callable[[A], Call[B]]
"""Makes the next call of a chain from the previous result: `task.call`."""


class FlowNames(TypedDict, total=False):
    """The name of a flow, and the id under which it is stored once."""

    name: str
    id: str | None


CONCURRENCY = 10
"""Jobs that a worker runs at a time by default."""
_EXECUTORS = ("auto", "thread", "process", "spark")


class TaskDecorator(Protocol):
    """The type of `@harbor.task(…)`."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first overload that matches applies; a coroutine is not a result
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class Harbor:
    """The tasks of an application and their store: `harbor = Harbor("sqlite:///jobs.db")`. See docs/tasks.md.

    Create it at the top of a module: it is not bound to an event loop, and its store opens on first use. After a close
    it may be entered again (`async with harbor`): it opens its URL again, and `memory://` is a new, empty store.
    """

    def __init__(
        self, store: str | Backend, *, name: str = "harbor", clock: Clock | None = None, **options: Any
    ) -> None:
        """Take a URL, with the clock and options of `connect`, or an open backend."""
        if isinstance(store, Backend) and (clock is not None or options):
            raise InvalidArgument("store", "is a Backend; pass clock and options only with a URL")
        self.name = check_name("name", name)
        self.url = store if isinstance(store, str) else None
        self._connect = partial(connect, store, clock=clock, **options) if isinstance(store, str) else None
        self._entering = threading.Lock()
        self._entries = 0
        self.backend = store if isinstance(store, Backend) else connect(store, clock=clock, **options)
        self._queue = _HarborQueue(self.backend)
        self._queues: list[Queue] = [self._queue]
        self._tasks: dict[str, Task[..., Any]] = {}
        self._layers: list[Middleware] = []
        self._spark = SparkSettings()
        self._strategies: dict[str, Strategy] = {}
        self._enqueuer = Enqueuer(self._queue, self._layers)
        self._flows = FlowStore(self._enqueuer, self._tasks)

    def __repr__(self) -> str:
        return f"<Harbor {self.name} with {len(self._tasks)} tasks>"

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """Its tasks by name."""
        return MappingProxyType(self._tasks)

    # -- tasks

    @overload
    def task(  # type: ignore[overload-overlap]  # as above
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...

    @overload
    def task(self, /, **declared: Unpack[TaskDeclaration]) -> TaskDecorator: ...

    @with_options(TaskDeclaration)
    def task(self, function: Callable[..., Any] | None = None, /, **declared: Unpack[TaskDeclaration]) -> Any:
        """Declare a function as a task: `@harbor.task` or `@harbor.task(queue="mail")`. `name` replaces its own name.

        An `async def` runs on the worker's event loop, a `def` in a thread. With `executor="process"` either runs in a
        child process, which may have a `memory_limit` in bytes; with `executor="spark"` in Spark tasks, thousands of
        jobs to a batch. `retry_strategy` is a function, or the name of one that the worker has. `concurrency_key` may
        be a function of the task's arguments.
        """
        names = sys._getframe(1).f_locals  # resolves annotations of tasks declared inside a function
        declare = partial(self._declare, names=names, **declared)
        return declare if function is None else declare(function)

    def use_spark(
        self, *, master: str | None = None, config: Mapping[str, str] | None = None, batch_size: int | None = None
    ) -> None:
        """Set where the Spark work of its tasks runs: a Spark `master`, settings, and jobs per batch.

        By default: the active session of the worker's process, the settings of spark-submit, or this machine.
        """
        self._spark.change(master, config, batch_size)

    @overload
    def spark_task(self, function: Callable[Concatenate[Any, P], R], /) -> SparkTask[P, R]: ...

    @overload
    def spark_task(
        self, /, *, progress: bool = True, **declared: Unpack[SparkTaskDeclaration]
    ) -> SparkTaskDecorator: ...

    @with_options(SparkTaskDeclaration)
    def spark_task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        progress: bool = True,
        **declared: Unpack[SparkTaskDeclaration],
    ) -> Any:
        """Declare a function as a Spark application: a worker passes it a session, then its arguments.

        It runs in a child process with its own Java. The completed share of Spark's tasks becomes the job's progress,
        unless `progress=False`. The options are those of `task`.
        """
        names = sys._getframe(1).f_locals  # as above
        check_options(declared, SparkTaskDeclaration.__annotations__)

        def declare(function: Callable[..., Any]) -> Any:
            task: Any = self._declare(
                function, names, kind=SparkTask, for_callers=without_session(function), executor="process", **declared
            )
            task.spark, task.reports_progress = self._spark, progress
            return task

        return declare if function is None else declare(function)

    def _declare(
        self,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        kind: type[Task[..., Any]] | None = None,
        for_callers: Callable[..., Any] | None = None,
        **declared: Unpack[TaskDeclaration],
    ) -> Task[..., Any]:
        """Declare a task; `for_callers` has the parameters that callers pass, if they differ from the function's."""
        from longshore.app.arguments import Signature, place_of  # it loads pydantic, which only tasks need

        check_options(declared, TaskDeclaration.__annotations__)
        _check_function(function)
        given = declared.pop("name", None)
        name = check_name("name", function.__name__ if given is None else given)
        place = place_of(function)
        known = self._tasks.get(name)
        if known is not None and known.place != place:  # the same place means that its module is loaded again
            twice = f"two tasks are named {name!r}: in {known.place} and in {place}; pass name= to one of them"
            raise InvalidArgument("name", twice)
        executor, memory_limit = declared.pop("executor", "auto"), declared.pop("memory_limit", None)
        _check_executor(function, executor, memory_limit)
        strategy, key = declared.pop("retry_strategy", None), declared.pop("concurrency_key", None)
        kind = kind or (AsyncTask if inspect.iscoroutinefunction(function) else PlainTask)
        task: Task[..., Any] = kind(
            function,
            Signature(name, for_callers or function, names),
            self._enqueuer,
            name=name,
            place=place,
            executor=executor,
            memory_limit=memory_limit,
            concurrency_key=key,
            declared={**declared, "retry_strategy": name if callable(strategy) else strategy},
        )
        self._tasks[name] = task
        if callable(strategy):
            self._strategies[name] = strategy
        return task

    def add_middleware(self, *layers: Middleware) -> None:
        """Wrap every enqueue and run in these layers from now on, the first one outermost."""
        for layer in layers:
            if not isinstance(layer, Middleware):
                raise InvalidArgument("layers", f"must be Middleware, not {layer!r}; pass an instance, not the class")
            self._layers.append(layer)

    # -- enqueue and read

    async def enqueue_many(self, calls: Iterable[Call[Any]], *, connection: object = None) -> list[JobHandle[Any]]:
        """Store calls of any of its tasks, all or none, in one transaction: `[greet.call("Ada"), resize.call(7)]`."""
        return await self._enqueuer.send(self._own(calls), connection)

    def enqueue_many_sync(self, calls: Iterable[Call[Any]], *, connection: object = None) -> list[JobHandle[Any]]:
        """Like `enqueue_many`, for code without an event loop."""
        return self._enqueuer.send_sync(self._own(calls), connection)

    def _own(self, calls: Iterable[Call[Any]]) -> list[Call[Any]]:
        given = list(calls)
        for position, call in enumerate(given):
            if not isinstance(call, Call) or self._tasks.get(call.task.name) is not call.task:
                raise InvalidArgument(f"calls[{position}]", f"must be task.call(…) of this harbor, not {call!r}")
        return given

    def queue(self, name: str | None = None) -> Queue:
        """Return a queue of its store by name, or one for all queues. It is closed with the harbor."""
        self._refuse_if_closed()
        queue = Queue(self.backend, name)
        self._queues = [*(other for other in self._queues if not other.closed), queue]
        return queue

    # -- flows

    def flow(self, name: str = "flow", *, id: str | None = None) -> Flow[Any]:
        """Return a new flow to add steps to; `await flow.enqueue()` stores them all."""
        return Flow(self._flows, name, id)

    def get_flow(self, id: str) -> FlowHandle[Any]:
        """Return the handle of a flow that was enqueued before, by any process."""
        return FlowHandle(check_name("id", id), self._flows)

    @overload
    def chain(self, first: Call[A], /, **named: Unpack[FlowNames]) -> Flow[A]: ...

    @overload
    def chain(self, first: Call[A], then: Then[A, B], /, **named: Unpack[FlowNames]) -> Flow[B]: ...

    @overload
    def chain(self, first: Call[A], b: Then[A, B], c: Then[B, C], /, **named: Unpack[FlowNames]) -> Flow[C]: ...

    @overload
    def chain(
        self, first: Call[A], b: Then[A, B], c: Then[B, C], d: Then[C, D], /, **named: Unpack[FlowNames]
    ) -> Flow[D]: ...

    @overload
    def chain(
        self, first: Call[A], b: Then[A, B], c: Then[B, C], d: Then[C, D], e: Then[D, E], /, **named: Unpack[FlowNames]
    ) -> Flow[E]: ...

    @overload
    def chain(
        self,
        first: Call[A],
        b: Then[A, B],
        c: Then[B, C],
        d: Then[C, D],
        e: Then[D, E],
        f: Then[E, Any],
        /,
        *following: Then[Any, Any],
        **named: Unpack[FlowNames],
    ) -> Flow[Any]: ...

    def chain(
        self, first: Call[Any], /, *following: Callable[[Any], Call[Any]], name: str = "chain", id: str | None = None
    ) -> Flow[Any]:
        """Return a flow of calls in order, each with the previous result: `harbor.chain(a.call(1), b.call, c.call)`.

        After the first call, pass `task.call` or a function that returns a call, such as
        `lambda rows: load.call(rows, table="orders")`. The flow's result is the last one's.
        """
        flow: Flow[Any] = Flow(self._flows, name, id)
        step = flow.add(first)
        for position, make in enumerate(following, 2):
            step = flow.add(call_made_by(make, step.result, f"link {position} of the chain"))
        return flow

    def group(self, calls: Iterable[Call[A]], *, name: str = "group", id: str | None = None) -> Flow[list[A]]:
        """Return a flow that runs calls concurrently; its result is the list of theirs, in the order given."""
        flow: Flow[list[A]] = Flow(self._flows, name, id, listed=True)
        for call in calls:
            flow.add(call)
        if not flow.steps:
            raise InvalidArgument("calls", "is empty; a group needs at least one call")
        return flow

    def chord(
        self,
        calls: Iterable[Call[A]],
        then: Callable[[list[A]], Call[B]],
        *,
        name: str = "chord",
        id: str | None = None,
    ) -> Flow[B]:
        """Return a flow of concurrent calls, then one with their results: `harbor.chord(pages, bind.call)`.

        Without calls, that call gets an empty list at once.
        """
        flow: Flow[B] = Flow(self._flows, name, id)
        steps = [flow.add(call) for call in calls]
        flow.add(call_made_by(then, [step.result for step in steps], "then"))
        return flow

    # -- schedules

    @overload
    async def schedule(self, schedule_id: str, call: Call[Any], repeat: Repeat, /) -> Schedule: ...

    @overload
    async def schedule(
        self, schedule_id: str, task: Enqueueable[P, Any], repeat: Repeat, /, *args: P.args, **kwargs: P.kwargs
    ) -> Schedule: ...

    async def schedule(self, schedule_id: str, task: Any, repeat: Repeat, /, *args: Any, **kwargs: Any) -> Schedule:
        """Enqueue a task with these arguments repeatedly: `schedule("nightly", report, Repeat(…), "eu")`.

        The task may have other options, `report.options(queue="night")`, or be a `report.call(…)`. You may call this at
        every start of a program: an existing schedule with this id is changed, keeps its run count, and stays paused if
        it was. See docs/schedules.md.
        """
        given = self._schedule(schedule_id, task, repeat, args, kwargs)
        if self._enqueuer.eager.on:
            return given
        with schedule_errors("schedule_id"):
            return await self._queue.put_schedule(given, keep_pause=True)

    @overload
    def schedule_sync(self, schedule_id: str, call: Call[Any], repeat: Repeat, /) -> Schedule: ...

    @overload
    def schedule_sync(
        self, schedule_id: str, task: Enqueueable[P, Any], repeat: Repeat, /, *args: P.args, **kwargs: P.kwargs
    ) -> Schedule: ...

    def schedule_sync(self, schedule_id: str, task: Any, repeat: Repeat, /, *args: Any, **kwargs: Any) -> Schedule:
        """Like `schedule`, for code without an event loop."""
        given = self._schedule(schedule_id, task, repeat, args, kwargs)
        if self._enqueuer.eager.on:
            return given
        with schedule_errors("schedule_id"):
            return self._queue.sync.put_schedule(given, keep_pause=True)

    def _schedule(
        self, schedule_id: str, task: object, repeat: Repeat, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Schedule:
        if isinstance(task, Call) and (args or kwargs):
            raise InvalidArgument("task", "is a call, which has its arguments; pass more to call(…)")
        call = task.call(*args, **kwargs) if isinstance(task, Enqueueable) else task
        if not isinstance(call, Call) or self._tasks.get(call.task.name) is not call.task:
            raise InvalidArgument("task", f"must be a task of this harbor, or task.call(…) of one; got {task!r}")
        if call.options.get("job_id") is not None:
            raise InvalidArgument("job_id", "cannot be set here; each run gets an id derived from the schedule's")
        with schedule_errors("schedule_id"):
            return check_schedule(schedule_from(call.job(), repeat, schedule_id), 0)

    # -- limits

    async def set_limits(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """Limit how many jobs of a queue, and of each concurrency key, run at once and start per window.

        A limit that is not given stays unchanged; None means no limit. See docs/limits.md.
        """
        await self._queue.set_limits(queue, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key)

    async def get_limits(self, queue: str) -> Limits:
        """Return the current limits of a queue."""
        return await self._queue.get_limits(queue)

    async def explain(self, job_id: str) -> Explanation:
        """Explain why a job is not running: every reason, each with a remedy."""
        return await self._queue.explain(job_id)

    set_limits_sync = background.blocking(set_limits)
    get_limits_sync = background.blocking(get_limits)
    explain_sync = background.blocking(explain)

    # -- workers

    def worker(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int = CONCURRENCY,
        strategies: Mapping[str, Strategy] | None = None,
        cancel_grace: Duration = CANCEL_GRACE,
        **options: Any,
    ) -> Worker:
        """Return a worker for all its tasks, on all queues or those named; `await worker.run()` runs it.

        `options` are those of `Worker`. Inside an event loop it starts at once. A job whose type is not a task here is
        released for a minute, with the reason.
        """
        router = self._router(concurrency, cancel_grace)
        return Worker(
            self._queue,
            router,
            concurrency=concurrency,
            queues=queues,
            strategies={**self._strategies, **(strategies or {})},
            cancel_grace=cancel_grace,
            **options,
        )

    def run_worker(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int = CONCURRENCY,
        grace: Duration | None = STOP_GRACE,
        **options: Any,
    ) -> int:
        """Run a worker in this process until SIGTERM or SIGINT, and return the exit code.

        After the first signal, running jobs may end within `grace` seconds; the rest are released and the attempt is
        not counted. The second signal drops all jobs at once. For several processes, use
        `longshore.Supervisor("shop:harbor")`.
        """
        refuse_while_importing()
        return serve(lambda: self.worker(queues, concurrency=concurrency, **options), grace=grace)

    def scheduler(self, **options: Any) -> Scheduler:
        """Return a scheduler for its store; `await scheduler.run()` runs it. `options` are those of `Scheduler`."""
        self._refuse_if_closed()
        return Scheduler(self.backend, **options)

    def run_scheduler(self, *, grace: Duration | None = STOP_GRACE, **options: Any) -> int:
        """Run a scheduler in this process until SIGTERM or SIGINT, and return the exit code.

        `options` are those of `Scheduler`. You may run several, on different machines.
        """
        refuse_while_importing()
        return serve(
            lambda: self.scheduler(**options),
            grace=grace,
            on_stop="stopping: the scheduler finishes its running batches",
        )

    def _router(self, concurrency: int, cancel_grace: Duration) -> Router:
        seconds = check_duration("cancel_grace", cancel_grace, positive=False) / SECOND
        slots = check_number("concurrency", concurrency, least=1)
        return Router(self._tasks, self._layers, processes=slots, cancel_grace=seconds, spark=self._spark)

    # -- for tests

    async def run_until_empty(self, queues: Sequence[str] | None = None, *, concurrency: int = CONCURRENCY) -> int:
        """Run all jobs that can be claimed now, and those they enqueue; return the number of runs.

        Delayed jobs (also by a retry's backoff), paused queues and full limits are skipped. A failed job whose retry is
        due at once is retried.
        """
        router = self._router(concurrency, CANCEL_GRACE)
        worker = Worker(
            self._queue,
            router,
            concurrency=concurrency,
            queues=queues,
            strategies=self._strategies,
            autorun=False,
            until_empty=True,
        )
        await worker.run()
        return router.runs

    def run_until_empty_sync(self, queues: Sequence[str] | None = None, *, concurrency: int = CONCURRENCY) -> int:
        """Like `run_until_empty`, for code without an event loop."""
        return asyncio.run(self.run_until_empty(queues, concurrency=concurrency))

    def eager(self) -> AbstractContextManager[None]:
        """Run whatever is enqueued in this block at once and once, where it is enqueued, without a store.

        Arguments and results pass through JSON. A failure is not raised by the enqueue but kept for the handle, as with
        a worker.
        """
        return self._enqueuer.eager.switched_on()

    # -- close

    async def close(self) -> None:
        """Close all its queues and its store. You can call it twice."""
        for error in await asyncio.gather(*(queue.close() for queue in self._queues), return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    def _refuse_if_closed(self) -> None:
        if self._queue.closed:
            raise QueueClosed(self._queue.words_when_closed)

    close_sync = background.blocking(close)

    def _reopen_if_closed(self) -> None:
        with self._entering:
            if not self._queue.closed:
                self._entries += 1
                return
            if self._connect is None:
                raise QueueClosed(
                    "this harbor was closed and cannot reopen its backend; create it with a URL: Harbor(url)"
                )
            self.backend = self._connect()
            self._queue = _HarborQueue(self.backend)
            self._queues = [self._queue]
            self._enqueuer.use(self._queue)
            self._entries = 1

    def _leave(self) -> bool:
        """Whether this was the outermost of the nested entries."""
        with self._entering:
            self._entries -= 1
            return self._entries == 0

    async def __aenter__(self) -> Self:
        self._reopen_if_closed()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._leave():
            await self.close()

    def __enter__(self) -> Self:
        self._reopen_if_closed()
        return self

    def __exit__(self, *_: object) -> None:
        if self._leave():
            self.close_sync()


class _HarborQueue(Queue):
    """The queue that a harbor uses for its store; it is closed with the harbor."""

    words_when_closed = "this harbor was closed; enter it again: async with harbor"


def _check_function(function: object) -> None:
    if not inspect.isfunction(function):
        raise InvalidArgument(
            "function", f"must be a function, not {function!r}; pass options by name: @harbor.task(queue=…)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument("function", f"{function.__qualname__} is a generator; return a list instead")


def _check_executor(function: Callable[..., Any], executor: str, memory_limit: int | None) -> None:
    if executor not in _EXECUTORS:
        raise InvalidArgument("executor", f"must be one of {', '.join(_EXECUTORS)}; got {executor!r}")
    if executor == "thread" and inspect.iscoroutinefunction(function):
        raise InvalidArgument("executor", "'thread' needs a def; an async def runs on the event loop or in a process")
    if executor in ("process", "spark") and "<" in function.__qualname__:
        raise InvalidArgument(
            "executor", f"{function.__qualname__} must be at the top level of a module, where a process finds it"
        )
    if memory_limit is not None and executor != "process":
        raise InvalidArgument("memory_limit", 'needs executor="process"; threads share the memory of their worker')


def builtin_harbor(store: str | Backend) -> Harbor:
    """Return a harbor with the tasks `echo`, `sleep` and `fail`."""
    harbor = Harbor(store, name="builtin")

    @harbor.task
    async def echo(**data: Any) -> Any:
        """Return its arguments."""
        return data

    @harbor.task
    async def sleep(seconds: float = 1.0) -> float:
        """Sleep, and return the seconds."""
        await asyncio.sleep(seconds)
        return seconds

    @harbor.task
    async def fail(why: str = "it was asked to") -> None:
        """Fail on every attempt."""
        raise RuntimeError(why)

    return harbor
