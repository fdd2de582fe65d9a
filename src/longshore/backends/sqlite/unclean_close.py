"""Detects an unclean close by a mark that the first write of any process sets."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import apsw

from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.files import beside, identity
from longshore.core.errors import BackendUnavailable

_ATTEMPTS = 100
_CLOSED = "closed"
_HEADER_OF_LOG, _HEADER_OF_FRAME = 32, 24
_MOST_RESTARTS = 2**20
"""A new log has a random salt, and each restart from its beginning adds 1."""
_WITHOUT_LOG: dict[tuple[int, int], apsw.Connection] = {}
"""Connections that read a store without its log. They stay open: closing one would drop this process's locks."""


def keep_log(connection: apsw.Connection, keep: bool = True) -> None:
    """Set whether the log stays when this connection is the last one to close."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(keep))


def log_is_missing(path: Path) -> bool:
    """Whether a store has no log, or an empty one, which a marked store never has.

    Call it before the first connection, which creates an empty log.
    """
    return path.exists() and _log_is_empty(path)


def was_left_open(connection: apsw.Connection, path: Path) -> bool:
    """Whether a store whose log was missing is marked, and no other process has written to it since."""
    return has_mark(connection) and _is_marked(connection, path) and _log_is_empty(path)


def has_mark(connection: apsw.Connection) -> bool:
    """Whether the store's schema has the mark. The schema of an older release or of a new store does not have it
    yet."""
    return connection.execute(SQL.has_open_mark).fetchone() is not None


def mark_open(connection: apsw.Connection, path: Path) -> None:
    """Mark the store as open in the file, unless another process did so."""
    if not _is_marked(connection, path):
        ((before, _),) = connection.execute(SQL.open_mark)
        token = before.split()[-1] if before else secrets.token_hex(8)
        for _ in range(2):  # the log has a salt from its first commit on
            log = identity(beside(path, "-wal"))
            mark = f"{_inode(path)} {log[1] if log else 0} {_salt_of_log(path)} {token}"
            connection.execute(SQL.mark_open, (mark,))
        checkpoint(connection)


def checkpoint(connection: apsw.Connection) -> None:
    """Copy the log into the store as far as readers allow. Errors are ignored: the log keeps the rest."""
    for _ in range(_ATTEMPTS):
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:  # another checkpoint runs, and SQLite calls no busy handler here
            threading.Event().wait(0.005)
        except apsw.Error:
            return
        else:
            return


def close_last(connection: apsw.Connection) -> None:
    """Close the connection, and remove the mark and the log if it was the last one to the store."""
    try:
        with contextlib.suppress(apsw.Error):  # another connection is open, or the store is read-only: the log stays
            connection.set_busy_handler(None)
            ((mark, _),) = connection.execute(SQL.open_mark)
            connection.pragma("locking_mode", "EXCLUSIVE")
            connection.execute("BEGIN IMMEDIATE")
            if mark and not mark.startswith(_CLOSED):
                connection.execute(SQL.mark_open, (f"{_CLOSED} {secrets.token_hex(8)}",))
            connection.execute("COMMIT")
            keep_log(connection, keep=False)
    finally:
        with contextlib.suppress(apsw.Error):
            connection.close(True)


def refuse_foreign_log(path: Path) -> None:
    """Refuse a store next to the log of another file, like a restored backup: SQLite would damage it.

    Call it before the first connection, which reads the log as if it belonged to the store.
    """
    for _ in range(3):  # another process may open or close the store at this moment
        if not _log_is_foreign(path):
            return
        threading.Event().wait(0.05)
    log = beside(path, "-wal")
    store = log.name.removesuffix("-wal")
    raise BackendUnavailable(
        f"{log} belongs to another file than {store} and would damage it. Nothing was changed. If {store} was restored "
        f"from a backup, move {log.name} and {store}-shm away, then start again. If it is the log of this file, "
        f"apply it with: sqlite3 {store} 'PRAGMA wal_checkpoint(TRUNCATE)'"
    )


def refuse_second_index(path: Path) -> None:
    """Refuse to create an index of the log if a running process uses one that was removed.

    With two indexes, processes would overwrite each other's commits.
    """
    log, index = beside(path, "-wal"), beside(path, "-shm")
    for _ in range(_ATTEMPTS):
        if not log.exists() or index.exists():
            return
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            keep_log(connection)
            connection.pragma("locking_mode", "EXCLUSIVE")  # needs no index, and fails if any other connection is open
            connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
        except apsw.BusyError:  # or another process opens the store at this time
            threading.Event().wait(0.005)
        else:
            return
        finally:
            connection.close(True)
    raise BackendUnavailable(
        f"{index} is missing while another process uses the store, and jobs would be lost. Stop all processes that use "
        "the store, then start them again"
    )


def _log_is_foreign(path: Path) -> bool:
    log, store = identity(beside(path, "-wal")), identity(path)
    if log is None or store is None or next(_pages_in_log(path), None) is None:
        return False
    try:
        connection = _without_log(path, store)
        _, header = connection.read("main", 0, 0, 100)
        if header[18:20] == b"\x01\x01":  # not in write-ahead mode: a copy that SQLite created
            return True
        parts = str(connection.execute(SQL.open_mark).fetchall()[0][0]).split()
    except (apsw.Error, IndexError):  # created by an older release, or a checkpoint is running
        return False
    if len(parts) < 2 or parts[0] == str(store[1]):  # never written, or this file itself
        return False
    if any(parts[-1].encode() in page for page in _pages_in_log(path)):  # the log has every change since this state
        return False
    if parts[0] == _CLOSED:
        return True
    return parts[1] == str(log[1]) or (_salt_of_log(path) - int(parts[2])) % 2**32 > _MOST_RESTARTS


def _without_log(path: Path, store: tuple[int, int]) -> apsw.Connection:
    """A connection that reads the store without its log."""
    connection = _WITHOUT_LOG.get(store)
    if connection is None:
        address = f"file:{quote(os.path.realpath(path))}?mode=ro&immutable=1"
        connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        _WITHOUT_LOG[store] = connection
    connection.release_memory()  # SQLite does not check whether such a file has changed
    return connection


def _pages_in_log(path: Path) -> Iterator[bytes]:
    """The pages that SQLite would copy from the log into the store."""
    try:
        with beside(path, "-wal").open("rb") as log:
            header = log.read(_HEADER_OF_LOG)
            size = _HEADER_OF_FRAME + int.from_bytes(header[8:12], "big")
            while len(frame := log.read(size)) == size and frame[8:16] == header[16:24]:
                yield frame[_HEADER_OF_FRAME:]
    except OSError:  # another process closed the store
        return


def _log_is_empty(path: Path) -> bool:
    try:
        return beside(path, "-wal").stat().st_size == 0
    except FileNotFoundError:
        return True


def _salt_of_log(path: Path) -> int:
    with contextlib.suppress(OSError), beside(path, "-wal").open("rb") as log:
        return int.from_bytes(log.read(_HEADER_OF_LOG)[16:20], "big")
    return 0


def _is_marked(connection: apsw.Connection, path: Path) -> bool:
    ((mark, _),) = connection.execute(SQL.open_mark)
    return bool(mark) and mark.split()[0] == _inode(path)


def _inode(path: Path) -> str:
    found = identity(path)
    return "" if found is None else str(found[1])
