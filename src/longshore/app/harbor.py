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
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

from longshore.app.eager import EagerMode
from longshore.app.enqueue import Enqueuer
from longshore.app.flows import FlowStore, HarborFlows
from longshore.app.middleware import Middleware
from longshore.app.results import JobHandle
from longshore.app.routing import Router, SparkSettings
from longshore.app.schedules import HarborSchedules
from longshore.app.spark_tasks import HarborSpark
from longshore.app.task import AsyncTask, Call, ConcurrencyKey, ExecutorName, PlainTask, Task
from longshore.backends.base import UNCHANGED, Backend, Unchanged
from longshore.backends.connect import connect
from longshore.core.clock import Clock
from longshore.core.errors import InvalidArgument, QueueClosed
from longshore.core.explain import Explanation
from longshore.core.limits import Limits, Rate
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_name, check_number
from longshore.runtime import background
from longshore.runtime.executors.base import CANCEL_GRACE, refuse_while_importing
from longshore.runtime.job_options import BackoffLike
from longshore.runtime.queue import Queue
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.scheduler import Scheduler
from longshore.runtime.signals import STOP_GRACE, serve
from longshore.runtime.worker import Worker


class HarborLimits:
    """What every Harbor can do with limits."""

    _queue: Queue

    async def set_limits(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """How many jobs of a queue (and of each of its keys) may run at once and start per window, in all processes.

        A limit that is not named stays as it is; None is no limit.
        """
        await self._queue.set_limits(queue, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key)

    def set_limits_sync(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """Like `set_limits`, for code without an event loop."""
        background.run(self.set_limits(queue, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key))

    async def get_limits(self, queue: str) -> Limits:
        """The limits of a queue as they are now."""
        return await self._queue.get_limits(queue)

    def get_limits_sync(self, queue: str) -> Limits:
        """Like `get_limits`, for code without an event loop."""
        return background.run(self.get_limits(queue))

    async def explain(self, job_id: str) -> Explanation:
        """Why a job is not running now: who or what is in its way, each reason with its way out."""
        return await self._queue.explain(job_id)

    def explain_sync(self, job_id: str) -> Explanation:
        """Like `explain`, for code without an event loop."""
        return background.run(self.explain(job_id))


P = ParamSpec("P")
R = TypeVar("R")

CONCURRENCY = 10
"""Jobs a worker runs at a time unless told otherwise."""
_EXECUTORS = ("auto", "thread", "process", "spark")


class TaskDecorator(Protocol):
    """What `@harbor.task(…)` does to a function."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits is meant: a coroutine is no result
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class Harbor(HarborFlows, HarborSchedules, HarborLimits, HarborSpark):
    """The front door. `Harbor("sqlite:///jobs.db")`, functions declared with `@harbor.task`, and `harbor.worker()`.

    It belongs to no event loop and may be made at the top of a module: its store opens on first use. A closed harbor
    may be entered again (`async with harbor`): it then opens its URL again, and `memory://` is a new, empty store.
    """

    def __init__(
        self, store: str | Backend, *, name: str = "harbor", clock: Clock | None = None, **options: Any
    ) -> None:
        """A URL, with the clock and options of `connect`, or a backend that is there already."""
        if isinstance(store, Backend) and (clock is not None or options):
            raise InvalidArgument("store", "is a backend already; clock and options go with a URL")
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
        self._eagerness = EagerMode(self._layers)
        self._enqueuer = Enqueuer(self._queue, self._layers, self._eagerness)
        self._flows = FlowStore(self._queue, self._layers, self._eagerness, self._enqueuer, self._tasks)

    def __repr__(self) -> str:
        return f"<Harbor {self.name} with {len(self._tasks)} tasks>"

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """All its tasks by name."""
        return MappingProxyType(self._tasks)

    # -- declaring

    @overload
    def task(  # type: ignore[overload-overlap]  # as above
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        attempts: int = 1,
        backoff: BackoffLike | None = None,
        retry_strategy: str | Strategy | None = None,
        timeout: Duration | None = None,
        executor: ExecutorName = "auto",
        priority: int = 0,
        lifo: bool = False,
        tags: Sequence[str] = (),
        max_crashes: int | None = 3,
        remove_on_complete: bool | int = False,
        remove_on_fail: bool | int = False,
        concurrency_key: ConcurrencyKey | None = None,
        memory_limit: int | None = None,
    ) -> TaskDecorator: ...

    def task(
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
        executor: ExecutorName = "auto",
        priority: int = 0,
        lifo: bool = False,
        tags: Sequence[str] = (),
        max_crashes: int | None = 3,
        remove_on_complete: bool | int = False,
        remove_on_fail: bool | int = False,
        concurrency_key: ConcurrencyKey | None = None,
        memory_limit: int | None = None,
    ) -> Any:
        """Makes a function a task, known by its name or the one given: `@harbor.task` or `@harbor.task(queue="mail")`.

        An `async def` runs on the worker's event loop and a `def` in a thread; with `executor="process"` either runs
        in a process of its own, which may be given a `memory_limit` in bytes, and with `executor="spark"` in a task of
        Spark, thousands of jobs to a batch. `retry_strategy` is a function, or the
        name of one that the worker has. `concurrency_key` may be a function of the task's own arguments.
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

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            return self._declare(
                function,
                names,
                name=name,
                declared=declared,
                executor=executor,
                memory_limit=memory_limit,
                concurrency_key=concurrency_key,
                retry_strategy=retry_strategy,
            )

        return declare if function is None else declare(function)

    def _declare(
        self,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        name: str | None,
        declared: dict[str, Any],
        executor: ExecutorName,
        memory_limit: int | None,
        concurrency_key: ConcurrencyKey | None,
        retry_strategy: str | Strategy | None,
        kind: type[Task[..., Any]] | None = None,
        asked: Callable[..., Any] | None = None,
    ) -> Task[..., Any]:
        """`asked` has the parameters that callers give, if they are not those of the function."""
        from longshore.app.arguments import Signature, place_of  # it loads pydantic, which only tasks need

        _check_function(function)
        task_name = check_name("name", function.__name__ if name is None else name)
        place = place_of(function)
        known = self._tasks.get(task_name)
        if known is not None and known.place != place:  # the same place again is a module that is loaded anew
            raise InvalidArgument("name", f"two tasks are named {task_name!r}: in {known.place} and in {place}")
        _check_executor(function, executor, memory_limit)
        declared["retry_strategy"] = task_name if callable(retry_strategy) else retry_strategy
        kind = kind or (AsyncTask if inspect.iscoroutinefunction(function) else PlainTask)
        task: Task[..., Any] = kind(
            function,
            Signature(task_name, asked or function, names),
            self._enqueuer,
            name=task_name,
            place=place,
            executor=executor,
            memory_limit=memory_limit,
            concurrency_key=concurrency_key,
            declared=declared,
        )
        self._tasks[task_name] = task
        if callable(retry_strategy):
            self._strategies[task_name] = retry_strategy
        return task

    def add_middleware(self, *layers: Middleware) -> None:
        """Puts layers around every enqueue and run from now on, the first one outermost."""
        for layer in layers:
            if not isinstance(layer, Middleware):
                raise InvalidArgument("layers", f"must be Middleware, not {layer!r}; make one with its parentheses")
            self._layers.append(layer)

    # -- enqueuing and looking

    async def enqueue_many(self, calls: Iterable[Call[Any]], *, connection: object = None) -> list[JobHandle[Any]]:
        """Stores calls of any of its tasks, all or none, in one transaction: `[greet.call("Ada"), resize.call(7)]`."""
        return await self._enqueuer.send(self._own(calls), connection)

    def enqueue_many_sync(self, calls: Iterable[Call[Any]], *, connection: object = None) -> list[JobHandle[Any]]:
        """Like `enqueue_many`, for code without an event loop."""
        return self._enqueuer.send_sync(self._own(calls), connection)

    def _own(self, calls: Iterable[Call[Any]]) -> list[Call[Any]]:
        given = list(calls)
        for position, call in enumerate(given):
            if not isinstance(call, Call) or self._tasks.get(call.task.name) is not call.task:
                raise InvalidArgument(
                    f"calls[{position}]", f"must be task.call(…) of a task of this harbor, not {call!r}"
                )
        return given

    def queue(self, name: str | None = None) -> Queue:
        """A queue on its store: one by name, or all of them. It is closed with the harbor, or by itself before."""
        self._refuse_if_closed()
        queue = Queue(self.backend, name)
        self._queues = [*(other for other in self._queues if not other.closed), queue]
        return queue

    # -- working

    def worker(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int = CONCURRENCY,
        strategies: Mapping[str, Strategy] | None = None,
        cancel_grace: Duration = CANCEL_GRACE,
        **options: Any,
    ) -> Worker:
        """A worker for all its tasks, on all queues or those named; `await worker.run()` works until it is closed.

        `options` are those of `Worker`. It may be made without an event loop, and begins at once where one runs. A job
        of a type that is no task here goes back for a minute, with the reason.
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
        """The whole life of a worker's process: works until SIGTERM or SIGINT, and returns the code to exit with.

        The first signal lets running jobs end within `grace` seconds and hands the others back uncharged; the second
        drops all at once. Several processes under one parent: `longshore.runtime.supervisor.Supervisor("shop:harbor")`.
        """
        refuse_while_importing()
        return serve(lambda: self.worker(queues, concurrency=concurrency, **options), grace=grace)

    def scheduler(self, **options: Any) -> Scheduler:
        """A scheduler for its store; `await scheduler.run()` until it is closed. `options` are those of `Scheduler`."""
        self._refuse_if_closed()
        return Scheduler(self.backend, **options)

    def run_scheduler(self, *, grace: Duration | None = STOP_GRACE, **options: Any) -> int:
        """The whole life of a scheduler's process: until SIGTERM or SIGINT; returns the code to exit with.

        `options` are those of `Scheduler`. Run one, or several on different machines: they need not know each other.
        """
        refuse_while_importing()
        return serve(
            lambda: self.scheduler(**options),
            grace=grace,
            on_asked="asked to stop: the scheduler ends what it has begun",
        )

    def _router(self, concurrency: int, cancel_grace: Duration) -> Router:
        seconds = check_duration("cancel_grace", cancel_grace, positive=False) / SECOND
        slots = check_number("concurrency", concurrency, least=1)
        return Router(self._tasks, self._layers, processes=slots, cancel_grace=seconds, spark=self._spark)

    # -- for tests

    async def run_until_empty(self, queues: Sequence[str] | None = None, *, concurrency: int = CONCURRENCY) -> int:
        """Runs all jobs that can be claimed now, and those they enqueue; returns how many runs that were.

        Jobs whose time has not come (a delay, a retry's backoff), paused queues and full limits are left alone. A job
        that fails and may be tried again at once is tried again.
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
        """In this block, whatever is enqueued is run at once, once, where it is enqueued; no store is touched.

        Arguments and results pass through JSON as ever. A failure is not raised by the enqueue but kept for the handle,
        as it would be with a worker.
        """
        return self._eagerness.switched_on()

    # -- the end

    async def close(self) -> None:
        """Closes all its queues, and with the last one the store; safe to call twice."""
        for error in await asyncio.gather(*(queue.close() for queue in self._queues), return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    def _refuse_if_closed(self) -> None:
        if self._queue.closed:
            raise QueueClosed(self._queue.words_when_closed)

    def close_sync(self) -> None:
        """Like `close`, for code without an event loop."""
        background.run(self.close())

    def _reopen_if_closed(self) -> None:
        with self._entering:
            if not self._queue.closed:
                self._entries += 1
                return
            if self._connect is None:
                raise QueueClosed(
                    "this harbor was closed; it was made with a backend, which cannot be opened again; make it with a "
                    "URL: Harbor(url)"
                )
            self.backend = self._connect()
            self._queue = _HarborQueue(self.backend)
            self._queues = [self._queue]
            self._enqueuer.use(self._queue)
            self._flows.use(self._queue)
            self._entries = 1

    def _leave(self) -> bool:
        """Whether this was the last of the nested entries."""
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
    """All that a harbor does to its store goes through it: closed is the harbor."""

    words_when_closed = "this harbor was closed; enter it again: async with harbor"


def _check_function(function: object) -> None:
    if not inspect.isfunction(function):
        raise InvalidArgument(
            "function", f"must be a function, not {function!r}; options go by name: @harbor.task(queue=…)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument("function", f"{function.__qualname__} is a generator; return a list, which can be stored")


def _check_executor(function: Callable[..., Any], executor: str, memory_limit: int | None) -> None:
    if executor not in _EXECUTORS:
        raise InvalidArgument("executor", f"must be one of {', '.join(_EXECUTORS)}; got {executor!r}")
    if executor == "thread" and inspect.iscoroutinefunction(function):
        raise InvalidArgument("executor", "'thread' is for a def; an async def runs on the event loop, or in a process")
    if executor in ("process", "spark") and "<" in function.__qualname__:
        raise InvalidArgument(
            "executor", f"{function.__qualname__} is no function at the top of a module, where a process could find it"
        )
    if memory_limit is not None and executor != "process":
        raise InvalidArgument("memory_limit", 'needs executor="process": threads share the memory of their worker')


def builtin_harbor(store: str | Backend) -> Harbor:
    """A harbor with `echo`, `sleep` and `fail`."""
    harbor = Harbor(store, name="builtin")

    @harbor.task
    async def echo(**data: Any) -> Any:
        """Gives back what it was given, whatever it is called."""
        return data

    @harbor.task
    async def sleep(seconds: float = 1.0) -> float:
        """Takes so long, and gives back how long."""
        await asyncio.sleep(seconds)
        return seconds

    @harbor.task
    async def fail(why: str = "it was asked to") -> None:
        """Fails, as often as it is tried."""
        raise RuntimeError(why)

    return harbor
