"""Runs the proofs in their long form and writes a dated page with the results: `make prove`."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import apsw

from tests import postgres_versions
from tests.conftest import PROVING, SEED

ROOT = Path(__file__).resolve().parents[1]
SUMMARIES = ROOT / "docs" / "proofs"
LONGEST = 3_600
"""The most seconds for one proof. All of `make prove` takes some hours on two cores."""

PARTS = {
    "engine": ("core", "backends", "contract", "runtime", "app"),
    "processes": ("processes",),
    "platform": ("server", "cli"),
    "spark": ("spark",),
}
"""The test folders whose proofs share one page."""
VERSIONS = (14, 16, 17)
"""PostgreSQL versions that run the tests of plans, claims and limits. `make test` runs them on 15, and all on 18."""
ALL = (*PARTS, "versions")
_MOST_CASES = 30


def main(wanted: Sequence[str]) -> int:
    """Run the long proofs of these parts, or of all, and return the first exit code that is not 0.

    A part whose proofs all pass gets a page.
    """
    unknown = [part for part in wanted if part not in ALL]
    if not PROVING or unknown:
        print(f"usage: make prove [PARTS='{' '.join(ALL)}']", file=sys.stderr)
        return 2
    codes = [postgres_versions.main(VERSIONS) if part == "versions" else prove(part) for part in wanted or ALL]
    return next(filter(None, codes), 0)


def prove(part: str) -> int:
    """Run the proofs of one part, write its page if all pass, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [f"--timeout={LONGEST}", "-n", "2", "-o", "junit_logging=system-out", f"--junit-xml={report}"]
        command = [sys.executable, "-m", "pytest", "-m", "prove", *options]
        code = subprocess.run([*command, *(f"tests/{name}" for name in PARTS[part])], cwd=ROOT, check=False).returncode
        if code == 0:
            page = SUMMARIES / f"{today()}-{part}.md"
            page.write_text(summary(part, report), encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")
    return code


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()  # noqa: TID251 - a page is dated by the machine's clock


def summary(part: str, report: Path) -> str:
    """The page: each proof with its details and duration."""
    cases = [case for case in ElementTree.parse(report).getroot().iter("testcase") if case.find("skipped") is None]
    lines = [
        f"# Proofs: {part}, {today()}",
        "",
        f"`make prove PARTS={part}` with seed {SEED}: {len(cases)} proofs in their long form, all passed. Python",
        f"{platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {platform.system()} ({platform.machine()}).",
        "",
        "| proof | details | seconds |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *_rows(cases), ""])


def _rows(cases: Iterable[ElementTree.Element]) -> Iterator[str]:
    """One row per proof; a proof with very many cases has one row for all of them."""
    by_test: dict[tuple[str, str], list[ElementTree.Element]] = defaultdict(list)
    for case in cases:
        by_test[case.get("classname", ""), case.get("name", "").partition("[")[0]].append(case)
    for (_, name), variants in sorted(by_test.items()):
        if len(variants) > _MOST_CASES:
            yield f"| {_sentence(name)} | {len(variants)} cases | {sum(map(_seconds, variants)):.0f} |"
        else:
            for case in sorted(variants, key=lambda case: case.get("name", "")):
                yield f"| {_sentence(case.get('name', ''))} | {_printed(case)} | {_seconds(case):.0f} |"


def _seconds(case: ElementTree.Element) -> float:
    return float(case.get("time", 0))


def _printed(case: ElementTree.Element) -> str:
    """What the proof printed: the number of kills, power cuts, examples."""
    lines = (case.findtext("system-out") or "").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip() and not line.startswith("---"))


def _sentence(name: str) -> str:
    """The name of a test as a sentence, its parameters in parentheses."""
    test, _, parameters = name.removeprefix("test_").replace("|", "\\|").partition("[")
    sentence = test.replace("_", " ").capitalize()
    return f"{sentence} ({parameters.removesuffix(']').replace('_', ' ')})" if parameters else sentence


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
