"""A process that fills a file through the product and reports its peak memory.

`python -m benchmarks.filling FILE COUNT` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measuring import Stopwatch
from benchmarks.processes import peak_megabytes
from benchmarks.workload import new_job, tags_of
from longshore.backends.sqlite.backend import SQLiteBackend

BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Filled:
    """The time and memory it took to fill a file."""

    jobs: int
    seconds: float
    cpu_seconds: float
    peak_megabytes: float


def fill_elsewhere(path: Path, count: int) -> Filled:
    """Fill the file in a new process, so that its memory can be measured."""
    command = [sys.executable, "-m", "benchmarks.filling", str(path), str(count)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return Filled(**json.loads(done.stdout))


async def fill(path: Path, count: int) -> Filled:
    """Enqueue tagged jobs in batches, each created just before it is stored."""
    async with SQLiteBackend(path) as backend:
        with Stopwatch(count) as watch:
            for start in range(0, count, BATCH):
                numbers = range(start, min(start + BATCH, count))
                await backend.enqueue_jobs([new_job(number, tags=tags_of(number, count)) for number in numbers])
    return Filled(count, watch.sample.seconds, watch.sample.cpu_seconds, peak_megabytes())


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2]))))))
