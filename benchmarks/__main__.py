"""The command: measures, prints each finding as it comes, and ends with one table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import table
from benchmarks.agreement import check_agreement
from benchmarks.databases import Databases
from benchmarks.reporting import Finding
from benchmarks.scale import FULL, QUICK
from benchmarks.scenarios_batches import enqueue, life
from benchmarks.scenarios_callers import callers
from benchmarks.scenarios_claims import crowded, keys, tag, waiting
from benchmarks.scenarios_looks import looks
from benchmarks.scenarios_memory import memory

SCENARIOS: dict[str, Callable[[Databases], list[Finding]]] = {
    scenario.__name__: scenario for scenario in (enqueue, callers, life, memory, looks, tag, waiting, crowded, keys)
}
"""In the order they run: those that only look come before those that write on the shared file."""


def main() -> int:
    """Runs what was asked for. The exit code says whether it ran, not whether the targets were met."""
    arguments = _parser().parse_args()
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = dataclasses.replace(scale, rounds=arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="longshore-bench-", dir=arguments.directory) as folder:
        if _lies_in_memory(Path(folder)):
            print("these databases lie in memory, where commits cost nothing: name a folder on a disk with --directory")
        findings, busy = measured(Databases(Path(folder), scale), arguments.only or list(SCENARIOS))
    print(f"\n{table.today()}, {table.machine()}; {busy}\n\n{table.plain(findings)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(table.data(findings, busy), indent=2, ensure_ascii=False) + "\n")
    if arguments.write:
        arguments.write.write_text(table.page(findings, busy))
    return 0


def measured(databases: Databases, names: Sequence[str]) -> tuple[list[Finding], str]:
    """What the scenarios found, each printed at once, and how busy the machine was."""
    check_agreement(databases)
    findings: list[Finding] = []
    averages: list[float] = []
    for name in names:
        for finding in SCENARIOS[name](databases):
            print(" · ".join(cell.replace("`", "") for cell in table.cells(finding) if cell), flush=True)
            findings.append(finding)
        averages.append(os.getloadavg()[0])
    return findings, table.load(averages)


def _lies_in_memory(folder: Path) -> bool:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return False
    kinds = {Path(line.split()[1]): line.split()[2] for line in mounts.read_text().splitlines()}
    nearest = next(place for place in (folder.resolve(), *folder.resolve().parents) if place in kinds)
    return kinds[nearest] in ("tmpfs", "ramfs")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: 50,000 jobs instead of 1,000,000")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="one scenario; may be given again")
    parser.add_argument("--rounds", type=int, help="how often the sides of a comparison take turns")
    parser.add_argument("--directory", type=Path, help="where the databases go; must be on a disk, not in memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the findings as data")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the findings as a page for the documentation")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
