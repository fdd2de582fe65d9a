"""Compares this tree with another commit: CPU time per job, measured alternately.

    python -m benchmarks.against COMMIT [--rounds 10] [--only drain_sqlite]

Each round runs each probe in a new process, first on one tree and then on the other. The minimum over all rounds is
compared, because other processes on the machine can only add time. A ratio over 1.05 is reported as slower.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from time import process_time
from typing import Any
from urllib.parse import urlsplit

from benchmarks.processes import cpu_by_process
from longshore import Harbor, Job, Outcome, Repeat, connect
from longshore.core.schedule import Schedule  # both trees have it there

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 1.05
SERVER = int(os.environ.get("SERVER_PID", 0))  # noqa: TID251 - set by the parent process
_QUEUE = "mail"
_PAYLOAD = b'{"to": "ada@example.com", "subject": "%s"}' % (b"x" * 60)

Probe = Callable[[str], Awaitable[float]]


def spent() -> float:
    """CPU seconds so far of this process and of the PostgreSQL server."""
    return process_time() + (sum(cpu_by_process(SERVER).values()) if SERVER else 0)


def _jobs(count: int, keys: int = 0) -> list[Job]:
    return [
        Job(type="send", queue=_QUEUE, payload=_PAYLOAD, concurrency_key=f"key-{n % keys}" if keys else None)
        for n in range(count)
    ]


async def _in_batches(backend: Any, count: int, keys: int = 0) -> None:
    for _ in range(count // 1_000):
        await backend.enqueue_jobs(_jobs(1_000, keys))


async def enqueue_batches(url: str) -> float:
    """`enqueue_jobs`, 1,000 per call."""
    async with connect(url) as backend:
        await _in_batches(backend, 1_000)
        batches = [_jobs(1_000) for _ in range(20)]
        began = spent()
        for batch in batches:
            await backend.enqueue_jobs(batch)
        return (spent() - began) / 20_000


async def enqueue_singles(url: str) -> float:
    """`Task.enqueue`, single calls in sequence."""
    harbor = Harbor(url)

    @harbor.task
    async def send(to: str, subject: str) -> None:
        pass

    async with harbor:
        await send.enqueue("ada@example.com", subject="first")
        began = spent()
        for _ in range(1_000):
            await send.enqueue("ada@example.com", subject="next")
        return (spent() - began) / 1_000


async def life(url: str) -> float:
    """Enqueue, claim and settle in batches of 100."""
    async with connect(url) as backend:
        jobs = 0
        batches = [_jobs(100) for _ in range(60)]
        for number, batch in enumerate(batches):
            if number == 10:
                began, jobs = spent(), 0
            await backend.enqueue_jobs(batch)
            claimed = await backend.dequeue_jobs("worker", limit=100)
            outcomes = [Outcome(job.id, job.lease, "complete") for job in claimed if job.lease is not None]
            report = await backend.settle_jobs(outcomes)
            jobs += len(report.settled)
        return (spent() - began) / jobs


async def drain(url: str, keys: int = 0) -> float:
    """Drain 10,000 waiting jobs with a worker, 100 at a time."""
    harbor = Harbor(url)
    done = asyncio.Event()
    left = 10_000

    @harbor.task(name="send", queue=_QUEUE)
    async def send(to: str, subject: str) -> None:  # noqa: ARG001 - the arguments of the payload
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with harbor, connect(url) as backend:
        if keys:
            await backend.set_limits(_QUEUE, per_key=2)
        await _in_batches(backend, left, keys)
        began = spent()
        worker = harbor.worker(concurrency=100)
        await done.wait()
        await worker.close()
        return (spent() - began) / 10_000


async def limited_drain(url: str) -> float:
    """The same with 1,000 concurrency keys and a limit of two per key."""
    return await drain(url, keys=1_000)


async def claim_by_tag(url: str) -> float:
    """Claims by a rare tag among 10,000 waiting jobs."""
    async with connect(url) as backend:
        await _in_batches(backend, 10_000)
        tagged = [Job(type="send", queue=_QUEUE, payload=_PAYLOAD, tags=("rare",)) for _ in range(200)]
        await backend.enqueue_jobs(tagged)
        await backend.dequeue_jobs("worker", ["rare"], 10)
        began = spent()
        for _ in range(19):
            await backend.dequeue_jobs("worker", ["rare"], 10)
        return (spent() - began) / 190


async def fire_schedules(url: str) -> float:
    """500 schedules that are due at once."""
    async with connect(url) as backend:
        start = await backend.now() + timedelta(seconds=3)
        for number in range(500):
            job = Job(type="send", queue=_QUEUE, payload=_PAYLOAD)
            await backend.put_schedule(Schedule(id=f"s{number}", job=job, repeat=Repeat(every=86_400, start=start)))
        fired = 0
        await asyncio.sleep((start - await backend.now()).total_seconds() + 0.01)
        began = spent()
        while jobs := await backend.fire_due_schedules():
            fired += len(jobs)
        assert fired == 500, f"{fired} fired"
        return (spent() - began) / fired


@contextmanager
def _served(url: str) -> Iterator[tuple[str, int]]:
    """The address and the process of `longshore serve`."""
    command = [sys.executable, "-m", "longshore.cli", "serve", "--url", url, "--port", "0", "--json", "--no-scheduler"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["address"], server.pid
        finally:
            server.terminate()


def _spent_by(pid: int) -> float:
    """CPU seconds of all threads of another process."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


