"""What can be seen of a file and its log without touching a job."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw

from longshore.backends.sqlite.files import beside, permissions_of_others
from longshore.core.condition import Condition

_SYNCHRONOUS = ("off", "normal", "full", "extra")
"""As SQLite numbers them."""


def condition_of(path: Path, connection: apsw.Connection) -> Condition:
    """The facts, from a connection that is set up as all of ours are."""
    page = int(connection.pragma("page_size"))
    log = beside(path, "-wal")
    return Condition(
        engine="SQLite",
        version=tuple(int(part) for part in apsw.sqlite_lib_version().split(".")),
        schema_version=int(connection.pragma("user_version")),
        settings={
            "journal_mode": str(connection.pragma("journal_mode")),
            "synchronous": _SYNCHRONOUS[int(connection.pragma("synchronous"))],
        },
        size=page * int(connection.pragma("page_count")),
        unused=page * int(connection.pragma("freelist_count")),
        log_size=log.stat().st_size if log.exists() else 0,
        open_to_others=permissions_of_others(path),
        disk_free=shutil.disk_usage(path.parent).free,
    )
