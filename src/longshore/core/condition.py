"""What a store tells of its own condition: plain facts, which `core/diagnosis.py` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.core.clock import ClockStep


class Rows(NamedTuple):
    """How many rows of a table are in use, and how many are only waiting to be swept away."""

    live: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One look at a store. What a store does not know of itself stays as it is here, and is not judged."""

    engine: str
    """Like `SQLite`."""
    version: tuple[int, ...]
    schema_version: int
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those on which durability hangs, each as the store says it."""
    size: int = 0
    """Bytes."""
    unused: int = 0
    """Bytes of it that hold nothing any more."""
    log_size: int | None = None
    """Bytes of a log that is folded into the rest now and then."""
    disk_free: int | None = None
    read_only: bool = False
    """Whether this process can only read it."""
    file_system: str | None = None
    """The type of the file system under the store, like `ext4`."""
    file_system_risk: str = ""
    """The risk of this file system; empty if none is known."""
    log_lost_at: datetime | None = None
    """When the log was found missing after an unclean close, if that was in the last 7 days."""
    open_to_others: Mapping[str, int] = field(default_factory=dict)
    """The store's files that other users may read or write, with their permission bits."""
    tables: Mapping[str, Rows] = field(default_factory=dict)
    held_for: timedelta | None = None
    """For how long the oldest transaction keeps old rows from being swept away."""
    held_by: str = ""
    clock_step: ClockStep | None = None
    """The last step of the machine's clock that the store detected."""
    restored_at: datetime | None = None
    """When the store detected, within the last week, that it was replaced by an older copy."""
    newest: datetime | None = None
    """The time of the newest event or heartbeat."""
