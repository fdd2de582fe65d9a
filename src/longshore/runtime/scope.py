"""Which jobs a queue sees and touches: its own, or all of them if it has no name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, ScheduleNotFound
from longshore.core.filters import JobFilter, check_filter
from longshore.core.job import DEFAULT_QUEUE, Job
from longshore.core.schedule import Schedule
from longshore.core.validation import check_name, check_names

_LOOKED_UP_AT_ONCE = 1_000


class Scope:
    """The view of one queue on a backend. Without a name it costs nothing; with one, a job named by id is looked up."""

    def __init__(self, backend: Backend, name: str | None) -> None:
        self.backend = backend
        self.name = None if name is None else check_name("name", name)

    def queue(self, given: str | None) -> str | None:
        """The queue a verb is about: this one unless another is named, which only a queue without a name may do."""
        if given is None:
            return self.name
        if self.name is not None and check_name("queue", given) != self.name:
            raise InvalidArgument("queue", f"is {given!r}, but this is the queue {self.name!r}; use Queue(backend)")
        return given

    def one_queue(self, given: str | None) -> str:
        """Like `queue`, for a verb that is about exactly one."""
        queue = self.queue(given)
        if queue is None:
            raise InvalidArgument("queue", "must be named: this Queue was made without a name and sees all of them")
        return queue

    def queues(self, given: Sequence[str] | None) -> Sequence[str] | None:
        """The queues a verb is about."""
        if self.name is None:
            return given
        for queue in () if given is None else check_names("queues", given):
            self.queue(queue)
        return [self.name] if given is None else given

    def filter(self, wanted: JobFilter) -> JobFilter:
        """The filter, narrowed to what this queue sees."""
        if self.name is None:
            return wanted
        queues = self.queues(check_filter(wanted).queues or None)
        return dataclasses.replace(wanted, queues=queues or ())

    def arriving(self, job: Job) -> Job:
        """A job on its way in: one that names no queue takes this one's name."""
        if self.name is None or not isinstance(job, Job):  # what is no job at all is refused by the store
            return job
        if job.queue is DEFAULT_QUEUE:
            return job.replace(queue=self.name)
        self.queue(job.queue)
        return job

    def schedule(self, schedule: Schedule) -> Schedule:
        """A schedule on its way in, with the job it makes."""
        if self.name is None or not isinstance(schedule, Schedule):
            return schedule
        return dataclasses.replace(schedule, job=self.arriving(schedule.job))

    async def check_schedule(self, schedule: Schedule) -> None:
        """Raises if its id is that of a schedule of another queue, which is not to be changed from here."""
        if self.name is None or not isinstance(schedule, Schedule):
            return
        try:
            stored = await self.backend.get_schedule(check_name("schedule.id", schedule.id))
        except ScheduleNotFound:
            return
        if stored.job.queue != self.name:
            raise InvalidArgument("schedule.id", f"{_of_another_queue(stored)}; choose another")

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """The schedule, if this queue sees it."""
        found = await self.backend.get_schedule(schedule_id)
        if self.name is not None and found.job.queue != self.name:
            raise InvalidArgument("schedule_id", f"{_of_another_queue(found)}, not of {self.name!r}")
        return found

    async def has_schedule(self, schedule_id: str) -> bool:
        """Whether there is such a schedule, and this queue sees it."""
        try:
            found = await self.backend.get_schedule(schedule_id)
        except ScheduleNotFound:
            return False
        return self.name in (None, found.job.queue)

    def seen(self, job: Job) -> Job:
        """The job itself, if this queue sees it."""
        if self.name is not None and job.queue != self.name:
            raise InvalidArgument("job_id", self._elsewhere(job))
        return job

    async def check(self, job_id: str) -> None:
        """Raises unless the job is one this queue sees."""
        if self.name is not None:
            self.seen(await self.backend.get_job(job_id))

    async def strangers(self, job_ids: Iterable[str]) -> dict[str, InvalidArgument]:
        """Those of the jobs that are of another queue, each with the words to refuse it."""
        if self.name is None:
            return {}
        ids = list(check_names("job_ids", job_ids))
        found: list[Job] = []
        for first in range(0, len(ids), _LOOKED_UP_AT_ONCE):
            wanted = ids[first : first + _LOOKED_UP_AT_ONCE]
            found += (await self.backend.list_jobs(JobFilter(ids=wanted), limit=len(wanted))).items
        return {job.id: InvalidArgument("job_ids", self._elsewhere(job)) for job in found if job.queue != self.name}

    async def check_all(self, job_ids: Iterable[str]) -> None:
        """Raises unless all of the jobs that exist are ones this queue sees."""
        for refusal in (await self.strangers(job_ids)).values():
            raise refusal

    def _elsewhere(self, job: Job) -> str:
        return f"job {job.id!r} is in the queue {str(job.queue)!r}, not in {self.name!r}"


def _of_another_queue(schedule: Schedule) -> str:
    return f"{schedule.id!r} is a schedule of the queue {str(schedule.job.queue)!r}"
