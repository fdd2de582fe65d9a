"""Incremental JSON gives the same result as the fast functions."""

import json
from typing import Any

import pytest

from longshore.core import validation
from longshore.core.errors import InvalidArgument
from longshore.core.validation import compact, compact_incrementally, read_json

VALUES: list[Any] = [
    {"jobs": [{"id": "a", "n": None}, {}], "next": 'x"\n'},
    [],
    {},
    [[[]], [], [1, [2.5, -0.0, 1e300, 2**63 - 1]]],
    None,
    "é \u2028 🚢",
    True,
]


@pytest.mark.parametrize("many_lists", [0, 100_000])
@pytest.mark.parametrize("value", VALUES)
def test_what_is_read_and_written_patiently_is_what_is_read_and_written_at_once(
    value: Any, many_lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "_MANY_LISTS", many_lists)
    written = json.dumps(value, indent=1)
    assert repr(validation.loads_incrementally(written)) == repr(json.loads(written))
    assert validation.dumps_incrementally(value, sort_keys=True) == json.dumps(value, sort_keys=True)
    assert compact_incrementally(value) == compact(value)


def test_a_large_payload_is_judged_as_a_small_one_is() -> None:
    padding = b" " * validation.LARGE
    assert read_json("data", b'{"a":[1,2.5]}' + padding) == {"a": [1, 2.5]}
    for wrong, problem in (
        (b'{"a":1,"a":2}', "has the key 'a' twice; remove one"),
        (b"[NaN]", "is NaN, which is not JSON"),
        (b"[9223372036854775808]", "beyond 64 bits"),
        (b"[" * 200_000, "nested deeper"),
        (b"[1", "is not JSON"),
        (b"[" + b"9" * 5_000 + b"]", "is not JSON"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            read_json("data", wrong + padding)
