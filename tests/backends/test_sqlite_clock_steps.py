"""The machine's clock is set while jobs wait and run: no job runs twice, and none waits for the clock to catch up."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from longshore import Job, JobStatus, Queue, connect
from longshore.backends.base import Backend, Outcome
from longshore.backends.remote.records.store import FACTS
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.core.job import Lease
from longshore.runtime.doctor import examine
from tests.backends.audit import audit
from tests.machine import HeldMachine, install

S = JobStatus
HOUR = 3600.0
BOTH_WAYS = pytest.mark.parametrize("step", [HOUR, -HOUR])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> HeldMachine:
    machine = HeldMachine()
    install(monkeypatch, machine)
    return machine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def backend(path: Path, machine: HeldMachine) -> AsyncIterator[Backend]:
    async with connect(f"sqlite:///{path}") as backend:
        yield backend


def lease_of(job: Job) -> Lease:
    assert job.lease is not None
    return job.lease


async def claim(backend: Backend, **terms: object) -> list[str]:
    return [job.id for job in await backend.dequeue_jobs("w", limit=100, **terms)]  # type: ignore[arg-type]  # terms of a claim


@BOTH_WAYS
async def test_a_running_job_keeps_what_is_left_of_its_lease(
    backend: Backend, machine: HeldMachine, step: float
) -> None:
    # R2 X-61: +1 h must not run it again, -1 h must not stall the sweep
    await backend.enqueue_jobs([Job(id="j", type="x")])
    (job,) = await backend.dequeue_jobs("w", lease=30)
    machine.step(step)
    assert await backend.reclaim_expired_leases() == []
    machine.passes(29)
    assert await backend.reclaim_expired_leases() == []
    assert list(await backend.extend_leases({"j": lease_of(job)}, 30)) == ["j"]
    machine.passes(29)
    assert await backend.reclaim_expired_leases() == []
    machine.passes(2)
    assert [job.id for job in await backend.reclaim_expired_leases()] == ["j"]
    await audit(backend)


@BOTH_WAYS
async def test_a_job_without_a_run_at_stays_claimable_in_the_same_order(
    backend: Backend, machine: HeldMachine, step: float
) -> None:
    # R2
    for name in ("first", "second", "third"):
        await backend.enqueue_jobs([Job(id=name, type="x", tags=("t",))])
        machine.passes(60)
    await backend.enqueue_jobs([Job(id="newest", type="x", lifo=True)])
    machine.step(step)
    machine.passes(60)
    await backend.enqueue_jobs([Job(id="fourth", type="x")])
    assert await backend.count_delayed() == 0
    assert len((await backend.list_jobs(JobFilter(), limit=9, due=True)).items) == 5
    assert "not_due" not in (await Queue(backend).explain("third")).kinds
    assert await claim(backend, tags=("t",)) == ["first", "second", "third"]
    assert await claim(backend) == ["newest", "fourth"]
    await audit(backend)


@BOTH_WAYS
async def test_durations_are_not_changed_by_a_step(backend: Backend, machine: HeldMachine, step: float) -> None:
    # R2
    crashing = Job(id="crashed", type="x", options={"backoff": {"type": "fixed", "delay": 600}})
    await backend.enqueue_jobs([Job(id=name, type="x") for name in ("failed", "settled", "released")] + [crashing])
    jobs = {job.id: job for job in await backend.dequeue_jobs("w", limit=4, lease=None)}
    await backend.fail_job("failed", "no", retry_at=600)
    settled = Outcome("settled", lease_of(jobs["settled"]), "fail", error="no", retry_at=timedelta(minutes=10))
    await backend.settle_jobs([settled])
    await backend.release_lease("released", lease_of(jobs["released"]), run_at=600)
    await backend.mark_worker_unresponsive("w")
    await backend.enqueue_jobs([Job(id="delayed", type="x", delay=600), Job(id="timed", type="x", run_at=600)])
    await backend.enqueue_jobs([Job(id="tagged", type="x", delay=600, tags=("t",))])
    machine.step(step)
    machine.passes(599)
    assert await claim(backend) == []
    machine.passes(2)
    assert await claim(backend, tags=("t",)) == ["tagged"]
    assert set(await claim(backend)) == {"failed", "settled", "released", "crashed", "delayed", "timed"}
    await audit(backend)


@BOTH_WAYS
async def test_a_retry_that_was_due_is_still_due(backend: Backend, machine: HeldMachine, step: float) -> None:
    # R2
    await backend.enqueue_jobs([Job(id="j", type="x")])
    await backend.dequeue_jobs("w")
    await backend.fail_job("j", "no", retry_at=60)
    machine.passes(120)
    machine.step(step)
    assert await claim(backend) == ["j"]


@BOTH_WAYS
async def test_an_absolute_time_is_not_shifted(backend: Backend, machine: HeldMachine, step: float) -> None:
    # R2: an absolute run_at or retry_at does not change
    at = await backend.now() + timedelta(minutes=30)
    await backend.enqueue_jobs([Job(id="planned", type="x", run_at=at), Job(id="failed", type="x")])
    await backend.dequeue_jobs("w")
    await backend.fail_job("failed", "no", retry_at=at)
    machine.step(step)
    assert set(await claim(backend)) == ({"planned", "failed"} if step > 0 else set())
    assert (await backend.get_job("planned")).run_at == at
    machine.passes(0 if step > 0 else 5400)
    machine.passes(1)
    assert set(await claim(backend)) == (set() if step > 0 else {"planned", "failed"})


@BOTH_WAYS
async def test_a_cancellation_is_not_timed_out_by_a_step(backend: Backend, machine: HeldMachine, step: float) -> None:
    # R2
    await backend.enqueue_jobs([Job(id="j", type="x")])
    await backend.dequeue_jobs("w", lease=None)
    await backend.cancel_jobs(job_ids=["j"])
    machine.step(step)
    assert await backend.time_out_cancellations(300) == []
    machine.passes(301)
    assert [job.id for job in await backend.time_out_cancellations(300)] == ["j"]


@BOTH_WAYS
async def test_the_first_process_that_writes_shifts_the_times_once(
    backend: Backend, machine: HeldMachine, path: Path, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    # R2
    async with connect(f"sqlite:///{path}") as other:
        await backend.enqueue_jobs([Job(id="j", type="x")])
        await backend.dequeue_jobs("w", lease=30)
        await other.enqueue_jobs([Job(id="k", type="x", run_at=HOUR * 9)])
        machine.step(step)
        with caplog.at_level(logging.WARNING, "longshore.sqlite"):
            for one in (other, backend, other, backend):
                assert await one.reclaim_expired_leases() == []
        assert len([record for record in caplog.records if "clock" in record.getMessage()]) == 1
        job = await other.get_job("j")
        assert lease_of(job).expires_at == await other.now() + timedelta(seconds=30)


async def test_small_steps_and_a_suspended_machine_do_not_shift_times(backend: Backend, machine: HeldMachine) -> None:
    # R2: CLOCK_BOOTTIME includes the time a machine is suspended
    await backend.enqueue_jobs([Job(id="j", type="x")])
    (job,) = await backend.dequeue_jobs("w", lease=30)
    machine.step(2)
    assert await backend.reclaim_expired_leases() == []
    machine.step(-2)
    assert lease_of(await backend.get_job("j")).expires_at == lease_of(job).expires_at
    machine.passes(8 * HOUR)  # suspended
    assert [job.id for job in await backend.reclaim_expired_leases()] == ["j"]
    assert (await backend.condition()).clock_step is None  # type: ignore[attr-defined]  # of this store only


async def test_after_a_reboot_the_store_continues_from_the_new_time(path: Path, machine: HeldMachine) -> None:
    # R2
    async with connect(f"sqlite:///{path}") as before:
        await before.enqueue_jobs([Job(id="j", type="x"), Job(id="k", type="x", run_at=2 * HOUR)])
        await before.dequeue_jobs("w", lease=30)
    machine.reboots(HOUR)
    async with connect(f"sqlite:///{path}") as backend:
        assert [job.id for job in await backend.reclaim_expired_leases()] == ["j"]
        assert (await backend.condition()).clock_step is None  # type: ignore[attr-defined]  # of this store only
        (job,) = await backend.dequeue_jobs("w", lease=30)
        machine.step(-HOUR)
        assert await backend.reclaim_expired_leases() == []
        assert list(await backend.extend_leases({"j": lease_of(job)}, 30)) == ["j"]


async def test_after_a_reboot_with_a_clock_that_is_behind_jobs_do_not_wait_for_it(
    path: Path, machine: HeldMachine
) -> None:
    # R2: a machine without a clock battery
    async with connect(f"sqlite:///{path}") as before:
        await before.enqueue_jobs([Job(id="j", type="x"), Job(id="k", type="x")])
        await before.dequeue_jobs("w", lease=30)
    machine.reboots(-HOUR)
    async with connect(f"sqlite:///{path}") as backend:
        assert await claim(backend) == ["k"]
        machine.passes(31)
        assert {job.id for job in await backend.reclaim_expired_leases()} == {"j", "k"}


async def test_with_a_callers_clock_no_time_is_shifted(path: Path, machine: HeldMachine) -> None:
    # R2
    held = HeldClock()
    async with connect(f"sqlite:///{path}", clock=held) as backend:
        await backend.enqueue_jobs([Job(id="j", type="x")])
        (job,) = await backend.dequeue_jobs("w", lease=30)
        machine.step(HOUR)
        held.advance(10)
        assert await backend.reclaim_expired_leases() == []
        assert lease_of(await backend.get_job("j")).expires_at == lease_of(job).expires_at
    with apsw.Connection(str(path)) as connection:
        assert connection.execute("SELECT boot_id FROM meta").fetchone() == (None,)


async def test_without_a_boot_id_only_the_wall_clock_is_used(path: Path, machine: HeldMachine) -> None:
    # R2
    machine.boot = None
    async with connect(f"sqlite:///{path}") as backend:
        await backend.enqueue_jobs([Job(id="j", type="x")])
        await backend.dequeue_jobs("w", lease=30)
        machine.step(HOUR)
        assert [job.id for job in await backend.reclaim_expired_leases()] == ["j"]


@pytest.mark.parametrize(("step", "words"), [(HOUR, "forward by 60 min"), (-HOUR, "back by 60 min")])
async def test_doctor_and_explain_report_the_step(
    backend: Backend, machine: HeldMachine, step: float, words: str
) -> None:
    # R2
    queue = Queue(backend)
    await backend.enqueue_jobs([Job(id="j", type="x"), Job(id="k", type="x", delay=600)])
    assert [f.level for f in await examine(queue) if f.check == "clock"] == ["ok"]
    await backend.dequeue_jobs("w", lease=30)
    machine.step(step)
    await backend.reclaim_expired_leases()
    findings = [finding for finding in await examine(queue) if finding.check == "clock"]
    assert [finding.level for finding in findings] == ["warning"]
    assert words in findings[0].found
    assert "time server" in findings[0].fix
    for job_id in ("j", "k"):
        explained = await queue.explain(job_id)
        assert words in str(explained)
        assert explained.reasons[0].details["clock_step_seconds"] == step
        facts = await backend.facts_about(job_id)
        assert FACTS.read("facts", FACTS.write("facts", facts)).clock_step == facts.clock_step  # over HTTP, too
    machine.passes(25 * HOUR)
    await backend.reclaim_expired_leases()
    assert [f.level for f in await examine(queue) if f.check == "clock"] == ["ok"]
