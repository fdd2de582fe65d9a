"""Traces a job that succeeds and one that is retried, and prints every function that is entered, in order.

`python -m tests.repo.job_trace URL` runs a warm worker on the store at this URL and prints one `file function` per
line. `docs/architecture.md` is written from this trace; `test_architecture.py` compares the two.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from time import monotonic
from types import FrameType

import longshore
from longshore import Harbor, current_job

SOURCE = str(Path(longshore.__file__).parent)
_IDLE = 0.3
_UNNAMED = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class Trace:
    """Records the functions of the product that any thread enters between `start` and `stop`."""

    def __init__(self) -> None:
        self._recording = False
        self._entered: list[tuple[str, str]] = []
        self._worker_ran_at = 0.0

    def install(self) -> None:
        """Call before the product starts threads: a profile function reaches only threads that start later."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    async def worker_is_idle(self) -> None:
        """Return once the worker's loop has done nothing for a while."""
        while monotonic() - self._worker_ran_at < _IDLE:  # noqa: ASYNC110 - a profile function sets no event
            await asyncio.sleep(_IDLE / 4)

    def start(self) -> None:
        self._recording = True

    def stop(self) -> list[tuple[str, str]]:
        self._recording = False
        return self._entered

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_qualname.endswith(_UNNAMED):
            return
        file = code.co_filename.removeprefix(SOURCE).lstrip("/")
        if file == "runtime/worker_loop.py":
            self._worker_ran_at = monotonic()
        if self._recording:
            self._entered.append((file, code.co_qualname))


async def trace(url: str) -> list[tuple[str, str]]:
    """The functions that are entered on this store for both jobs, while an idle worker waits for them."""
    recorder = Trace()
    recorder.install()
    harbor = Harbor(url)

    @harbor.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    @harbor.task(attempts=2, backoff=0)
    async def greet_later(name: str) -> str:
        if current_job().record.executions == 1:
            raise ConnectionError("no answer")
        return f"hello {name}"

    async with harbor:
        worker = harbor.worker()
        for name in ("Ada", "Grace"):  # the first job pays for connections, imports and caches
            await (await greet.enqueue(name)).result(timeout=10)
        while not any(event.event == "worker.drained" for event in await harbor.backend.read_events()):
            await harbor.backend.wait_for_change(10)
        await recorder.worker_is_idle()  # the event itself wakes it once more
        recorder.start()
        await (await greet.enqueue("Barbara")).result(timeout=10)
        await (await greet_later.enqueue("Radia")).result(timeout=10)
        entered = recorder.stop()
        await worker.close()
    return entered


if __name__ == "__main__":
    for file, function in asyncio.run(trace(sys.argv[1])):
        print(file, function)
