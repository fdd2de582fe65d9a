"""Run the benchmarks, print each finding at once, and end with one table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import table
from benchmarks.agreement import check_agreement
from benchmarks.databases import Databases
from benchmarks.postgres_agreement import check_postgres_agreement
from benchmarks.postgres_batches import postgres_enqueue, postgres_life, postgres_work
from benchmarks.postgres_claimers import postgres_claimers
from benchmarks.postgres_claims import postgres_finished, postgres_snapshot, postgres_types, postgres_waiting
from benchmarks.postgres_wakeups import postgres_wakeups
from benchmarks.reporting import Finding
from benchmarks.scale import FULL, QUICK
from benchmarks.scenarios_audit import spark_audit
from benchmarks.scenarios_batches import enqueue, life
from benchmarks.scenarios_callers import callers
from benchmarks.scenarios_claims import crowded, keys, tag, types, waiting
from benchmarks.scenarios_drains import drain_postgres, drain_sqlite
from benchmarks.scenarios_due import due_at_once, future, postgres_due_at_once, postgres_future
from benchmarks.scenarios_lake import spark_lake
from benchmarks.scenarios_limits import limited_drain, postgres_limited_drain
from benchmarks.scenarios_looks import looks
from benchmarks.scenarios_memory import memory
from benchmarks.scenarios_remote import remote_drain
from benchmarks.scenarios_schedules import postgres_schedules, schedules
from benchmarks.scenarios_server import post_jobs
from benchmarks.scenarios_singles import single_enqueues
from benchmarks.scenarios_sleepers import sleeping
from benchmarks.scenarios_spark import spark_circumstances, spark_follow, spark_read, spark_write
from benchmarks.scenarios_spark_jobs import spark_jobs
from benchmarks.scenarios_starts import postgres_start_latency, start_latency
from benchmarks.table import Section

Scenario = Callable[[Databases], list[Finding]]


def _named(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.__name__: scenario for scenario in scenarios}


SQLITE = _named(
    drain_sqlite,
    limited_drain,
    start_latency,
    single_enqueues,
    sleeping,
    enqueue,
    callers,
    life,
    memory,
    looks,
    tag,
    waiting,
    types,
    crowded,
    future,
    due_at_once,
    schedules,
    keys,
    post_jobs,
    remote_drain,
)
"""In running order: scenarios that only read come before those that write to the shared file."""
POSTGRES = _named(
    drain_postgres,
    postgres_limited_drain,
    postgres_start_latency,
    postgres_enqueue,
    postgres_work,
    postgres_life,
    postgres_waiting,
    postgres_types,
    postgres_finished,
    postgres_snapshot,
    postgres_future,
    postgres_due_at_once,
    postgres_schedules,
    postgres_claimers,
    postgres_wakeups,
)

SPARK = _named(spark_read, spark_write, spark_follow, spark_lake, spark_audit, spark_jobs)
"""These use both stores, each scenario with a separate Java."""


def main() -> int:
    """Run the requested scenarios. The exit code says whether they ran, not whether the targets were met."""
    arguments = _parser().parse_args()
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = dataclasses.replace(scale, rounds=arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="longshore-bench-", dir=arguments.directory) as folder:
        if _lies_in_memory(Path(folder)):
            print("the databases are in memory, where commits cost nothing; name a folder on a disk with --directory")
        with closing(Databases(Path(folder), scale)) as databases:
            sections = measured(databases, arguments.only or [*SQLITE, *POSTGRES, *SPARK])
    print(f"\n{table.plain(sections)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(table.data(sections), indent=2, ensure_ascii=False) + "\n")
    if arguments.write:
        arguments.write.write_text(table.page(sections))
    return 0


def measured(databases: Databases, names: Sequence[str]) -> list[Section]:
    """Check that bare SQL writes the same rows on each store, then return the findings of its scenarios."""
    sections = []
    if on_sqlite := [SQLITE[name] for name in names if name in SQLITE]:
        check_agreement(databases)
        sections.append(Section("SQLite", databases.circumstances, *_found(databases, on_sqlite)))
    if on_postgres := [POSTGRES[name] for name in names if name in POSTGRES]:
        check_postgres_agreement(databases.postgres)
        sections.append(Section("PostgreSQL", databases.postgres.circumstances, *_found(databases, on_postgres)))
    if on_spark := [SPARK[name] for name in names if name in SPARK]:
        sections.append(Section("Spark", spark_circumstances(), *_found(databases, on_spark)))
    return sections


def _found(databases: Databases, scenarios: Sequence[Scenario]) -> tuple[list[Finding], str]:
    """The findings, each printed at once, and the load of the machine."""
    findings: list[Finding] = []
    averages: list[float] = []
    for scenario in scenarios:
        for finding in scenario(databases):
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
    parser.add_argument(
        "--only", action="append", choices=[*SQLITE, *POSTGRES, *SPARK], help="one scenario; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help="the number of alternating rounds of a comparison")
    parser.add_argument("--directory", type=Path, help="the folder for the databases; must be on a disk, not in memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings as JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the findings as a page for the documentation")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
