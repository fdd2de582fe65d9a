"""Logs of any length, made of lives that the engine itself led: every verb, copied over and over by Spark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from longshore.backends.base import Backend
from longshore.backends.export import COLUMNS
from longshore.backends.memory import MemoryBackend
from longshore.core.clock import HeldClock
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.spark.audit.histories import JOB_COLUMNS
from longshore.spark.table_reader import spark_schema
from tests.backends.audit import all_events, all_jobs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Pattern:
    """What the engine wrote, once."""

    events: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    now: datetime

    def uid(self, job_id: str) -> int:
        """The uid of the job that was there last under this id."""
        return max(int(event["job_uid"]) for event in self.events if event["job_id"] == job_id)

    @property
    def width(self) -> int:
        """How far the uids of two copies lie apart."""
        return 1 + max(event["job_uid"] or 0 for event in self.events)


async def led_by_the_engine() -> Pattern:
    """Histories of every shape; most events share their time with another."""
    clock = HeldClock()
    async with MemoryBackend(clock=clock) as backend:
        await _lead(backend, clock)
        events = [
            {
                **{name: getattr(event, name, None) for name in COLUMNS["events"]},
                "number": number,
                "detail": json.dumps(event.detail) if event.detail else None,
            }
            for number, event in enumerate(await all_events(backend), start=1)
        ]
        numbers = Counter(event["job_uid"] for event in events)
        jobs = [
            {
                **{name: getattr(job, name, None) for name in JOB_COLUMNS},
                "job_seq": numbers[job.uid],
                "lease_expires_at": job.lease and job.lease.expires_at,
            }
            for job in await all_jobs(backend)
        ]
        return Pattern(events, jobs, clock.now())


async def _lead(backend: Backend, clock: HeldClock) -> None:
    async def claimed(job_id: str) -> Job:
        (job,) = await backend.dequeue_jobs("w1", [job_id], lease=30)
        return job

    async def add(job_id: str, **options: Any) -> str:
        return await backend.enqueue_job(Job(id=job_id, type="t", tags=[job_id], **options))

    async def finished(job_id: str) -> None:
        job = await claimed(job_id)
        await backend.complete_job(job_id, lease=job.lease)

    await add("plain")
    await finished("plain")
    await add("noted")
    noted = await claimed("noted")
    for step in range(3):
        await backend.set_progress("noted", step, lease=noted.lease)
        await backend.append_log("noted", f"step {step}")
    await backend.complete_job("noted", lease=noted.lease)
    await add("delayed", delay=5)
    clock.advance(5)
    await backend.announce_due_jobs()
    await finished("delayed")
    await add("failing", max_attempts=3)
    for _ in range(2):
        failing = await claimed("failing")
        await backend.fail_job("failing", "no route", retry_at=2, lease=failing.lease)
        clock.advance(2)
    await finished("failing")
    await add("crashing")
    await claimed("crashing")
    clock.advance(31)
    await backend.reclaim_expired_leases()
    await finished("crashing")
    await add("dying", max_crashes=0)
    await claimed("dying")
    await backend.mark_worker_unresponsive("w1")
    await add("buried")
    buried = await claimed("buried")
    await backend.bury_job("buried", "hopeless", lease=buried.lease)
    await backend.retry_job("buried", actor="ada")
    await finished("buried")
    await add("cancelled")
    await claimed("cancelled")
    await backend.cancel_jobs(job_ids=["cancelled"])
    await backend.acknowledge_cancellation("cancelled", True)
    await add("called off")
    await backend.cancel_jobs(job_ids=["called off"])
    await add("late")
    await claimed("late")
    await backend.cancel_jobs(job_ids=["late"])
    await backend.reset_running_jobs()
    await backend.complete_job("late")
    await add("released")
    released = await claimed("released")
    assert released.lease is not None
    await backend.release_lease("released", released.lease, reason="stopping")
    await finished("released")
    await add("held", status=JobStatus.CREATED)
    await backend.accept_jobs(["held"])
    await finished("held")
    await add("first")
    await add("second", depends_on=["first"])
    await finished("first")
    await finished("second")
    for job_id in ("once", "again"):
        await add(job_id)
        await finished(job_id)
        await backend.delete_jobs(job_ids=[job_id])
    await add("again")
    await add("by hand")
    await backend.update_job_status("by hand", JobStatus.RUNNING)
    await backend.update_job_status("by hand", JobStatus.COMPLETED)
    await backend.pause_queue("default")
    await backend.resume_queue("default")
    await add("waiting")
    await add("running")
    await claimed("running")


def copied(spark: SparkSession, pattern: Pattern, copies: int) -> tuple[DataFrame, DataFrame]:
    """Events and jobs of this many copies of the pattern, unordered."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

    copy = spark.range(copies, numPartitions=2).withColumnRenamed("id", "copy")

    def named(column: str) -> Column:
        return F.concat(F.col(column), F.lit(" "), F.col("copy")).alias(column)

    def shifted(column: str) -> Column:
        return (F.col("copy") * pattern.width + F.col(column)).alias(column)

    events = spark.createDataFrame(pattern.events, spark_schema("events", list(COLUMNS["events"])))
    jobs = spark.createDataFrame(pattern.jobs, spark_schema("jobs", JOB_COLUMNS))
    changed = {"job_uid": shifted("job_uid"), "job_id": named("job_id")}
    number = (F.col("copy") * len(pattern.events) + F.col("number")).alias("number")
    return (
        copy.crossJoin(F.broadcast(events)).withColumns({**changed, "number": number}).drop("copy"),
        copy.crossJoin(F.broadcast(jobs)).withColumns({"uid": shifted("uid"), "id": named("id")}).drop("copy"),
    )
