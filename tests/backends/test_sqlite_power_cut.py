"""After a power cut, everything acknowledged is there, wherever the writing was cut."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from longshore.backends.base import Outcome
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.clock import HeldClock
from longshore.core.job import Job
from longshore.core.status import JobStatus
from tests.backends.audit import jobs_after_a_restart
from tests.backends.disks import Deed, Platter, RecordingDisk, mounted

ROUNDS = 6


class CarelessBackend(SQLiteBackend):
    """The same with a weaker setting: commits are written, but not synced before they are acknowledged."""

    def _open(self, *, of_one_thread: bool = False) -> apsw.Connection:
        connection = super()._open(of_one_thread=of_one_thread)
        connection.pragma("synchronous", "NORMAL")
        return connection


async def life_of_a_queue(backend: SQLiteBackend, ack: Callable[[tuple[str, JobStatus]], None]) -> None:
    """Jobs are enqueued in groups and alone, claimed, and end in different ways; each answer is recorded on arrival."""

    async def enqueue(job: Job) -> None:
        await backend.enqueue_job(job)
        ack((job.id, JobStatus.INITIAL_PENDING))

    for number in range(ROUNDS):
        names = [f"{number}-{letter}" for letter in "abcdefgh"]
        await asyncio.gather(*(enqueue(Job(id=name, type="t", tags=("x",), payload=b" " * 500)) for name in names[:5]))
        later = [Job(id=name, type="t", depends_on=(names[0],)) for name in names[5:]]
        for name in await backend.enqueue_jobs(later):
            ack((name, JobStatus.WAITING_CHILDREN))
        claimed = await backend.dequeue_jobs("w", limit=4)
        for job in claimed:
            ack((job.id, JobStatus.RUNNING))
        done, failed, *rest = claimed
        await backend.complete_job(done.id, b"42", lease=done.lease)
        ack((done.id, JobStatus.COMPLETED))
        await backend.fail_job(failed.id, "it broke", lease=failed.lease)
        ack((failed.id, JobStatus.FAILED_RETRY))
        report = await backend.settle_jobs([Outcome(job.id, job.lease, "bury", error="why") for job in rest])
        for name, status in report.settled.items():
            ack((name, status))


def record(backend_type: type[SQLiteBackend], name: str, folder: Path, clock: HeldClock) -> list[Deed]:
    """Everything that a queue writes to its disk, and when its callers got their answers."""
    disk = RecordingDisk(name)

    async def live() -> None:
        async with backend_type(folder / "jobs.db", clock=clock, vfs=name) as backend:
            await life_of_a_queue(backend, disk.ack)

    with mounted(disk, name):
        asyncio.run(live())
    return disk.deeds


def cuts(deeds: list[Deed], chosen: set[int]) -> Iterator[tuple[int, Platter, dict[str, JobStatus]]]:
    """At each chosen point: the disk, and the last acknowledged status of each job."""
    platter = Platter()
    acknowledged: dict[str, JobStatus] = {}
    for number, deed in enumerate(deeds, start=1):
        platter.do(deed)
        if deed.kind == "ack":
            job_id, status = deed.ack
            acknowledged[job_id] = status
        if number in chosen:
            yield number, platter, acknowledged


ORDER = {
    JobStatus.WAITING_CHILDREN: 0,
    JobStatus.INITIAL_PENDING: 1,
    JobStatus.RUNNING: 2,
    JobStatus.FAILED_RETRY: 3,
    JobStatus.COMPLETED: 4,
    JobStatus.DEAD: 4,
}
"""The progress of each status: after a cut a job may be further than its last answer, but never behind it."""


def lost(acknowledged: dict[str, JobStatus], stored: dict[str, Job]) -> list[str]:
    """What was acknowledged and is lost."""
    return [
        f"{job_id} was {status}, and is {stored[job_id].status if job_id in stored else 'gone'}"
        for job_id, status in acknowledged.items()
        if job_id not in stored or (ORDER[stored[job_id].status] < ORDER[status] and stored[job_id].executions < 2)
    ]


def restart_after(platter: Platter, folder: Path, clock: HeldClock, survivors: Random | None) -> dict[str, Job]:
    folder.mkdir()
    try:
        platter.after_a_cut(folder, survivors)
        return jobs_after_a_restart(folder / "jobs.db", clock)
    finally:
        shutil.rmtree(folder)


@pytest.mark.prove
@pytest.mark.parametrize("unsynced", ["nothing unsynced survives", "what survives is chance"])
def test_a_power_cut_at_any_write_loses_no_acknowledged_job(
    unsynced: str, tmp_path: Path, seed: int, proving: bool
) -> None:
    clock = HeldClock()
    deeds = record(SQLiteBackend, "recording", tmp_path, clock)
    points = range(1, len(deeds) + 1)
    chance = Random(seed)
    chosen = set(points) if proving else set(chance.sample(points, 60))
    answered = 0
    for number, platter, acknowledged in cuts(deeds, chosen):
        survivors = Random(seed + number) if unsynced == "what survives is chance" else None
        stored = restart_after(platter, tmp_path / "disk", clock, survivors)
        assert not lost(acknowledged, stored), f"seed {seed}, cut after {number} of {len(deeds)}"
        answered = max(answered, len(acknowledged))
    print(f"{len(chosen)} cut points of {len(deeds)}, {answered} jobs acknowledged, seed {seed}")
    assert answered > ROUNDS


def test_without_the_sync_before_the_answer_the_same_cuts_do_lose_jobs(tmp_path: Path, seed: int) -> None:
    """The test would detect a loss: with synchronous=NORMAL acknowledged jobs are lost."""
    clock = HeldClock()
    deeds = record(CarelessBackend, "careless", tmp_path, clock)
    chosen = set(Random(seed).sample(range(len(deeds) // 4, len(deeds)), 10))
    found = [
        lost(acknowledged, restart_after(platter, tmp_path / "disk", clock, None))
        for _, platter, acknowledged in cuts(deeds, chosen)
    ]
    assert sum(map(len, found)) > 0
