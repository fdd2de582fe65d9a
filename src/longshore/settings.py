"""Environment variables, read in one place."""

from __future__ import annotations

import os


def token() -> str | None:
    """Return LONGSHORE_TOKEN: the API token for servers, if `connect` gets none."""
    return os.environ.get("LONGSHORE_TOKEN") or None


def allow_network_file_system() -> bool:
    """Whether LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM=1 allows SQLite stores on NFS, SMB and 9p, by default."""
    return os.environ.get("LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM", "").lower() in ("1", "true")
