"""A durable store that is compared with memory: how to open one for a run, and how to inspect it."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import psycopg

from longshore.backends.base import Backend
from longshore.backends.postgres.backend import PostgresBackend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.clock import Clock
from tests.backends.upkeep import internal_faults


class SecondStore(ABC):
    """One store, empty at first, with a separate connection to inspect it."""

    name: str
    backend: Backend

    @abstractmethod
    def events_written(self) -> int:
        """The number of events committed since the last call, whether or not they can be read yet."""

    @abstractmethod
    def faults(self) -> list[str]:
        """Errors in the store's counts and indexes."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what the run left; the backend is closed by then."""


OpenStore = Callable[[Clock], SecondStore]


class SQLiteStore(SecondStore):
    """A separate file."""

    name = "SQLite"

    def __init__(self, clock: Clock) -> None:
        memory_disk = Path("/dev/shm")  # durability is not tested here, and a real disk is ten times slower
        self._folder = Path(tempfile.mkdtemp(dir=memory_disk if memory_disk.is_dir() else None))
        self.backend = SQLiteBackend(self._folder / "jobs.db", clock=clock)
        self._inside = self.backend.new_connection()
        self._next_event = 1

    def events_written(self) -> int:
        ((now,),) = self._inside.execute("SELECT next_event FROM meta")
        before, self._next_event = self._next_event, now
        return int(now - before)

    def faults(self) -> list[str]:
        return internal_faults(self._inside)

    def clear(self) -> None:
        self._inside.close()
        shutil.rmtree(self._folder)


class PostgresStore(SecondStore):
    """The schema of a database that many runs share in turn.

    Emptying it takes one millisecond, a new schema thirty, and a new database longer. The uids of a run continue those
    of the run before.
    """

    name = "PostgreSQL"

    def __init__(self, url: str, clock: Clock) -> None:
        self.backend = PostgresBackend(url, clock=clock, pool_size=2)
        self._inside = psycopg.connect(url, autocommit=True)
        self._inside.execute("SET search_path = longshore")
        self._last = self._newest()

    def _newest(self) -> int:
        (newest,) = self._inside.execute("SELECT coalesce(max(n), 0) FROM job_events").fetchone() or (0,)
        return int(newest)

    def events_written(self) -> int:
        row = self._inside.execute("SELECT count(*), max(n) FROM job_events WHERE n > %s", (self._last,)).fetchone()
        count, newest = row or (0, None)
        if newest is not None:
            self._last = newest
        return int(count)

    def faults(self) -> list[str]:
        return internal_faults(self._inside)

    def clear(self) -> None:
        tables = self._inside.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'longshore' AND tablename NOT IN ('meta', 'migrations')"
        ).fetchall()
        self._inside.execute("; ".join(f"DELETE FROM {name}" for (name,) in tables))
        self._inside.close()
