"""Every public name is documented: a docstring with an example or a guide, and a docstring for each public method."""

import ast
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_origin

import pytest

from longshore.backends.port import Reader, Transaction

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "longshore",
    "longshore.errors",
    "longshore.backends",
    "longshore.server",
    "longshore.spark",
    "longshore.testing",
)
GUIDE = re.compile(r"docs/[\w/-]+\.md")
EXAMPLE = re.compile(r"`[^`]*[(\[@][^`]*`|^    \S", re.MULTILINE)
"""A call, an index or a decorator in backticks, or an indented block."""

CALLED = (property, classmethod, staticmethod)


def public_names(package: str) -> list[tuple[str, Any]]:
    module = importlib.import_module(package)
    return [(name, getattr(module, name)) for name in sorted(module.__all__)]


def docstring(value: Any, name: str = "") -> str:
    """The docstring that the name itself has; inherited ones and those that dataclasses generate do not count."""
    if get_origin(value) is Annotated:
        return comment_below(value.__module__, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        value = getattr(value, "__wrapped__", value)  # a fixture
    text = inspect.cleandoc(vars(value).get("__doc__") or "") if inspect.isclass(value) else inspect.getdoc(value) or ""
    return "" if text.startswith(f"{getattr(value, '__name__', '')}(") else text


def comment_below(module: str, name: str) -> str:
    """The string below the assignment of a name, which documents a type alias."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for line, below in pairwise(body):
        if isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == [name]:
            return ast.unparse(below) if isinstance(below, ast.Expr) else ""
    return ""


def undocumented_members(kind: type) -> list[str]:
    """The public methods and properties from this project without a docstring, their own or an inherited one."""
    names = {name for base in kind.__mro__ if base.__module__.startswith("longshore.") for name in vars(base)}
    members = [(name, inspect.getattr_static(kind, name)) for name in sorted(names) if not name.startswith("_")]
    called = [name for name, member in members if isinstance(member, CALLED) or inspect.isfunction(member)]
    documented = (*kind.__mro__, Transaction, Reader)  # the protocols that a store implements
    return [name for name in called if not any(inspect.getdoc(getattr(base, name, "")) for base in documented)]


def without_docstring(package: str) -> list[str]:
    missing = []
    for name, value in public_names(package):
        if not docstring(value, name):
            missing.append(f"{package}.{name}")
        if inspect.isclass(value) and package != "longshore.testing":  # there the methods are tests
            missing += [f"{package}.{name}.{method}" for method in undocumented_members(value)]
    return missing


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_and_methods_have_docstrings(package: str) -> None:
    assert without_docstring(package) == []


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "longshore.testing"])
def test_public_docstrings_have_an_example_or_name_a_guide(package: str) -> None:
    texts = {name: docstring(value, name) for name, value in public_names(package)}
    assert [name for name, text in texts.items() if not (GUIDE.search(text) or EXAMPLE.search(text))] == []


def test_the_conformance_kit_names_its_guide() -> None:
    module = importlib.import_module("longshore.testing")
    assert "docs/write-a-backend.md" in docstring(module.backend)
    assert GUIDE.search(module.__doc__ or "")


@pytest.mark.parametrize("package", PACKAGES)
def test_guides_named_in_public_docstrings_exist(package: str) -> None:
    named = {guide for name, value in public_names(package) for guide in GUIDE.findall(docstring(value, name))}
    assert [guide for guide in sorted(named) if not (ROOT / guide).is_file()] == []
