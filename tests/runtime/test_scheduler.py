"""The scheduler: each pass runs every task once, with other schedulers and after failures, until it closes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore import Job, JobFilter, JobStatus, Queue, Repeat, Scheduler, Worker, fixed
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, InvalidArgument, QueueClosed
from longshore.core.schedule import Schedule
from longshore.runtime import scheduler as chores
from longshore.runtime.running_job import RunningJob
from longshore.runtime.scheduler import Tick
from tests.runtime.conftest import OpenBackend
from tests.runtime.streaming import eventually

S = JobStatus
DAY = timedelta(days=1)


async def told(backend: Backend, job_id: str) -> list[str]:
    """Return the job's events in order."""
    return [event.event for event in await backend.read_events(job_id=job_id)]


async def status_of(backend: Backend, job_id: str) -> JobStatus:
    return (await backend.get_job(job_id)).status


def every_minute(schedule_id: str = "reports", **job: Any) -> Schedule:
    return Schedule(id=schedule_id, job=Job(type="report", **job), repeat=Repeat(every=60))


class Trouble:
    """Makes operations of a backend fail, and counts their calls."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: set[str] = set()
        self.calls: dict[str, int] = {}
        for verb in (
            "reclaim_expired_leases",
            "next_firing",
            "fire_due_schedules",
            "announce_due_jobs",
            "time_out_cancellations",
            "apply_retention",
            "record_worker_event",
        ):
            monkeypatch.setattr(backend, verb, self._watched(verb, getattr(backend, verb)))

    def _watched(self, verb: str, true: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.calls[verb] = self.calls.get(verb, 0) + 1
            if verb in self.failing:
                raise BackendUnavailable(f"no {verb} today")
            return await true(*args, **kwargs)

        return watched


@pytest.fixture
def trouble(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(backend, monkeypatch)


# -- one pass


async def set_the_stage(backend: Backend, clock: HeldClock) -> None:
    """Store something for each task of a pass, all due ten minutes from now."""
    await backend.enqueue_job(Job(id="old", type="t"))
    await backend.dequeue_jobs("w")
    await backend.complete_job("old")
    clock.advance(7 * DAY)
    await backend.enqueue_job(Job(id="stalled", type="t"))
    await backend.dequeue_jobs("w")
    await backend.enqueue_job(Job(id="cancelled", type="t"))
    await backend.dequeue_jobs("w", lease=None)
    await backend.cancel_jobs(job_ids=["cancelled"])
    await backend.enqueue_job(Job(id="delayed", type="t", delay=60))
    await backend.enqueue_job(Job(id="outlived", type="t", expires_at=60))
    await backend.put_schedule(every_minute())
    clock.advance(600)


async def test_one_pass_runs_every_task_and_the_next_finds_nothing_to_do(backend: Backend, clock: HeldClock) -> None:
    # M-SCHED-02 M-SCHED-03 M-SCHED-07 M-GOAL-04 M-EV-09 M-TR-05
    await set_the_stage(backend, clock)
    scheduler = Scheduler(backend, cancel_timeout=60)
    assert await scheduler.tick() == Tick(reclaimed=1, fired=1, announced=1, timed_out=1, removed=1)
    assert await status_of(backend, "stalled") is S.UNKNOWN_RETRY
    assert await status_of(backend, "cancelled") is S.UNKNOWN_STOPPED
    assert await status_of(backend, "outlived") is S.UNSCHEDULED
    assert await told(backend, "delayed") == ["job.added", "job.delayed", "job.promoted"]
    assert [job.schedule_id for job in (await backend.list_jobs(JobFilter(types=("report",)))).items] == ["reports"]
    assert (await backend.list_jobs(JobFilter(ids=("old",)))).items == []
    before = await backend.end_of_events()
    assert await scheduler.tick() == Tick()
    assert await backend.end_of_events() == before


async def test_schedulers_at_once_do_everything_once(
    backend: Backend, clock: HeldClock, open_backend: OpenBackend
) -> None:
    # M-SCHED-13
    await set_the_stage(backend, clock)
    await backend.enqueue_jobs([Job(id=f"d{number}", type="t", delay=1) for number in range(50)])
    for number in range(50):
        await backend.put_schedule(every_minute(f"s{number}"))
    clock.advance(60)
    others = [open_backend() if backend.capabilities.shared else backend for _ in range(3)]
    done = await asyncio.gather(*(Scheduler(one).tick() for one in [backend, *others] for _ in range(2)))
    assert [tick.failed for tick in done] == [()] * 8
    made = (await backend.list_jobs(JobFilter(types=("report",)), limit=500)).items
    assert len({job.schedule_id for job in made}) == len(made) == 51
    for number in range(50):
        assert (await told(backend, f"d{number}")).count("job.promoted") == 1
    assert (await told(backend, "stalled")).count("job.stalled") == 1


async def test_a_pass_continues_in_batches_until_nothing_is_left_and_yields_between_them(
    backend: Backend, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-SCHED-02 M-SCHED-13
    monkeypatch.setattr(chores, "AT_ONCE", 7)
    await backend.enqueue_jobs([Job(id=f"old{number}", type="t") for number in range(20)])
    for job in await backend.dequeue_jobs("w", limit=20):
        await backend.complete_job(job.id)
    clock.advance(8 * DAY)
    await backend.enqueue_jobs([Job(type="t", delay=1) for _ in range(20)])
    await backend.enqueue_jobs([Job(type="t", expires_at=1) for _ in range(20)])
    await backend.enqueue_jobs([Job(type="t", queue="q") for _ in range(20)])
    assert len(await backend.dequeue_jobs("w", limit=20, queues=["q"], lease=1)) == 20
    clock.advance(2)
    transactions = 0
    seen = clock.now

    def counted() -> datetime:
        nonlocal transactions
        transactions += 1
        return seen()

    monkeypatch.setattr(clock, "now", counted)
    tick = await Scheduler(backend).tick()
    assert (tick.reclaimed, tick.announced, tick.removed) == (20, 20, 20)
    assert (await backend.count_jobs())[S.UNSCHEDULED] == 20
    assert transactions >= 3 * 3


async def test_a_pass_survives_the_failure_of_each_of_its_steps_and_does_the_others(
    backend: Backend, clock: HeldClock, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    # M-SCHED-14 M-EV-13
    await set_the_stage(backend, clock)
    scheduler = Scheduler(backend, cancel_timeout=60)
    trouble.failing = {"reclaim_expired_leases", "next_firing", "announce_due_jobs", "time_out_cancellations"}
    trouble.failing |= {"apply_retention"}
    for verb, done in {
        "apply_retention": Tick(removed=1),
        "reclaim_expired_leases": Tick(reclaimed=1),
        "next_firing": Tick(fired=1),
        "time_out_cancellations": Tick(timed_out=1),
        "announce_due_jobs": Tick(announced=1),
    }.items():
        trouble.failing.discard(verb)
        tick = await scheduler.tick()
        assert len(tick.failed) == len(trouble.failing)
        assert Tick(*(getattr(tick, name) for name in Tick.__slots__[:-1])) == done
    assert sum("failed; trying again: BackendUnavailable: no " in line for line in caplog.messages) == 4 + 3 + 2 + 1
    errors = [event for event in await backend.read_events() if event.event == "worker.error"]
    assert len(errors) == 4, "each error is recorded once, however often it occurs"
    assert {event.assignee_id for event in errors} == {scheduler.id}
    assert any("no apply_retention today" in str(event.detail) for event in errors) is False
    assert any("no announce_due_jobs today" in str(event.detail) for event in errors)


async def test_an_error_that_could_not_be_recorded_is_recorded_when_the_store_is_back(
    backend: Backend, trouble: Trouble
) -> None:
    # M-SCHED-14 M-EV-13
    scheduler = Scheduler(backend)
    trouble.failing = {"reclaim_expired_leases", "record_worker_event"}
    assert (await scheduler.tick()).failed == ("sweep",)
    trouble.failing = set()
    assert (await scheduler.tick()).failed == ()
    [event] = [event for event in await backend.read_events() if event.event == "worker.error"]
    assert "no reclaim_expired_leases today" in str(event.detail)


# -- leases


async def test_only_a_lease_that_has_ended_is_swept_and_one_that_was_renewed_is_not(
    backend: Backend, clock: HeldClock
) -> None:
    # M-SCHED-03 M-SCHED-06
    await backend.enqueue_jobs([Job(id=name, type="t") for name in ("renewed", "forgotten")])
    held = {job.id: job.lease for job in await backend.dequeue_jobs("w", limit=2, lease=30)}
    scheduler = Scheduler(backend)
    clock.advance(29.999999)
    assert held["renewed"] is not None
    assert "renewed" in await backend.extend_leases({"renewed": held["renewed"]}, 30)
    assert await scheduler.tick() == Tick()
    clock.advance(0.000001)
    assert (await scheduler.tick()).reclaimed == 1
    forgotten = await backend.get_job("forgotten")
    assert (forgotten.status, forgotten.crashes, forgotten.lease) == (S.UNKNOWN_RETRY, 1, None)
    assert (forgotten.executions, forgotten.retry_count) == (1, 0)  # nothing is counted twice
    assert await status_of(backend, "renewed") is S.RUNNING


async def test_a_stalled_job_waits_by_its_backoff_or_not_at_all_and_is_dead_once_it_has_crashed_too_often(
    backend: Backend, clock: HeldClock
) -> None:
    # M-SCHED-04 M-SCHED-05 M-TR-11 M-TR-12 X-71
    async with Queue(backend) as queue:
        keeper = Queue(backend)
        await queue.add("t", job_id="at once")
        await queue.add("t", job_id="patient", backoff=fixed(60))
        await queue.add("t", job_id="fragile", max_crashes=0)
        await backend.dequeue_jobs("w", limit=3)
        clock.advance(30)
        assert (await Scheduler(backend).tick()).reclaimed == 3
        assert (await told(backend, "at once"))[-2:] == ["job.stalled", "job.promoted"]
        assert (await told(backend, "patient"))[-2:] == ["job.stalled", "job.delayed"]
        assert (await told(backend, "fragile"))[-3:] == ["job.stalled", "job.failed", "job.dead"]
        fragile = await backend.get_job("fragile")
        assert (fragile.status, fragile.finalized_at) == (S.DEAD, clock.now())
        assert "lease ran out" in fragile.error_message
    assert not keeper.closed


# -- retries, which workers make


async def test_retries_need_no_scheduler_and_a_scheduler_decides_none(backend: Backend, clock: HeldClock) -> None:
    # M-SCHED-12
    await backend.enqueue_job(Job(id="again", type="t", max_attempts=2))
    await backend.dequeue_jobs("w")
    await backend.fail_job("again", "broken", retry_at=30)
    scheduler = Scheduler(backend)
    assert await scheduler.tick() == Tick()
    clock.advance(30)
    [job] = await backend.dequeue_jobs("w")
    assert (job.id, job.retry_count) == ("again", 1)
    await backend.fail_job("again", "broken again")
    assert await scheduler.tick() == Tick()
    assert await status_of(backend, "again") is S.FAILED_RETRY


# -- cancellations


async def test_a_scheduler_ends_unanswered_cancellations_only_if_it_is_given_a_cancel_timeout(
    backend: Backend, clock: HeldClock
) -> None:
    # M4, X-35
    await backend.enqueue_job(Job(id="deaf", type="t"))
    await backend.dequeue_jobs("w", lease=None)
    await backend.cancel_jobs(job_ids=["deaf"])
    clock.advance(timedelta(days=3))
    assert await Scheduler(backend).tick() == Tick()
    assert await Scheduler(backend, cancel_timeout=None).tick() == Tick()
    assert await Scheduler(backend, cancel_timeout=timedelta(days=4)).tick() == Tick()
    assert await Scheduler(backend, cancel_timeout=60).tick() == Tick(timed_out=1)


async def test_a_worker_that_ignores_a_cancellation_is_fenced(queue: Queue, backend: Backend) -> None:
    begun = asyncio.Event()

    async def deaf(job: RunningJob) -> None:
        begun.set()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if dropped.is_set():
                    raise

    dropped = asyncio.Event()
    async with Worker(queue, deaf, lock_duration=1, lock_renew_time=0.2, cancel_grace=3600) as worker:
        job = await queue.add("t")
        await begun.wait()
        await backend.cancel_jobs(job_ids=[job.id])
        scheduler = Scheduler(backend, cancel_timeout=0.3)

        async def timed_out() -> bool:
            return (await scheduler.tick()).timed_out == 1

        await eventually(timed_out)
        assert await status_of(backend, job.id) is S.UNKNOWN_STOPPED
        dropped.set()
        await worker.close(force=True)


# -- retention


async def test_each_queue_applies_its_own_retention(backend: Backend, clock: HeldClock) -> None:
    await backend.set_retention("brief", finished=60)
    await backend.set_retention("archive", finished=None, dead=None, events=None)
    for queue in ("brief", "archive", "usual"):
        await backend.enqueue_jobs([Job(id=f"{queue} {end}", type="t", queue=queue) for end in ("done", "dead")])
        await backend.complete_job((await backend.dequeue_jobs("w", queues=[queue]))[0].id)
        await backend.bury_job((await backend.dequeue_jobs("w", queues=[queue]))[0].id, "broken")

    async def kept() -> set[str]:
        await Scheduler(backend).tick()
        return {job.id for job in (await backend.list_jobs(JobFilter())).items}

    clock.advance(60)
    assert await kept() == {"brief dead", "archive done", "archive dead", "usual done", "usual dead"}
    clock.advance(7 * DAY)
    assert await kept() == {"brief dead", "archive done", "archive dead", "usual dead"}
    clock.advance(30 * DAY)
    assert await kept() == {"archive done", "archive dead"}
    assert {event.queue for event in await backend.read_events(queue="archive")} == {"archive"}


# -- repeatedly


async def test_it_runs_every_interval_and_retention_once_a_minute(backend: Backend, trouble: Trouble) -> None:
    # M-SCHED-01
    async with Scheduler(backend, interval=0.01):

        async def came_back() -> bool:
            return min(trouble.calls.get(verb, 0) for verb in ("reclaim_expired_leases", "announce_due_jobs")) >= 5

        await eventually(came_back)
    assert trouble.calls["apply_retention"] == 1
    calls = dict(trouble.calls)
    await asyncio.sleep(0.05)
    assert trouble.calls == calls


async def test_a_tick_ends_though_schedules_fall_due_as_fast_as_they_fire(
    backend: Backend, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fire, calls = backend.fire_due_schedules, 0

    async def while_time_passes(limit: int) -> list[Job]:
        nonlocal calls
        calls += 1
        assert calls < 5, "it does not end"
        fired = await fire(limit)
        clock.advance(60)
        return fired

    monkeypatch.setattr(backend, "fire_due_schedules", while_time_passes)
    await backend.put_schedule(every_minute())
    clock.advance(60)
    scheduler = Scheduler(backend)
    assert (await scheduler.tick()).fired == 1
    assert (await scheduler.tick()).fired == 1, "the next pass continues"


async def test_a_schedule_fires_at_its_planned_time_however_long_the_interval(backend: Backend) -> None:
    # M-SCHED-01 M-SCHED-07
    planned = await backend.now() + timedelta(seconds=0.3)
    await backend.put_schedule(
        Schedule(id="soon", job=Job(type="report"), repeat=Repeat(every=3600, start=planned, limit=1))
    )
    async with Scheduler(backend, interval=60):

        async def fired() -> bool:
            return (await backend.count_jobs())[S.INITIAL_PENDING] == 1

        await eventually(fired)
    [job] = (await backend.list_jobs(JobFilter())).items
    assert job.created_at is not None
    assert timedelta(0) <= job.created_at - planned < timedelta(seconds=1)


async def test_it_survives_every_error_of_its_store_and_forgets_nothing(
    backend: Backend, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    # M-SCHED-14
    caplog.set_level(logging.INFO)
    await backend.enqueue_job(Job(id="later", type="t", delay=0.001))
    await backend.put_schedule(Schedule(id="soon", job=Job(type="report"), repeat=Repeat(every=0.001, limit=1)))
    trouble.failing = {"reclaim_expired_leases", "next_firing", "announce_due_jobs", "apply_retention"}
    async with Scheduler(backend, interval=0.01):

        async def failed_often() -> bool:
            return min(trouble.calls.get(verb, 0) for verb in trouble.failing) >= 3

        await eventually(failed_often)
        trouble.failing = set()

        async def did_it() -> bool:
            fired = (await backend.list_jobs(JobFilter(types=("report",)))).items
            return len(fired) == 1 and "job.promoted" in await told(backend, "later")

        await eventually(did_it)
    assert any("has recovered" in line for line in caplog.messages)


async def test_a_slow_clean_up_makes_no_schedule_late(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def for_ever(_limit: int) -> int:
        asked.set()
        await asyncio.sleep(3600)
        return 0

    monkeypatch.setattr(backend, "apply_retention", for_ever)
    monkeypatch.setattr(backend, "announce_due_jobs", for_ever)
    scheduler = Scheduler(backend)
    running = asyncio.create_task(scheduler.run())
    await asked.wait()
    await backend.put_schedule(Schedule(id="soon", job=Job(type="report"), repeat=Repeat(every=0.001, limit=1)))

    async def fired() -> bool:
        return (await backend.count_jobs())[S.INITIAL_PENDING] == 1

    await eventually(fired)
    await scheduler.close(grace=0.01)
    await running


async def test_closing_the_store_ends_it(backend: Backend) -> None:
    scheduler = Scheduler(backend, interval=0.01)
    running = asyncio.create_task(scheduler.run())
    await asyncio.sleep(0.02)
    await backend.close()
    async with asyncio.timeout(10):
        await running
    with pytest.raises(QueueClosed):
        await scheduler.tick()


async def test_it_is_closed_from_any_loop_and_twice_and_before_it_began(backend: Backend) -> None:
    unused = Scheduler(backend)
    await unused.close()
    await unused.run()
    with pytest.raises(QueueClosed, match="closed"):
        await unused.tick()
    scheduler = Scheduler(backend, interval=0.01)
    running = [asyncio.create_task(scheduler.run()) for _ in range(2)]
    await asyncio.sleep(0.02)
    elsewhere = threading.Thread(target=lambda: asyncio.run(scheduler.close()))
    elsewhere.start()
    async with asyncio.timeout(10):
        await asyncio.gather(*running)
    await asyncio.to_thread(elsewhere.join)
    await scheduler.close()
    await scheduler.close(force=True)
    await backend.count_jobs()


async def test_cancelling_its_run_closes_the_scheduler(backend: Backend, trouble: Trouble) -> None:
    scheduler = Scheduler(backend, interval=0.01)
    running = asyncio.create_task(scheduler.run())
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    calls = dict(trouble.calls)
    await asyncio.sleep(0.05)
    assert trouble.calls == calls


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("interval", {"interval": 0}),
        ("interval", {"interval": -1}),
        ("interval", {"interval": "1 s"}),
        ("cancel_timeout", {"cancel_timeout": 0}),
        ("cancel_timeout", {"cancel_timeout": float("nan")}),
    ],
)
async def test_settings_that_make_no_sense_are_refused(backend: Backend, field: str, options: dict[str, Any]) -> None:
    # M-SCHED-01
    with pytest.raises(InvalidArgument, match=field):
        Scheduler(backend, **options)


def test_a_scheduler_is_made_of_a_backend() -> None:
    store: Any = "sqlite:///jobs.db"
    with pytest.raises(InvalidArgument, match="connect"):
        Scheduler(store)
