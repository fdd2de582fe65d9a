"""Several worker processes under one parent, which restarts those that die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_number
from longshore.runtime.error_text import describe_exit
from longshore.runtime.executors.base import Target, refuse_while_importing
from longshore.runtime.signals import STOP_GRACE, StopSignals, command_to_run, import_state
from longshore.runtime.supervised import CANNOT_START
from longshore.runtime.worker import new_worker_id
from longshore.safe_logging import logger

_KILL_AFTER_GRACE = 20.0
"""Seconds after the grace period in which a worker cancels and releases its jobs; then it is killed."""
_HEALTHY_AFTER = 60.0
"""Seconds after which a process counts as healthy: if it dies later, the pauses start again from the first."""

_STORE_ANSWERS_WITHIN = 10.0
"""Seconds to end the leases of a dead process; after that they expire."""

_log = logger("longshore.supervisor")


class Supervisor:
    """Run `target`, named `module:name`, in `processes` worker processes. See docs/worker.md.

    The target is a Harbor (its `worker(**arguments)` is run), or a function called with `arguments` (JSON) that returns
    a Worker or is an `async def`. A process that dies is replaced after a pause, which doubles from `first_pause` to
    `longest_pause` seconds while processes keep dying. A process that exits with code 0 is not replaced.

    `store` is the workers' store, as a URL or a Backend. With it, the leases of a dead process end at once, each
    counted as a crash. Without it, or if it is unreachable, they expire.
    """

    def __init__(
        self,
        target: str,
        *,
        processes: int = 2,
        arguments: Mapping[str, Any] | None = None,
        grace: Duration | None = STOP_GRACE,
        store: str | Backend | None = None,
        first_pause: Duration = 0.5,
        longest_pause: Duration = 30,
    ) -> None:
        module, colon, name = target.partition(":")
        if not (module and colon and name):
            raise InvalidArgument("target", f"must have the form module:name, such as shop.jobs:harbor; got {target!r}")
        self._target = Target.named(module, name, "target")
        self._processes = check_number("processes", processes, least=1)
        self._arguments = dict(arguments or {})
        self._grace = None if grace is None else check_duration("grace", grace, positive=False) / SECOND
        self._first_pause = check_duration("first_pause", first_pause) / SECOND
        self._longest_pause = check_duration("longest_pause", longest_pause) / SECOND
        self._store = store
        self._ending: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.subprocess.Process] = set()
        self._cannot_start = False

    def run(self) -> int:
        """Run until all processes have ended, or until SIGTERM or SIGINT; return the exit code.

        The first signal is passed on as SIGTERM for an orderly stop; the second kills the processes.
        """
        refuse_while_importing()
        return asyncio.run(self.supervise(StopSignals().listen()))

    async def supervise(self, stop: StopSignals) -> int:
        """Like `run`, on the running event loop, until `stop` is set."""
        stop.attach()
        keeping = {asyncio.create_task(self._keep(number + 1, stop)) for number in range(self._processes)}
        requested: asyncio.Future[Any] = asyncio.create_task(stop.requested.wait())
        forced: asyncio.Future[Any] = asyncio.create_task(stop.forced.wait())
        all_ended: asyncio.Future[Any] = asyncio.gather(*keeping)
        await asyncio.wait({all_ended, requested}, return_when=asyncio.FIRST_COMPLETED)
        if not all_ended.done():
            self._signal(signal.SIGTERM)
            timeout = None if self._grace is None else self._grace + _KILL_AFTER_GRACE
            await asyncio.wait({all_ended, forced}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            late = bool(self._running) and not stop.exit_code
            self._signal(signal.SIGKILL)
            if late:
                _log.error("killed worker processes that did not end within their grace period")
                stop.exit_code = 1
        requested.cancel()
        forced.cancel()
        codes = await all_ended
        await asyncio.gather(*self._ending)
        return stop.exit_code or (CANNOT_START if self._cannot_start else 0 if stop.requested.is_set() else max(codes))

    async def _keep(self, number: int, stop: StopSignals) -> int:
        """Keep one process running: start it, and replace it when it dies."""
        deaths = 0
        while True:
            started = monotonic()
            try:
                process, pipe, worker_id = await self._start()
            except (
                OSError
            ) as error:  # no more processes, files or memory: it may be temporary, and the others keep running
                code, end = 1, f": cannot start it: {error}"
            else:
                code = await self._watch(process, pipe, stop)
                if code != 0 and self._store is not None:  # the process has been reaped, so none of it still runs
                    ending = asyncio.create_task(self._end_leases(self._store, worker_id))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)
                end = f" (pid {process.pid}): {describe_exit(code, 'before it was asked to stop')}"
            if code == CANNOT_START and deaths == 0 and not stop.requested.is_set():
                self._cannot_start = True  # it cannot start at all: do not retry forever
                stop.request()
            if code == 0 or stop.requested.is_set():
                return max(code, 0)
            deaths = 1 if monotonic() - started > _HEALTHY_AFTER else deaths + 1
            pause = min(self._first_pause * 2 ** min(deaths - 1, 30), self._longest_pause)
            _log.error("worker process %d%s; another one starts in %g seconds", number, end, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.requested.wait(), pause)
                return 0

    async def _watch(self, process: asyncio.subprocess.Process, pipe: int, stop: StopSignals) -> int:
        """Wait until the process has ended."""
        self._running.add(process)
        if stop.requested.is_set():  # it was set during the start
            self._signal(signal.SIGTERM)
        try:
            return await process.wait()
        finally:
            self._running.discard(process)
            os.close(pipe)

    async def _end_leases(self, store: str | Backend, worker_id: str) -> None:
        """End the leases of a dead worker now instead of at their expiry."""
        try:
            async with asyncio.timeout(_STORE_ANSWERS_WITHIN):
                if isinstance(store, Backend):
                    await _declare_dead(store, worker_id)
                else:
                    async with connect(store) as backend:
                        await _declare_dead(backend, worker_id)
        except Exception as error:  # on any error the leases expire
            text = str(error) or f"the store did not answer within {_STORE_ANSWERS_WITHIN:g} seconds"
            _log.warning("cannot end the leases of worker %s; its jobs wait until they expire: %s", worker_id, text)

    async def _start(self) -> tuple[asyncio.subprocess.Process, int, str]:
        """Start a process; return it, the pipe whose closing tells it that its parent is gone, and its worker's id."""
        theirs, ours = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command_to_run("longshore.runtime.supervised", theirs),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,  # Ctrl-C in a terminal reaches only the parent
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        worker_id = new_worker_id(process.pid)
        order = {
            "worker_id": worker_id,
            "target": self._target.as_dict(),
            "arguments": self._arguments,
            "grace": self._grace,
            **import_state(),
        }
        with suppress(BrokenPipeError):  # it is dead already; `wait` reports that
            os.write(ours, json.dumps(order).encode() + b"\n")
        return process, ours, worker_id

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number) if number is signal.SIGKILL else process.send_signal(number)


async def _declare_dead(backend: Backend, worker_id: str) -> None:
    await backend.mark_worker_unresponsive(worker_id)
    for worker in await backend.list_workers():
        if worker.id == worker_id and worker.state != "stopped":
            await backend.heartbeat_worker(replace(worker, state="stopped", running=0))
