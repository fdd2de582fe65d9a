"""The SQLite files of the benchmarks: small ones per round, the largest made once and shared by the scenarios."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import apsw

from benchmarks.filling import Filled, fill, fill_elsewhere
from benchmarks.postgres_databases import PostgresDatabases
from benchmarks.scale import Scale
from benchmarks.scenery import add_finished_and_future
from benchmarks.workload import QUEUE, WORKER, new_job, tags_of
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job

KEYS = 1_000
FULL_KEYS = 900
WAITING_PER_KEY = 10


class Databases:
    """Creates each file on first use, all in one folder."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self.folder = folder
        self.scale = scale
        self.postgres = PostgresDatabases(scale)
        self._numbers = itertools.count()

    def close(self) -> None:
        """Stop the PostgreSQL server if one was started; the files are removed with their folder."""
        self.postgres.close()

    @property
    def circumstances(self) -> str:
        """The versions and durability settings, for the report."""
        versions = f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}"
        return f"{versions}; write-ahead logging and `synchronous=FULL`, the event log on, files on a disk"

    def new_path(self) -> Path:
        """An unused path."""
        return self.folder / f"queue-{next(self._numbers)}.db"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A path for one round, removed afterwards."""
        path = self.new_path()
        try:
            yield path
        finally:
            remove(path)

    @contextmanager
    def copy_of(self, source: Path) -> Iterator[Path]:
        """A copy that may be changed, removed afterwards."""
        with self.scratch() as path:
            shutil.copyfile(source, path)
            yield path

    @cached_property
    def many(self) -> Path:
        """A million waiting jobs. A scenario that claims jobs enqueues as many again."""
        return self.filling[0]

    @cached_property
    def filling(self) -> tuple[Path, Filled]:
        """The same file, with the time and memory it took to fill it."""
        path = self.new_path()
        return path, fill_elsewhere(path, self.scale.many)

    @contextmanager
    def few(self) -> Iterator[Path]:
        """A thousand waiting jobs, tagged like those of `many`."""
        with self.scratch() as path:
            asyncio.run(fill(path, self.scale.few))
            yield path

    @contextmanager
    def crowded(self) -> Iterator[Path]:
        """A thousand waiting jobs beside a million finished and a million future-dated ones."""
        with self.scratch() as path:
            asyncio.run(add_finished_and_future(path, self.scale.many))
            asyncio.run(fill(path, self.scale.few))
            yield path

    @contextmanager
    def with_future(self) -> Iterator[Path]:
        """A thousand waiting jobs beside a million future-dated ones."""
        with self.scratch() as path:
            asyncio.run(add_finished_and_future(path, self.scale.many, finished=False))
            asyncio.run(fill(path, self.scale.few))
            yield path

    @contextmanager
    def with_full_keys(self) -> Iterator[Path]:
        """A thousand concurrency keys with one slot each, nine hundred of them full, all with waiting jobs."""
        with self.scratch() as path:
            asyncio.run(_fill_keys(path))
            yield path


def remove(path: Path) -> None:
    """Delete a database with its WAL and shared-memory files."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def keyed_job(number: int) -> Job:
    """A job with one of the keys."""
    return new_job(number, tags=tags_of(number, KEYS), concurrency_key=f"tenant-{number}")


async def _fill_keys(path: Path) -> None:
    async with SQLiteBackend(path) as backend:
        await backend.set_limits(QUEUE, per_key=1)
        await backend.enqueue_jobs([keyed_job(number) for number in range(FULL_KEYS)])
        await backend.dequeue_jobs(WORKER, limit=FULL_KEYS, queues=(QUEUE,), lease=None)
        for _ in range(WAITING_PER_KEY):
            await backend.enqueue_jobs([keyed_job(number) for number in range(KEYS)])
