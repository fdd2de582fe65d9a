"""The SQLite backend: operations go to one writer thread, reads to a few reader threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from longshore.backends.archive import SupportsArchive
from longshore.backends.base import Capabilities
from longshore.backends.bulk_insert import SupportsBulkInsert
from longshore.backends.change_signal import ChangeSignal
from longshore.backends.engine import TransactionalBackend
from longshore.backends.export import BulkReader
from longshore.backends.port import Operation, Reader, Transaction
from longshore.backends.process_guard import ProcessGuard
from longshore.backends.sqlite import SQL, files
from longshore.backends.sqlite.change_notifier import ChangeNotifier
from longshore.backends.sqlite.connection import (
    READ_ONLY,
    check_read_only,
    close_quietly,
    explain,
    explained,
    open_connection,
    open_read_only,
    prepare,
)
from longshore.backends.sqlite.data_migration import FileSource, FileTarget, open_source, open_target
from longshore.backends.sqlite.reads import SQLiteReader, step_of_row
from longshore.backends.sqlite.transaction import SQLiteTransaction
from longshore.backends.sqlite.unclean_close import close_last, mark_open
from longshore.backends.sqlite.writer import Writer
from longshore.backends.token_store import SupportsTokens
from longshore.core.clock import Clock, StoreClock
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.health import Condition
from longshore.core.job import Job
from longshore.core.times import SECOND, check_duration, from_micros
from longshore.safe_logging import logger

_SYNCHRONOUS = ("off", "normal", "full", "extra")
"""In SQLite's numbering."""
_REPORTED_FOR = 7 * 86_400 * SECOND
"""How long a lost log is reported."""


def condition_of(path: Path, connection: apsw.Connection, now: int, *, read_only: bool = False) -> Condition:
    """The facts about the store, from a connection with our settings."""
    page = int(connection.pragma("page_size"))
    ((_, log_lost_at),) = connection.execute(SQL.open_mark)
    log = files.beside(path, "-wal")
    file_system = files.file_system_under(path)
    step = connection.execute(SQL.clock_step).fetchone()
    ((newest,),) = connection.execute(SQL.newest_time).fetchall()
    return Condition(
        engine="SQLite",
        version=tuple(int(part) for part in apsw.sqlite_lib_version().split(".")),
        schema_version=int(connection.pragma("user_version")),
        read_only=read_only,
        settings={}
        if read_only
        else {
            "journal_mode": str(connection.pragma("journal_mode")),
            "synchronous": _SYNCHRONOUS[int(connection.pragma("synchronous"))],
        },
        size=page * int(connection.pragma("page_count")),
        unused=page * int(connection.pragma("freelist_count")),
        log_size=log.stat().st_size if log.exists() else 0,
        log_lost_at=from_micros(log_lost_at) if log_lost_at and now - log_lost_at < _REPORTED_FOR else None,
        file_system=file_system,
        file_system_risk=files.risk_of(file_system),
        open_to_others=files.permissions_of_others(path),
        disk_free=shutil.disk_usage(path.parent).free,
        clock_step=None if step is None else step_of_row(step),
        newest=from_micros(newest) if newest else None,
    )


P = ParamSpec("P")
R = TypeVar("R")

_READERS = 2
_MOVED = "the store's file was removed or replaced while it was in use; restore it, then restart this process"
_log = logger("longshore.sqlite")


