"""Jobs that are Spark applications: their progress, their end in every way, and that no Java outlives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, JobCancelled, JobFailed
from longshore.core.status import JobStatus
from longshore.spark.executor.application import Percent
from longshore.testing.conformance.scenarios import log_of
from tests.runtime.working import happens, until
from tests.spark import applications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 150


async def is_gone(backend: Backend, job_id: str) -> None:
    """Check that every Java of the job has ended and is no zombie."""
    javas = [Path("/proc") / entry.message.split()[1] for entry in await backend.read_logs(job_id)]
    await until(lambda: not any(java.exists() for java in javas))


@pytest.mark.prove
async def test_an_application_whose_java_dies_continues_from_its_checkpoint(proving: bool) -> None:
    backend = applications.harbor.backend
    deaths = ["java", "driver"] if proving else ["java"]
    handle = await applications.summed.enqueue(1000, deaths)
    async with applications.harbor.worker(["applications"], concurrency=1):
        assert await handle.result(timeout=PATIENCE) == {"before": [1000] * len(deaths), "now": 1000}
    job = await handle.job()
    assert (job.crashes, job.retry_count, job.executions) == (len(deaths), 0, len(deaths) + 1)
    told = [e.detail["progress"]["percent"] for e in await log_of(backend) if e.event == "job.progress"]
    assert told == sorted(told)
    assert told[-1] == 100
    stalled = [e for e in await log_of(backend) if e.job_id == handle.id and e.to_status is JobStatus.UNKNOWN_RETRY]
    assert "the Java of this Spark application ended with code -9" in str(stalled[0].detail)
    await is_gone(backend, handle.id)


async def test_cancel_and_timeout_stop_sparks_work_and_leave_no_java() -> None:
    backend = applications.harbor.backend
    cancelled = await applications.endless.enqueue()
    late = await applications.endless.options(timeout=10).enqueue()
    async with applications.harbor.worker(["applications"], concurrency=2):
        await until(lambda: _is_at_work(backend, cancelled.id), within=PATIENCE)
        await cancelled.cancel()
        with pytest.raises(JobCancelled):
            await cancelled.result(timeout=20)
        with pytest.raises(JobFailed, match="timeout of 10 seconds"):
            await late.result(timeout=PATIENCE)
        for handle in (cancelled, late):
            await is_gone(backend, handle.id)


async def _is_at_work(backend: Backend, job_id: str) -> bool:
    return bool(await backend.read_logs(job_id))


async def test_without_a_cluster_an_application_goes_back_uncharged_with_the_reason() -> None:
    handle = await applications.unreachable.enqueue()
    async with applications.nowhere.worker(concurrency=1):
        released = await happens(applications.nowhere.backend, "job.released")
    assert "no Spark answers at 127.0.0.1:1" in released.detail["reason"]
    assert (await handle.job()).retry_count == 0


async def test_an_application_is_tried_without_a_worker(spark: SparkSession) -> None:
    assert applications.counted(spark, 10, step=2) == 5
    with applications.harbor.eager():
        assert await (await applications.counted.enqueue(10)).result() == 10


async def test_callers_give_everything_but_the_session() -> None:
    with pytest.raises(InvalidArgument, match=r"counted\.spark"):
        await applications.counted.enqueue(spark=1, upto=2)  # type: ignore[call-arg]  # the worker gives it
    with pytest.raises(InvalidArgument, match=r"counted\.upto: should be a valid integer"):
        await applications.counted.enqueue("ten")  # type: ignore[arg-type]  # what is tried here


def test_functions_without_a_place_for_the_session_are_refused() -> None:
    async def waits(spark: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="must take the SparkSession as its first parameter"):
        applications.harbor.spark_task(lambda *, day: day)  # type: ignore[misc, arg-type]  # what is tried here
    with pytest.raises(InvalidArgument, match="use a def"):
        applications.harbor.spark_task(waits)
    with pytest.raises(InvalidArgument, match="pass options by name"):
        applications.harbor.spark_task("daily")  # type: ignore[call-overload]  # what is tried here


def test_percent_never_go_back_and_leave_the_last_one_to_the_end() -> None:
    percent = Percent()
    told = [percent.after(*at) for at in [(0, 0), (4, 8), (4, 16), (10, 16), (16, 16)]]
    assert told == [None, 49, None, 61, 99]


def test_percent_of_a_later_execution_go_on_from_those_of_the_earlier_one() -> None:
    percent = Percent({"percent": 49, "tasks_done": 4, "tasks_known": 8})
    assert [percent.after(*at) for at in [(0, 4), (2, 4), (1, 4), (4, 4)]] == [None, 74, None, 99]
    assert [Percent(strange).after(1, 2) for strange in ("half", {"percent": "50"}, {"percent": -3})] == [49, 49, 49]
    assert Percent({"percent": 100}).after(1, 2) is None
