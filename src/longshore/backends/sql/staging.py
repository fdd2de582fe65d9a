"""Laying jobs aside, over named statements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from longshore.backends.sql.columns import Row
from longshore.backends.statements import Statements


class SQLStaging:
    """The part of a write transaction that knows the runs; every dialect does it in the same way."""

    _sql: Statements
    now: int

    @abstractmethod
    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        """The rows a statement finds."""

    @abstractmethod
    def _run(self, statement: str, *values: Any) -> int:
        """Runs a statement that changes rows; returns how many."""

    @abstractmethod
    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        """Runs a statement once for each row of values."""

    @abstractmethod
    def _listed(self, values: Iterable[Any]) -> Any:
        """Many values as one parameter."""

    def run_report(self, run: str) -> tuple[int, int] | None:
        for offered, inserted in self._rows(self._sql.staged_run, run):
            return offered, inserted
        return None

    def stage(self, run: str, part: str, bodies: Sequence[str]) -> None:
        self._lay_aside([(run, part, body) for body in bodies])
        self._run(self._sql.touch_staged_run, run, self.now)  # last: the run's other tasks wait for this row

    def _lay_aside(self, rows: Sequence[Row]) -> None:
        self._many(self._sql.stage_job, rows)

    def insert_plain(self, run: str, parts: Sequence[str]) -> int:  # noqa: ARG002 - by itself it makes none
        return 0

    def staged(self, run: str, parts: Sequence[str]) -> Iterable[str]:
        return [body for (body,) in self._rows(self._sql.staged_jobs, run, self._listed(parts))]

    def finish_run(self, run: str, offered: int, inserted: int) -> None:
        self._run(self._sql.finish_staged_run, run, self.now, offered, inserted)
        self._run(self._sql.clear_staged_jobs, run)

    def drop_run(self, run: str) -> None:
        if self.run_report(run) is None:
            self._run(self._sql.drop_staged_run, run)
            self._run(self._sql.clear_staged_jobs, run)

    def drop_silent_runs(self, unfinished: int, finished: int) -> int:
        silent = [run for (run,) in self._rows(self._sql.silent_runs, unfinished, finished)]
        for run in silent:
            self._run(self._sql.drop_staged_run, run)
            self._run(self._sql.clear_staged_jobs, run)
        return len(silent)
