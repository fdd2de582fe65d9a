"""Reads and writes large JSON in steps, so that a deadline or a cancellation takes effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from json.decoder import JSONArray, JSONDecoder  # type: ignore[attr-defined]  # the stubs leave one of them out
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # as above
from typing import Any

LARGE = 256 * 1024
"""Bytes from which on it matters: C reads so many in a few milliseconds, as long as one waits for another thread."""
_MANY_LISTS = 100_000
"""Of which C makes ten in a microsecond."""
_PIECES = 1_000


def read_patiently(text: str, **hooks: Any) -> Any:
    """As `json.loads`: numbers are read one by one and objects made by a hook, so lists and texts alone are in C.

    Many lists are not: it takes five times as long then, and holds up nobody.
    """
    decoder = JSONDecoder(parse_float=_float, parse_int=_int, **hooks)
    if text.count("[") > _MANY_LISTS:
        decoder.parse_array = JSONArray  # type: ignore[attr-defined]  # as in its __init__
        decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]  # as above
    return decoder.decode(text)


def _float(digits: str) -> float:
    return float(digits)


def _int(digits: str) -> int:
    return int(digits)


def write_patiently(value: Any, **form: Any) -> str:
    """As `json.dumps`."""
    return "".join(_joined(json.JSONEncoder(**form).iterencode(value)))


def _joined(pieces: Iterator[str]) -> Iterator[str]:
    while some := "".join(islice(pieces, _PIECES)):
        yield some
