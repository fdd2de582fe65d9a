"""Several long-running components in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from longshore.core.errors import LongshoreError
from longshore.core.times import Duration
from longshore.runtime.signals import Stoppable, StopSignals
from longshore.runtime.supervisor import Supervisor


class ProcessGroup:
    """Components that run together: when one ends, the others are closed. Awaits `after` when all have ended."""

    def __init__(self, *parts: Stoppable, after: Callable[[], Awaitable[None]]) -> None:
        self._parts = parts
        self._after = after
        self._force = False

    async def run(self) -> None:
        """Run until all components have ended; raise the first error."""
        running = {asyncio.ensure_future(part.run()) for part in self._parts}
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await self.close(self._force)
        except asyncio.CancelledError:
            await self.close(force=True)
            raise
        finally:
            ends = await asyncio.gather(*running, return_exceptions=True)
            await self._after()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Close all components concurrently."""
        self._force = self._force or force
        await asyncio.gather(*(part.close(force, grace=grace) for part in self._parts), return_exceptions=True)


class Workers:
    """Worker processes under a supervisor, as one component."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._stop = StopSignals()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run until all worker processes have ended."""
        try:
            code = await self._supervisor.supervise(self._stop)
        finally:
            self._ended.set()
        if code and not self._stop.exit_code:
            raise LongshoreError(f"the worker processes ended with exit code {code}; see their output above")

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:  # noqa: ARG002 - the supervisor has its own
        """Stop the worker processes, or kill them with `force`."""
        if force:
            self._stop.force_stop()
        else:
            self._stop.request()
        await self._ended.wait()
