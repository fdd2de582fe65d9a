"""What every executor promises, and how a child process finds the function it runs."""

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

_MAIN_AGAIN = "__mp_main__"
"""What multiprocessing calls a main file in a child: guards by `if __name__ == "__main__"` hold there."""
_WAY_OUT = "a child process finds it by its name: put it as a `def` at the top of a module, and pass that"

_importing = False


@dataclass(frozen=True, slots=True)
class Target:
    """A callable by name: `Target("shop.jobs", "resize")`, or dotted on: `Target("shop.jobs", "harbor.run_here")`."""

    module: str
    name: str
    main_path: str | None = None
    main_name: str | None = None
    """Where the main module is from, if that is the module: its file, or its name under `python -m`."""

    @classmethod
    def of(cls, function: Callable[..., Any], field: str = "process") -> Target:
        """The function's own names, if they lead to it; InvalidArgument otherwise."""
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            raise InvalidArgument(field, f"is a {type(function).__name__} without a name; {_WAY_OUT}")
        if "<" in name:
            kind = "a lambda" if name.endswith("<lambda>") else "defined inside another function"
            raise InvalidArgument(field, f"{name} is {kind}; {_WAY_OUT}")
        target = cls.named(module, name, field)
        try:
            found = _attribute(sys.modules[module], name)
        except (KeyError, AttributeError):
            found = None
        if found is not function and found != function:
            raise InvalidArgument(field, f"{module}.{name} is not what was passed here; {_WAY_OUT}")
        return target

    @classmethod
    def named(cls, module: str, name: str, field: str = "process") -> Target:
        """By names; the main module is known to a child by where it came from."""
        if module != "__main__":
            return cls(module, name)
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            return cls(module, name, main_name=str(spec.name))
        if path is None:
            raise InvalidArgument(field, f"{name} lives in an interactive session; put it into a file and import it")
        return cls(module, name, main_path=str(Path(path).absolute()))

    def as_dict(self) -> dict[str, Any]:
        """Its fields, for JSON."""
        return asdict(self)

    def find(self) -> Any:
        """What it names, imported here."""
        global _importing
        _importing = True
        try:
            if self.main_name is not None or self.main_path is not None:
                _run_main_again(self.main_name, self.main_path)
            return _attribute(importlib.import_module(self.module), self.name)
        finally:
            _importing = False


def refuse_while_importing() -> None:
    """A main file without a guard would start its workers again in every child, and those theirs, without end."""
    if _importing:
        raise LongshoreError(
            "a worker was started while a child process was importing its main file; "
            'put what starts it under `if __name__ == "__main__":`'
        )


def _attribute(module: ModuleType, name: str) -> Any:
    return reduce(getattr, name.split("."), module)


def _run_main_again(name: str | None, path: str | None) -> None:
    again = ModuleType(_MAIN_AGAIN)
    if name is not None:
        again.__dict__.update(runpy.run_module(name, run_name=_MAIN_AGAIN, alter_sys=True))
    elif path is not None:
        again.__dict__.update(runpy.run_path(path, run_name=_MAIN_AGAIN))
    sys.modules["__main__"] = sys.modules[_MAIN_AGAIN] = again


CANCEL_GRACE = 5.0
"""Seconds a cancelled job may take to end by itself, before it is ended by force."""
UNTIL_INTERRUPTED = 0.75
"""Of the grace: until then a job in another process may notice its cancellation; then it is interrupted."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0

_log = logger("longshore.worker")


class CannotStart(Snooze):
    """This worker cannot start the job: the system has no thread or process, or the job's module cannot be imported.

    The job goes back without a counted attempt, so that a broken machine does not fail jobs that others could run.
    """


class Pauses:
    """How long jobs that could not be started are delayed: each time longer, until one starts."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0

    def after(self, reason: str) -> CannotStart:
        """The error to raise. Many jobs that fail at the same time are one failure."""
        if monotonic() >= self._until:
            self._seconds = min(max(_FIRST_PAUSE, 2 * self._seconds), _LONGEST_PAUSE)
            self._until = monotonic() + self._seconds
            _log.error("jobs cannot be started here and go back for %g seconds: %s", self._seconds, reason)
        return CannotStart(self._seconds, f"this worker cannot run it now: {reason}")

    def end(self) -> None:
        """A job was started."""
        self._seconds = self._until = 0.0


def ignore_exception(work: Future[Any]) -> None:
    """A done callback for work that may end without a waiter: asyncio then logs no exception that was not retrieved."""
    if not work.cancelled():
        work.exception()


class Executor(ABC):
    """Runs processors. A cancellation, a timeout and a lost lease all reach it as CancelledError in `run`."""

    _closed = False
    _reporter: StoreReporter | None = None

    @property
    def closed(self) -> bool:
        """Whether it was closed, with the worker it was given to: then it runs nothing any more."""
        return self._closed

    @property
    def left_behind(self) -> int:
        """How many cancelled jobs still run, because nothing could end them."""
        return 0

    @property
    def types(self) -> Sequence[str] | None:
        """The job types that it can run, which its worker claims; None means all."""
        return None

    def take(self, record: Job, backend: Backend) -> RunningJob:
        """The job as its processor will see it."""
        if self._reporter is None or self._reporter.backend is not backend:
            self._reporter = StoreReporter(backend)
        return RunningJob(record, self._reporter)

    @abstractmethod
    async def run(self, job: RunningJob) -> Any:
        """Runs the job once: returns the processor's value, or raises what it raised.

        If it is cancelled, it stops the work, by force after the grace. It returns a value that comes within the grace;
        the worker decides whether that counts.
        """

    def begins_later(self, record: Job) -> bool:  # noqa: ARG002  # for executors that have to wait for a slot
        """Whether a job may wait before it begins; then the executor calls `job.begin()` when it does."""
        return False

    async def close(self) -> None:
        """Ends threads and processes; nothing runs any more."""
        return
