"""Classes and functions as lines of text: names, parameters, defaults, annotations and public members."""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_origin

import longshore.errors
from tests.repo.pages import PAGES, ROOT, to_run

AUTHORS = "write-a-backend"


def describe(name: str, found: Any) -> Iterator[str]:
    """A class with its public members, a function, or the type of a constant.

    Only the constructor of a backend class is listed: its operations are those of the contract.
    """
    if inspect.isclass(found):
        known = [one for one in found.__mro__[1:-1] if one.__module__ in ("builtins", "asyncio.exceptions")]
        known += [one for one in found.__mro__[1:] if one.__name__ in longshore.errors.__all__]
        bases = [one.__name__ for one in found.__mro__ if one in known]
        yield f"class {name}{_constructor(found)}" + (f" is {', '.join(bases)}" if bases else "")
        if not any(one.__name__ == "Backend" for one in found.__mro__[1:]):
            yield from _members(found)
    elif get_origin(found) is not None:
        yield f"{name}: type"
    elif callable(found):
        yield _function(name, found)
    else:
        yield f"{name}: {type(found).__name__}"


def describe_object(name: str, found: object) -> Iterator[str]:
    """The public members of an object; of a backend those of the contract, which all backends have."""
    kind = next((one for one in type(found).__mro__ if one.__name__ == "Backend"), type(found))
    yield f"object {name}"
    members = list(_members(kind))
    if kind is type(found):
        members += [f"  {each}: attribute" for each in getattr(found, "__dict__", {}) if not each.startswith("_")]
    yield from sorted(members, key=_name_in)


def _name_in(line: str) -> str:
    return line.partition("(")[0].partition(":")[0].split()[-1]


def _constructor(found: type) -> str:
    if issubclass(found, enum.Enum) or getattr(found, "_is_protocol", False):
        return ""
    for method in ("__init__", "__new__"):
        owner = next(one for one in found.__mro__ if method in vars(one))
        if _is_ours(owner):
            return _signature(getattr(owner, method), skip_first=True)
    return ""


def _members(found: type) -> Iterator[str]:
    for name in sorted(dir(found)):
        owner = next((one for one in found.__mro__ if name in vars(one)), None)
        if name.startswith("_") or owner is None or not _is_ours(owner):
            continue
        member = inspect.getattr_static(found, name)
        if isinstance(member, enum.Enum):
            yield f"  {name} = {member.value!r}"
        elif isinstance(member, classmethod | staticmethod):
            kind = type(member).__name__
            yield f"  {kind} {_function(name, member.__func__, skip_first=kind == 'classmethod')}"
        elif inspect.isfunction(member):
            yield f"  {_function(name, member, skip_first=True)}"
        elif isinstance(member, property | functools.cached_property):
            yield f"  {name}: property"
        else:
            yield f"  {name}: field"


def _is_ours(owner: type) -> bool:
    return owner.__module__.partition(".")[0] == "longshore"


def _function(name: str, found: Any, *, skip_first: bool = False) -> str:
    kind = "async def" if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found) else "def"
    return f"{kind} {name}{_signature(found, skip_first=skip_first)}"


def _signature(found: Any, *, skip_first: bool) -> str:
    signature = inspect.signature(found)
    parameters = list(signature.parameters.values())[skip_first:]
    shown = str(signature.replace(parameters=parameters))
    shown = re.sub(r"(: |-> )(?:'([^']*)'|\"([^\"]*)\")", r"\1\2\3", shown)  # annotations that are kept as text
    shown = re.sub(r" at 0x[0-9a-f]+", "", shown)
    return re.sub(r"\blongshore(\.\w+)+\.(\w+)", r"\2", shown)  # private modules move


def names_in_guides() -> list[tuple[str, Any]]:
    """What the guides and examples import from modules below `longshore`, by its name alone.

    The page for authors of backends is left out: it builds on private parts and changes with them.
    """
    guides = [page for page in PAGES if page.parent.name not in ("decisions", "proofs") and page.stem != AUTHORS]
    programs = [block.text for page in guides for block in to_run(page, "python")]
    programs += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.py"))]
    found: dict[int, tuple[str, Any]] = {}
    for program in programs:
        for node in ast.walk(ast.parse(program)):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("longshore."):
                continue
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names if module is not longshore.errors):
                found[id(getattr(module, name))] = name, getattr(module, name)
    return list(found.values())
