"""The one rule for ids and names."""

from __future__ import annotations

import unicodedata
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.validation import LONGEST_NAME, RULE, check_name, check_names, new_id

CONTROL = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
SURROGATES = [chr(code) for code in (0xD800, 0xDBFF, 0xDC00, 0xDFFF)]

GOOD = {
    "a space": " ",
    "a zero": "0",
    "the longest": "x" * 255,
    "the longest in four bytes each": "🦆" * 255,
    "an emoji of several parts": "👩‍🚀",
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd",
    "a path upwards": "../../etc/passwd",
    "an escaped path": "%2e%2e%2f",
    "a slash": "a/b",
    "quotes and SQL": "'; DROP TABLE jobs; --",
    "a trailing dot": "name.",
    "a no-break space": "\u00a0",
    "a line separator, which is not a control character": "\u2028",
    "a private character": "\ue000",
    "an unassigned character": "\U0003fffd",
    "the byte order mark": "\ufeff",
}


@pytest.mark.parametrize("name", GOOD.values(), ids=GOOD)
def test_a_name_of_valid_characters_is_accepted_unchanged(name: str) -> None:
    assert check_name("id", name) == name


@pytest.mark.parametrize("character", CONTROL + SURROGATES, ids=lambda character: f"U+{ord(character):04X}")
def test_a_control_character_or_lone_surrogate_is_refused_with_its_place(character: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_name("queue", f"ab{character}c")
    assert refusal.value.field == "queue"
    assert f"U+{ord(character):04X} at position 2" in str(refusal.value)
    assert RULE in str(refusal.value)


BAD: dict[str, object] = {
    "empty": "",
    "too long by one": "x" * 256,
    "ten thousand characters": "x" * 10_000,
    "None": None,
    "a number": 5,
    "bytes": b"name",
    "a list": ["name"],
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_what_is_no_name_is_refused_with_the_rule_whatever_it_is(value: object) -> None:
    # B-ENQ-02 B-DEQ-01 B-MWU-01 B-ERR-05
    with pytest.raises(InvalidArgument) as refusal:
        check_name("id", value)
    assert refusal.value.field == "id"
    assert RULE in refusal.value.problem


def test_the_rule_says_the_length_it_enforces() -> None:
    assert LONGEST_NAME == 255
    assert "255" in RULE


@given(st.text(max_size=300))
def test_a_text_is_a_name_exactly_if_the_rule_holds_for_it(text: str) -> None:
    good = 1 <= len(text) <= 255 and not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
    if good:
        assert check_name("id", text) == text
    else:
        with pytest.raises(InvalidArgument):
            check_name("id", text)


def test_names_are_compared_as_they_are_with_no_folding_of_case_or_form() -> None:
    # B-INV-04
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert check_names("tags", ["A", "a", composed, decomposed, "a "]) == ("A", "a", composed, decomposed, "a ")


@given(st.lists(st.text("abcAB", min_size=1, max_size=2), max_size=8))
def test_a_list_of_names_keeps_each_once_in_the_order_they_came(names: list[str]) -> None:
    # X-12 X-17
    checked = check_names("tags", names)
    assert set(checked) == set(names)
    assert len(checked) == len(set(names))
    assert list(checked) == sorted(checked, key=names.index)


@pytest.mark.parametrize("values", [(), [], {"b": 1}, {"a"}, (name for name in ["x"])])
def test_names_may_come_in_any_collection(values: object) -> None:
    assert isinstance(check_names("tags", values), tuple)


@pytest.mark.parametrize(
    "values", ["abc", "", b"abc", None, 5, [""], ["a", None], [["a"]], [{"a": 1}], [5], bytearray(b"ab")]
)
def test_what_is_no_list_of_names_is_refused(values: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_names("tags", values)
    assert refusal.value.field == "tags"


def test_a_fresh_id_is_a_uuid_of_version_seven_and_a_good_name() -> None:
    # O-DM-01 M-JOB-01 M-OPT-07
    identifier = new_id()
    assert uuid.UUID(identifier).version == 7
    assert str(uuid.UUID(identifier)) == identifier
    assert check_name("id", identifier) == identifier


def test_fresh_ids_differ_and_sort_by_the_millisecond_they_were_made_in() -> None:
    # O-DM-01
    made = [new_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    milliseconds = [identifier[:13] for identifier in made]
    assert milliseconds == sorted(milliseconds)
