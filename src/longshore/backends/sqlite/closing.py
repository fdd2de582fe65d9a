"""Evidence of an unclean close: a mark in the store from the first write of any process to the last clean close.

The mark is checkpointed into the store itself before anything is acknowledged. It is removed only under an exclusive
lock, together with the log. Other connections never remove the log when they close. So a marked store without a log was
not closed, and the commits of its log are lost. The mark is the file's inode: a copy of the store is not marked.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import apsw

from longshore.backends.sqlite.files import beside, identity
from longshore.backends.sqlite.statements import SQL

_ATTEMPTS = 100


def keep_log(connection: apsw.Connection, keep: bool = True) -> None:
    """Whether the log stays when this connection is the last one to close."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(keep))


def log_is_missing(path: Path) -> bool:
    """Whether there is a store without a log; asked before the first connection, which makes an empty one."""
    return identity(path) is not None and identity(beside(path, "-wal")) is None


def was_left_open(connection: apsw.Connection, path: Path) -> bool:
    """Whether a store whose log was missing is marked; not if another process has begun to write it since."""
    try:
        if not _is_marked(connection, path):
            return False
    except apsw.SQLError:  # a schema from before the mark
        return False
    log = beside(path, "-wal")
    return not log.exists() or log.stat().st_size == 0


def mark_open(connection: apsw.Connection, path: Path) -> None:
    """Marks the store, durably in the file itself; of no cost if another process did so."""
    if not _is_marked(connection, path):
        connection.execute(SQL.mark_open, (_mark(path),))
        checkpoint(connection)


def checkpoint(connection: apsw.Connection) -> None:
    """Copies the log into the store as far as readers allow; an error must not hide another."""
    for _ in range(_ATTEMPTS):
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:  # another checkpoint is under way, and SQLite asks no busy handler here
            threading.Event().wait(0.005)
        except apsw.Error:
            return
        else:
            return


def close_last(connection: apsw.Connection) -> None:
    """Closes it; if no other process or connection has the store open, the mark and the log go with it."""
    try:
        with contextlib.suppress(apsw.Error):  # another has it open, or it cannot be written: the log stays
            connection.set_busy_handler(None)
            ((mark, _),) = connection.execute(SQL.opening)
            connection.pragma("locking_mode", "EXCLUSIVE")
            connection.execute("BEGIN IMMEDIATE")
            if mark:
                connection.execute(SQL.mark_open, ("",))
            connection.execute("COMMIT")
            keep_log(connection, keep=False)
    finally:
        with contextlib.suppress(apsw.Error):
            connection.close(True)


def _is_marked(connection: apsw.Connection, path: Path) -> bool:
    ((mark, _),) = connection.execute(SQL.opening)
    return bool(mark) and mark == _mark(path)


def _mark(path: Path) -> str:
    found = identity(path)
    return "" if found is None else str(found[1])
