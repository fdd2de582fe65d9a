"""Claims: the cost of `dequeue_jobs(limit=100)` in a large file or behind many other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks import bare_sql
from benchmarks.bare_sql import BareQueue
from benchmarks.databases import WAITING_PER_KEY, Databases
from benchmarks.measuring import Sample, Stopwatch, alternate
from benchmarks.reporting import Finding, Target, durations
from benchmarks.workload import QUEUE, RARE, RESULT, WORKER, new_job, new_jobs
from longshore.backends.base import Backend, Outcome
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job

_LIMIT = 100
_RARE_JOBS = 10
_OTHERS = 10_000


class ProductLine:
    """A queue of constant length: untimed, claimed jobs are completed and replaced."""

    def __init__(self, backend: Backend, runner: asyncio.Runner) -> None:
        self.backend = backend
        self.runner = runner

    def claim(self, tags: tuple[str, ...] = (), expected: int = _LIMIT, types: tuple[str, ...] | None = None) -> Sample:
        """Time one claim of up to 100."""
        return self.runner.run(self._claim(tags, expected, types))

    async def _claim(self, tags: tuple[str, ...], expected: int, types: tuple[str, ...] | None) -> Sample:
        with Stopwatch(expected) as watch:
            claimed = await self.backend.dequeue_jobs(WORKER, tags, _LIMIT, queues=(QUEUE,), types=types)
        if len(claimed) != expected:
            raise RuntimeError(f"claimed {len(claimed)} jobs instead of {expected}")
        await self.backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed])
        await self.backend.enqueue_jobs([_like(job) for job in claimed])
        return watch.sample


class BareLine:
    """The same with bare SQL."""

    def __init__(self, queue: BareQueue) -> None:
        self.queue = queue

    def claim(self, tag: str | None = None, expected: int = _LIMIT) -> Sample:
        """Time one claim of up to 100."""
        with Stopwatch(expected) as watch:
            claimed = self.queue.claim(WORKER, _LIMIT, tag)
        if len(claimed) != expected:
            raise RuntimeError(f"claimed {len(claimed)} jobs instead of {expected}")
        self.queue.complete(WORKER, claimed, RESULT)
        self.queue.enqueue(self.queue.replacement(claimed))
        return watch.sample


def _like(job: Job) -> Job:
    return new_job(job.uid, tags=tuple(job.tags), concurrency_key=job.concurrency_key)


def product_line(path: Path) -> AbstractContextManager[ProductLine]:
    """The product on one file."""
    return line_of(SQLiteBackend(path))


@contextmanager
def line_of(backend: Backend) -> Iterator[ProductLine]:
    """The product on any store, with an open connection and prepared statements."""
    with asyncio.Runner() as runner:
        runner.run(_warm_up(backend))
        try:
            yield ProductLine(backend, runner)
        finally:
            runner.run(backend.close())


async def _warm_up(backend: Backend) -> None:
    await backend.enqueue_jobs([job.replace(queue="warm-up") for job in new_jobs(_LIMIT)])
    claimed = await backend.dequeue_jobs(WORKER, limit=_LIMIT, queues=("warm-up",))
    await backend.settle_jobs([Outcome(job.id, job.lease, "complete", RESULT) for job in claimed])


@contextmanager
def bare_line(path: Path) -> Iterator[BareLine]:
    """Bare SQL on one file."""
    with bare_sql.open_file(path) as connection:
        yield BareLine(BareQueue(connection))


def waiting(databases: Databases) -> list[Finding]:
    """A claim among a million waiting jobs, compared with a thousand."""
    with ExitStack() as stack:
        few = stack.enter_context(product_line(stack.enter_context(databases.few())))
        bare_path = stack.enter_context(databases.copy_of(databases.many))
        many = stack.enter_context(product_line(databases.many))
        bare = stack.enter_context(bare_line(bare_path))
        product, reference, baseline = alternate(databases.scale.claims, many.claim, few.claim, bare.claim)
    return [
        durations(
            f"`dequeue_jobs(limit=100)`, {databases.scale.many:,} waiting",
            product,
            baseline,
            reference=reference,
            compared_with="1,000 waiting",
            target=Target("≤", 1.5),
        )
    ]


def types(databases: Databases) -> list[Finding]:
    """A claim by type with 10,000 jobs of another type at the head, compared with a plain claim from 1,000 jobs."""
    with ExitStack() as stack:
        few = stack.enter_context(product_line(stack.enter_context(databases.few())))
        behind = stack.enter_context(product_line(stack.enter_context(databases.few())))
        return [claims_by_type(databases, few, behind)]


def claims_by_type(databases: Databases, few: ProductLine, behind: ProductLine) -> Finding:
    """A claim by type from `behind`, with 10,000 jobs of another type at its head."""
    others = [new_job(n).replace(type="other", priority=-1) for n in range(_OTHERS)]
    behind.runner.run(behind.backend.enqueue_jobs(others))
    known = (new_job(1).type,)
    claims = max(databases.scale.claims, 20)
    product, reference = alternate(claims, lambda: behind.claim(types=known), few.claim)
    return durations(
        f"`dequeue_jobs(limit=100, types=…)` behind {_OTHERS:,} jobs of another type",
        product,
        reference=reference,
        compared_with="all types, 1,000 waiting",
        target=Target("≤", 1.3),
    )


def tag(databases: Databases) -> list[Finding]:
    """A claim by a tag of ten in a million waiting jobs, compared with ten in a thousand."""
    with ExitStack() as stack:
        few = stack.enter_context(product_line(stack.enter_context(databases.few())))
        bare_path = stack.enter_context(databases.copy_of(databases.many))
        many = stack.enter_context(product_line(databases.many))
        bare = stack.enter_context(bare_line(bare_path))
        product, reference, baseline = alternate(
            databases.scale.claims,
            lambda: many.claim((RARE,), _RARE_JOBS),
            lambda: few.claim((RARE,), _RARE_JOBS),
            lambda: bare.claim(RARE, _RARE_JOBS),
        )
    return [
        durations(
            f"`dequeue_jobs` by a tag of 10 in {databases.scale.many:,} jobs",
            product,
            baseline,
            reference=reference,
            compared_with="10 in 1,000",
            target=Target("≤", 3),
        )
    ]


def crowded(databases: Databases) -> list[Finding]:
    """A claim from a file with a million future-dated and a million finished jobs."""
    with ExitStack() as stack:
        few = stack.enter_context(product_line(stack.enter_context(databases.few())))
        path = stack.enter_context(databases.crowded())
        bare_path = stack.enter_context(databases.copy_of(path))
        among = stack.enter_context(product_line(path))
        bare = stack.enter_context(bare_line(bare_path))
        product, reference, baseline = alternate(databases.scale.claims, among.claim, few.claim, bare.claim)
    return [
        durations(
            f"`dequeue_jobs(limit=100)`, {databases.scale.many:,} future-dated and as many finished",
            product,
            baseline,
            reference=reference,
            compared_with="1,000 waiting",
            target=Target("≤", 1.5),
        )
    ]


def keys(databases: Databases) -> list[Finding]:
    """A thousand concurrency keys, 900 of them full: the first claim, and claims after the jobs are blocked."""
    scale = databases.scale
    with ExitStack() as stack:
        few = stack.enter_context(product_line(stack.enter_context(databases.few())))
        path = stack.enter_context(databases.with_full_keys())
        first, first_reference = alternate(scale.key_fillings, lambda: _first_claim(databases, path), few.claim)
        steady = stack.enter_context(product_line(path))
        for _ in range(WAITING_PER_KEY + 2):  # by then a claim has read every job of a full key once
            steady.claim()
        after, after_reference = alternate(scale.claims, steady.claim, few.claim)
    return [
        durations(
            "`dequeue_jobs(limit=100)`, 900 of 1,000 keys full, first claim",
            first,
            reference=first_reference,
            compared_with="1,000 waiting",
            target=Target("≤", 3),
        ),
        durations(
            "the same, later claims",
            after,
            reference=after_reference,
            compared_with="1,000 waiting",
            target=Target("≤", 3),
        ),
    ]


def _first_claim(databases: Databases, path: Path) -> Sample:
    with databases.copy_of(path) as copy, product_line(copy) as line:
        return line.claim()
