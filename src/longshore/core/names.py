"""The one rule for ids and names (of queues, types, tags, keys, workers): what is accepted, and the words for no."""

from __future__ import annotations

import re
from collections.abc import Iterable

import uuid_utils

from longshore.core.errors import InvalidArgument

LONGEST_NAME = 255
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

RULE = f"must be text of 1 to {LONGEST_NAME} characters, without control characters and valid as Unicode"


def check_name(field: str, value: object) -> str:
    """The value itself if it is a good name; names are compared as they are, with no folding of case or form."""
    if not isinstance(value, str):
        raise InvalidArgument(field, f"{RULE}; got {type(value).__name__}")
    if not value:
        raise InvalidArgument(field, f"{RULE}; got an empty one")
    if len(value) > LONGEST_NAME:
        raise InvalidArgument(field, f"{RULE}; got {len(value)} characters")
    if not value.isprintable():  # the quick way past nearly every name; the pattern is the rule
        found = _FORBIDDEN.search(value)
        if found:
            raise InvalidArgument(field, f"{RULE}; got U+{ord(found.group()):04X} at position {found.start()}")
    return value


def check_names(field: str, values: object) -> tuple[str, ...]:
    """Good names in the order given, each once. A bare string is refused: it would be read letter by letter."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(field, f"must be a list of names, not {type(values).__name__}")
    return tuple(dict.fromkeys([check_name(field, value) for value in values]))


def new_id() -> str:
    """A fresh UUIDv7: unique with no coordination, and sorted by time of making."""
    return str(uuid_utils.uuid7())
