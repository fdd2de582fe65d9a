"""The cost of work on the server: CPU time of all its processes, and bytes of write-ahead log."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from benchmarks.measuring import Sample, Stopwatch
from benchmarks.postgres_databases import PostgresDatabases
from benchmarks.processes import cpu_by_process

_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


@dataclass(frozen=True, slots=True)
class ServerSample(Sample):
    """One timed block of work, with its cost on the server."""

    server_cpu_seconds: float = 0
    """0 where the system does not report it."""
    wal_bytes: int = 0

    @property
    def server_cpu_micros(self) -> float:
        """Microseconds of the server's CPU time per job."""
        return self.server_cpu_seconds / self.jobs * 1e6

    @property
    def wal_bytes_per_job(self) -> float:
        """Bytes of write-ahead log per job, including full pages after a checkpoint."""
        return self.wal_bytes / self.jobs


class ServerWatch:
    """A stopwatch that also reads the server's costs before and after."""

    def __init__(self, databases: PostgresDatabases, jobs: int) -> None:
        self.sample = ServerSample(0, 0, 0, jobs)
        self._databases = databases
        self._watch = Stopwatch(jobs)

    def __enter__(self) -> Self:
        self._wal = _written(self._databases)
        self._cpu = cpu_by_process(self._databases.server.pid)
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, trace)
        if error is not None:
            return
        cpu = cpu_by_process(self._databases.server.pid)
        spent = sum(seconds - self._cpu.get(process, 0) for process, seconds in cpu.items())
        took = self._watch.sample
        self.sample = ServerSample(
            took.seconds,
            took.cpu_seconds,
            took.caller_cpu_seconds,
            took.jobs,
            took.calls,
            spent,
            _written(self._databases) - self._wal,
        )


def _written(databases: PostgresDatabases) -> int:
    (written,) = databases.observer.execute(_WAL).fetchone() or (0,)
    return int(written)
