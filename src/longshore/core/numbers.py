"""The rule for whole numbers: what every store can hold."""

from __future__ import annotations

from longshore.core.errors import InvalidArgument

LARGEST = 2**31 - 1
SMALLEST = -(2**31)


def check_number(field: str, value: object, *, least: int = 0) -> int:
    """A whole number between `least` and what 32 bits hold; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(field, f"must be a whole number, not {type(value).__name__}")
    if not least <= value <= LARGEST:
        raise InvalidArgument(field, f"must be between {least} and {LARGEST}, not {value}")
    return value