async def post_jobs(url: str) -> float:
    """POST /v1/jobs in sequence; the server's CPU time alone."""
    with _served(url) as (address, pid):
        connection = HTTPConnection(urlsplit(address).netloc)
        body = json.dumps({"type": "send", "queue": _QUEUE, "data": {"to": "ada@example.com"}})

        def post(count: int) -> None:
            for _ in range(count):
                connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 202, answer.status

        post(200)
        began = _spent_by(pid)
        post(1_000)
        return (_spent_by(pid) - began) / 1_000


async def remote_drain(url: str) -> float:
    """Drain 10,000 jobs through a server; the CPU time of both processes."""
    with _served(url) as (address, pid):
        began = _spent_by(pid)
        return await drain(address) + (_spent_by(pid) - began) / 10_000


_ON_BOTH: tuple[Probe, ...] = (
    enqueue_batches,
    enqueue_singles,
    life,
    drain,
    limited_drain,
    claim_by_tag,
    fire_schedules,
)
_ON_SQLITE: tuple[Probe, ...] = (post_jobs, remote_drain)
PROBES = (*_ON_BOTH, *_ON_SQLITE)


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def _measure(tree: Path, probe: str, url: str, server: int) -> float:
    """Microseconds per job, in a new process that imports the product from this tree."""
    # the first entry of the path wins over the installed package
    environment = dict(os.environ) | {"PYTHONPATH": f"{tree / 'src'}:{ROOT}", "SERVER_PID": str(server)}  # noqa: TID251 - handed to a child
    command = [sys.executable, str(Path(__file__).resolve()), "--probe", probe, "--url", url]
    answer = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)
    return float(json.loads(answer.stdout.splitlines()[-1])) * 1e6


def _compare(base: Path, rounds: int, only: list[str]) -> int:
    """Print one line per probe; return how many are slower in this tree."""
    names = [f"{probe.__name__}_sqlite" for probe in PROBES] + [f"{probe.__name__}_postgres" for probe in _ON_BOTH]
    wanted = [name for name in names if not only or name in only]
    times: dict[tuple[str, Path], list[float]] = defaultdict(list)
    with _databases() as new_database:
        for number in range(rounds):
            for name in wanted:
                probe, _, store = name.rpartition("_")
                for tree in (base, ROOT) if number % 2 else (ROOT, base):
                    with new_database(store) as (url, server):
                        times[name, tree].append(_measure(tree, probe, url, server))
    print(f"{'probe':28}{'base µs':>10}{'here µs':>10}{'ratio':>8}")
    slower = 0
    for name in wanted:
        before, after = min(times[name, base]), min(times[name, ROOT])
        is_slower = after / before > SLOWER
        slower += is_slower
        print(f"{name:28}{before:10.1f}{after:10.1f}{after / before:8.2f}{'  slower' if is_slower else ''}")
    return slower


@contextmanager
def _databases() -> Iterator[Callable[[str], AbstractContextManager[tuple[str, int]]]]:
    """A function that creates an empty database in a store and returns its URL and its server's process id."""
    from benchmarks.postgres_databases import PostgresDatabases  # not in a probe: it imports private modules
    from benchmarks.scale import FULL

    @contextmanager
    def new_database(store: str) -> Iterator[tuple[str, int]]:
        if store == "postgres":
            with postgres.new(template=None) as url:
                yield url, postgres.server.pid
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield f"sqlite:///{folder}/jobs.db", 0

    with closing(PostgresDatabases(FULL)) as postgres:
        yield new_database


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", action="append", default=[], help="one probe, such as drain_sqlite; may be repeated")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        probe = next(probe for probe in PROBES if probe.__name__ == arguments.probe)
        print(json.dumps(asyncio.run(probe(arguments.url))))  # type: ignore[arg-type]  # mypy does not see which probe it is
        return 0
    if not arguments.commit:
        parser.error("name the commit to compare with")
    with _checkout(arguments.commit) as base:
        return 1 if _compare(base, arguments.rounds, arguments.only) else 0


if __name__ == "__main__":
    sys.exit(main())
