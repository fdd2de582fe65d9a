"""The check of integers."""

from __future__ import annotations

import pytest

from longshore.core.errors import InvalidArgument
from longshore.core.validation import LARGEST, SMALLEST, check_number


@pytest.mark.parametrize(
    ("value", "least"), [(0, 0), (1, 0), (LARGEST, 0), (-1, SMALLEST), (SMALLEST, SMALLEST), (1, 1)]
)
def test_a_whole_number_within_its_bounds_is_taken(value: int, least: int) -> None:
    assert check_number("n", value, least=least) == value


@pytest.mark.parametrize(("value", "least"), [(-1, 0), (0, 1), (LARGEST + 1, 0), (SMALLEST - 1, SMALLEST), (2**70, 0)])
def test_a_number_out_of_bounds_is_refused_with_the_bounds(value: int, least: int) -> None:
    with pytest.raises(InvalidArgument, match=f"between {least} and 2147483647") as refusal:
        check_number("n", value, least=least)
    assert refusal.value.field == "n"


@pytest.mark.parametrize("value", [None, True, False, 1.0, "1", b"1", [1]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_number("n", value)
    assert refusal.value.field == "n"
