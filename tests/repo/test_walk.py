"""Every file and symbol of docs/walk.yaml, one job's path through the code, exists.

The file is a list of steps in the order a job meets them:

    - file: src/longshore/backends/base.py
      symbol: Backend.dequeue_jobs
      does: hands out claimable jobs under a lease

In a Python file the symbol is a dotted path of classes, functions or assigned names; in any other file it is a word of
its text, such as a statement's name in SQL.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
WALK = ROOT / "docs" / "walk.yaml"


def steps() -> list[dict[str, Any]]:
    assert WALK.is_file(), f"docs/walk.yaml is missing; its form is:\n{__doc__}"
    found = yaml.safe_load(WALK.read_text(encoding="utf-8"))
    assert isinstance(found, list), "docs/walk.yaml must be a list of steps"
    assert found, "docs/walk.yaml has no steps"
    return found


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Every name a module or class body defines, classes' members as Class.member."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            names |= {prefix + node.name} | names_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(prefix + node.name)
        elif isinstance(node, ast.Assign):
            names |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(prefix + node.target.id)
    return names


@cache
def python_names(path: Path) -> set[str]:
    return names_in(ast.parse(path.read_text(encoding="utf-8")).body)


def holds(path: Path, symbol: str) -> bool:
    if path.suffix == ".py":
        return symbol in python_names(path)
    return re.search(rf"(?<!\w){re.escape(symbol)}(?!\w)", path.read_text(encoding="utf-8")) is not None


def test_every_step_names_a_file_a_symbol_and_what_happens_there() -> None:
    incomplete = [step for step in steps() if not all(step.get(key) for key in ("file", "symbol", "does"))]
    assert not incomplete


def test_every_file_and_symbol_of_the_walk_exists() -> None:
    lost = []
    for step in steps():
        path = ROOT / step["file"]
        if not path.is_file():
            lost.append(f"no file {step['file']}")
        elif not holds(path, step["symbol"]):
            lost.append(f"no {step['symbol']} in {step['file']}")
    assert not lost, "; ".join(lost)
