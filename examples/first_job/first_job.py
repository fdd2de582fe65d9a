"""Enqueue jobs in a SQLite file, run them with a worker, and show the results."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longshore import Harbor, current_job, fixed
from longshore.errors import Fatal, JobFailed

DATABASE = Path(__file__).resolve().parent / "jobs.db"

harbor = Harbor(f"sqlite:///{DATABASE}")


@harbor.task(attempts=3, backoff=fixed(0.05), tags=["mail"])
async def send_mail(to: str) -> str:
    """Send one mail: a plain function that returns a result or raises."""
    if "@" not in to:
        raise Fatal(f"{to!r} is not an address")  # a retry would not help
    if to.startswith("flaky") and current_job().executions == 1:
        raise ConnectionError("the mail server did not answer")
    return f"sent to {to}"


async def main() -> None:
    """Enqueue a few mails, run them, and show what happened."""
    addresses = ["ada@example.org", "flaky@example.org", "grace@example.org", "unknown", "alan@example.org"]
    async with harbor:
        handles = await send_mail.enqueue_many([send_mail.call(to) for to in addresses])  # all of them or none
        last = await send_mail.enqueue(to="lin@example.org")
        print(f"enqueued {len(handles) + 1} jobs in {DATABASE.name}; a worker runs them:")

        worker = harbor.worker(concurrency=4)
        for handle in [*handles, last]:
            try:
                print(f"  {handle.id}  {await handle.result(timeout=10)}")
            except JobFailed as failed:
                print(f"  {handle.id}  {failed.error.splitlines()[0]}")
        await worker.close()

        print("\nthe history of the job that failed first:")
        for event in await harbor.backend.read_events(job_id=handles[1].id):
            moved = f"{event.from_status or 'new'} -> {event.to_status}" if event.to_status else ""
            error = str(event.detail.get("error", "")).partition("\n")[0]
            print(f"  {event.job_seq}  {event.event:<14} {moved} {error}".rstrip())

        print("\nall jobs in the file:")
        for status, jobs in (await harbor.backend.count_jobs()).items():
            if jobs:
                print(f"  {status:<12} {jobs}")


if __name__ == "__main__":
    asyncio.run(main())
