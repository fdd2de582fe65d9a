"""Stop signals of a process, and the start of child processes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from longshore.core.times import Duration
from longshore.safe_logging import logger


def command_to_run(module: str, descriptor: int) -> list[str]:
    """Return the command that runs `main(descriptor)` of a module with this interpreter and its flags.

    `-P`: until the child has its parent's path, no file of the working directory can shadow a library.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    start = f"import sys; sys.path.append(sys.argv.pop()); from {module} import main; main(int(sys.argv.pop()))"
    root = Path(__file__).parents[2]  # the package need not be installed
    return [sys.executable, *flags, "-P", "-c", start, str(descriptor), str(root)]


def import_state() -> dict[str, Any]:
    """Return what a child needs to import the same modules as its parent."""
    return {"path": sys.path, "argv": sys.argv}


def apply_import_state(state: Mapping[str, Any]) -> None:
    """Apply the parent's state in the child."""
    sys.path[:] = state["path"]
    sys.argv[:] = state["argv"]


STOP_GRACE = 30.0
"""Seconds in which running jobs may end after the first signal; then they are cancelled and released."""
_THREADS_END_WITHIN = 1.0
"""Seconds for the threads of the event loop to end after the worker."""
_STOP_MESSAGE = "stopping: running jobs may end, and no more are claimed; send the signal again to drop them"
_STOPPING = (signal.SIGTERM, signal.SIGINT)

_DEFAULT_THRESHOLDS = ((700, 10, 10), (2000, 10, 10), (2000, 10, 0))
"""The default thresholds of the garbage collector in Python 3.11 and 3.12, in 3.13, and in 3.14."""
GC_THRESHOLD = 10_000
"""New objects before a collection in a process that runs jobs: failed jobs leave reference cycles behind."""

_log = logger("longshore.worker")


@runtime_checkable
class Stoppable(Protocol):
    """A Worker, or an object that runs and closes like one."""

    async def run(self) -> None:
        """Run until it is closed."""
        ...

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Stop it."""
        ...


class StopSignals:
    """SIGTERM and SIGINT as two events: `requested` after the first signal, `forced` after the second.

    The third signal ends the process at once, even if its event loop is blocked. With `single_signal`, all signals
    count as one: a service manager may signal parent and children alike, and the parent decides.
    """

    def __init__(self, *, single_signal: bool = False) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        self.exit_code = 0
        """128 plus the number of the second signal; 0 before it."""
        self._single_signal = single_signal
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> Self:
        """Handle the signals from now on; the events are set once a loop is attached."""
        for number in _STOPPING:
            # not loop.add_signal_handler: this handler runs even while a job blocks the loop
            self._before[number] = signal.signal(number, self._received)
        return self

    def attach(self) -> None:
        """Set the events on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._set_events()  # signals that arrived before

    def request(self) -> None:
        """Act like the first signal. Any thread may call it."""
        self._count = max(self._count, 1)
        self._set_events()

    def force_stop(self) -> None:
        """Act like the second signal. Any thread may call it."""
        self._count = max(self._count, 2)
        self.exit_code = self.exit_code or 128 + signal.SIGTERM
        self._set_events()

    def __enter__(self) -> Self:
        self.attach()
        return self.listen()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _received(self, number: int, _: FrameType | None) -> None:
        self._count = 1 if self._single_signal else self._count + 1
        if self._count > 1:
            self.exit_code = 128 + number
        if self._count > 2:
            os._exit(self.exit_code)
        self._set_events()

    def _set_events(self) -> None:
        if self._loop is None:
            return
        with suppress(RuntimeError):  # the loop has closed
            if self._count >= 1:
                self._loop.call_soon_threadsafe(self.requested.set)
            if self._count >= 2:
                self._loop.call_soon_threadsafe(self.forced.set)


