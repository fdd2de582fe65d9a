"""Strict JSON, opaque bytes, and text that every store can keep."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.validation import (
    DEEPEST,
    LARGEST_NOTE,
    LONGEST_TEXT,
    check_bytes,
    check_json,
    clean_text,
    pack,
    read_json,
    unpack,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def nested_objects(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


@given(JSON)
def test_what_goes_in_comes_back_the_same_to_the_sign_of_zero(value: Any) -> None:
    # M-JOB-04
    back = read_json("payload", check_json("payload", value))
    assert repr(back) == repr(value)


@given(JSON)
def test_the_form_is_compact_utf_8_that_any_reader_of_json_reads(value: Any) -> None:
    encoded = check_json("payload", value)
    assert json.loads(encoded.decode("utf-8")) == value
    assert encoded == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("number", [0, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.1, 5e-324, 1.7976931348623157e308])
def test_a_number_within_64_bits_is_kept_to_the_last_digit(number: float) -> None:
    assert read_json("payload", check_json("payload", [number])) == [number]


def test_minus_zero_stays_minus_zero() -> None:
    assert math.copysign(1, read_json("payload", check_json("payload", -0.0))) == -1


def test_a_nul_and_an_emoji_inside_a_text_are_kept() -> None:
    value = {"a\x00b": "🦆\x00\u2028"}
    assert read_json("payload", check_json("payload", value)) == value
    assert b"\x00" not in check_json("payload", value)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_a_tuple_comes_back_as_a_list_and_an_enumeration_as_its_value() -> None:
    value = {"pair": (1, 2), "colour": Colour.RED, "level": Level.HIGH}
    assert read_json("payload", check_json("payload", value)) == {"pair": [1, 2], "colour": "red", "level": 3}


# value -> the path in the error
NOT_JSON: dict[str, tuple[Any, str]] = {
    "NaN": ({"a": [1, float("nan")]}, "payload.a[1]"),
    "Infinity": ({"a": {"b": float("inf")}}, "payload.a.b"),
    "minus Infinity": ([[float("-inf")]], "payload[0][0]"),
    "an integer of 64 bits and one": ({"n": 2**63}, "payload.n"),
    "a negative integer beyond 64 bits": ({"n": -(2**63) - 1}, "payload.n"),
    "an integer of a thousand digits": ([10**1000], "payload[0]"),
    "a lone surrogate": ({"t": "ab\ud800"}, "payload.t"),
    "a lone surrogate in a key": ({"outer": {"\udfff": 1}}, "payload.outer"),
    "bytes": ({"b": b"raw"}, "payload.b"),
    "a datetime": ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "payload.at"),
    "a date": ([date(2026, 1, 1)], "payload[0]"),
    "a duration": ([timedelta(1)], "payload[0]"),
    "a decimal": ([Decimal("0.1")], "payload[0]"),
    "a UUID": ([UUID(int=1)], "payload[0]"),
    "a set": ({"s": {1}}, "payload.s"),
    "an object": ({"o": object()}, "payload.o"),
    "a function": (print, "payload"),
    "a mapping that is not a dict": (MappingProxyType({"a": 1}), "payload"),
    "a number as key": ({"a": {5: 1}}, "payload.a"),
    "None as key": ({None: 1}, "payload"),
    "a boolean as key": ([{True: 1}], "payload[0]"),
    "a tuple as key": ({(1, 2): 1}, "payload"),
}


@pytest.mark.parametrize(("value", "path"), NOT_JSON.values(), ids=NOT_JSON)
def test_what_json_does_not_have_is_refused_with_the_path_to_it(value: Any, path: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_json("payload", value)
    assert refusal.value.field == path


@pytest.mark.parametrize("depth", [1, DEEPEST])
def test_a_value_as_deep_as_allowed_is_kept(depth: int) -> None:
    for value in (nested(depth), nested_objects(depth)):
        assert read_json("payload", check_json("payload", value)) == value


@pytest.mark.parametrize("depth", [DEEPEST + 1, 10_000])
def test_a_value_nested_deeper_is_refused_on_both_ways_and_never_exhausts_the_stack(depth: int) -> None:
    with pytest.raises(InvalidArgument, match="deeper than 100") as refusal:
        check_json("payload", nested(depth))
    assert refusal.value.field.startswith("payload[0][0]")
    with pytest.raises(InvalidArgument, match="deeper than 100"):
        check_json("payload", nested_objects(depth))
    for encoded in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        with pytest.raises(InvalidArgument, match="deeper than 100"):
            read_json("payload", encoded)


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidArgument, match="deeper"):
        check_json("payload", circle)


# bytes -> the path in the error
NOT_STRICT: dict[str, tuple[bytes, str]] = {
    "NaN": (b'{"a":[1,NaN]}', "payload.a[1]"),
    "Infinity": (b'{"a":Infinity}', "payload.a"),
    "minus Infinity": (b"[-Infinity]", "payload[0]"),
    "a number too large for a float": (b'{"a":[1e400]}', "payload.a[0]"),
    "a doubled key": (b'{"outer":{"k":1,"k":1}}', "payload.outer"),
    "a doubled key written in two ways": (b'[{"k":1,"\\u006b":2}]', "payload[0]"),
    "an integer beyond 64 bits": (b'{"n":9223372036854775808}', "payload.n"),
    "an escaped lone surrogate": (b'{"t":"\\ud800"}', "payload.t"),
}


@pytest.mark.parametrize(("encoded", "path"), NOT_STRICT.values(), ids=NOT_STRICT)
def test_bytes_that_two_readers_would_read_differently_are_refused_with_the_path(encoded: bytes, path: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read_json("payload", encoded)
    assert refusal.value.field == path


NOT_READABLE = {
    "nothing": b"",
    "no JSON": b"hello",
    "cut off": b'{"a":',
    "something behind it": b"{} {}",
    "no UTF-8": b'"\xff"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a":1}'.encode("utf-16-le"),
    "UTF-32": '{"a":1}'.encode("utf-32"),
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "a number of 5000 digits": b"9" * 5000,
    "a trailing comma": b"[1,]",
    "a single quote": b"{'a':1}",
}


@pytest.mark.parametrize("encoded", NOT_READABLE.values(), ids=NOT_READABLE)
def test_what_is_not_json_in_utf_8_is_refused_and_never_guessed(encoded: bytes) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read_json("payload", encoded)
    assert refusal.value.field == "payload"


@given(st.binary(max_size=40))
def test_any_bytes_at_all_are_read_or_refused_and_nothing_else_happens(encoded: bytes) -> None:
    try:
        value = read_json("payload", encoded)
    except InvalidArgument:
        return
    assert read_json("payload", check_json("payload", value)) == value


def test_a_dict_keeps_the_order_of_its_keys() -> None:
    value = OrderedDict([("z", 1), ("a", 2)])
    assert list(read_json("payload", check_json("payload", value))) == ["z", "a"]


# -- sizes


@pytest.mark.parametrize("given_bytes", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_in_any_dress_are_taken_as_bytes(given_bytes: object) -> None:
    checked = check_bytes("payload", given_bytes)
    assert type(checked) is bytes
    assert checked == b"abc"


@pytest.mark.parametrize("value", ["text", None, 5, [1], {"a": 1}])
def test_what_is_no_bytes_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_bytes("payload", value)
    assert refusal.value.field == "payload"


@pytest.mark.parametrize(
    "check", [check_bytes, lambda field, value, limit: check_json(field, value.decode(), limit=limit)]
)
def test_a_size_is_allowed_up_to_its_limit_and_the_refusal_says_both(check: Callable[..., bytes]) -> None:
    quotes = 0 if check is check_bytes else 2
    assert len(check("result", b"x" * (100 - quotes), limit=100)) == 100
    with pytest.raises(InvalidArgument, match="at most 100 bytes, got 101"):
        check("result", b"x" * (101 - quotes), limit=100)


def test_a_payload_may_have_sixteen_mebibytes_and_not_a_byte_more() -> None:
    largest = bytes(16 * 1024 * 1024)
    assert check_bytes("payload", largest) is largest
    with pytest.raises(InvalidArgument, match="16777216"):
        check_bytes("payload", largest + b"x")


# -- checkpoints


@given(JSON | st.binary(max_size=20))
def test_a_checkpoint_comes_back_as_it_was_saved(value: Any) -> None:
    #
    back = unpack(pack("checkpoint", value))
    assert repr(back) == repr(value)


def test_no_checkpoint_is_none() -> None:
    assert unpack(None) is None


def test_a_checkpoint_has_its_own_size_limit() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        pack("checkpoint", b"x" * (LARGEST_NOTE + 1))
    assert refusal.value.field == "checkpoint"
    with pytest.raises(InvalidArgument):
        pack("checkpoint", {"at": datetime(2026, 1, 1, tzinfo=UTC)})


# -- text


@given(st.text(st.characters(), max_size=50))
def test_a_text_is_never_refused_for_what_is_in_it_and_every_store_can_keep_what_comes_out(text: str) -> None:
    cleaned = clean_text("error", text)
    assert "\x00" not in cleaned
    cleaned.encode("utf-8")
    assert len(cleaned) == len(text)
    kept = all(a == b or b == "\ufffd" for a, b in zip(text, cleaned, strict=True))
    assert kept


def test_only_nul_and_lone_surrogates_are_replaced() -> None:
    assert clean_text("error", "a\x00b") == "a\ufffdb"
    assert clean_text("error", "a\ud800b") == "a\ufffdb"
    assert clean_text("error", "a\r\n\x7fb") == "a\r\n\x7fb"
    assert clean_text("error", "a\x00b\ud800c\n\té🦆") == "a\ufffdb\ufffdc\n\té🦆"


def test_a_text_too_long_is_cut_with_a_mark_that_says_how_long_it_was() -> None:
    cleaned = clean_text("error", "x" * (LONGEST_TEXT + 5))
    assert cleaned.startswith("x" * LONGEST_TEXT)
    assert str(LONGEST_TEXT + 5) in cleaned
    assert len(cleaned) < LONGEST_TEXT + 100
    assert clean_text("error", "x" * LONGEST_TEXT) == "x" * LONGEST_TEXT


@pytest.mark.parametrize("value", [None, 5, b"bytes", ["text"], ValueError("x")])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        clean_text("error", value)
    assert refusal.value.field == "error"
