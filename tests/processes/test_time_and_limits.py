"""Schedulers and workers in real processes, killed at random: one job for each planned time, and no limit exceeded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from time import monotonic
from typing import NamedTuple

import pytest

from longshore import Job, JobEvent, JobStatus, Rate, Repeat, connect
from longshore.core.schedule import Schedule
from longshore.core.status import HOLDS_CAPACITY
from longshore.core.times import to_micros
from tests.backends.audit import all_events, audit_at
from tests.processes.process_group import ProcessGroup, StartedProcess

LEASE = 2.0
EVERY = 0.5
"""Seconds between two planned times of a schedule."""
RUNNING = 3
PER_KEY = 1
RATE = Rate(5, 1)
KEYS = ("a", "b")
TIMEOUT = 200.0
"""Seconds before the test fails, on a busy machine."""
_SIDE_BY_SIDE = timedelta(milliseconds=25)
"""PostgreSQL writers read the time before they wait for locks, so an end may be dated a little after a start that saw
it. A job that should not have been started would run beside the others for 100 ms."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A durable store that several processes share."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


class Stage:
    """The store as the test uses it: settings, schedules, and flows that are added while processes are killed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.flows = 0

    async def set(self) -> None:
        """Set limits of each kind, and schedules that create jobs for each of them."""
        async with connect(self.url) as backend:
            await backend.set_limits("few", running=RUNNING)
            await backend.set_limits("keyed", per_key=PER_KEY)
            await backend.set_limits("slowly", rate=RATE)
            every = Repeat(every=EVERY, catch_up="all")
            patterns = {"few": Job(type="a while", queue="few")}
            patterns |= {f"key {key}": Job(type="a while", queue="keyed", concurrency_key=key) for key in KEYS}
            patterns["slowly"] = Job(type="slow", queue="slowly")
            for name, job in patterns.items():
                await backend.put_schedule(Schedule(id=name, job=job, repeat=every))
            await backend.enqueue_jobs([Job(type="a while", queue="few") for _ in range(15)])
            await backend.enqueue_jobs([Job(type="slow", queue="slowly") for _ in range(15)])

    async def add_flow(self) -> None:
        """Add three jobs, one of them delayed, and two that wait for all of them, one after the other."""
        self.flows += 1
        parts = [f"flow {self.flows} part {number}" for number in range(3)]
        first = Job(id=f"flow {self.flows} whole", type="slow", queue="few", depends_on=tuple(parts))
        second = Job(id=f"flow {self.flows} end", type="slow", depends_on=(first.id,))
        jobs = [Job(id=part, type="slow", delay=0.1 if part == parts[0] else None) for part in parts]
        async with connect(self.url) as backend:
            await backend.enqueue_jobs([second, first, *jobs])

    async def rest(self) -> list[Schedule]:
        """Remove the schedules, wait until every job has ended, and return the last state of the schedules."""
        async with connect(self.url) as backend, asyncio.timeout(TIMEOUT):
            schedules = await backend.get_schedules()
            for schedule in schedules:
                await backend.remove_schedule(schedule.id)
            while any(n for status, n in (await backend.count_jobs()).items() if status is not JobStatus.COMPLETED):
                await backend.wait_for_change(0.5)
            return schedules

    async def log(self) -> list[JobEvent]:
        async with connect(self.url) as backend:
            return await all_events(backend)


def start_worker(processes: ProcessGroup, name: str) -> StartedProcess:
    return processes.start_process("loop", name, "4", str(LEASE), "30", program="worker_process")


def start_scheduler(processes: ProcessGroup, name: str) -> StartedProcess:
    return processes.start_process("0.2", name, program="scheduler_process")


@pytest.mark.timeout(600)  # it waits for leases to expire, on a busy machine
@pytest.mark.prove
def test_four_schedulers_and_four_workers_killed_at_random_create_each_occurrence_once_and_exceed_no_limit(
    url: str, seed: int, proving: bool
) -> None:
    seconds = 60 if proving else 4
    chance = Random(seed)
    stage = Stage(url)
    asyncio.run(stage.set())
    with ProcessGroup(url) as processes:
        at_work = [
            start_process(processes, f"{start_process.__name__} {n}")
            for n in range(4)
            for start_process in (start_worker, start_scheduler)
        ]
        while not processes.lines_of("started"):
            processes.next_line()
        killed = Counter[str]()
        ends = monotonic() + seconds
        while monotonic() < ends or killed.total() < 6:
            threading.Event().wait(chance.uniform(0.1, 0.9))  # all processes work meanwhile
            asyncio.run(stage.add_flow())
            victim = at_work.pop(chance.randrange(len(at_work)))
            victim.kill()
            start_process = start_worker if victim.name.startswith("start_worker") else start_scheduler
            killed[start_process.__name__] += 1
            at_work.append(start_process(processes, f"{start_process.__name__} {4 + killed[start_process.__name__]}"))
        schedules = asyncio.run(stage.rest())
    stored, history = asyncio.run(audit_at(url))  # legal transitions, growing epochs, one end for each claim
    log = asyncio.run(stage.log())
    strictly = url.startswith("sqlite")
    occurrences = one_job_for_each_planned_time(schedules, stored.values())
    few = most_at_once(log, lambda job: job.queue == "few", stored, strictly=strictly)
    assert few <= RUNNING, f"{few} ran at once in a queue for {RUNNING}"
    for key in KEYS:
        of_key = most_at_once(log, lambda job, key=key: job.concurrency_key == key, stored, strictly=strictly)  # type: ignore[misc]  # a lambda's default has no type
        assert of_key <= PER_KEY, f"{of_key} ran at once with key {key}, whose limit is {PER_KEY}"
    started = Counter(
        to_micros(event.occurred_at) // RATE.per_micros
        for event in log
        if event.event == "job.active" and event.queue == "slowly"
    )
    assert max(started.values()) <= RATE.count, f"{max(started.values())} began in one window for {RATE.count}"
    no_dependent_came_too_early_or_never(stage, log)
    assert (few, max(started.values())) == (RUNNING, RATE.count), (
        "the limits were never reached, so the test proves nothing"
    )
    workers, schedulers = killed["start_worker"], killed["start_scheduler"]
    crashes = sum(job.crashes for job in stored.values())
    print(
        f"{workers} workers and {schedulers} schedulers killed, {occurrences} occurrences, {stage.flows} flows, "
        f"{len(stored)} jobs, {crashes} crashes, {history.events} events, seed {seed}"
    )


def one_job_for_each_planned_time(schedules: Iterable[Schedule], jobs: Iterable[Job]) -> int:
    """Check that every planned time from the first to the last has one job."""
    planned: dict[str, list[datetime]] = defaultdict(list)
    for job in jobs:
        if job.schedule_id is not None:
            planned[job.schedule_id].append(datetime.fromisoformat(job.id.partition("@")[2]))
    for schedule in schedules:
        times = sorted(planned[schedule.id])
        assert len(times) >= schedule.run_count > 1
        gaps = {later - sooner for sooner, later in pairwise(times)}
        assert gaps == {timedelta(seconds=EVERY)}, f"{schedule.id}: {gaps}"
    return sum(map(len, planned.values()))


class Change(NamedTuple):
    """A job was claimed or ended."""

    at: datetime
    more: int


def most_at_once(log: Iterable[JobEvent], which: Callable[[Job], bool], jobs: dict[str, Job], *, strictly: bool) -> int:
    """Return how many of these jobs ran at the same time, by the order or the times of the log."""
    changes = []
    for event in log:
        if event.job_id is None or event.to_status is None or not which(jobs[event.job_id]):
            continue
        held, holds = event.from_status in HOLDS_CAPACITY, event.to_status in HOLDS_CAPACITY
        if held != holds:
            at = event.occurred_at if holds or strictly else event.occurred_at - _SIDE_BY_SIDE
            changes.append(Change(at, 1 if holds else -1))
    if not strictly:
        changes.sort()
    most = running = 0
    for change in changes:
        running += change.more
        most = max(most, running)
    return most


def no_dependent_came_too_early_or_never(stage: Stage, log: Iterable[JobEvent]) -> None:
    """Check that every flow ended, and that no step began before its dependencies had completed."""
    began: dict[str, datetime] = {}
    done: dict[str, datetime] = {}
    for event in log:
        if event.event == "job.active" and event.job_id is not None:
            began.setdefault(event.job_id, event.occurred_at)
        elif event.event == "job.completed" and event.job_id is not None:
            done[event.job_id] = event.occurred_at
    for number in range(1, stage.flows + 1):
        name = f"flow {number}"
        assert max(done[f"{name} part {part}"] for part in range(3)) <= began[f"{name} whole"]
        assert done[f"{name} whole"] <= began[f"{name} end"]
        assert f"{name} end" in done
