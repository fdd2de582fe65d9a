"""A process with a real Scheduler: `python -m tests.processes.scheduler_process INTERVAL URL NAME`.

It prints a line when it runs. SIGTERM closes it, as a deployment does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from longshore import Scheduler, connect
from longshore.runtime.signals import run_until_stopped


async def main(interval: float, url: str) -> int:
    async with connect(url) as backend:
        await backend.count_jobs()
        os.write(1, (json.dumps(["ready"]) + "\n").encode())
        return await run_until_stopped(Scheduler(backend, interval=interval), grace=10)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]), sys.argv[2])))
