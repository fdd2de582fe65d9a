"""Stand-ins for what stores are about to offer themselves; this room goes when all of them do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from longshore.backends.contract import Backend
from longshore.core.clock import Clock, micros_of
from longshore.core.moments import from_micros


async def now(backend: Backend) -> datetime:
    """The store's own time."""
    verb: Any = getattr(backend, "now", None)
    if verb is not None:
        moment: datetime = await verb()
        return moment
    clock: Any = getattr(backend, "_clock", None)
    if clock is None or hasattr(clock, "now"):
        given: Clock | None = clock
        return from_micros(micros_of(given)())
    return from_micros(clock())