async def run_until_stopped(worker: Stoppable, *, grace: Duration | None = STOP_GRACE) -> int:
    """Run a worker until SIGTERM or SIGINT, and return the exit code: 0 after an orderly stop. See docs/worker.md.

    After the first signal, running jobs may end within `grace` seconds (None: no limit); the rest are released and the
    attempt is not counted. The second signal drops all jobs at once. Call it in the main thread.
    """
    with StopSignals() as stop:
        return await _run(worker, stop, grace, _STOP_MESSAGE)


def serve(
    make: Callable[[], Stoppable | Awaitable[Any]],
    *,
    grace: Duration | None = STOP_GRACE,
    stop: StopSignals | None = None,
    on_stop: str = _STOP_MESSAGE,
) -> int:
    """Run a worker process until it ends, and return its exit code.

    `make` creates the worker on the event loop. It may also be an `async def` that creates one or does all the work.
    `on_stop` is logged at the first signal.
    """
    return asyncio.run(_serve(make, grace, stop or StopSignals().listen(), on_stop))


async def _serve(
    make: Callable[[], Stoppable | Awaitable[Any]], grace: Duration | None, stop: StopSignals, on_stop: str
) -> int:
    stop.attach()
    made = make()
    thresholds = gc.get_threshold()
    tune_garbage_collector()
    code = await _run(made if isinstance(made, Stoppable) else Program(made), stop, grace, on_stop)
    gc.unfreeze()  # the caller may continue after this
    gc.set_threshold(*thresholds)
    if code or not await _threads_have_ended():  # busy threads would delay an orderly exit
        with suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
        os._exit(code)
    return code


def tune_garbage_collector(threshold: int = GC_THRESHOLD) -> None:
    """Prepare the garbage collector for a process that starts to run jobs.

    Loaded modules are frozen: a full collection would scan them for about 30 ms. Collections also run less often,
    unless the user has changed the threshold: most jobs leave no cycles.
    """
    gc.collect()
    gc.freeze()
    first, *others = thresholds = gc.get_threshold()
    if thresholds in _DEFAULT_THRESHOLDS or first == GC_THRESHOLD:
        gc.set_threshold(threshold, *others)


async def _threads_have_ended() -> bool:
    """Whether the threads of the loop have ended: a released job may still run in `to_thread`."""
    ending = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait([ending], timeout=_THREADS_END_WITHIN)
    if not ending.done():
        _log.warning("threads of released jobs are still busy; the process exits without waiting for them")
    return ending.done()


async def _run(worker: Stoppable, stop: StopSignals, grace: Duration | None, on_stop: str) -> int:
    run: asyncio.Future[Any] = asyncio.ensure_future(worker.run())
    requested: asyncio.Future[Any] = asyncio.ensure_future(stop.requested.wait())
    forced: asyncio.Future[Any] = asyncio.ensure_future(stop.forced.wait())
    tasks: list[asyncio.Future[Any]] = [run, requested, forced]
    try:
        await asyncio.wait({run, requested}, return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            # a warning, so that it is visible without logging set up: a user who sees nothing would signal again
            _log.warning(on_stop)
            ended: asyncio.Future[Any] = asyncio.ensure_future(_ended(worker, run, grace))
            tasks.append(ended)
            await asyncio.wait({ended, forced}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await worker.close(force=True)
                return stop.exit_code
            await ended
        await run
        return 0
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(worker: Stoppable, run: asyncio.Future[Any], grace: Duration | None) -> None:
    await worker.close(grace=grace)
    await asyncio.wait({run})


class Program:
    """An `async def` that does all the work, or creates the worker; closing it cancels it."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = asyncio.ensure_future(work)
        self._worker: Stoppable | None = None

    async def run(self) -> None:
        """Run until it returns."""
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return
        made = self._work.result()
        if isinstance(made, Stoppable):
            self._worker = made
            await made.run()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Stop it, or the worker it created."""
        if self._worker is not None:
            await self._worker.close(force, grace=grace)
        self._work.cancel()
