"""The one rule for ids and names (of queues, types, tags, keys, workers): what is accepted, and the words for no."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized
from itertools import islice

import uuid_utils

from longshore.core.errors import InvalidArgument

LONGEST_NAME = 255
MOST_TAGS = 100
"""Tags of one job, and tags in one filter or claim."""
MOST_NAMES = 20_000
"""Names in any other list: job ids in one call, queues, the dependencies of one job. A chord of 10,000 calls fits."""
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


def check_names(field: str, values: object, *, most: int = MOST_NAMES) -> tuple[str, ...]:
    """Good names in the order given, each once. A bare string is refused: it would be read letter by letter."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(field, f"must be a list of names, not {type(values).__name__}")
    given = list(islice(values, most + 1))
    if len(given) > most:
        count = len(values) if isinstance(values, Sized) else "more"
        raise InvalidArgument(field, f"must have at most {most} of them, not {count}")
    return tuple(dict.fromkeys([check_name(field, value) for value in given]))


def check_tags(field: str, values: object) -> tuple[str, ...]:
    """As `check_names`, for the tags of a job, a filter or a claim."""
    return check_names(field, values, most=MOST_TAGS)


def new_id() -> str:
    """A fresh UUIDv7: unique with no coordination, and sorted by time of making."""
    return str(uuid_utils.uuid7())
