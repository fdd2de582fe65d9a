"""Validation shared by every backend: names and ids, whole numbers, statuses, JSON payloads and addresses."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from json.decoder import JSONArray, JSONDecoder  # type: ignore[attr-defined] # missing from the stubs
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # as above
from typing import Any

import uuid_utils

from longshore.core.errors import InvalidArgument
from longshore.core.status import JobStatus

LARGE = 256 * 1024
"""Bytes from which incremental JSON is used: the C decoder holds the interpreter lock for a few milliseconds."""
_MANY_LISTS = 100_000
"""The C decoder builds about ten lists per microsecond."""
_PIECES = 1_000


def loads_incrementally(text: str, **hooks: Any) -> Any:
    """Like `json.loads`, but release the interpreter lock often: numbers and objects are decoded in Python.

    With many lists, these are decoded in Python too. That takes five times as long, but does not block other threads.
    """
    decoder = JSONDecoder(parse_float=_float, parse_int=_int, **hooks)
    if text.count("[") > _MANY_LISTS:
        decoder.parse_array = JSONArray  # type: ignore[attr-defined] # as in its __init__
        decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]  # as above
    return decoder.decode(text)


def _float(digits: str) -> float:
    return float(digits)


def _int(digits: str) -> int:
    return int(digits)


def dumps_incrementally(value: Any, **form: Any) -> str:
    """Like `json.dumps`, but release the interpreter lock often."""
    return "".join(_joined(json.JSONEncoder(**form).iterencode(value)))


def _joined(pieces: Iterator[str]) -> Iterator[str]:
    while some := "".join(islice(pieces, _PIECES)):
        yield some


LONGEST_NAME = 255
MOST_TAGS = 100
"""Tags of one job, and tags in one filter or claim."""
MOST_NAMES = 20_000
"""The most names in any other list: ids in one call, queues, dependencies of one job. A chord of 10,000 calls fits."""
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

RULE = f"must be text of 1 to {LONGEST_NAME} characters, without control characters and valid as Unicode"


def check_name(field: str, value: object) -> str:
    """Return the value if it is a valid name. Names are compared exactly, with no folding of case or Unicode form."""
    if not isinstance(value, str):
        raise InvalidArgument(field, f"{RULE}; got {type(value).__name__}")
    if not value:
        raise InvalidArgument(field, f"{RULE}; got empty text")
    if len(value) > LONGEST_NAME:
        raise InvalidArgument(field, f"{RULE}; got {len(value)} characters")
    if not value.isprintable():  # fast path for nearly every name; the pattern is the rule
        found = _FORBIDDEN.search(value)
        if found:
            raise InvalidArgument(field, f"{RULE}; got U+{ord(found.group()):04X} at position {found.start()}")
    return value


def check_names(field: str, values: object, *, most: int = MOST_NAMES) -> tuple[str, ...]:
    """Return valid names in the given order, without duplicates. Reject a bare string: it would be read letter by
    letter."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(field, f"must be a list of names, not {type(values).__name__}")
    given = list(islice(values, most + 1))
    if len(given) > most:
        count = len(values) if isinstance(values, Sized) else "more"
        raise InvalidArgument(field, f"must have at most {most} names, not {count}")
    return tuple(dict.fromkeys([check_name(field, value) for value in given]))


def check_tags(field: str, values: object) -> tuple[str, ...]:
    """Like `check_names`, for the tags of a job, a filter or a claim."""
    return check_names(field, values, most=MOST_TAGS)


def new_id() -> str:
    """A new UUIDv7: unique without coordination, and sorted by creation time."""
    return str(uuid_utils.uuid7())


LARGEST = 2**31 - 1
SMALLEST = -(2**31)
LAST_NUMBER = 2**62
"""The highest number of a job or an event. Values computed from it stay within 64 bits."""
USED_UP = "has no numbers left for jobs or events; create a new store"


def check_number(field: str, value: object, *, least: int = 0) -> int:
    """Check for an integer between `least` and the largest 32-bit one; reject True and False."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(field, f"must be a whole number, not {type(value).__name__}")
    if not least <= value <= LARGEST:
        raise InvalidArgument(field, f"must be between {least} and {LARGEST}, not {value}")
    return value


HIDDEN = "…"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^/:@\[\]]*)(?::[0-9]+)?"
_ADDRESS = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^@]*)?")


def shown_address(url: str) -> str:
    """The scheme, host and path of an address, without anything that may belong to a user name or password.

    A password with an unescaped `/`, `@` or `?` moves the boundaries of the address. Only the text after the last `@`
    is certain not to belong to it.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return HIDDEN
    if scheme == "sqlite":
        return url if rest.startswith("/") else f"sqlite://{HIDDEN}"
    before, _, query = rest.partition("?")
    address = before.rpartition("@")[2]
    certain = "@" not in query and _ADDRESS.fullmatch(address)
    return f"{scheme}://{address if certain else HIDDEN}"


