"""Opens the file: settings, migrations, and a clear error for each failure."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import quote

import apsw

from longshore.backends.sql.rows import DamagedRow
from longshore.backends.sql.statements import Migration, load_migrations, refuse_newer, refuse_other_lineage
from longshore.backends.sqlite import unclean_close
from longshore.backends.sqlite.files import beside, listening, make_private, refuse_planted
from longshore.core.errors import BackendUnavailable, LongshoreError

APPLICATION_ID = 0x4C6F6E67
"""Stored in the file's header ("Long"), so that the database of another program is recognised."""

MIGRATIONS = load_migrations("longshore.backends.sqlite")

PAGE_SIZE = 8_192
"""Twice SQLite's default: inserts of hundreds of jobs split and write half as many pages."""
Opener = Callable[[], apsw.Connection]


def open_connection(
    path: Path, *, busy_seconds: float, vfs: str | None = None, of_one_thread: bool = False
) -> apsw.Connection:
    """Open a connection with our settings; the file must exist already (see `prepare`).

    A connection that only one thread uses needs no mutex, which takes a twentieth of its time.
    """
    with explained(path):
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_NOMUTEX if of_one_thread else 0)
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
        connection.set_busy_handler(_busy_handler(busy_seconds))
        connection.pragma("synchronous", "FULL")
        connection.pragma("cache_size", -16_000)
        connection.pragma("temp_store", "MEMORY")
        if vfs is None:
            unclean_close.keep_log(connection)
        return connection


def open_read_only(path: Path, *, busy_seconds: float) -> apsw.Connection:
    """Open a read-only connection, for a store that this process cannot write.

    Without a log no process writes to the store, and SQLite can read it without creating other files.
    """
    log, index = beside(path, "-wal"), beside(path, "-shm")
    at_rest = not log.exists() or (log.stat().st_size == 0 and not index.exists())
    address = f"file:{quote(os.path.realpath(path))}?mode=ro{'&immutable=1' if at_rest else ''}"
    with explained(path):
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            connection.set_busy_handler(_busy_handler(busy_seconds))
            connection.pragma("cache_size", -16_000)
            connection.pragma("temp_store", "MEMORY")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
            close_quietly(connection)
            raise BackendUnavailable(
                f"{path} cannot be read here: its log {log.name} holds commits, and reading them needs write access. "
                f"Copy {path.name} and {log.name} together to a writable folder"
            ) from error
        except BaseException:
            close_quietly(connection)
            raise
        return connection


def check_read_only(path: Path, *, busy_seconds: float) -> None:
    """Refuse a file that is not a store of this version, because a read-only store cannot be migrated."""
    _check_location(path)
    unclean_close.refuse_foreign_log(path)
    with explained(path):
        connection = open_read_only(path, busy_seconds=busy_seconds)
        try:
            _refuse_foreign(connection, path)
            if int(connection.pragma("user_version")) < len(MIGRATIONS):
                raise BackendUnavailable(
                    f"{path} has an older schema and is read-only here; run longshore migrate where it is writable"
                )
        finally:
            close_quietly(connection)


def _busy_handler(seconds: float) -> Callable[[int], bool]:
    """Wait in short random steps, because the gap between two commits of a writer is short."""
    pause = threading.Event()
    began = 0.0

    def wait(attempts: int) -> bool:
        nonlocal began
        if attempts == 0:
            began = monotonic()
        if monotonic() - began > seconds:
            return False
        pause.wait(random.uniform(0.0005, 0.003))
        return True

    return wait


def prepare(path: Path, *, busy_seconds: float, vfs: str | None = None, create: bool = True) -> bool:
    """Create the file if it does not exist, and migrate its schema; several processes may do so at once.

    Return True if the store was not closed cleanly and its log is missing: the commits in the log are lost.
    """
    _check_location(path)
    if not create and not path.exists():
        raise BackendUnavailable(f"{path} does not exist; check the address, or create it with longshore migrate")
    if vfs is None:
        unclean_close.refuse_foreign_log(path)
    with explained(path):
        log_missing = vfs is None and unclean_close.log_is_missing(path)
        if vfs is None:
            unclean_close.refuse_second_index(path)
            make_private(path)  # SQLite would make it readable for all users; its log gets the same permissions
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
        try:
            connection.set_busy_handler(_busy_handler(busy_seconds))
            if vfs is None:
                unclean_close.keep_log(connection)
            _refuse_foreign(connection, path)
            connection.pragma("page_size", PAGE_SIZE)  # has an effect on a new file only
            if not _writes_ahead(connection, busy_seconds):
                raise BackendUnavailable(
                    f"{path} cannot use write-ahead logging here (a network file system?); put it on a local disk"
                )
            connection.pragma("synchronous", "FULL")
            log_lost = log_missing and unclean_close.was_left_open(connection, path)
            older = int(connection.pragma("user_version")) < len(MIGRATIONS)
            if vfs is None and older and unclean_close.has_mark(connection):
                unclean_close.mark_open(connection, path)
            for migration in MIGRATIONS:
                _apply(connection, migration)
            return log_lost
        finally:
            close_quietly(connection)


def _writes_ahead(connection: apsw.Connection, busy_seconds: float) -> bool:
    """Switch the file to write-ahead logging, and return whether it uses it."""
    until = monotonic() + busy_seconds
    while True:
        try:
            before: object = connection.pragma("journal_mode")
            after: object = before if before == "wal" else connection.pragma("journal_mode", "WAL")
            return after == "wal"
        except apsw.BusyError:  # another process switches it, and SQLite calls no busy handler here
            if monotonic() > until:
                raise
            threading.Event().wait(0.005)


def _apply(connection: apsw.Connection, migration: Migration) -> None:
    if int(connection.pragma("user_version")) >= migration.number:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if int(connection.pragma("user_version")) < migration.number:  # another process may have been here first
            connection.execute(migration.text)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", migration.number)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check_location(path: Path) -> None:
    if not path.parent.is_dir():
        how = f"create it, then try again (Longshore creates {path.name} itself)"
        raise BackendUnavailable(f"the folder {path.parent} does not exist; {how}")
    if path.is_dir():
        raise BackendUnavailable(f"{path} is a folder; name a file")
    refuse_planted(path)
    log = beside(path, "-wal")
    exists = path.exists()
    if not exists and beside(path, "-copying").exists():
        raise BackendUnavailable(f"the copy into {path} was not finished; run longshore migrate-data again to continue")
    # check again at the end: another process may be creating the store, and creates the file first
    if log.exists() and (not exists or (path.stat().st_size == 0 and log.stat().st_size > 0)):
        if path.exists() and path.stat().st_size > 0:
            return
        raise BackendUnavailable(
            f"{path} is missing but its log {log.name} exists: restore the file next to its log, or move the log away; "
            "a new empty database would lose the commits in the log"
        )
    if not exists and listening(Path(f"{path}-wake")) and not path.exists():
        raise BackendUnavailable(
            f"{path} is missing while another process uses it: stop that process, then restore the file from a backup, "
            "or create a new store"
        )


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # one snapshot: another process may be creating the file
    try:
        version = int(connection.pragma("user_version"))
        owner = int(connection.pragma("application_id"))
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        lineage = _lineage(connection) if owner == APPLICATION_ID else None
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
    if owner == APPLICATION_ID:
        refuse_other_lineage(lineage, str(path))
        refuse_newer(version, MIGRATIONS, str(path))
    elif tables != (0,):
        raise BackendUnavailable(f"{path} is a database of another program; choose a separate file for the queue")


def _lineage(connection: apsw.Connection) -> str | None:
    """The lineage in the file; None if `meta` lacks the column (a store of another lineage) or its row."""
    if connection.execute("SELECT 1 FROM pragma_table_info('meta') WHERE name = 'lineage'").fetchone() is None:
        return None
    row = connection.execute("SELECT lineage FROM meta").fetchone()
    return None if row is None else str(row[0])


_DAMAGED = "is damaged; it was not changed. Restore a backup, or recover what can be read"
_HOW_TO_GRANT = "run as its owner, or grant write access to the file and its folder"
READ_ONLY = f"cannot be written: the file or its folder is read-only; {_HOW_TO_GRANT}"

_WORDS: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.BusyError, "is locked for too long; find the process or connection that keeps a transaction open"),
    (apsw.LockedError, "is locked for too long; find the process or connection that keeps a transaction open"),
    (apsw.FullError, "cannot grow: the disk is full. Nothing was stored; free some space, then try again"),
    (apsw.ReadOnlyError, READ_ONLY),
    (apsw.CantOpenError, "cannot be opened: check its path and permissions"),
    (apsw.NotADBError, "is not a SQLite database; it was not changed. Check the path, or choose a new file"),
    (apsw.CorruptError, _DAMAGED),
    (apsw.IOError, "cannot be read or written: the disk reports an error"),
    (apsw.PermissionsError, f"cannot be written: permission denied; {_HOW_TO_GRANT}"),
)

_SYSTEM_ERRORS = {
    errno.ENOSPC: "cannot grow: the disk is full. Nothing was stored; free some space, then try again",
    errno.EROFS: READ_ONLY,
    errno.EIO: "cannot be read or written: the disk reports an error",
}


_UNREADABLE = (DamagedRow, UnicodeDecodeError, json.JSONDecodeError, OverflowError)
"""The errors of reading a damaged row."""


@contextmanager
def explained(path: Path, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Turn SQLite's errors into one sentence that names the file."""
    try:
        yield
    except Exception as error:
        explanation = explain(path, error, connection)
        if explanation is error:
            raise
        raise explanation from error


def explain(path: Path, error: BaseException, connection: apsw.Connection | None = None) -> BaseException:
    """The error for the caller; one that neither SQLite nor a damaged file caused is returned unchanged."""
    if isinstance(error, LongshoreError):
        return error
    if isinstance(error, apsw.Error):
        words = next((words for kind, words in _WORDS if isinstance(error, kind)), "cannot be used")
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_BUSY_SNAPSHOT:
            words = "changed after this transaction read it; begin the transaction with BEGIN IMMEDIATE"
        return BackendUnavailable(f"{path} {words} ({error})")
    if isinstance(error, OSError):
        words = _SYSTEM_ERRORS.get(error.errno or 0, "cannot be opened: check its path and permissions")
        return BackendUnavailable(f"{path} {words} ({error.strerror})")
    if isinstance(error, _UNREADABLE) or (connection is not None and not _is_sound(connection)):
        return BackendUnavailable(f"{path} {_DAMAGED} ({error})")
    return error


def _is_sound(connection: apsw.Connection) -> bool:
    """Tell a bug from a damaged file, after an unexpected error."""
    try:
        return connection.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
    except (apsw.CorruptError, apsw.NotADBError):
        return False
    except apsw.Error:  # the check could not run, which says nothing about the file
        return True


def close_quietly(connection: apsw.Connection) -> None:
    """Close a connection; an error of its last checkpoint must not hide another error."""
    with contextlib.suppress(apsw.Error):
        connection.close(True)
