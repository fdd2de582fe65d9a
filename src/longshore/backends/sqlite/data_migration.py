"""Copies data out of a file from one snapshot, and into a new file."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw

from longshore.backends.data_migration import LONGEST_SILENCE, Begun, Settings, Source, describe_activity
from longshore.backends.sql.rows import Row
from longshore.backends.sql.writes import SQLCopySide
from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.connection import Opener, close_quietly, explained, open_connection, prepare
from longshore.backends.sqlite.files import beside
from longshore.core.errors import MoveRefused


@contextmanager
def open_source(path: Path, open_reading: Opener, clock: Callable[[], int]) -> Iterator[FileSource]:
    """A snapshot of the file, closed at the end."""
    with ExitStack() as stack:
        connection, latest = (_opened(stack, open_reading) for _ in range(2))
        stack.enter_context(explained(path, connection))
        connection.pragma("query_only", True)
        yield FileSource(path, connection, latest, clock)


def _opened(stack: ExitStack, open_reading: Opener) -> apsw.Connection:
    connection = open_reading()
    stack.callback(close_quietly, connection)
    return connection


class FileSource(SQLCopySide):
    """A file to copy from: one transaction reads everything, and a second connection sees later events."""

    _sql = SQL

    def __init__(
        self, path: Path, connection: apsw.Connection, latest: apsw.Connection, clock: Callable[[], int]
    ) -> None:
        self.name = f"sqlite:///{path}"
        self._connection = connection
        self._latest = latest
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._connection.execute("BEGIN")
        self.log, self._next_uid, self.next_event = self._one(SQL.meta)

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        return self._connection.execute(statement, values)

    def activity(self) -> list[str]:
        now = self._clock()
        heard = self._rows(SQL.workers_heard_since, now - LONGEST_SILENCE)
        return describe_activity(heard, self._rows(SQL.leases_in_force, now), now)

    def rows(self, table: str, block: range) -> Iterator[Row]:
        return self._rows(self._named("rows_of", table), block.start, block.stop)

    def settings(self) -> Settings:
        return Settings(
            list(self._rows(SQL.queues)),
            list(self._rows(SQL.rows_of_concurrency_keys)),
            list(self._rows(SQL.rows_of_schedules)),
            list(self._rows(SQL.tokens)),
            [name for (name,) in self._rows(SQL.known_queues)],
            self._next_uid,
            self.next_event,
        )

    def events_since(self) -> int:
        ((_, _, next_event),) = self._latest.execute(SQL.meta)
        return int(next_event - self.next_event)

    def refresh(self) -> None:
        self._connection.execute("COMMIT")
        self._begin()


_BUSY_SECONDS = 30.0


@contextmanager
def open_target(path: Path) -> Iterator[FileTarget]:
    """A new file at this path, created under a temporary name that only a copy opens."""
    file = FileTarget(path)
    with explained(path):
        try:
            yield file
        finally:
            file.close()


class FileTarget(SQLCopySide):
    """The file to copy into. Every transaction checks that no later run has taken over the copy."""

    _sql = SQL

    def __init__(self, path: Path) -> None:
        self.name = f"sqlite:///{path}"
        self._path = path
        self._unfinished = beside(path, "-copying")
        self._connection: apsw.Connection | None = None
        self._move: dict[str, Any] = {}

    def close(self) -> None:
        """Close the connection, if it is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            close_quietly(connection)

    def _rows(self, statement: str, *values: Any) -> Iterator[Row]:
        assert self._connection is not None  # opened when the copy begins
        return self._connection.execute(statement, values)

    def _run(self, statement: str, *values: Any) -> None:
        assert self._connection is not None  # as above
        self._connection.execute(statement, values)

    def _many(self, statement: str, rows: Iterable[Row]) -> None:
        assert self._connection is not None  # as above
        self._connection.executemany(statement, rows)

    def _known(self) -> dict[str, Any] | None:
        for (note,) in self._rows(SQL.copy_state):
            known: dict[str, Any] = json.loads(note)
            return known
        return None

    @contextmanager
    def _transaction(self) -> Iterator[dict[str, Any] | None]:
        """Open a transaction, and return the stored state of a copy into this file."""
        assert self._connection is not None  # as above
        self._run("BEGIN IMMEDIATE")
        try:
            yield self._known()
            self._run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._run("ROLLBACK")
            raise

    @contextmanager
    def _our_transaction(self) -> Iterator[None]:
        with self._transaction() as known:
            if known != self._move:
                raise MoveRefused(
                    f"another run of this copy into {self.name} was started later and continues; this one stops"
                )
            yield

    def _note(self, **facts: Any) -> None:
        self._move = {**self._move, **facts}
        self._run(SQL.clear_copy_state)
        self._run(SQL.put_copy_state, json.dumps(self._move))

    def begin(self, old: Source) -> Begun:
        if self._path.exists():
            return self._moved_before(old)
        prepare(self._unfinished, busy_seconds=_BUSY_SECONDS)
        self._connection = open_connection(self._unfinished, busy_seconds=_BUSY_SECONDS)
        self._run(SQL.create_copy_state)
        with self._transaction() as known:
            if known is not None and known["log"] != old.log:
                raise MoveRefused(
                    f"{self._unfinished} is an unfinished copy from {known['from']}; remove it, or name another file"
                )
            # an earlier run that is still alive must not write at the same time
            self._note(**{"from": old.name, "log": old.log, "run": secrets.token_hex(8)})
            return Begun.FRESH if known is None else Begun.RESUMED

    def _moved_before(self, old: Source) -> Begun:
        self._connection = open_connection(self._path, busy_seconds=_BUSY_SECONDS)
        try:
            known = self._known()
        except (apsw.SQLError, apsw.SchemaChangeError):  # no copy into it was ever started
            known = None
        if known is None or known["log"] != old.log or not known.get("finished"):
            raise MoveRefused(f"{self.name} exists already; name a file that does not exist")
        if known["next_event"] != old.next_event:
            raise MoveRefused(
                f"{old.name} was copied to {self.name} before and has changed since: "
                f"{old.next_event - known['next_event']} events are not in the copy"
            )
        self._remove_unfinished()
        return Begun.FINISHED

    def _remove_unfinished(self) -> None:
        """Remove the temporary name: the file has its final name, and its log was emptied before it was closed."""
        for suffix in ("-wal", "-shm", ""):
            Path(f"{self._unfinished}{suffix}").unlink(missing_ok=True)

    def replace(self, table: str, block: range, rows: Iterator[Row]) -> None:
        bounds = (block.start, block.stop)
        with self._our_transaction():
            if table == "jobs":
                self._run(SQL.clear_job_tags, *bounds)  # while the jobs still have their tags
            self._run(self._named("clear", table), *bounds)
            self._many(self._named("fill", table), (row[:5] if table == "job_dependencies" else row for row in rows))
            if table == "jobs":
                self._run(SQL.fill_job_tags, *bounds)

    @contextmanager
    def finishing(self, settings: Settings) -> Iterator[None]:
        with self._our_transaction():
            self._many(SQL.put_queue, settings.queues)
            self._many(SQL.put_key, settings.concurrency_keys)
            self._many(SQL.put_schedules, settings.schedules)
            self._many(SQL.fill_api_tokens, settings.api_tokens)
            self._run(SQL.fill_counts)
            self._run(SQL.remember_queues, json.dumps(settings.queue_names))
            self._run(SQL.save_counters, settings.next_uid, settings.next_event)
            yield
            self._note(finished=True, next_event=settings.next_event)
        self._publish()

    def _publish(self) -> None:
        """Give the file its final name. After a kill between these steps, the next run can continue."""
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        self.close()
        try:
            os.link(self._unfinished, self._path)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise MoveRefused(f"{self.name} was created during the copy; remove one of the two files") from None
        self._remove_unfinished()
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
