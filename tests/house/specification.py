"""Which ids of docs/specification.md the tests cite; `python -m tests.house.specification` prints the missing ones."""

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
