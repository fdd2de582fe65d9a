"""The sweep: jobs whose lease ran out are given back, by every process that has a stream or worker open."""

from __future__ import annotations

import asyncio
import random

from longshore.backends.base import Backend
from longshore.core.errors import QueueClosed
from longshore.runtime import background
from longshore.safe_logging import logger

SWEEP_SECONDS = 1.0
_JITTER = 0.2
"""So that many processes do not all sweep at one moment."""
_AT_ONCE = 1_000
_LONGEST_PAUSE = 5.0

_log = logger("longshore.sweep")


class Sweeper:
    """Sweeps one backend until it is stopped. Any number may do so at once: a sweep is safe to repeat."""

    def __init__(self, backend: Backend, interval: float = SWEEP_SECONDS) -> None:
        self._backend = backend
        self._interval = interval
        self._work = background.submit(self._sweep_for_ever())

    def stop(self) -> None:
        """Sweeps no longer."""
        self._work.cancel()

    async def _sweep_for_ever(self) -> None:
        pause = self._interval
        while True:
            await asyncio.sleep(pause * (1 + random.uniform(-_JITTER, _JITTER)))
            try:
                while len(await self._backend.reclaim_expired_leases(_AT_ONCE)) == _AT_ONCE:
                    pass
            except QueueClosed:
                return
            except Exception as error:  # whatever it is, what runs out meanwhile must be found later
                _log.warning("the sweep failed and will be repeated: %r", error)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = self._interval
