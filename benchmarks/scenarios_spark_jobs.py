"""Jobs as rows of Spark batches, compared with two processes and the event loop; for information."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Stopwatch, alternate
from benchmarks.reporting import Finding, rates
from longshore.backends.connect import connect
from longshore.runtime.executors.base import Executor
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.queue import Queue
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import Worker
from longshore.spark.executor.spark import SparkExecutor

_SLOTS = 2
_BUSY_SECONDS = 0.005
_ROUNDS = 2
_NOTHING_TO_DO, _BUSY = 5_000, 600


def nothing(job: RunningJob) -> None:
    """A job that does nothing."""
    del job


def busy(job: RunningJob) -> None:
    """A job that uses five milliseconds of CPU."""
    del job
    until = perf_counter() + _BUSY_SECONDS
    while perf_counter() < until:
        pass


async def _nothing_on_the_loop(job: RunningJob) -> None:
    nothing(job)


async def _busy_on_the_loop(job: RunningJob) -> None:
    busy(job)


def spark_jobs(databases: Databases) -> list[Finding]:
    """Time one worker from the first claim to the last settlement, jobs in memory, after a warm-up round."""
    del databases
    findings = []
    for name, count, function, on_the_loop in (
        ("jobs that do nothing", _NOTHING_TO_DO, nothing, _nothing_on_the_loop),
        ("jobs of 5 ms of CPU", _BUSY, busy, _busy_on_the_loop),
    ):
        sides: list[Callable[[], Executor]] = [
            partial(SparkExecutor, function, master=f"local[{_SLOTS}]"),
            partial(ProcessExecutor, function, processes=_SLOTS),
            partial(LoopExecutor, on_the_loop),
        ]
        spark, processes, loop = alternate(_ROUNDS, *(partial(_worked_off, count, make) for make in sides))
        two = f"{_SLOTS} processes"
        findings.append(rates(f"{count:,} {name}, executor spark", spark, reference=processes, compared_with=two))
        findings.append(rates("the same, on the event loop", loop, reference=processes, compared_with=two))
    return findings


def _worked_off(count: int, make: Callable[[], Executor]) -> Sample:
    return asyncio.run(_work_off(count, make))


async def _work_off(count: int, make: Callable[[], Executor]) -> Sample:
    async with Queue(connect("memory://")) as queue:
        specs: list[Any] = [("row", {"n": n}) for n in range(count)]
        await queue.add_bulk(specs)
        worker = Worker(queue, make(), concurrency=count, until_empty=True, autorun=False, sweep=False)
        with Stopwatch(count) as watch:
            await worker.run()
        return watch.sample
