"""How findings are shown: a table for the terminal, a page for the documentation, data for programs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measuring import Spread
from benchmarks.reporting import Finding

_HEADS = ("what", "unit", "product", "bare SQL", "compared with", "ratio", "target", "result", "CPU µs/job")

_PAGE = """# Benchmarks

Written by `python -m benchmarks --write docs/benchmarks.md`; change the benchmarks, not this page.

{date}, {machine}.

{sections}

## How to read it

Every figure is the median of its rounds, with the least and the most in parentheses; single calls (in ms) have their
95th percentile as well. The sides of a comparison take turns within one run, because machines are shared and their
speed wanders: trust the ratios more than the rates. On a machine that is busy with other work even the ratios go
wrong (waiting for a core or the disk counts alike on both sides, and the verdicts near a target become chance); the
line above each table says how busy it was. The last column is processor time per job (per call, for looks), which other
processes disturb least: the product's, all threads together, and in parentheses the part that kept the caller's event
loop busy; bare SQL's; and what share of the product's it is.

*Bare SQL* writes the same rows into the same tables with the same durability, event rows included (on SQLite also the
counts), with the driver and no code of Longshore: prepared tuples, one transaction for each batch, no threads, no event
loop. Every run first proves that both sides leave the same rows behind.

*PgQueuer* is the fastest queue in Python that we know of. It is measured in the same run, on the same server, with the
settings it recommends, its own schema, and the driver and event loop it is fastest with. How to run and read the
benchmarks, and what exactly is timed: `benchmarks/README.md`.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """What was found on one store."""

    store: str
    circumstances: str
    findings: Sequence[Finding]
    busy: str


def machine() -> str:
    """What was measured on, without names."""
    cores = os.cpu_count() or 1
    return f"{cores} cores ({platform.machine()}, {platform.system()}), Python {platform.python_version()}"


def load(averages: Sequence[float]) -> str:
    """How busy the machine was while it measured, from the load after each scenario; the benchmarks are about one."""
    least, most = min(averages), max(averages)
    text = f"load average {least:.1f} to {most:.1f} meanwhile"
    busy = most > (os.cpu_count() or 1)
    return f"{text}, at times more than it has cores: only the processor times are to be trusted" if busy else text


def today() -> str:
    """The date in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def cells(finding: Finding) -> tuple[str, ...]:
    """One line of the table."""
    compared = finding.compared_with
    if finding.reference is not None and compared != "bare SQL":
        compared = f"{compared}: {_shown(finding.reference)}"
    return (
        finding.name,
        finding.unit,
        _shown(finding.product, p95=finding.unit == "ms"),
        "" if finding.bare is None else _shown(finding.bare, p95=finding.unit == "ms"),
        compared,
        "" if finding.ratio is None else _shown(finding.ratio),
        "" if finding.target is None else str(finding.target),
        finding.verdict,
        _cpu(finding),
    )


def plain(sections: Sequence[Section]) -> str:
    """For the terminal."""
    shown = (f"{each.store}: {each.circumstances}; {each.busy}\n\n{_plain_table(each.findings)}" for each in sections)
    return f"{today()}, {machine()}\n\n" + "\n\n".join(shown)


def _plain_table(findings: Sequence[Finding]) -> str:
    rows = [_HEADS, *(tuple(cell.replace("`", "") for cell in cells(finding)) for finding in findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def page(sections: Sequence[Section]) -> str:
    """For the documentation."""
    shown = (
        f"## {each.store}\n\n{each.circumstances}; {each.busy}.\n\n{_page_table(each.findings)}" for each in sections
    )
    return _PAGE.format(date=today(), machine=machine(), sections="\n\n".join(shown))


def _page_table(findings: Sequence[Finding]) -> str:
    rows = [_HEADS, tuple("---" for _ in _HEADS), *(cells(finding) for finding in findings)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def data(sections: Sequence[Section]) -> dict[str, Any]:
    """For programs."""
    measured = [
        {"store": each.store, **asdict(finding), "verdict": finding.verdict}
        for each in sections
        for finding in each.findings
    ]
    loads = {each.store: each.busy for each in sections}
    return {"date": today(), "machine": machine(), "load": loads, "findings": measured}


def _cpu(finding: Finding) -> str:
    if finding.cpu_micros is None:
        return ""
    text = _number(finding.cpu_micros)
    if finding.caller_cpu_micros is not None:
        text += f" ({_number(finding.caller_cpu_micros)})"
    if finding.bare_cpu_micros is None:
        return text
    share = finding.bare_cpu_micros / finding.cpu_micros
    return f"{text}, {_number(finding.bare_cpu_micros)}, {share:.2f}"


def _shown(spread: Spread, *, p95: bool = False) -> str:
    if spread.count == 1:
        return _number(spread.median)
    tail = f", p95 {_number(spread.p95)}" if p95 else ""
    return f"{_number(spread.median)} ({_number(spread.least)}–{_number(spread.most)}{tail})"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
