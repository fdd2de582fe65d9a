"""What a job's options say of its own removal, once it is COMPLETED or DEAD."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from longshore.core.errors import InvalidArgument
from longshore.core.lifecycle import JobStatus
from longshore.core.numbers import LARGEST

_OPTIONS = {JobStatus.COMPLETED: "remove_on_complete", JobStatus.DEAD: "remove_on_fail"}


def check_removal(options: Mapping[str, Any]) -> None:
    """Refuses what is neither True (remove it), False (leave it) nor how many are kept."""
    for name in _OPTIONS.values():
        value = options.get(name, False)
        if not isinstance(value, bool) and not (isinstance(value, int) and 0 <= value <= LARGEST):
            raise InvalidArgument(
                f"options.{name}", f"must be True, False, or how many to keep, from 0 to {LARGEST}; got {value!r}"
            )


def kept_after(status: JobStatus, options: str) -> int | None:
    """How many of its queue a job that just came to this status leaves in it: 0 is not even itself, None is all."""
    name = _OPTIONS.get(status)
    if name is None or f'"{name}"' not in options:
        return None
    value = json.loads(options).get(name, False)
    if isinstance(value, bool):
        return 0 if value else None
    return int(value)
