"""A few days in the life of a queue, with something of everything in them; the clock is held."""

from datetime import UTC, datetime, timedelta
from random import Random

from longshore.backends.base import Backend, Outcome
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule

FIRST_DAY = datetime(2026, 5, 1, 8, 0, tzinfo=UTC)


class Life:
    """Days that pass, the same for the same seed."""

    def __init__(self, url: str, seed: int, start: datetime = FIRST_DAY) -> None:
        self.url = url
        self.clock = HeldClock(start)
        self._chance = Random(seed)
        self._made = 0

    async def pass_days(self, days: int, jobs: int = 60) -> None:
        """A history of this many days with this many new jobs per day."""
        async with connect(self.url, clock=self.clock) as backend:
            for _ in range(days):
                await self._pass_day(backend, jobs)

    async def _pass_day(self, backend: Backend, jobs: int) -> None:
        await backend.put_schedule(nightly())
        await self._add(backend, jobs)
        for hour in range(24):
            self._pass(minutes=60)
            await backend.fire_due_schedules()
            await self._work(backend)
            if hour % 6 == 0:
                await self._operate(backend)
            await backend.reclaim_expired_leases()
            await backend.announce_due_jobs()

    def _pass(self, **by: float) -> None:
        self.clock.advance(timedelta(**by))

    async def _add(self, backend: Backend, count: int) -> None:
        jobs = []
        for _ in range(count):
            self._made += 1
            number = self._made
            jobs.append(
                Job(
                    id=f"job-{number}",
                    type=f"type-{number % 3}",
                    queue=f"queue-{number % 2}",
                    concurrency_key=None if number % 4 == 0 else f"tenant-{number % 5}",
                    delay=self._chance.choice([None, None, 1800, 100_000]),
                    depends_on=(f"job-{number - 1}",) if number % 11 == 0 else (),
                )
            )
        await backend.enqueue_jobs(jobs)

    async def _work(self, backend: Backend) -> None:
        for worker in ("worker-1", "worker-2"):
            held = await backend.dequeue_jobs(worker, limit=self._chance.randint(1, 6), lease=600)
            self._pass(seconds=self._chance.uniform(0.001, 90))
            outcomes = [ended for job in held if (ended := self._ended(job)) is not None]
            for job in held[:1]:
                await backend.append_log(job.id, "about to end")
            await backend.settle_jobs(outcomes)

    def _ended(self, job: Job) -> Outcome | None:
        chance = self._chance.random()
        if chance < 0.7:
            return Outcome(job.id, job.lease)
        if chance < 0.8:
            error = f"ValueError: no row {job.uid} in '/data/{job.id}.csv'"
            return Outcome(job.id, job.lease, "fail", error=error, retry_at=self._chance.choice([None, 5000]))
        if chance < 0.85:
            return Outcome(job.id, job.lease, "bury", error="Fatal: it cannot be done")
        if chance < 0.9:
            return Outcome(job.id, job.lease, "release", error="shutting down")
        return None if chance < 0.95 else Outcome(job.id, job.lease, "stop", error="enough")

    async def _operate(self, backend: Backend) -> None:
        numbers = [self._chance.randint(1, self._made) for _ in range(3)]
        await backend.cancel_jobs(job_ids=[f"job-{number}" for number in numbers[:2]])
        await backend.pause_queue("queue-1")
        await backend.resume_queue("queue-1")
        dead = [job async for job in _dead(backend)]
        if dead:
            await backend.retry_job(self._chance.choice(dead).id)


async def _dead(backend: Backend):  # type: ignore[no-untyped-def]  # an iterator of jobs
    from longshore.core.filters import JobFilter
    from longshore.core.status import JobStatus

    for job in (await backend.list_jobs(JobFilter(statuses=(JobStatus.DEAD,)))).items:
        yield job


def nightly() -> Schedule:
    """A schedule that fires every night at two."""
    return Schedule(
        id="nightly", repeat=Repeat(cron="0 2 * * *"), job=Job(id="pattern", type="report", queue="queue-0")
    )
