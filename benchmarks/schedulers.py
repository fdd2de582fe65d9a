"""A scheduler process of the product's: `python -m benchmarks.schedulers URL`.

It says when it runs, and answers every line with the processor time it has spent until then.
"""

from __future__ import annotations

import asyncio
import sys
from time import process_time

from benchmarks.processes import next_order, say
from longshore.backends.connect import connect
from longshore.runtime.scheduler import Scheduler


async def main(url: str) -> None:
    """Until its input ends."""
    async with connect(url) as backend, Scheduler(backend):
        await backend.count_jobs()
        say(ready=True)
        while await asyncio.to_thread(next_order):
            say(cpu_seconds=process_time())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
