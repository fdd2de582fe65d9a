"""Environment variables, read in one place."""

from __future__ import annotations

import os


def token() -> str | None:
    """LONGSHORE_TOKEN: The API token that `connect` sends to a server if you pass no `token`."""
    return os.environ.get("LONGSHORE_TOKEN") or None


def allow_network_file_system() -> bool:
    """LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM: `1` or `true` allows SQLite stores on NFS, SMB and 9p. Default: refused."""
    return os.environ.get("LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM", "").lower() in ("1", "true")
