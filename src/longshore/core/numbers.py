"""The bounds of whole numbers: what every store can hold. `core/names.py` has those of names and lists of names."""

from __future__ import annotations

from longshore.core.errors import InvalidArgument

LARGEST = 2**31 - 1
SMALLEST = -(2**31)
LAST_NUMBER = 2**62
"""The highest number of a job or an event. Values computed from it stay within 64 bits."""
USED_UP = "has no numbers left for jobs or events; create a new store"


def check_number(field: str, value: object, *, least: int = 0) -> int:
    """A whole number between `least` and what 32 bits hold; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(field, f"must be a whole number, not {type(value).__name__}")
    if not least <= value <= LARGEST:
        raise InvalidArgument(field, f"must be between {least} and {LARGEST}, not {value}")
    return value
