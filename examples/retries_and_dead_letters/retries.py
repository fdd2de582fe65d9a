"""Jobs that fail: retries, dead letters, and how to retry dead letters."""

from __future__ import annotations

import asyncio

from longshore import Harbor, JobFilter, JobStatus, Snooze, by_error, current_job, exponential
from longshore.errors import Fatal, JobFailed

harbor = Harbor("memory://")
bank_is_open = False


@harbor.task(attempts=4, backoff=exponential(0.02, cap=1, jitter=0.5))
def fetch_rates() -> str:
    """Up to four attempts, with an exponential backoff between them."""
    tried = current_job().executions
    if tried < 3:
        raise ConnectionError(f"no answer at try {tried}")
    return f"fetched at try {tried}"


@harbor.task(attempts=10, retry_strategy=by_error({ConnectionError: exponential(0.02), ValueError: False}))
def import_file(name: str) -> None:
    """A retry depends on the error: a bad file stays bad."""
    raise ValueError(f"{name} has no header")


@harbor.task(attempts=10)
def close_account(number: int) -> None:
    """Fatal makes the job a dead letter at once, whatever attempts are left."""
    raise Fatal(f"account {number} does not exist")


@harbor.task
def transfer(amount: int) -> str:
    """Snooze is not a failure and uses no attempt."""
    if current_job().executions == 1:
        raise Snooze(0.05, "the other side is busy")
    return f"transferred {amount}"


@harbor.task(tags=["bank"])
def pay(amount: int) -> str:
    """One attempt, the default: a dead letter when it fails."""
    if not bank_is_open:
        raise ConnectionError("the bank is closed")
    return f"paid {amount}"


async def main() -> None:
    """Let the jobs fail, list the dead letters, and retry some of them."""
    global bank_is_open
    async with harbor:
        worker = harbor.worker()
        handles = [
            await fetch_rates.enqueue(),
            await import_file.enqueue("rates.csv"),
            await close_account.enqueue(7),
            await transfer.enqueue(100),
            *await pay.enqueue_many([pay.call(1), pay.call(2)]),
        ]
        for handle in handles:
            try:
                said = str(await handle.result(timeout=10))
            except JobFailed as failed:
                said = failed.error.partition("\n")[0]
            job = await handle.job()
            print(f"{job.type:<14} {job.status:<10} after {job.retry_count} failures: {said}")

        queue = harbor.queue()
        dead = await queue.get_jobs(JobStatus.DEAD)
        print(f"\ndead letters: {', '.join(sorted(job.type for job in dead))}")

        bank_is_open = True
        wanted = JobFilter(tags=["bank"])
        print(f"would be retried: {await queue.retry_jobs(wanted, dry_run=True)}")
        print(f"retried: {await queue.retry_jobs(wanted, actor='ops')}")
        for handle in handles[-2:]:
            print(f"  {await handle.result(timeout=10)}")
        await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
