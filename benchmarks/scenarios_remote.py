"""A drain by a worker that uses a server, compared with one that opens the file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import bare_sql
from benchmarks.databases import Databases
from benchmarks.draining import DONE_ON_SQLITE, PRODUCT, Line, drained, fill, on_sqlite
from benchmarks.measuring import Spread, alternate, paired_ratios
from benchmarks.postgres_costs import ServerSample
from benchmarks.reporting import Finding, Target
from benchmarks.scenarios_server import serving
from longshore.backends.connect import connect

_AT_ONCE = 500
"""Jobs per claim, as in the drains compared with PgQueuer."""


def remote_drain(databases: Databases) -> list[Finding]:
    """The same worker on the same machine, with and without HTTP."""
    jobs = databases.scale.drained_jobs
    far, near = alternate(databases.scale.drains, partial(_far, databases, jobs), partial(_near, databases, jobs))
    return [
        Finding(
            f"drain of {jobs:,} jobs by one remote worker, {_AT_ONCE} at a time",
            "jobs/s",
            Spread.of(sample.rate for sample in far),
            None,
            "a local worker",
            Spread.of(sample.rate for sample in near),
            paired_ratios(far, near),
            Target("≥", 0.3),
        ),
        Finding(
            "the same, CPU time of worker and server",
            "µs/job",
            Spread.of(_cost(sample) for sample in far),
            None,
            "a local worker",
            Spread.of(_cost(sample) for sample in near),
            Spread.of(_cost(one) / _cost(other) for one, other in zip(far, near, strict=True)),
            None,
        ),
    ]


def _cost(sample: ServerSample) -> float:
    return sample.cpu_micros + sample.server_cpu_micros


def _near(databases: Databases, jobs: int) -> ServerSample:
    with on_sqlite(databases, jobs) as line:
        return drained(line, _AT_ONCE)


def _far(databases: Databases, jobs: int) -> ServerSample:
    with _on_a_server(databases, jobs) as line:
        return drained(line, _AT_ONCE)


@contextmanager
def _on_a_server(databases: Databases, jobs: int) -> Iterator[Line]:
    """Waiting jobs in a SQLite file behind a server."""
    with databases.scratch() as path:
        url = f"sqlite:///{path}"
        asyncio.run(fill(connect(url), jobs))
        with bare_sql.open_file(path) as observer, serving(url) as server:

            def done() -> int:
                return sum(count or 0 for (count,) in observer.execute(DONE_ON_SQLITE))

            address = f"http://127.0.0.1:{server.port}"
            yield Line((*PRODUCT, address), jobs, done, lambda: {server.pid: server.spent()})
