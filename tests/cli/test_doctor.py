"""`longshore doctor` finds problems of a store, its jobs, schedules and workers."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from longshore import Harbor, Queue, Repeat, Snooze, connect
from longshore.app.routing import Router
from longshore.backends.base import ReportsHealth, WorkerInfo
from longshore.cli.exit_codes import Exit
from longshore.core.clock import HeldClock, machine_time
from longshore.core.health import Finding, judge_store
from longshore.runtime.doctor import examine
from tests.cli.terminal import longshore


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param == "postgres":
        address = str(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("LONGSHORE_URL", address)
    return address


async def an_hour_ago(url: str) -> None:
    """A worker claimed a job and went silent, another job waits, and no scheduler fired a schedule."""
    clock = HeldClock(machine_time() - timedelta(hours=1))
    async with Queue(connect(url, clock=clock)) as queue:
        await queue.add("t", job_id="stuck")
        await queue.dequeue_jobs("deaf")
        await queue.heartbeat_worker(WorkerInfo(id="deaf", running=1))
        await queue.add("t", job_id="hungry")
        await queue.add("t", repeat=Repeat(every=600), job_id="forgotten")


def test_problems_of_jobs_are_found_with_a_remedy(url: str) -> None:
    asyncio.run(an_hour_ago(url))
    done = longshore("doctor", "--json")
    assert (done.code, done.err) == (Exit.FAILED, "")
    told = json.loads(done.out)
    assert told["healthy"] is False
    found = {one["check"]: one for one in told["findings"] if one["level"] == "problem"}
    assert found["stuck jobs"]["found"] == "1 running job with an expired lease: stuck"
    assert "longshore scheduler" in found["stuck jobs"]["fix"]
    assert found["starving jobs"]["found"].startswith("hungry of queue default has waited since")
    assert (
        "Start a worker with a harbor that has the task t: longshore worker --harbor MODULE:NAME."
        in found["starving jobs"]["fix"]
    )
    assert "forgotten" in found["schedules"]["found"]
    assert "1 waiting job and no live worker" in found["workers"]["found"]
    assert "longshore worker --harbor MODULE:NAME" in found["workers"]["fix"]  # S5: others do not claim their types
    told_all = [one["found"] for one in told["findings"] if one["check"] == "workers"]
    assert any(
        line.startswith("deaf sent its last heartbeat 6") and line.endswith("min ago, with 1 job") for line in told_all
    )
    shown = longshore("doctor", "--problems").out
    assert "stuck" in shown
    assert " ok " not in shown


async def test_a_stuck_job_is_found_behind_many_healthy_older_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("longshore.runtime.doctor._AT_ONCE", 2)
    clock = HeldClock(machine_time())
    async with Queue(connect("memory://", clock=clock)) as queue:
        await queue.add_bulk([("t", number) for number in range(5)])
        await queue.dequeue_jobs("well", limit=5, lease=7_200)
        await queue.add("t", job_id="stuck")
        await queue.dequeue_jobs("deaf", lease=30)
        clock.advance(timedelta(hours=1))
        (found,) = [one for one in await examine(queue) if one.check == "stuck jobs"]
    assert (found.level, found.found) == ("problem", "1 running job with an expired lease: stuck")


async def test_a_wrong_clock_is_found(url: str) -> None:
    clock = HeldClock(machine_time() - timedelta(minutes=10))
    async with Queue(connect(url, clock=clock)) as queue:
        (found,) = [one for one in await examine(queue) if one.check == "clock"]
    assert (found.level, "ahead of the store" in found.found) == ("problem", True)


async def test_a_held_snapshot_is_reported_with_its_holder(postgres_url: str) -> None:
    holder = await psycopg.AsyncConnection.connect(postgres_url, application_name="nosy")
    async with holder, connect(postgres_url) as backend:
        await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await holder.execute("SELECT 1 FROM pg_class LIMIT 1")
        assert isinstance(backend, ReportsHealth)
        condition = await backend.condition()
    assert "nosy" in condition.held_by
    assert condition.held_for is not None
    assert condition.size > 0
    assert {"jobs", "job_events"} <= condition.tables.keys()
    assert {one.check for one in judge_store(condition)} >= {"version", "fsync", "synchronous_commit"}


async def test_a_store_without_health_figures_is_still_checked() -> None:
    async with Queue(connect("memory://")) as queue:
        assert {one.level for one in await examine(queue)} == {"ok"}


async def starving(queue: Queue) -> list[Finding]:
    return sorted((one for one in await examine(queue) if one.check == "starving jobs"), key=lambda one: one.level)


async def test_jobs_that_workers_release_again_and_again_are_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Router, "types", None)  # a worker that claims all types, as older ones do
    clock = HeldClock(machine_time() - timedelta(days=1))
    async with Harbor(connect(url, clock=clock)) as harbor:

        @harbor.task
        def send_email() -> None: ...

        @harbor.task
        def poll() -> None:
            raise Snooze(60, "the file is not there yet")

        queue = harbor.queue()
        mistyped = await queue.add("send_emial", delay=3600)
        await poll.options(delay=3600).enqueue()
        clock.advance(timedelta(hours=1))
        await harbor.run_until_empty()
        assert [one.level for one in await starving(queue)] == [
            "ok"
        ]  # after one release: another worker may know the type
        for _ in range(11):
            clock.advance(timedelta(minutes=1))
            await harbor.run_until_empty()
        unknown, put_off = await starving(queue)
    assert (unknown.level, put_off.level) == ("problem", "warning")  # a task may snooze on purpose
    assert unknown.found.startswith("workers repeatedly release 1 job of type send_emial in queue default")
    assert unknown.found.endswith(mistyped.id)
    assert "no task of this worker is named 'send_emial', but send_email" in unknown.fix
    assert "the file is not there yet" in put_off.fix


async def test_jobs_that_depend_on_an_unknown_id_are_found(url: str) -> None:
    clock = HeldClock(machine_time() - timedelta(days=1))
    async with Queue(connect(url, clock=clock)) as queue:
        await queue.add("t", job_id="orphan", depends_on=["nobody"])
        await queue.add("t", job_id="done")
        await queue.add("t", job_id="held", delay=3600)
        await queue.add("t", job_id="in order", depends_on=["done", "held"])
        assert [one.level for one in await starving(queue)] == ["ok"]  # its dependency may still be enqueued
        (job,) = await queue.dequeue_jobs("w")
        await queue.complete_job(job.id, lease=job.lease)
        await queue.delete_jobs(job_ids=["done"])
        clock.advance(timedelta(minutes=11))
        (found,) = await starving(queue)
    assert (found.level, found.found) == ("problem", "jobs have waited for long for an id that no job has: orphan")
    assert found.fix == ("It waits for 1 job: nobody (unknown). Add a job with the unknown id, or cancel this one.")


async def test_a_killed_worker_is_reported_only_while_it_holds_a_job() -> None:
    # A1
    clock = HeldClock(machine_time())
    async with Queue(connect("memory://", clock=clock)) as queue:
        await queue.heartbeat_worker(WorkerInfo(id="killed", running=1))
        await queue.add("t", job_id="j")
        await queue.dequeue_jobs("killed", lease=30)
        clock.advance(timedelta(minutes=2))
        found = [one for one in await examine(queue) if one.check == "workers"]
        assert [one.level for one in found][:1] == ["problem"]
        assert found[0].found == "killed sent its last heartbeat 2 min ago, with 1 job"
        await queue.reclaim_expired_leases()
        [job] = await queue.dequeue_jobs("another")
        await queue.complete_job(job.id, lease=job.lease)
        assert [one.level for one in await examine(queue) if one.check == "workers"] == ["ok"]


async def test_a_type_that_no_live_worker_claims_is_reported_behind_many_jobs_of_other_types() -> None:
    # S5
    async with Queue(connect("memory://")) as queue:
        await queue.heartbeat_worker(WorkerInfo(id="w", types=("mail",)))
        await queue.add_bulk([("mail",) for _ in range(1_500)])
        lonely = await queue.add("resize")
        [found] = [one for one in await examine(queue) if one.check == "types"]
    assert found.found == f"no live worker claims the type resize; waiting in queue default: {lonely.id}"


async def test_a_type_that_no_live_worker_claims_is_reported_with_the_harbor_to_start() -> None:
    # S5
    async with Queue(connect("memory://")) as queue:
        await queue.heartbeat_worker(WorkerInfo(id="w", types=("pdf", "mail")))
        await queue.add("mail")
        assert [one for one in await examine(queue) if one.check == "types"] == []
        lonely = await queue.add("resize")
        [found] = [one for one in await examine(queue) if one.check == "types"]
        assert found.level == "problem"
        assert found.found == f"no live worker claims the type resize; waiting in queue default: {lonely.id}"
        start = "a worker with a harbor that has the task resize: longshore worker --harbor MODULE:NAME"
        assert found.fix == f"start {start}"
        told = str(await queue.explain(lonely.id))
        assert "w claims only the types pdf, mail" in told
        assert f"Start {start}." in told
        await queue.heartbeat_worker(WorkerInfo(id="plain"))
        assert [one for one in await examine(queue) if one.check == "types"] == []
        assert (await queue.explain(lonely.id)).kinds[0] != "no_worker"
