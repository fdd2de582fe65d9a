"""Where results go in a job's arguments: encoded, decoded and inserted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.dependencies import Path, fill_in, packed, spliced, unpacked
from longshore.core.errors import InvalidArgument

STEPS = st.one_of(st.sampled_from(["a", "b"]), st.integers(0, 4))
PATHS = st.lists(STEPS, min_size=1, max_size=3).map(tuple)
WANTED = st.lists(st.tuples(PATHS, st.integers(0, 9)), max_size=12)


@given(WANTED)
def test_what_is_packed_is_unpacked_as_it_was_also_after_json(wanted: list[tuple[Path, int]]) -> None:
    assert list(unpacked(json.loads(json.dumps(packed(wanted))))) == wanted


def test_a_list_of_ten_thousand_results_is_one_entry() -> None:
    wanted: list[tuple[Path, int]] = [(("parts", number), number + 2) for number in range(10_000)]
    assert packed(wanted) == [[["parts", 0], 2, 10_000]]


def test_results_are_put_where_they_belong() -> None:
    data: Any = {"title": "x", "parts": [None, 5, None], "more": {"deep": [None]}, "one": None}
    places: list[tuple[Path, int]] = [(("parts", 0), 0), (("parts", 2), 1), (("more", "deep", 0), 2), (("one",), 0)]
    fill_in(data, packed(places), ["zero", {"a": 1}, [2]].__getitem__)
    assert data == {"title": "x", "parts": ["zero", 5, {"a": 1}], "more": {"deep": [[2]]}, "one": "zero"}


@pytest.mark.parametrize(
    "inputs",
    [{}, "x", [5], [["a", 0, 1]], [[["a"], -1, 1]], [[["a"], 0, 2]], [[["a"], 0, 0]], [[[], 0, 1]], [[["a"], 0]]],
)
def test_what_was_never_packed_is_refused(inputs: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"options\.inputs"):
        fill_in({"a": None}, inputs, lambda number: number)


@pytest.mark.parametrize("path", [["b"], ["a", "b"], ["list", 7], ["taken"], ["list", "x"]])
def test_a_place_that_the_arguments_do_not_have_is_refused(path: list[Any]) -> None:
    data = {"a": None, "list": [None], "taken": 5}
    with pytest.raises(InvalidArgument, match="have no null for a result at"):
        fill_in(data, [[path, 0, 1]], lambda number: number)
    assert data == {"a": None, "list": [None], "taken": 5}


@given(
    st.recursive(st.none() | st.text(alphabet='\x00\\u0"19é') | st.integers(), st.lists, max_leaves=4),
    st.lists(st.recursive(st.none() | st.text(max_size=3), st.lists, max_leaves=3), min_size=3, max_size=3),
)
def test_spliced_arguments_are_those_filled_in_whatever_stands_around_the_places(around: Any, results: Any) -> None:
    data = {"around": around, "parts": [None, around, None], "one": None, "\x000": "\x000"}
    places: list[tuple[Path, int]] = [(("parts", 0), 0), (("parts", 2), 1), (("one",), 2)]
    stored = [json.dumps(result, ensure_ascii=False).encode() for result in results]
    whole = spliced(json.dumps(data, ensure_ascii=False).encode(), packed(places), stored.__getitem__)
    fill_in(data, packed(places), results.__getitem__)
    assert json.loads(whole) == data


def test_a_result_that_is_not_there_is_null() -> None:
    assert spliced(b'{"a": [null, 1]}', packed([(("a", 0), 0)]), lambda _: None) == b'{"a":[null,1]}'
