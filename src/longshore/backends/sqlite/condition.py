"""What can be seen of a file and its log without touching a job."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw

from longshore.backends.sqlite.file_system import file_system_under, risk_of
from longshore.backends.sqlite.files import beside, permissions_of_others
from longshore.backends.sqlite.statements import SQL
from longshore.backends.sqlite.view import step_of_row
from longshore.core.health import Condition
from longshore.core.times import SECOND, from_micros

_SYNCHRONOUS = ("off", "normal", "full", "extra")
"""As SQLite numbers them."""
_REPORTED_FOR = 7 * 86_400 * SECOND
"""For how long a lost log is reported."""


def condition_of(path: Path, connection: apsw.Connection, now: int, *, read_only: bool = False) -> Condition:
    """The facts, from a connection that is set up as all of ours are."""
    page = int(connection.pragma("page_size"))
    ((_, log_lost_at),) = connection.execute(SQL.opening)
    log = beside(path, "-wal")
    file_system = file_system_under(path)
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
        file_system_risk=risk_of(file_system),
        open_to_others=permissions_of_others(path),
        disk_free=shutil.disk_usage(path.parent).free,
        clock_step=None if step is None else step_of_row(step),
        newest=from_micros(newest) if newest else None,
    )
