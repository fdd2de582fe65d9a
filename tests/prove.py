"""The long forms of the proofs, and a dated summary of what they showed: `make prove`."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import apsw

from tests.conftest import PROVING, SEED

ROOT = Path(__file__).resolve().parents[1]
SUMMARIES = ROOT / "docs" / "proofs"
LONGEST = 3_600
"""Seconds one proof may take; the whole of `make prove` takes a good quarter of an hour on two cores."""


def main() -> int:
    """Runs every proof in its long form, writes the summary if all hold, and returns the exit code."""
    if not PROVING:
        print("set LONGSHORE_PROVE=1, or use make prove", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [f"--timeout={LONGEST}", "-n", "2", "-o", "junit_logging=system-out", f"--junit-xml={report}"]
        command = [sys.executable, "-m", "pytest", "-m", "prove", *options, "tests"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code == 0:
            page = SUMMARIES / f"{today()}-engine.md"
            page.write_text(summary(report), encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")
    return code


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()  # noqa: TID251 - a report is dated by the machine's own clock


def summary(report: Path) -> str:
    """The page: what ran, how long, and what each proof says it did."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    lines = [
        f"# The engine, {today()}",
        "",
        f"`make prove` with seed {SEED}: {len(cases)} proofs in their long form, all of them holding. Python",
        f"{platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {platform.system()} ({platform.machine()}).",
        "",
        "| proof | what was done | seconds |",
        "|---|---|---|",
    ]
    for case in sorted(cases, key=lambda case: (case.get("classname", ""), case.get("name", ""))):
        seconds = float(case.get("time", 0))
        lines.append(f"| {_sentence(case.get('name', ''))} | {_printed(case)} | {seconds:.0f} |")
    return "\n".join([*lines, ""])


def _printed(case: ElementTree.Element) -> str:
    """What the proof printed of itself: how many kills, cuts, examples."""
    lines = (case.findtext("system-out") or "").splitlines()
    return "; ".join(line.strip() for line in lines if line.strip() and not line.startswith("---"))


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
