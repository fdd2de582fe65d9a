"""Claims while many jobs become due at once and a scheduler writes their events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from threading import Event

from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Spread, alternate
from benchmarks.postgres_scenery import add_future, add_waiting
from benchmarks.processes import Companion
from benchmarks.reporting import Finding, Target, durations
from benchmarks.scenarios_claims import ProductLine, line_of, product_line
from benchmarks.workload import new_job
from longshore.backends.base import Backend
from longshore.backends.connect import connect

_STORED_AT_ONCE = 1_000
_STORED_PER_SECOND = 3_000
"""A rate that every machine reaches: all must be stored before they are due."""
_BREATH = 0.02
"""Seconds between two claims, because workers pause between claims."""


def future(databases: Databases) -> list[Finding]:
    """A claim beside a million future jobs, on SQLite."""
    with ExitStack() as stack:
        few = stack.enter_context(product_line(stack.enter_context(databases.few())))
        among = stack.enter_context(product_line(stack.enter_context(databases.with_future())))
        return [_among_the_future(databases, few, among)]


def postgres_future(databases: Databases) -> list[Finding]:
    """The same on PostgreSQL."""
    postgres = databases.postgres
    with ExitStack() as stack:
        url, quiet_url = (stack.enter_context(postgres.new()) for _ in range(2))
        add_future(url, postgres.scale.many)
        for each in (url, quiet_url):
            add_waiting(each, postgres.scale.few)
        few, among = (stack.enter_context(line_of(connect(each))) for each in (quiet_url, url))
        return [_among_the_future(databases, few, among)]


def _among_the_future(databases: Databases, few: ProductLine, among: ProductLine) -> Finding:
    product, reference = alternate(databases.scale.claims, among.claim, few.claim)
    return durations(
        f"`dequeue_jobs(limit=100)`, {databases.scale.many:,} future-dated",
        product,
        reference=reference,
        compared_with="1,000 waiting",
        target=Target("≤", 1.2),
    )


def due_at_once(databases: Databases) -> list[Finding]:
    """On SQLite."""
    with databases.scratch() as path:
        return _while_they_fall_due(databases, f"sqlite:///{path}")


def postgres_due_at_once(databases: Databases) -> list[Finding]:
    """On PostgreSQL."""
    with databases.postgres.new() as url:
        return _while_they_fall_due(databases, url)


def _while_they_fall_due(databases: Databases, url: str) -> list[Finding]:
    scale = databases.scale
    with line_of(connect(url)) as line, Companion("benchmarks.schedulers", url) as scheduler:
        scheduler.hear()
        due = line.runner.run(_fill(line.backend, scale.due, scale.few, scale.watched_seconds))
        quiet = _claims_until(line, due)
        while_due = _claims_until(line, due + timedelta(seconds=scale.watched_seconds))
        left = line.runner.run(_unannounced(line.backend))
    quiet_p99, due_p99 = _p99(quiet), _p99(while_due)
    return [
        Finding(
            f"`dequeue_jobs(limit=100)` while {scale.due:,} jobs become due at once, 99th percentile",
            "ms",
            Spread.of([due_p99]),
            compared_with=f"before, of {len(quiet)} and {len(while_due)} claims",
            reference=Spread.of([quiet_p99]),
            ratio=Spread.of([due_p99 / quiet_p99]),
            target=Target("≤", 3),
        ),
        Finding(
            "the same, median",
            "ms",
            Spread.of(sample.seconds * 1e3 for sample in while_due),
            compared_with="before",
            reference=Spread.of(sample.seconds * 1e3 for sample in quiet),
        ),
        Finding(f"of them without `job.promoted` after {scale.watched_seconds} seconds", "jobs", Spread.of([left])),
    ]


async def _fill(backend: Backend, due: int, waiting: int, quiet_seconds: float) -> datetime:
    """Enqueue `due` jobs that are due at the same time, and others to claim until then; return that time."""
    moment = await backend.now() + timedelta(seconds=due / _STORED_PER_SECOND + quiet_seconds)
    await backend.enqueue_jobs([new_job(number) for number in range(waiting)])
    for first in range(0, due, _STORED_AT_ONCE):
        await backend.enqueue_jobs([new_job(first + n).replace(run_at=moment) for n in range(_STORED_AT_ONCE)])
    left = (moment - await backend.now()).total_seconds() - quiet_seconds
    if left < 0:
        raise RuntimeError("they became due before all were stored")
    await asyncio.sleep(left)
    return moment


def _claims_until(line: ProductLine, moment: datetime) -> list[Sample]:
    samples = []
    while line.runner.run(line.backend.now()) < moment:
        samples.append(line.claim())
        Event().wait(_BREATH)
    return samples


async def _unannounced(backend: Backend) -> int:
    left = 0
    while batch := await backend.announce_due_jobs():
        left += len(batch)
    return left


def _p99(samples: Sequence[Sample]) -> float:
    ordered = sorted(sample.seconds * 1e3 for sample in samples)
    return ordered[round(0.99 * (len(ordered) - 1))]
