"""What an audit may take for certain of a log that goes on while it is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.backends.export import Place

SWEPT_WITHIN = timedelta(seconds=60)
"""How long after the end of a lease somebody must have taken the job back."""


@dataclass(frozen=True)
class Certainty:
    """Where log and jobs can be held against each other. As it stands: everywhere, they are one picture."""

    until: Place | None = None
    """Up to here every event was committed before the jobs were read; what comes after is left to the next audit."""
    covered: bool = True
    """Whether the log that is read reaches as far as the jobs that were read."""
    now: datetime | None = None
    """When the jobs were read, by the store's own clock: leases are judged by it."""
    swept_within: timedelta = SWEPT_WITHIN
