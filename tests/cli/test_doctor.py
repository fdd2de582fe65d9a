"""`longshore doctor` finds what is wrong with a store, and what is wrong with the work in it."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from longshore import Queue, Repeat, connect
from longshore.backends.contract import TellsItsCondition, WorkerInfo
from longshore.cli.exits import Exit
from longshore.core.clock import HeldClock, machine_time
from longshore.core.diagnosis import judge_store
from longshore.runtime.checkup import check_up
from tests.cli.terminal import longshore


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param == "postgres":
        address = str(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("LONGSHORE_URL", address)
    return address


async def an_hour_ago(url: str) -> None:
    """A worker took a job and was never heard of again, another job waits, and nobody fired a schedule."""
    clock = HeldClock(machine_time() - timedelta(hours=1))
    async with Queue(connect(url, clock=clock)) as queue:
        await queue.add("t", job_id="stuck")
        await queue.dequeue_jobs("deaf")
        await queue.heartbeat_worker(WorkerInfo(id="deaf", running=1))
        await queue.add("t", job_id="hungry")
        await queue.add("t", repeat=Repeat(every=600), job_id="forgotten")


def test_what_is_wrong_with_the_work_is_found_with_its_way_out(url: str) -> None:
    asyncio.run(an_hour_ago(url))
    done = longshore("doctor", "--json")
    assert (done.code, done.err) == (Exit.FAILED, "")
    told = json.loads(done.out)
    assert told["healthy"] is False
    found = {one["check"]: one for one in told["findings"] if one["level"] == "problem"}
    assert found["stuck jobs"]["found"] == "1 jobs are held beyond their leases: stuck"
    assert "longshore scheduler" in found["stuck jobs"]["fix"]
    assert found["starving jobs"]["found"].startswith("hungry of queue default waits since")
    assert "Start a worker for it." in found["starving jobs"]["fix"]
    assert "forgotten" in found["schedules"]["found"]
    assert "1 jobs wait, and no worker is alive" in found["workers"]["found"]
    told_all = [one["found"] for one in told["findings"] if one["check"] == "workers"]
    assert any(
        line.startswith("deaf was last heard of 6") and line.endswith("min ago, with 1 jobs") for line in told_all
    )
    shown = longshore("doctor", "--problems").out
    assert "stuck" in shown
    assert " ok " not in shown


async def test_a_stuck_job_is_found_behind_any_number_of_older_ones_in_good_hands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("longshore.runtime.checkup._AT_ONCE", 2)
    clock = HeldClock(machine_time())
    async with Queue(connect("memory://", clock=clock)) as queue:
        await queue.add_bulk([("t", number) for number in range(5)])
        await queue.dequeue_jobs("well", limit=5, lease=7_200)
        await queue.add("t", job_id="stuck")
        await queue.dequeue_jobs("deaf", lease=30)
        clock.advance(timedelta(hours=1))
        (found,) = [one for one in await check_up(queue) if one.check == "stuck jobs"]
    assert (found.level, found.found) == ("problem", "1 jobs are held beyond their leases: stuck")


async def test_a_clock_that_is_wrong_is_found(url: str) -> None:
    clock = HeldClock(machine_time() - timedelta(minutes=10))
    async with Queue(connect(url, clock=clock)) as queue:
        (found,) = [one for one in await check_up(queue) if one.check == "clock"]
    assert (found.level, "ahead of the store" in found.found) == ("problem", True)


async def test_a_held_snapshot_is_seen_with_who_holds_it(postgres_url: str) -> None:
    holder = await psycopg.AsyncConnection.connect(postgres_url, application_name="nosy")
    async with holder, connect(postgres_url) as backend:
        await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await holder.execute("SELECT 1 FROM pg_class LIMIT 1")
        assert isinstance(backend, TellsItsCondition)
        condition = await backend.condition()
    assert "nosy" in condition.held_by
    assert condition.held_for is not None
    assert condition.size > 0
    assert {"jobs", "job_events"} <= condition.tables.keys()
    assert {one.check for one in judge_store(condition)} >= {"version", "fsync", "synchronous_commit"}


async def test_a_store_that_cannot_be_looked_over_is_still_looked_into() -> None:
    async with Queue(connect("memory://")) as queue:
        assert {one.level for one in await check_up(queue)} == {"ok"}
