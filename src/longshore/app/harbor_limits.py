"""The harbor's part for flow control: limits of its queues, and why a job is not running."""

from __future__ import annotations

from longshore.backends.base import UNCHANGED, Unchanged
from longshore.core.explain import Explanation
from longshore.core.limits import Limits, Rate
from longshore.runtime import background
from longshore.runtime.job_queue import Queue


class HarborLimits:
    """What every Harbor can do with limits."""

    _queue: Queue

    async def set_limits(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """How many jobs of a queue (and of each of its keys) may run at once and start per window, in all processes.

        A limit that is not named stays as it is; None is no limit.
        """
        await self._queue.set_limits(queue, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key)

    def set_limits_sync(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        """Like `set_limits`, for code without an event loop."""
        background.run(self.set_limits(queue, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key))

    async def get_limits(self, queue: str) -> Limits:
        """The limits of a queue as they are now."""
        return await self._queue.get_limits(queue)

    def get_limits_sync(self, queue: str) -> Limits:
        """Like `get_limits`, for code without an event loop."""
        return background.run(self.get_limits(queue))

    async def explain(self, job_id: str) -> Explanation:
        """Why a job is not running now: who or what is in its way, each reason with its way out."""
        return await self._queue.explain(job_id)

    def explain_sync(self, job_id: str) -> Explanation:
        """Like `explain`, for code without an event loop."""
        return background.run(self.explain(job_id))
