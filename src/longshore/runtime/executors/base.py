"""The contract of every executor, and the names by which a child process finds its function."""

from __future__ import annotations

import importlib
import runpy
import sys
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, LongshoreError, Snooze
from longshore.core.job import Job
from longshore.runtime.running_job import RunningJob, StoreReporter
from longshore.safe_logging import logger

_CHILD_MAIN = "__mp_main__"
"""The name of a main file in a child, as in multiprocessing: `if __name__ == "__main__"` is false there."""
_ADVICE = "a child process finds it by name; define it with `def` at the top level of a module and pass that"

_importing = False


@dataclass(frozen=True, slots=True)
class Target:
    """A callable by its dotted name, such as `Target("shop.jobs", "harbor.run_here")`."""

    module: str
    name: str
    main_path: str | None = None
    main_name: str | None = None
    """The origin of the main module: its file, or its name under `python -m`."""

    @classmethod
    def of(cls, function: Callable[..., Any], field: str = "process") -> Target:
        """Return the target of a function, or raise InvalidArgument if its names do not lead to it."""
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            raise InvalidArgument(field, f"is a {type(function).__name__} and has no name; {_ADVICE}")
        if "<" in name:
            kind = "a lambda" if name.endswith("<lambda>") else "defined inside another function"
            raise InvalidArgument(field, f"{name} is {kind}; {_ADVICE}")
        target = cls.named(module, name, field)
        try:
            found = _attribute(sys.modules[module], name)
        except (KeyError, AttributeError):
            found = None
        if found is not function and found != function:
            raise InvalidArgument(field, f"{module}.{name} names another object; {_ADVICE}")
        return target

    @classmethod
    def named(cls, module: str, name: str, field: str = "process") -> Target:
        """Return a target by names; a child finds the main module by its origin."""
        if module != "__main__":
            return cls(module, name)
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            return cls(module, name, main_name=str(spec.name))
        if path is None:
            raise InvalidArgument(field, f"{name} is defined in an interactive session; import it from a file")
        return cls(module, name, main_path=str(Path(path).absolute()))

    def as_dict(self) -> dict[str, Any]:
        """Return its fields for JSON."""
        return asdict(self)

    def find(self) -> Any:
        """Import what it names."""
        global _importing
        _importing = True
        try:
            if self.main_name is not None or self.main_path is not None:
                _import_main(self.main_name, self.main_path)
            return _attribute(importlib.import_module(self.module), self.name)
        finally:
            _importing = False


def refuse_while_importing() -> None:
    """Raise while a child imports its main file: without a guard it would start workers in every child, endlessly."""
    if _importing:
        raise LongshoreError(
            "a worker was started while a child process was importing its main file; "
            'move the code that starts it under `if __name__ == "__main__":`'
        )


def _attribute(module: ModuleType, name: str) -> Any:
    return reduce(getattr, name.split("."), module)


def _import_main(name: str | None, path: str | None) -> None:
    main = ModuleType(_CHILD_MAIN)
    if name is not None:
        main.__dict__.update(runpy.run_module(name, run_name=_CHILD_MAIN, alter_sys=True))
    elif path is not None:
        main.__dict__.update(runpy.run_path(path, run_name=_CHILD_MAIN))
    sys.modules["__main__"] = sys.modules[_CHILD_MAIN] = main


CANCEL_GRACE = 5.0
"""Seconds in which a cancelled job may end by itself, before it is ended by force."""
UNTIL_INTERRUPTED = 0.75
"""The share of the grace in which a job in another process may notice its cancellation; then it is interrupted."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0

_log = logger("longshore.worker")


class CannotStart(Snooze):
    """This worker cannot start the job: no thread, process or memory is left, or its module cannot be imported.

    The job is released and the attempt is not counted: a broken machine must not fail jobs that others could run.
    """


class StartBackoff:
    """The growing delays of jobs that could not be started; a successful start resets them."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0

    def after(self, reason: str) -> CannotStart:
        """Return the error to raise. Many jobs that fail at the same time count as one failure."""
        if monotonic() >= self._until:
            self._seconds = min(max(_FIRST_PAUSE, 2 * self._seconds), _LONGEST_PAUSE)
            self._until = monotonic() + self._seconds
            _log.error("cannot start jobs here; releasing them for %g seconds: %s", self._seconds, reason)
        return CannotStart(self._seconds, f"this worker cannot run it now: {reason}")

    def end(self) -> None:
        """Reset the delay: a job was started."""
        self._seconds = self._until = 0.0


def ignore_exception(work: Future[Any]) -> None:
    """Mark the exception of abandoned work as retrieved, so that asyncio does not log it."""
    if not work.cancelled():
        work.exception()


class Executor(ABC):
    """Runs jobs. A cancellation, a timeout and a lost lease all reach `run` as CancelledError."""

    _closed = False
    _reporter: StoreReporter | None = None

    @property
    def closed(self) -> bool:
        """Whether it was closed with its worker; then it runs no more jobs."""
        return self._closed

    @property
    def left_behind(self) -> int:
        """The number of cancelled jobs that still run, because they cannot be ended."""
        return 0

    @property
    def types(self) -> Sequence[str] | None:
        """The job types that it can run and its worker claims; None means all."""
        return None

    def take(self, record: Job, backend: Backend) -> RunningJob:
        """Return the job as its task will see it."""
        if self._reporter is None or self._reporter.backend is not backend:
            self._reporter = StoreReporter(backend)
        return RunningJob(record, self._reporter)

    @abstractmethod
    async def run(self, job: RunningJob) -> Any:
        """Run the job once; return the processor's value, or raise its exception.

        If cancelled, it stops the work, by force after the grace. A value that arrives within the grace is returned;
        the worker decides whether it counts.
        """

    def begins_later(self, record: Job) -> bool:  # noqa: ARG002  # for executors whose jobs wait for a slot
        """Whether a job may wait before it starts; the executor then calls `job.begin()`."""
        return False

    async def close(self) -> None:
        """End all threads and processes."""
        return
