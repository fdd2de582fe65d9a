"""A scheduler process: `python -m benchmarks.schedulers URL`.

It reports when it runs, and answers every line with its CPU time so far.
"""

from __future__ import annotations

import asyncio
import sys
from time import process_time

from benchmarks.processes import next_order, say
from longshore.backends.connect import connect
from longshore.runtime.scheduler import Scheduler


async def main(url: str) -> None:
    """Run until the input ends."""
    async with connect(url) as backend, Scheduler(backend):
        await backend.count_jobs()
        say(ready=True)
        while await asyncio.to_thread(next_order):
            say(cpu_seconds=process_time())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
