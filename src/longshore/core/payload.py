"""What may be inside a job: the size limits, the strict JSON that every store keeps alike, and text made safe."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from longshore.core.errors import InvalidArgument
from longshore.core.patience import LARGE, read_patiently, write_patiently

LARGEST_PAYLOAD = 16 * 1024 * 1024
LARGEST_NOTE = 1024 * 1024
"""For progress, checkpoints and options: what a worker writes often must stay small."""
LARGEST_DETAIL = 32 * 1024
"""For what a worker writes into the log beside its jobs: everybody who follows the log is sent it, and keeps it."""
LONGEST_TEXT = 64 * 1024
LONGEST_DETAIL_TEXT = 4 * 1024
"""Of a text within a detail: at most half of it, whatever it is written in."""
DEEPEST = 100
_LARGEST_INTEGER = 2**63 - 1
_SMALLEST_INTEGER = -(2**63)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CUT = re.compile(r"… \[cut: \d{1,20} characters in all\]")
_RAW = b"\x00"
_FORM: Any = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
compact = json.JSONEncoder(**_FORM).encode

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def check_bytes(field: str, value: object, *, limit: int = LARGEST_PAYLOAD) -> bytes:
    """Opaque bytes within the size limit."""
    if type(value) is not bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgument(field, f"must be bytes, not {type(value).__name__}; encode it first, as JSON say")
        value = bytes(value)
    if len(value) > limit:
        raise InvalidArgument(
            field, f"must be at most {limit} bytes, got {len(value)}; store it elsewhere and pass its address"
        )
    return value


def check_json(field: str, value: object, *, limit: int = LARGEST_PAYLOAD) -> bytes:
    """The value as compact JSON bytes, if every store and language would give back the same value."""
    _walk(field, value, 0)
    return written_json(field, value, limit=limit)


def written_json(
    field: str, value: object, *, limit: int = LARGEST_PAYLOAD, write: Callable[[object], str] = compact
) -> bytes:
    """As above, of a value that `read_json` gave, or a part of one: it was judged when it was read."""
    return check_bytes(field, write(value).encode(), limit=limit)


def compact_patiently(value: object) -> str:
    """As `compact`, for a large value, written beside others who go on."""
    return write_patiently(value, **_FORM)


def _walk(path: str, value: object, depth: int) -> None:
    if value is None or value is True or value is False:
        return
    if isinstance(value, str):
        found = _SURROGATE.search(value)
        if found:
            raise InvalidArgument(path, f"holds a lone surrogate at position {found.start()}, which is not valid text")
    elif isinstance(value, int):
        if not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
            raise InvalidArgument(path, "is an integer beyond 64 bits; use a smaller number, or text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(path, f"is {value}, which JSON does not have; pass None or text")
    elif depth >= DEEPEST:
        raise InvalidArgument(path, f"is nested deeper than {DEEPEST} levels")
    elif isinstance(value, _Doubled):
        raise InvalidArgument(path, "has the same key twice")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(path, f"has the key {key!r}; JSON keys must be text")
            if not key.isascii():
                _walk(path, key, depth + 1)
            if not _is_easy(inner):
                _walk(f"{path}.{key}", inner, depth + 1)
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            if not _is_easy(inner):
                _walk(f"{path}[{position}]", inner, depth + 1)
    else:
        raise InvalidArgument(path, f"is a {type(value).__name__}, which is not JSON; convert it to text or numbers")


def _is_easy(value: object) -> bool:
    """Whether it is what nearly every value is, and needs no closer look nor a name for the place it stands in."""
    if isinstance(value, str):
        return value.isascii()
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER)


def read_json(field: str, encoded: bytes) -> Any:
    """The value inside JSON bytes, as strict as `check_json`: one reading for every language."""

    read = json.loads if len(encoded) < LARGE else read_patiently
    try:
        value = read(encoded.decode(), object_pairs_hook=_keys_once)
    except RecursionError:
        raise InvalidArgument(field, f"is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise InvalidArgument(field, f"is not JSON: {error}") from None
    _walk(field, value, 0)
    return value


class _Doubled(dict[str, Any]):
    """An object that had a key twice; `_walk` refuses it where it stands."""


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(pairs)


def pack(field: str, value: object) -> bytes:
    """A checkpoint as stored: JSON, or bytes behind a NUL, with which no JSON begins."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _RAW + check_bytes(field, value, limit=LARGEST_NOTE)
    return check_json(field, value, limit=LARGEST_NOTE)


def unpack(stored: bytes | None) -> Any:
    """What `pack` was given."""
    if stored is None:
        return None
    return stored[1:] if stored[:1] == _RAW else json.loads(stored)


def clean_text(field: str, value: object, *, longest: int = LONGEST_TEXT) -> str:
    """Text from an error or a log line, as every store can keep it: never refused for what is in it.

    A failure must not be lost because its message is odd, so NUL and lone surrogates become U+FFFD and what is too
    long is cut with a mark.
    """
    if not isinstance(value, str):
        raise InvalidArgument(field, f"must be text, not {type(value).__name__}")
    if len(value) > longest and not _CUT.fullmatch(value, longest):  # one that was cut is not cut again
        value = f"{value[:longest]}… [cut: {len(value)} characters in all]"
    return value if value.isascii() and "\x00" not in value else _UNSTORABLE.sub("\ufffd", value)


def printable(text: str) -> str:
    """Escapes control characters, line ends and marks that change the text direction, for terminals and logs."""
    return text if text.isprintable() else "".join(map(_shown_letter, text))


def _shown_letter(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    return _SHORT.get(letter) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )
