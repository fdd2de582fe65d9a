"""The long forms of the proofs, and a dated summary of what they showed: `make prove`."""

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
"""Seconds one proof may take; the whole of `make prove` takes some hours on two cores."""

PARTS = {
    "engine": ("core", "backends", "contract", "runtime", "app"),
    "processes": ("processes",),
    "platform": ("server", "cli"),
    "spark": ("spark",),
}
"""The folders of tests whose proofs are summed up on one page."""
VERSIONS = (14, 16, 17)
"""PostgreSQL versions that run the tests of plans, claims and limits. `make test` runs them on 15, and all on 18."""
ALL = (*PARTS, "versions")
_MOST_FORMS = 30


def main(wanted: Sequence[str]) -> int:
    """Runs the proofs of these parts (or of all) in their long form, and returns the first exit code that is not 0.

    Of each part whose proofs all hold a summary is written.
    """
    unknown = [part for part in wanted if part not in ALL]
    if not PROVING or unknown:
        print(f"usage: make prove [PARTS='{' '.join(ALL)}']", file=sys.stderr)
        return 2
    codes = [postgres_versions.main(VERSIONS) if part == "versions" else prove(part) for part in wanted or ALL]
    return next(filter(None, codes), 0)


def prove(part: str) -> int:
    """Runs the proofs of one part, and returns the exit code of the run."""
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
    return datetime.now(UTC).date().isoformat()  # noqa: TID251 - a report is dated by the machine's own clock


def summary(part: str, report: Path) -> str:
    """The page: what ran, how long, and what each proof says it did."""
    cases = [case for case in ElementTree.parse(report).getroot().iter("testcase") if case.find("skipped") is None]
    lines = [
        f"# Proofs: {part}, {today()}",
        "",
        f"`make prove PARTS={part}` with seed {SEED}: {len(cases)} proofs in their long form, all holding. Python",
        f"{platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {platform.system()} ({platform.machine()}).",
        "",
        "| proof | what was done | seconds |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *_rows(cases), ""])


def _rows(cases: Iterable[ElementTree.Element]) -> Iterator[str]:
    """One for each proof; of one with very many forms, one for all of them."""
    by_test: dict[tuple[str, str], list[ElementTree.Element]] = defaultdict(list)
    for case in cases:
        by_test[case.get("classname", ""), case.get("name", "").partition("[")[0]].append(case)
    for (_, name), forms in sorted(by_test.items()):
        if len(forms) > _MOST_FORMS:
            yield f"| {_sentence(name)} | {len(forms)} forms | {sum(map(_seconds, forms)):.0f} |"
        else:
            for case in sorted(forms, key=lambda case: case.get("name", "")):
                yield f"| {_sentence(case.get('name', ''))} | {_printed(case)} | {_seconds(case):.0f} |"


def _seconds(case: ElementTree.Element) -> float:
    return float(case.get("time", 0))


def _printed(case: ElementTree.Element) -> str:
    """What the proof printed of itself: how many kills, cuts, examples."""
    lines = (case.findtext("system-out") or "").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip() and not line.startswith("---"))


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
