"""Several components that run until they are closed, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from longshore.core.errors import LongshoreError
from longshore.core.times import Duration
from longshore.runtime.signals import Stoppable, StopSignals
from longshore.runtime.supervisor import Supervisor


class ProcessGroup:
    """Runs all of its parts; as soon as one ends, the others are closed. `after` is awaited when all have ended."""

    def __init__(self, *parts: Stoppable, after: Callable[[], Awaitable[None]]) -> None:
        self._parts = parts
        self._after = after
        self._force = False

    async def run(self) -> None:
        """Until they have all ended; what one of them failed with is raised."""
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
        """All at the same time, each in its own way."""
        self._force = self._force or force
        await asyncio.gather(*(part.close(force, grace=grace) for part in self._parts), return_exceptions=True)


class Workers:
    """Worker processes under a supervisor, as one part among others."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._stop = StopSignals()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Until they have all ended."""
        try:
            code = await self._supervisor.supervise(self._stop)
        finally:
            self._over.set()
        if code and not self._stop.exit_code:
            raise LongshoreError(f"the worker processes ended with exit code {code}; their last words are above")

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:  # noqa: ARG002 - theirs is the supervisor's
        """Asks them to end, or has them killed."""
        if force:
            self._stop.demand()
        else:
            self._stop.ask()
        await self._over.wait()