LARGEST_PAYLOAD = 16 * 1024 * 1024
LARGEST_NOTE = 1024 * 1024
"""For progress, checkpoints and options: values that a worker writes often must stay small."""
LARGEST_DETAIL = 32 * 1024
"""For events that a worker writes: every reader of the event log receives them."""
LONGEST_TEXT = 64 * 1024
LONGEST_DETAIL_TEXT = 4 * 1024
"""Of one text in a detail: at most half of the limit, in any encoding."""
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
    """Check bytes against the size limit."""
    if type(value) is not bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgument(field, f"must be bytes, not {type(value).__name__}; encode it first, as JSON or text")
        value = bytes(value)
    if len(value) > limit:
        raise InvalidArgument(
            field, f"must be at most {limit} bytes, got {len(value)}; store it elsewhere and pass its address"
        )
    return value


def check_json(field: str, value: object, *, limit: int = LARGEST_PAYLOAD) -> bytes:
    """Encode as compact JSON, if every store and language decodes it to the same value."""
    _walk(field, value, 0)
    encoded = compact(value).encode()
    return encoded if len(encoded) <= limit else check_bytes(field, encoded, limit=limit)


def written_json(
    field: str, value: object, *, limit: int = LARGEST_PAYLOAD, write: Callable[[object], str] = compact
) -> bytes:
    """Like `check_json`, for a value from `read_json` or a part of one: it was checked when it was read."""
    return check_bytes(field, write(value).encode(), limit=limit)


def compact_incrementally(value: object) -> str:
    """Like `compact`, for a large value, without blocking other threads."""
    return dumps_incrementally(value, **_FORM)


def _walk(path: str, value: object, depth: int) -> None:
    if value is None or value is True or value is False:
        return
    if isinstance(value, str):
        found = _SURROGATE.search(value)
        if found:
            raise InvalidArgument(path, f"has a lone surrogate at position {found.start()}, which is not valid text")
    elif isinstance(value, int):
        if not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
            raise InvalidArgument(path, "is an integer beyond 64 bits; use a smaller number, or text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(path, f"is {json.dumps(value)}, which is not JSON; send null or text")
    elif depth >= DEEPEST:
        raise InvalidArgument(path, f"is nested deeper than {DEEPEST} levels")
    elif isinstance(value, _Doubled):
        raise InvalidArgument(path, f"has the key {value.key[:100]!r} twice; remove one")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(path, f"has the key {key!r}; JSON keys must be text")
            if not key.isascii():
                _walk(path, key, depth + 1)
            if not (type(inner) is str and inner.isascii()) and not _is_easy(inner):
                _walk(f"{path}.{key}", inner, depth + 1)
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            if not _is_easy(inner):
                _walk(f"{path}[{position}]", inner, depth + 1)
    else:
        remedy = "decode or base64-encode it" if isinstance(value, bytes) else "use text, numbers, lists or dicts"
        raise InvalidArgument(path, f"is of the Python type {type(value).__name__}, which is not JSON; {remedy}")


def _is_easy(value: object) -> bool:
    """Whether the value needs no further check: nearly every value is of this kind."""
    if isinstance(value, str):
        return value.isascii()
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER)


def read_json(field: str, encoded: bytes) -> Any:
    """Decode JSON bytes as strictly as `check_json` encodes, so that every language reads the same value."""

    read = json.loads if len(encoded) < LARGE else loads_incrementally
    try:
        value = read(encoded.decode(), object_pairs_hook=_keys_once)
    except RecursionError:
        raise InvalidArgument(field, f"is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise InvalidArgument(field, f"is not JSON: {error}") from None
    _walk(field, value, 0)
    return value


class _Doubled(dict[str, Any]):
    """An object with a repeated key; `_walk` rejects it, with its path."""

    key: str


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    doubled = _Doubled(pairs)
    doubled.key = Counter(key for key, _ in pairs).most_common(1)[0][0]
    return doubled


def pack(field: str, value: object) -> bytes:
    """Encode a checkpoint: as JSON, or as bytes after a NUL, which no JSON text starts with."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _RAW + check_bytes(field, value, limit=LARGEST_NOTE)
    return check_json(field, value, limit=LARGEST_NOTE)


def unpack(stored: bytes | None) -> Any:
    """The value that `pack` encoded."""
    if stored is None:
        return None
    return stored[1:] if stored[:1] == _RAW else json.loads(stored)


def clean_text(field: str, value: object, *, longest: int = LONGEST_TEXT) -> str:
    """Text of an error or a log line in a form that every store can keep. No content is rejected.

    A failure must not be lost because of its message. NUL and lone surrogates become U+FFFD, and long text is cut and
    marked.
    """
    if not isinstance(value, str):
        raise InvalidArgument(field, f"must be text, not {type(value).__name__}")
    if len(value) > longest and not _CUT.fullmatch(value, longest):  # do not cut a text twice
        value = f"{value[:longest]}… [cut: {len(value)} characters in all]"
    return value if value.isascii() and "\x00" not in value else _UNSTORABLE.sub("\ufffd", value)


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun: `1 job`, `2,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def printable(text: str) -> str:
    """Escape control characters, line ends and marks that change the text direction, for terminals and logs."""
    return text if text.isprintable() else "".join(map(_shown_letter, text))


def _shown_letter(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    return _SHORT.get(letter) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def check_status(field_name: str, value: object) -> JobStatus:
    """Return a status from a member or its name."""
    try:
        return JobStatus(str(value))
    except ValueError:
        known = ", ".join(JobStatus)
        raise InvalidArgument(field_name, f"must be one of {known}; got {value!r}") from None
