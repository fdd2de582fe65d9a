"""Which ids of docs/specification.md the tests cite; `python -m tests.repo.specification` prints the missing ones."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = ROOT / "docs" / "specification.md"
CITING = (ROOT / "tests", ROOT / "src" / "longshore" / "testing")

IDENTIFIER = re.compile(r"\b[BQTOMX]-(?:[A-Z0-9]+-)?\d{2,3}[a-z]?\b")
# only the first cell of a row defines an id; elsewhere in the page an id refers to a row
ROW = re.compile(rf"^\| ({IDENTIFIER.pattern}) \|", re.MULTILINE)

STORE_FIXTURES = ("store_url", "open_backend", "backend", "other_backend", "queue", "mail")
"""Fixtures of tests/runtime/conftest.py; a test that uses one runs on every store."""


@dataclass(frozen=True)
class Tally:
    """One prefix of the specification: its ids in the page's order, and those no test cites."""

    promised: tuple[str, ...]
    missing: tuple[str, ...]


def promised_ids() -> list[str]:
    return ROW.findall(SPECIFICATION.read_text(encoding="utf-8"))


def citations() -> Iterator[tuple[str, Path]]:
    """Every id a test file names, with the file."""
    for folder in CITING:
        for path in sorted(folder.rglob("*.py")):
            for cited in IDENTIFIER.findall(path.read_text(encoding="utf-8")):
                yield cited, path.relative_to(ROOT)


def cited_on_every_store() -> set[str]:
    """Ids cited inside a test that runs on memory, SQLite and PostgreSQL: in the conformance kit, or by fixture."""
    cited: set[str] = set()
    for path in (ROOT / "src" / "longshore" / "testing" / "conformance").rglob("*.py"):
        cited.update(IDENTIFIER.findall(path.read_text(encoding="utf-8")))
    for path in (ROOT / "tests" / "runtime").glob("test_*.py"):
        cited.update(_cited_by_tests_on_stores(path.read_text(encoding="utf-8")))
    return cited


def _cited_by_tests_on_stores(source: str) -> Iterator[str]:
    """Ids within (or in the comment lines above) each test that asks, itself or by a fixture, for a store."""
    tree = ast.parse(source)
    lines = source.splitlines()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    asks = {function.name: {argument.arg for argument in function.args.args} for function in functions}
    on_stores = set(STORE_FIXTURES)
    while more := {name for name, wanted in asks.items() if wanted & on_stores} - on_stores:
        on_stores |= more
    for function in functions:
        if function.name.startswith("test_") and function.name in on_stores:
            first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
            while first > 0 and lines[first - 1].lstrip().startswith("#"):
                first -= 1
            yield from IDENTIFIER.findall("\n".join(lines[first : function.end_lineno]))


def tally() -> dict[str, Tally]:
    cited = {identifier for identifier, _ in citations()}
    by_prefix: dict[str, list[str]] = {}
    for identifier in promised_ids():
        by_prefix.setdefault(identifier[:2], []).append(identifier)
    return {
        prefix: Tally(tuple(ids), tuple(identifier for identifier in ids if identifier not in cited))
        for prefix, ids in by_prefix.items()
    }


def in_one_line(tallies: Mapping[str, Tally]) -> str:
    return "  ".join(
        f"{prefix} {len(tally.promised) - len(tally.missing)}/{len(tally.promised)}"
        for prefix, tally in tallies.items()
    )


def main() -> None:
    for prefix, found in tally().items():
        print(f"{prefix} {len(found.promised) - len(found.missing)} of {len(found.promised)} cited")
        if found.missing:
            print(f"   missing: {', '.join(found.missing)}")


if __name__ == "__main__":
    main()
