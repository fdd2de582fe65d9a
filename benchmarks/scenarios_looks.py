"""Reads: statistics by tag, exact counts and single jobs in a file with a million jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw

from benchmarks import bare_sql
from benchmarks.databases import Databases
from benchmarks.measuring import Sample, Stopwatch, Work, alternate
from benchmarks.reporting import Finding, Target, durations
from benchmarks.workload import EVERY, HALF
from longshore.backends.sqlite.backend import SQLiteBackend

_LOOKS = 200
_TALLIES = "SELECT status, count(*), sum(retry_count) FROM job_tags WHERE tag = ? GROUP BY status"
_TALLIES_OF_TWO = """
SELECT mine.status, count(*), sum(mine.retry_count) FROM job_tags AS mine
JOIN job_tags AS other ON other.tag = ? AND other.uid = mine.uid WHERE mine.tag = ? GROUP BY mine.status"""
_COUNTS = "SELECT status, sum(jobs) FROM queue_counts GROUP BY status"
_JOB = "SELECT * FROM jobs WHERE id = ?"


class Looker:
    """The product on one file, with the ids of some of its jobs."""

    def __init__(self, backend: SQLiteBackend, runner: asyncio.Runner, ids: list[str]) -> None:
        self.backend = backend
        self.ids = ids
        self._runner = runner

    def times(self, calls: int, look: Callable[[int], Awaitable[object]]) -> Work:
        """One side of a comparison: `calls` reads in sequence."""

        async def run() -> Sample:
            with Stopwatch(calls, calls=calls) as watch:
                for number in range(calls):
                    await look(number)
            return watch.sample

        return lambda: self._runner.run(run())

    def get_jobs(self) -> Work:
        """Read single jobs anywhere in the file."""
        return self.times(_LOOKS, lambda number: self.backend.get_job(self.ids[number]))


@contextmanager
def looker(path: Path) -> Iterator[Looker]:
    """The product with an open connection."""
    with asyncio.Runner() as runner:
        backend = SQLiteBackend(path)
        try:
            yield Looker(backend, runner, _some_ids(path))
        finally:
            runner.run(backend.close())


def _some_ids(path: Path) -> list[str]:
    chance = random.Random(7)
    with bare_sql.open_file(path) as connection:
        ids: list[Any] = []
        for (last,) in connection.execute("SELECT max(uid) FROM jobs"):
            for uid in (chance.randint(1, last) for _ in range(_LOOKS)):
                ids += (job_id for (job_id,) in connection.execute("SELECT id FROM jobs WHERE uid = ?", (uid,)))
        return ids


def _bare(connection: apsw.Connection, calls: int, statement: str, *values: object) -> Work:
    def run() -> Sample:
        with Stopwatch(calls, calls=calls) as watch:
            for _ in range(calls):
                connection.execute(statement, values).fetchall()
        return watch.sample

    return run


def _bare_get_jobs(connection: apsw.Connection, ids: list[str]) -> Work:
    def run() -> Sample:
        with Stopwatch(len(ids), calls=len(ids)) as watch:
            for job_id in ids:
                connection.execute(_JOB, (job_id,)).fetchone()
        return watch.sample

    return run


def looks(databases: Databases) -> list[Finding]:
    """`get_job_stats` by one tag and by two, `count_jobs`, and `get_job` compared with a file of a thousand jobs."""
    scale = databases.scale
    with ExitStack() as stack:
        few = stack.enter_context(looker(stack.enter_context(databases.few())))
        many = stack.enter_context(looker(databases.many))
        bare = stack.enter_context(bare_sql.open_file(databases.many))
        backend = many.backend
        one, bare_one = alternate(
            scale.scans,
            many.times(1, lambda _: backend.get_job_stats([EVERY])),
            _bare(bare, 1, _TALLIES, EVERY),
        )
        two, bare_two = alternate(
            scale.scans,
            many.times(1, lambda _: backend.get_job_stats([EVERY, HALF])),
            _bare(bare, 1, _TALLIES_OF_TWO, EVERY, HALF),
        )
        counts, bare_counts = alternate(
            scale.rounds, many.times(_LOOKS, lambda _: backend.count_jobs()), _bare(bare, _LOOKS, _COUNTS)
        )
        jobs, few_jobs, bare_jobs = alternate(
            scale.claims, many.get_jobs(), few.get_jobs(), _bare_get_jobs(bare, many.ids)
        )
    size = f"{scale.many:,}"
    return [
        durations(f"`get_job_stats`, one tag of {size} jobs", one, bare_one, target=Target("<", 500, "ms")),
        durations(f"`get_job_stats`, two tags, {size} jobs", two, bare_two, target=Target("<", 2_000, "ms")),
        durations(f"`count_jobs`, {size} jobs", counts, bare_counts, target=Target("<", 5, "ms")),
        durations(
            f"`get_job`, {size} jobs",
            jobs,
            bare_jobs,
            reference=few_jobs,
            compared_with="1,000 jobs",
            target=Target("≤", 1.5),
        ),
    ]
