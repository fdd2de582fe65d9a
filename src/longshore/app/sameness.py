"""Whether a value came back from JSON as it went in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def is_same(given: Any, seen: Any) -> bool:
    """Whether the two are alike, part by part; what cannot be compared, or is no field of a model, is passed over.

    A tuple where any JSON is taken comes back as a list, which is alike enough.
    """
    if isinstance(given, list | tuple) and isinstance(seen, list | tuple):
        return len(given) == len(seen) and all(map(is_same, given, seen))
    if type(given) is not type(seen):
        return bool(given == seen)
    if isinstance(given, Mapping):
        return given.keys() == seen.keys() and all(is_same(given[key], seen[key]) for key in given)
    if isinstance(given, BaseModel):
        return is_same(dict(given), dict(seen))
    if dataclasses.is_dataclass(given):
        names = [field.name for field in dataclasses.fields(given) if field.compare]
        return all(is_same(getattr(given, name, None), getattr(seen, name, None)) for name in names)
    return _NO_COMPARISON is type(given).__eq__ or bool(given == seen)


_NO_COMPARISON: Any = object.__eq__
