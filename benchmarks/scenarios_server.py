"""Jobs over HTTP: the durable two-phase accept compared with a route that does nothing, single and in batches."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter

from benchmarks.databases import Databases
from benchmarks.http_client import send_all
from benchmarks.measuring import Sample, Spread, alternate
from benchmarks.reporting import Finding, Target, rates

_CONNECTIONS = 32
_REQUESTS = 2_000
_BATCHES = 12
_BULK_CONNECTIONS = 4
_PER_BATCH = 1_000
_JOB = {"type": "mail", "data": {"to": "ada@example.org", "subject": "hello", "n": 7}, "queue": "mail"}
_keys = count()


@dataclass(frozen=True, slots=True)
class Served(Sample):
    """A timed block of work with the time of each answer."""

    took: tuple[float, ...] = ()


def post_jobs(databases: Databases) -> list[Finding]:
    """POST /v1/jobs over 32 connections, compared with a route that does nothing; 1,000 jobs per request, with one."""
    with databases.scratch() as path, serving(f"sqlite:///{path}") as server:
        single, nothing, bulk = alternate(
            databases.scale.rounds,
            lambda: _served(server, "/v1/jobs", json.dumps(_JOB), _REQUESTS),
            lambda: _served(server, "/nothing", json.dumps(_JOB), _REQUESTS),
            lambda: _served(
                server, "/v1/jobs/batch", _batch(), _BATCHES, connections=_BULK_CONNECTIONS, jobs=_PER_BATCH
            ),
        )
    tails = Spread.of(_quantile(sample, 0.99) / _quantile(sample, 0.5) for sample in single)
    return [
        rates(
            "POST /v1/jobs, 32 connections, durable and in two phases",
            single,
            reference=nothing,
            compared_with="a route that does nothing",
            target=Target("≥", 0.25),
        ),
        Finding(
            "the same, 99th percentile of the answers",
            "ms",
            Spread.of(_quantile(sample, 0.99) * 1e3 for sample in single),
            compared_with="its median",
            reference=Spread.of(_quantile(sample, 0.5) * 1e3 for sample in single),
            ratio=tails,
            target=Target("≤", 5),
        ),
        rates(
            "POST /v1/jobs/batch, 1,000 jobs per request, 4 connections",
            bulk,
            reference=single,
            compared_with="one job per request",
            target=Target("≥", 10),
        ),
    ]


def _served(
    server: Process, path: str, body: str, requests: int, *, connections: int = _CONNECTIONS, jobs: int = 1
) -> Served:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    left = iter([f"{head}Idempotency-Key: key-{next(_keys)}\r\n\r\n{body}".encode() for _ in range(requests)])
    began, spent = perf_counter(), server.spent()
    took = asyncio.run(send_all(server.port, connections, lambda: next(left, None)))
    seconds, cpu = perf_counter() - began, server.spent() - spent
    return Served(seconds, cpu, 0.0, requests * jobs, requests, tuple(took))


def _batch() -> str:
    return json.dumps({"jobs": [_JOB] * _PER_BATCH})


def _quantile(sample: Served, share: float) -> float:
    ordered = sorted(sample.took)
    return ordered[round(share * (len(ordered) - 1))]


@dataclass(frozen=True, slots=True)
class Process:
    """A running server."""

    pid: int
    port: int

    def spent(self) -> float:
        """CPU seconds so far; 0 where the system does not report them."""
        told = Path(f"/proc/{self.pid}/stat")
        if not told.exists():
            return 0.0
        fields = told.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(url: str) -> Iterator[Process]:
    """Run a server process on this store."""
    command = [sys.executable, "-m", "benchmarks.api_process", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Process(process.pid, int(process.stdout.readline().rpartition(":")[2]))
        process.send_signal(signal.SIGTERM)
