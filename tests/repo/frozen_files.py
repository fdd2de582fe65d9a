"""Compares what the product says today with the snapshot files in `tests/repo/frozen`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WRITE_SNAPSHOTS

FOLDER = Path(__file__).parent / "frozen"
ADVICE = (
    "Programs of users depend on these names. If you did not mean to change one, change the code back. If you did, run "
    "the same test with LONGSHORE_WRITE_SNAPSHOTS=1, commit the new file with the change alone, and add a line to "
    "CHANGELOG.md."
)


def check_frozen(file: str, lines: Iterable[str]) -> None:
    """Fail with a diff if the lines differ from the file; write the file if LONGSHORE_WRITE_SNAPSHOTS=1."""
    path = FOLDER / file
    today = "".join(f"{line}\n" for line in lines)
    if WRITE_SNAPSHOTS:
        path.write_text(today, encoding="utf-8")
        return
    frozen = path.read_text(encoding="utf-8") if path.exists() else ""
    if today == frozen:
        return
    diff = difflib.unified_diff(frozen.splitlines(), today.splitlines(), f"frozen/{file}", "today", lineterm="", n=2)
    pytest.fail("\n".join([f"frozen names changed, see {path}", *diff, "", ADVICE]), pytrace=False)


def keys_of(value: Any, open_keys: frozenset[str] = frozenset()) -> Any:
    """A JSON value with each value replaced by its type; the items of a list are merged into one.

    The keys of an object in one of `open_keys` are names that users choose: they become one key, `*`.
    """
    return _merged([_typed(value, open_keys)])


def _typed(value: Any, open_keys: frozenset[str], is_open: bool = False) -> Any:
    if isinstance(value, dict):
        if is_open:
            return {"*": _merged([_typed(each, open_keys) for each in value.values()])}
        return {name: _typed(each, open_keys, name in open_keys) for name, each in value.items()}
    if isinstance(value, list):
        return [_merged([_typed(each, open_keys) for each in value])]
    return {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}[type(value)]


def _merged(shapes: list[Any]) -> Any:
    objects = [shape for shape in shapes if isinstance(shape, dict)]
    lists = [each for shape in shapes if isinstance(shape, list) for each in shape]
    plain = {word for shape in shapes if isinstance(shape, str) for word in shape.split(" or ")} - {"nothing seen"}
    if objects:
        names = sorted({name for shape in objects for name in shape})
        return {name: _merged([shape[name] for shape in objects if name in shape]) for name in names}
    if any(isinstance(shape, list) for shape in shapes):
        return [_merged(lists)]
    return " or ".join(sorted(plain)) or "nothing seen"
