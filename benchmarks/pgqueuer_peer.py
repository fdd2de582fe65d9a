"""PgQueuer for comparison: its schema, jobs and worker as its documentation and its own benchmark use them.

`python -m benchmarks.pgqueuer_peer URL COUNT AT_ONCE` is a worker process that drains COUNT jobs.
"""

from __future__ import annotations

import asyncio
import sys
from time import process_time

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job

from benchmarks.processes import next_order, say
from benchmarks.workload import TYPE, hundred_bytes

_PER_CALL = 1_000

LEFT = "SELECT count(*) FROM pgqueuer"
DONE = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"


async def install(url: str) -> None:
    """Create its tables, durable by default, with the autovacuum settings that it recommends."""
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def fill(url: str, count: int) -> None:
    """Enqueue `count` jobs."""
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    for start in range(0, count, _PER_CALL):
        payloads: list[bytes | None] = [hundred_bytes(number) for number in range(start, min(start + _PER_CALL, count))]
        await queries.enqueue([TYPE] * len(payloads), payloads, [0] * len(payloads))
    await connection.close()


async def drain(url: str, count: int, at_once: int) -> None:
    """Report readiness, wait for the start signal, report the start of the last job, and run until told to stop."""
    connection = await asyncpg.connect(url)
    worker = PgQueuer.from_asyncpg_connection(connection)
    begun = 0

    @worker.entrypoint(TYPE)
    async def nothing(_: Job) -> None:
        nonlocal begun
        begun += 1
        if begun == count:
            say(begun=begun)

    await worker.qm.verify_structure()
    say(ready=True)
    await asyncio.to_thread(next_order)
    before = process_time()
    await worker.qm.run(batch_size=at_once, mode=QueueExecutionMode.drain)
    await asyncio.to_thread(next_order)
    say(cpu_seconds=process_time() - before, begun=begun)
    await connection.close()


if __name__ == "__main__":
    # the event loop that its own command uses
    uvloop.run(drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
