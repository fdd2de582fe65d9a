"""CPU-bound work, and work that may crash, in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal

from longshore import Harbor
from longshore.errors import JobFailed

harbor = Harbor("memory://")


@harbor.task(executor="process")
def count_primes(first: int, last: int) -> tuple[int, int]:
    """Pure Python without an await: on the event loop it would block everything else."""
    found = sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(first, last))
    return found, os.getpid()


@harbor.task(executor="process", max_crashes=1)
def decode(name: str) -> None:
    """A library that crashes ends only its own process."""
    if name == "broken.jpg":
        os.kill(os.getpid(), signal.SIGSEGV)


@harbor.task(executor="process", memory_limit=256 * 1024 * 1024)
def unpack(size: int) -> int:
    """An allocation above the limit fails this job with a MemoryError."""
    return len(bytearray(size))


async def main() -> None:
    """Count primes on several cores, and survive a crash and an allocation above the limit."""
    async with harbor:
        worker = harbor.worker(concurrency=2)
        step = 20_000
        calls = [count_primes.call(max(2, first), first + step) for first in range(0, 4 * step, step)]
        answers = [await handle.result(timeout=60) for handle in await count_primes.enqueue_many(calls)]
        elsewhere = all(pid != os.getpid() for _, pid in answers)
        print(f"{sum(found for found, _ in answers)} primes below {4 * step}, counted in other processes: {elsewhere}")

        for handle in (await decode.enqueue("broken.jpg"), await unpack.enqueue(1024**3)):
            try:
                await handle.result(timeout=60)
            except JobFailed as failed:
                job = await handle.job()
                print(f"{job.type}: {failed.error.splitlines()[0]} (crashes: {job.crashes})")

        print(f"the worker still runs: {await (await unpack.enqueue(1024)).result(timeout=60)} bytes unpacked")
        await worker.close()


if __name__ == "__main__":  # needed: the processes import this file too
    asyncio.run(main())
