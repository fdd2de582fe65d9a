"""Results handed on: where in a job's arguments the results of jobs it depends on belong, kept as one of its options.

An entry is `[path, first, count]`: the result of dependency number `first` belongs at this path into the arguments, and
those of the next ones at the places after it. A list of ten thousand results is one entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from longshore.core.errors import InvalidArgument

INPUTS = "inputs"
"""The job option."""

Step = str | int
Path = tuple[Step, ...]


def packed(wanted: Iterable[tuple[Path, int]]) -> list[list[Any]]:
    """Places and numbers of dependencies as the option holds them."""
    entries: list[list[Any]] = []
    for path, number in wanted:
        if entries and _follows(entries[-1], path, number):
            entries[-1][2] += 1
        else:
            entries.append([list(path), number, 1])
    return entries


def _follows(entry: list[Any], path: Path, number: int) -> bool:
    begun, first, count = entry
    *within, place = begun
    return (
        type(place) is int
        and number == first + count
        and list(path[:-1]) == within
        and type(path[-1]) is int
        and path[-1] == place + count
    )


def unpacked(inputs: object) -> Iterator[tuple[Path, int]]:
    """The option as places and numbers of dependencies; InvalidArgument for what was never packed."""
    if not isinstance(inputs, list):
        raise InvalidArgument(f"options.{INPUTS}", f"must be a list of [path, first, count], not {inputs!r}")
    for position, entry in enumerate(inputs):
        match entry:
            case [[*within, int(place)], int(first), int(count)] if first >= 0 and count > 0:
                for offset in range(count):
                    yield (*within, place + offset), first + offset
            case [[*within, str(name)], int(first), 1] if first >= 0:
                yield (*within, name), first
            case _:
                raise InvalidArgument(f"options.{INPUTS}[{position}]", f"must be [path, first, count], not {entry!r}")


def fill_in(data: Any, inputs: object, value_of: Callable[[int], Any]) -> None:
    """Puts the results into the arguments, which have a null at each of these places."""
    for path, number in unpacked(inputs):
        *within, last = path
        place = data
        try:
            for step in within:
                place = place[step]
            if place[last] is not None:
                raise KeyError(last)
        except (LookupError, TypeError):
            told = "".join(f"[{step!r}]" for step in path)
            raise InvalidArgument(f"options.{INPUTS}", f"the arguments have no place for a result at {told}") from None
        place[last] = value_of(number)


def spliced(payload: bytes, inputs: object, result_of: Callable[[int], bytes | None]) -> bytes:
    """The payload with results in their places, as they were stored: large ones are not read and written again."""
    data = json.loads(payload)
    mark = "\x00"
    while json.dumps(mark)[1:-1].encode() in payload:  # so that nothing in it can be taken for a place
        mark += "\x00"
    fill_in(data, inputs, lambda number: f"{mark}{number}")
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    place = re.compile(rb'"' + re.escape(json.dumps(mark)[1:-1].encode()) + rb'(\d+)"')
    pieces = place.split(written)
    pieces[1::2] = [result_of(int(number)) or b"null" for number in pieces[1::2]]
    return b"".join(pieces)