class SQLiteBackend(ProcessGuard, SupportsTokens, SupportsBulkInsert, SupportsArchive, TransactionalBackend):
    """Jobs in one file, which any number of processes on one machine may open. See docs/sqlite.md."""

    capabilities = Capabilities(durable=True, shared=True, joins_transactions=True)

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        busy_seconds: float = 30,
        create: bool = True,
        allow_network_file_system: bool = False,
        vfs: str | None = None,
    ) -> None:
        super().__init__()
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - the process may change its folder; symlinks stay
        self._busy_seconds = check_duration("busy_seconds", busy_seconds, positive=False) / SECOND
        self._create = create
        if not isinstance(allow_network_file_system, bool):
            raise InvalidArgument("allow_network_file_system", "must be True or False")
        self._allow_network_file_system = allow_network_file_system
        self._vfs = vfs
        self._clock = StoreClock(clock, on_step=_log_step)
        self._signal = ChangeSignal()
        self._prepared = False
        self._read_only = False
        self._preparing = threading.Lock()
        self._file_identity = files.FileIdentity(self.path)
        self._seen: dict[tuple[str, int], int] = {}
        self._of_thread = threading.local()
        self._opened: list[apsw.Connection] = []
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="longshore-sqlite-reader")
        self._notifier = ChangeNotifier(self.path, self._signal, self._open)
        self._writer = Writer(
            self.path,
            partial(self._open_writing, of_one_thread=True),
            self._clock,
            self._file_identity,
            self._notifier.committed,
        )

    def _open(self, *, of_one_thread: bool = False) -> apsw.Connection:
        with self._preparing:
            if not self._prepared:
                if self._vfs is None:
                    self._check_file_system()
                self._read_only = self._vfs is None and files.is_read_only(self.path)
                if self._read_only:
                    check_read_only(self.path, busy_seconds=self._busy_seconds)
                elif prepare(self.path, busy_seconds=self._busy_seconds, vfs=self._vfs, create=self._create):
                    self._report_lost_log()
                if self._vfs is None:  # a custom VFS has no such files
                    self._file_identity.begin()
                self._prepared = True
        self._file_identity.check()
        connection = (
            open_read_only(self.path, busy_seconds=self._busy_seconds)
            if self._read_only
            else open_connection(self.path, busy_seconds=self._busy_seconds, vfs=self._vfs, of_one_thread=of_one_thread)
        )
        try:
            self._file_identity.check()
        except BackendUnavailable:
            close_quietly(connection)
            raise
        return connection

    def _open_writing(self, *, of_one_thread: bool = False) -> apsw.Connection:
        connection = self._open(of_one_thread=of_one_thread)
        if self._read_only:
            close_quietly(connection)
            raise BackendUnavailable(f"{self.path} {READ_ONLY}")
        if self._vfs is None:
            try:
                with explained(self.path, connection):
                    mark_open(connection, self.path)
            except BaseException:
                close_quietly(connection)
                raise
        return connection

    def _check_file_system(self) -> None:
        found = files.file_system_under(self.path)
        files.refuse_network(self.path, found, allowed=self._allow_network_file_system)
        if files.risk_of(found) and self._create and not self.path.exists():
            _log.warning("%s is on %s, %s", self.path, found, files.risk_of(found))

    def _report_lost_log(self) -> None:
        _log.warning(
            "%s-wal is missing or empty although the store was not closed cleanly: commits since the last checkpoint "
            "are lost. Restore a backup if you need them. If another program, such as sqlite3, closed or checkpointed "
            "the store, no data is lost",
            self.path,
        )
        connection = open_connection(self.path, busy_seconds=self._busy_seconds)
        try:
            with explained(self.path, connection):
                connection.execute(SQL.record_lost_log, (self._clock.wall(),))
        finally:
            close_quietly(connection)

    @property
    def unusable_because(self) -> str:
        return _MOVED if self._file_identity.moved else ""

    async def _write(self, operation: Operation[Transaction, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._refuse_if_closed()
        answer: R = await self._writer.run(operation, args, kwargs)
        return answer

    async def _read(self, operation: Operation[Reader, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._in_thread(self._readers, self._run_read, operation.run, args, kwargs)

    def _run_read(self, run: Callable[..., R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
        reader: SQLiteReader | None = getattr(self._of_thread, "reader", None)
        if reader is None:
            reader = self._open_reader()
        connection = reader.connection
        try:
            connection.execute("BEGIN")  # one snapshot for a read of several statements
            try:
                return run(reader, *args, **kwargs)
            finally:
                connection.execute("COMMIT")
                if self._read_only:
                    close_quietly(connection)
                self._file_identity.check()
        except Exception as error:
            explanation = explain(self.path, error, connection)
            if explanation is error:
                raise
            raise explanation from error

    def _open_reader(self) -> SQLiteReader:
        reader = SQLiteReader(self._open(), self._clock.wall, self._seen)
        if not self._read_only:  # SQLite assumes that a read-only file never changes, so the next read opens it again
            self._of_thread.reader = reader
            self._opened.append(reader.connection)
        return reader

    async def _listen(self) -> None:
        self._refuse_if_closed()
        if not self._notifier.listening:
            await self._in_thread(self._readers, self._notifier.listen)

    async def _store_within(
        self,
        connection: object,
        jobs: Sequence[Job],
        operation: Operation[Transaction, Concatenate[Sequence[Job], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run in the caller's thread, which owns the connection. It is short: it only inserts."""
        self._refuse_if_closed()
        if not isinstance(connection, apsw.Connection):
            raise InvalidArgument(
                "connection",
                f"must be an apsw.Connection from backend.new_connection(), not {type(connection).__name__}: two "
                "SQLite libraries in one process on one file cancel each other's locks and corrupt it",
            )
        if not connection.in_transaction:
            raise InvalidArgument("connection", "has no transaction open; begin one with BEGIN IMMEDIATE first")
        if not self._is_ours(connection):
            raise InvalidArgument("connection", f"is open on {connection.filename}, not on {self.path}")
        with explained(self.path):
            connection.execute("SAVEPOINT enqueue")
            try:
                transaction = SQLiteTransaction(connection, self._clock)
                transaction.begin()
                transaction.now = self._clock.now()
                answer = operation.run(transaction, jobs, *args, **kwargs)
                transaction.finish()
            except BaseException:  # all or nothing, also if the caller commits
                if connection.in_transaction:
                    connection.execute("ROLLBACK TO enqueue")
                    connection.execute("RELEASE enqueue")
                raise
            connection.execute("RELEASE enqueue")
            self._file_identity.check()
        return answer

    def _is_ours(self, connection: apsw.Connection) -> bool:
        return Path(connection.filename).resolve() == self.path.resolve()

    def new_connection(self) -> apsw.Connection:
        """A connection to the queue's file for the caller's tables and transactions; the caller closes it."""
        self._refuse_if_closed()
        return self._open_writing()

    async def backup(self, target: str | Path) -> None:
        """Copy the file while it is in use. The copy is complete, and starts a new event log."""
        self._refuse_if_closed()
        await asyncio.get_running_loop().run_in_executor(None, self._copy, Path(target))

    def _copy(self, destination: Path) -> None:
        if destination.exists() or destination.is_symlink():
            raise InvalidArgument("target", f"{destination} exists already; name a new file")
        with explained(destination):
            unfinished = files.make_unfinished(destination)
        try:
            self._copy_into(unfinished, destination)
        except BaseException:
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{unfinished}{suffix}").unlink(missing_ok=True)
            raise
        unfinished.rename(destination)

    def _copy_into(self, unfinished: Path, destination: Path) -> None:
        with explained(destination):
            source, copy = self._open(), apsw.Connection(str(unfinished))
            try:
                source.execute("BEGIN")  # one snapshot: otherwise each commit restarts the copy
                source.execute(SQL.meta).fetchall()
                with copy.backup("main", source, "main") as backup:
                    while not backup.done:
                        backup.step(1_000)
                copy.execute(SQL.begin_new_log)
                copy.execute(SQL.mark_open, ("",))
                copy.pragma("journal_mode", "DELETE")
            finally:
                close_quietly(copy)
                close_quietly(source)

    async def schema_version(self) -> int:
        """The number of the last applied migration."""
        return await self._in_thread(self._readers, self._inspect, lambda file: int(file.pragma("user_version")))

    async def condition(self) -> Condition:
        """The file, its log, its disk, and the settings that durability depends on."""
        return await self._in_thread(self._readers, self._inspect, self._condition)

    def _condition(self, connection: apsw.Connection) -> Condition:
        return condition_of(self.path, connection, self._clock.wall(), read_only=self._read_only)

    def _inspect(self, read: Callable[[apsw.Connection], R]) -> R:
        """Read the file through a separate connection."""
        with explained(self.path):
            connection = self._open()
            try:
                return read(connection)
            finally:
                close_quietly(connection)

    def copy_out(self) -> AbstractContextManager[FileSource]:
        """A snapshot of the file, for `longshore.backends.data_migration.move`."""
        self._refuse_if_closed()
        return open_source(self.path, self._open, self._clock.wall)

    def copy_in(self) -> AbstractContextManager[FileTarget]:
        """A new file at this path, as the target of `longshore.backends.data_migration.move`."""
        self._refuse_if_closed()
        return open_target(self.path)

    def bulk_reader(self) -> AbstractContextManager[BulkReader]:
        """The file, read in bulk; needs the packages of `longshore[spark]`."""
        from longshore.backends.sqlite import export

        self._refuse_if_closed()
        return export.read(self.path, self._open)

    def _release_resources(self) -> None:
        self._writer.close()
        self._notifier.close()
        self._readers.shutdown()
        for connection in self._opened:
            close_quietly(connection)
        if self._prepared and self._vfs is None and not self._read_only and not self._file_identity.moved:
            with contextlib.suppress(BackendUnavailable):
                close_last(open_connection(self.path, busy_seconds=0))


def _log_step(micros: int) -> None:
    _log.warning("the clock was set back by %.1f seconds; continuing from the new time", micros / 1_000_000)
