"""The audit of stores as they are found: in full use, among killed workers, tampered with, held open, pruned."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.spark.audit.audit import AuditReport, from_store, run_audit
from longshore.spark.audit.rules import Kind
from tests.backends.audit import audit_at
from tests.processes.process_group import ProcessGroup, StartedProcess
from tests.spark.stored import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE = 2.0


def start_process(processes: ProcessGroup, name: str) -> StartedProcess:
    return processes.start_process("loop", name, "4", str(LEASE), "30", program="worker_process")


def output(report: AuditReport) -> list[str]:
    return [f"{found['kind']} {found['job_id']} {found['job_seq']}: {found['detail']}" for found in report.listed(20)]


async def add(url: str, count: int, named: str) -> None:
    async with connect(url) as backend:
        await backend.enqueue_jobs([Job(id=f"{named} {number}", type="slow") for number in range(count)])


async def until_all_are_completed(url: str) -> None:
    async with connect(url) as backend, asyncio.timeout(60):
        while any(jobs for status, jobs in (await backend.count_jobs()).items() if status is not JobStatus.COMPLETED):
            await backend.wait_for_change(0.5)


@pytest.mark.prove
def test_the_audit_finds_nothing_wrong_while_workers_are_killed_and_after(
    spark: SparkSession, store_url: str, seed: int, proving: bool
) -> None:
    """The checker of the process proofs, which reads the same log event by event, agrees."""
    kills, jobs = (20, 4_000) if proving else (2, 150)
    chance = Random(seed)
    asyncio.run(add(store_url, jobs, "first"))
    with ProcessGroup(store_url) as processes:
        for number in range(3):
            start_process(processes, f"w{number}")
        audits = []
        for killed in range(kills):
            remaining = chance.randint(5, 60)
            while remaining > 0:
                started_process, what, _ = processes.next_line()
                remaining -= what == "started" and started_process.process.returncode is None
            started_process.kill()
            start_process(processes, f"w{3 + killed}")
            if killed % 8 == 1:  # jobs are added, started, finished and lost to the kill while it reads
                audits.append(run_audit(from_store(spark, store_url)))
                asyncio.run(add(store_url, jobs // 3, f"after {killed}"))
        asyncio.run(until_all_are_completed(store_url))
    audits.append(run_audit(from_store(spark, store_url)))
    assert [output(report) for report in audits] == [[]] * len(audits)
    stored, history = asyncio.run(audit_at(store_url))
    assert (audits[-1].events, audits[-1].jobs) == (history.events, len(stored))
    assert sum(job.crashes for job in stored.values()) >= 1
    print(f"{kills} kills, {len(audits)} audits, {history.events} events, {len(stored)} jobs, seed {seed}")


def tamper(url: str, *statements: str) -> None:
    """Behind the back of the engine."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(";".join(statements))
        connection.close()
        return
    with psycopg.connect(url) as server:
        server.execute("SET search_path = longshore")
        for statement in statements:
            server.execute(statement.encode())


async def test_changes_made_directly_in_the_database_are_found(spark: SparkSession, store_url: str) -> None:
    clock = HeldClock()
    async with connect(store_url, clock=clock) as backend:
        await backend.enqueue_jobs(
            [Job(id=name, type="t") for name in ("lost", "moved", "stuck", "unrecorded", "well")]
        )
        await backend.dequeue_jobs("w", limit=5)
    tamper(
        store_url,
        "DELETE FROM jobs WHERE id = 'lost'",
        "UPDATE jobs SET status = 'COMPLETED' WHERE id = 'moved'",
        "UPDATE jobs SET lease_expires_at = NULL WHERE id IN ('well', 'unrecorded')",
        "DELETE FROM job_events WHERE job_id = 'unrecorded'",
    )
    report = run_audit(from_store(spark, store_url))  # the lease of one ended by that clock, long ago
    assert {(found["kind"], found["job_id"]) for found in report.all()} == {
        (Kind.LOST, "lost"),
        (Kind.STANDS_ELSEWHERE, "moved"),
        (Kind.STUCK, "stuck"),
        (Kind.WITHOUT_EVENTS, "unrecorded"),
    }


async def test_a_transaction_that_is_held_open_brings_no_false_alarm(spark: SparkSession, postgres_url: str) -> None:
    await fill(postgres_url)
    async with connect(postgres_url) as backend:
        async with await psycopg.AsyncConnection.connect(postgres_url) as held:
            await backend.enqueue_jobs([Job(id="held", type="t")], connection=held)
            await add(postgres_url, 5, "later")  # is stored, and its events cannot be read yet
            report = run_audit(from_store(spark, postgres_url, wait=0.1))
            assert (report.compared, output(report)) == (False, [])
        report = run_audit(from_store(spark, postgres_url))
        assert (report.compared, output(report)) == (True, [])


async def test_of_a_store_that_keeps_its_events_for_a_while_nothing_is_wrong(
    spark: SparkSession, store_url: str
) -> None:
    clock = HeldClock()
    async with connect(store_url, clock=clock) as backend:
        await backend.set_retention("default", events=timedelta(days=1))
        await backend.enqueue_jobs([Job(id=f"early {number}", type="t") for number in range(10)])
        for job in await backend.dequeue_jobs("w", limit=3, lease=None):
            await backend.append_log(job.id, "at work")
        clock.advance(timedelta(days=2))
        await backend.enqueue_jobs([Job(id="late", type="t")])
        for number in range(2):
            await backend.complete_job(f"early {number}")
        await backend.apply_retention()
    report = run_audit(from_store(spark, store_url))
    assert (report.counts, report.pruned) == ({}, {Kind.LATE_BEGINNING: 2, Kind.WITHOUT_EVENTS: 8})
    assert output(report) == []


def test_a_missing_store_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"none.db does not exist"):
        from_store(spark, f"sqlite:///{tmp_path}/none.db")
