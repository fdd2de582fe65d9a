"""The environment, read in one place."""

from __future__ import annotations

import os


def token() -> str | None:
    """LONGSHORE_TOKEN: the API token for servers, where `connect` is given none."""
    return os.environ.get("LONGSHORE_TOKEN") or None
