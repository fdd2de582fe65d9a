"""The verbs for repeated work as one queue has them: on the schedules that make jobs for it."""

from __future__ import annotations

from datetime import datetime

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.repeat import Repeat, next_times
from longshore.core.schedule import Schedule, preview
from longshore.core.times import to_micros
from longshore.core.validation import check_number
from longshore.runtime.queue_verbs import QueueVerbs

MOST_PREVIEWED = 1_000


class ScheduleVerbs(QueueVerbs):
    """What is repeated: stored, looked at, held up, run by hand and taken away. A named queue sees its own."""

    async def put_schedule(self, schedule: Schedule, *, keep_pause: bool = False) -> Schedule:
        """Stores a schedule, or changes the one with its id (its run count and last run stay). Returns it as stored."""
        backend = await self._open()
        arriving = self._scope.schedule(schedule)
        await self._scope.check_schedule(arriving)
        return await backend.put_schedule(arriving, keep_pause=keep_pause)

    async def get_schedules(self) -> list[Schedule]:
        """The schedules that make jobs for this queue, by id."""
        found = await (await self._open()).get_schedules()
        return [schedule for schedule in found if self.name in (None, schedule.job.queue)]

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """The schedule as it stands, or ScheduleNotFound."""
        await self._open()
        return await self._scope.get_schedule(schedule_id)

    async def preview_schedule(self, schedule: str | Repeat, count: int = 10) -> list[datetime]:
        """The next planned times of a schedule, or of one that is not stored yet: up to 1,000, as its limit allows."""
        backend = await self._open()
        wanted = check_number("count", count, least=1)
        if wanted > MOST_PREVIEWED:
            raise InvalidArgument("count", f"must be at most {MOST_PREVIEWED:,}")
        if isinstance(schedule, Repeat):
            most = wanted if schedule.limit is None else min(wanted, schedule.limit)
            return next_times(schedule, most, after=await backend.now())
        return preview(await self._scope.get_schedule(schedule), wanted, to_micros(await backend.now()))

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        """Nothing of it is fired until it is resumed; what it has made stays. Returns it as stored."""
        return await (await self._open_for_schedule(schedule_id)).pause_schedule(schedule_id)

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Goes on with the next planned time after now; what fell into the pause is not made up for."""
        return await (await self._open_for_schedule(schedule_id)).resume_schedule(schedule_id)

    async def run_schedule(self, schedule_id: str) -> Job:
        """Makes one more of its jobs now, beside its plan, and returns it."""
        return await (await self._open_for_schedule(schedule_id)).run_schedule(schedule_id)

    async def remove_schedule(self, schedule_id: str) -> bool:
        """Removes it; False if there was none. Jobs it made stay."""
        backend = await self._open()
        if self.name is not None and not await self._scope.has_schedule(schedule_id):
            return False
        return await backend.remove_schedule(schedule_id)

    async def fire_due_schedules(self, limit: int = 100) -> list[Job]:
        """Makes the jobs of all queues that are due now; a Scheduler does this by itself."""
        return await (await self._open()).fire_due_schedules(limit)

    async def _open_for_schedule(self, schedule_id: str) -> Backend:
        """The backend, for a verb on one schedule that this queue sees."""
        backend = await self._open()
        if self.name is not None:
            await self._scope.get_schedule(schedule_id)
        return backend
