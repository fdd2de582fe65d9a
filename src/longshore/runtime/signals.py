"""What a process does when it is asked to stop, and how it starts child processes."""

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
    """Runs `main(descriptor)` of one of our modules, in the interpreter and with the flags of this process.

    `-P`: until the child has its parent's path, nothing in the working directory may stand in for a library.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    start = f"import sys; sys.path.append(sys.argv.pop()); from {module} import main; main(int(sys.argv.pop()))"
    root = Path(__file__).parents[2]  # where the package is, which need not be installed
    return [sys.executable, *flags, "-P", "-c", start, str(descriptor), str(root)]


def surroundings() -> dict[str, Any]:
    """What a child must know to import what its parent can; its working directory it inherits."""
    return {"path": sys.path, "argv": sys.argv}


def take_on(surroundings: Mapping[str, Any]) -> None:
    """In the child."""
    sys.path[:] = surroundings["path"]
    sys.argv[:] = surroundings["argv"]


STOP_GRACE = 30.0
"""Seconds running jobs have to end after the first signal, before they are called off and handed back."""
_FOR_THREADS = 1.0
"""Seconds for threads of the event loop to end, once the worker has."""
_ASKED = "asked to stop: running jobs may end, and no more are taken; ask again to drop them"
_STOPPING = (signal.SIGTERM, signal.SIGINT)

_USUAL_ROUNDS = ((700, 10, 10), (2000, 10, 10), (2000, 10, 0))
"""When the collector makes its rounds if nobody has said otherwise: in Python 3.11 and 3.12, in 3.13, and in 3.14."""
OBJECTS_A_ROUND = 10_000
"""How many objects must have come and stayed before it looks for cycles among them, in a process that runs jobs: what
failed jobs leave in cycles is not to pile up."""

_log = logger("longshore.worker")


@runtime_checkable
class Stoppable(Protocol):
    """A Worker, or what runs and closes like one."""

    async def run(self) -> None:
        """Until it is closed."""
        ...

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Ends it."""
        ...


class StopSignals:
    """SIGTERM and SIGINT, heard while this is entered, as two events: `asked` by the first, `demanded` by the second.

    The third ends the process at once, whatever blocks its event loop. A `patient` process takes them all for one:
    whoever stops a service may signal parent and children alike, and only the parent knows what was meant.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.asked = asyncio.Event()
        self.demanded = asyncio.Event()
        self.exit_code = 0
        """128 and the number of the signal that demanded the end; 0 as long as none did."""
        self._patient = patient
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> Self:
        """From now on, and for good if this is never left; the events follow once a loop is known."""
        for number in _STOPPING:
            # not the loop's own way: this one is heard even while a job blocks the loop
            self._before[number] = signal.signal(number, self._received)
        return self

    def attach(self) -> None:
        """The events are for this loop."""
        self._loop = asyncio.get_running_loop()
        self._tell()  # of what came before

    def ask(self) -> None:
        """As the first signal would; from any thread."""
        self._count = max(self._count, 1)
        self._tell()

    def demand(self) -> None:
        """As the second signal would; from any thread."""
        self._count = max(self._count, 2)
        self.exit_code = self.exit_code or 128 + signal.SIGTERM
        self._tell()

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
        self._count = 1 if self._patient else self._count + 1
        if self._count > 1:
            self.exit_code = 128 + number
        if self._count > 2:
            os._exit(self.exit_code)
        self._tell()

    def _tell(self) -> None:
        if self._loop is None:
            return
        with suppress(RuntimeError):  # the loop has closed: it is over anyway
            if self._count >= 1:
                self._loop.call_soon_threadsafe(self.asked.set)
            if self._count >= 2:
                self._loop.call_soon_threadsafe(self.demanded.set)


async def run_until_stopped(worker: Stoppable, *, grace: Duration | None = STOP_GRACE) -> int:
    """Runs a worker until SIGTERM or SIGINT, and returns the exit code: 0 after an orderly end.

    The first signal lets running jobs end within `grace` seconds (None: however long it takes) and hands the others
    back uncharged; the second drops all at once. Signals are heard in the main thread only.
    """
    with StopSignals() as stop:
        return await _run(worker, stop, grace, _ASKED)


def serve(
    make: Callable[[], Stoppable | Awaitable[Any]],
    *,
    grace: Duration | None = STOP_GRACE,
    stop: StopSignals | None = None,
    on_asked: str = _ASKED,
) -> int:
    """The whole life of a worker's process, to be followed by its exit with the code returned.

    `make` makes the worker, on the event loop; or it is an `async def` that makes one, or does the work itself.
    `on_asked` is logged when the first signal comes.
    """
    return asyncio.run(_serve(make, grace, stop or StopSignals().listen(), on_asked))


async def _serve(
    make: Callable[[], Stoppable | Awaitable[Any]], grace: Duration | None, stop: StopSignals, on_asked: str
) -> int:
    stop.attach()
    made = make()
    rounds = gc.get_threshold()
    settle_in()
    code = await _run(made if isinstance(made, Stoppable) else Program(made), stop, grace, on_asked)
    gc.unfreeze()  # whoever called may go on with a life of their own
    gc.set_threshold(*rounds)
    if code or not await _threads_have_ended():  # which would hold up an orderly exit for as long as they like
        with suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
        os._exit(code)
    return code


def settle_in(objects_a_round: int = OBJECTS_A_ROUND) -> None:
    """For a process whose work begins: what it has loaded stays, and the collector need not look at it again.

    Each of its full rounds would otherwise walk through all modules, some 30 ms in the midst of somebody's request. Its
    small rounds come less often, too, unless somebody has set when: jobs come and go by the thousand and are no cycles.
    """
    gc.collect()
    gc.freeze()
    first, *others = rounds = gc.get_threshold()
    if rounds in _USUAL_ROUNDS or first == OBJECTS_A_ROUND:
        gc.set_threshold(objects_a_round, *others)


async def _threads_have_ended() -> bool:
    """Whether the loop's own threads have come to rest: a job that was given back may still sit in `to_thread`."""
    ending = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait([ending], timeout=_FOR_THREADS)
    if not ending.done():
        _log.warning("threads of jobs that were given back are still busy; the process ends without them")
    return ending.done()


async def _run(worker: Stoppable, stop: StopSignals, grace: Duration | None, on_asked: str) -> int:
    run: asyncio.Future[Any] = asyncio.ensure_future(worker.run())
    asked: asyncio.Future[Any] = asyncio.ensure_future(stop.asked.wait())
    demanded: asyncio.Future[Any] = asyncio.ensure_future(stop.demanded.wait())
    tasks: list[asyncio.Future[Any]] = [run, asked, demanded]
    try:
        await asyncio.wait({run, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            # a warning, so that it is seen where no logging is set up: whoever waits would ask again
            _log.warning(on_asked)
            ended: asyncio.Future[Any] = asyncio.ensure_future(_ended(worker, run, grace))
            tasks.append(ended)
            await asyncio.wait({ended, demanded}, return_when=asyncio.FIRST_COMPLETED)
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
    """An `async def` that is the whole work, or makes the worker that does it; closing it cancels it."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = asyncio.ensure_future(work)
        self._worker: Stoppable | None = None

    async def run(self) -> None:
        """Until it returns."""
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return
        made = self._work.result()
        if isinstance(made, Stoppable):
            self._worker = made
            await made.run()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Ends it, or the worker it made."""
        if self._worker is not None:
            await self._worker.close(force, grace=grace)
        self._work.cancel()
