"""What a worker was asked for, checked: each refusal names the option."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_names
from longshore.runtime.executors.base import Executor
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.executors.thread import ThreadExecutor
from longshore.runtime.leases import renew_every
from longshore.runtime.queue import Queue
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.running_job import RunningJob
from longshore.safe_logging import logger

Processor = Callable[[RunningJob], Awaitable[Any]] | Callable[[RunningJob], Any] | Executor

_log = logger("longshore.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """All of it, for those who do the work."""

    id: str
    alone_with_its_id: bool
    """Whether no other worker can have this id: it was made up for this one."""
    concurrency: int
    queue: str
    """The name of the one queue that its Queue sees, or nothing."""
    queues: Sequence[str] | None
    """Where it takes jobs from; None is everywhere."""
    tags: Sequence[str]
    lock_seconds: float
    renew_seconds: float | None
    """Between two renewals; None is no renewal."""
    cancel_grace: float
    poll_seconds: float
    strategies: Mapping[str, Strategy]
    sweep: bool
    until_empty: bool


def renewal(lock_seconds: float, renew_time: Duration | None) -> float | None:
    """Seconds between renewals, None for none: they run only if 0 < lock_renew_time < lock_duration.

    If it is not given, it is a quarter of the lock, and at most 15 seconds.
    """
    if renew_time is None:
        return renew_every(lock_seconds)
    seconds = check_duration("lock_renew_time", renew_time, positive=False) / SECOND
    if seconds >= lock_seconds:
        _log.warning(
            "lock_renew_time (%g s) is not shorter than lock_duration (%g s): no renewal", seconds, lock_seconds
        )
    return seconds if 0 < seconds < lock_seconds else None


def queues_of(queue: Queue, queues: Sequence[str] | None) -> Sequence[str] | None:
    """The queues to take from, None for all."""
    if queues is None:
        return None if queue.name is None else (queue.name,)
    names = check_names("queues", queues)
    if not names:
        raise InvalidArgument("queues", "must name at least one queue; leave it out to take from all")
    if queue.name is not None and set(names) != {queue.name}:
        raise InvalidArgument(
            "queues", f"are others than {queue.name!r}, the one queue this Queue sees; use Queue(backend)"
        )
    return names


def executor_for(process: Processor, cancel_grace: float) -> Executor:
    """The one given, or the one that fits the function."""
    if isinstance(process, Executor):
        if process.closed:
            raise InvalidArgument("process", "is an executor that was closed, with its worker; make a new one")
        return process
    if not callable(process):
        raise InvalidArgument("process", f"must be a function or an Executor, not {type(process).__name__}")
    if inspect.iscoroutinefunction(process) or inspect.iscoroutinefunction(getattr(process, "__call__", None)):  # noqa: B004  # an object whose call is async
        return LoopExecutor(process)
    return ThreadExecutor(process, cancel_grace=cancel_grace)


def checked(strategies: Mapping[str, Strategy]) -> dict[str, Strategy]:
    """The strategies by name, if they can be called."""
    for name, strategy in strategies.items():
        if not callable(strategy):
            raise InvalidArgument(f"strategies[{name!r}]", f"must be a function, not {type(strategy).__name__}")
    return dict(strategies)
