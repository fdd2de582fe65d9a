"""Enqueue jobs in a SQLite file, run them, see what became of them.

Run this:   make run            (or: python examples/first_job/first_job.py)
See that:   five mails sent, one of them at the second try; a job with an impossible address buried as DEAD; the
            history of the job that failed first; and the counts. The file stays; run it again and the counts grow.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from longshore import Job, JobStatus, Outcome, connect, fixed
from longshore.backends.contract import Backend
from longshore.core.policy import Ending, decide

HERE = Path(__file__).resolve().parent
DATABASE = HERE / "jobs.db"
MAX_ATTEMPTS = 3
BACKOFF = fixed(0.05)


def send_mail(job: Job) -> dict[str, str]:
    """The work itself: a plain function that returns a result or raises."""
    to = job.data["to"]
    if "@" not in to:
        raise ValueError(f"{to!r} is no address")
    if to.startswith("flaky") and job.executions == 1:
        raise ConnectionError("the mail server did not answer")
    return {"sent_to": to}


def run_once(job: Job) -> Outcome:
    """Runs a claimed job and decides what follows: done, another try later, or buried."""
    try:
        return Outcome(job.id, job.lease, result=json.dumps(send_mail(job)).encode())
    except ValueError as error:
        ending = Ending("failure", str(error), fatal=True)  # trying again would not help
    except ConnectionError as error:
        ending = Ending("failure", str(error))
    decision = decide(ending, failures=job.retry_count + 1, max_attempts=job.max_attempts, backoff=BACKOFF)
    return Outcome(job.id, job.lease, decision.verb, error=ending.error, retry_at=decision.delay)


async def work_until_done(backend: Backend) -> None:
    """Claims, runs and settles until nothing is waiting any more."""
    while True:
        jobs = await backend.dequeue_jobs("worker-1", limit=10, lease=30)
        if jobs:
            report = await backend.settle_jobs([run_once(job) for job in jobs])
            for job_id, status in report.settled.items():
                print(f"  {job_id}  {status}")
        elif (await backend.count_jobs())[JobStatus.FAILED_RETRY]:
            await backend.wait_for_change(0.05)  # its backoff has not passed yet
        else:
            return


async def main() -> None:
    """Enqueues a few mails, works them off, and shows what happened."""
    addresses = ["ada@example.org", "flaky@example.org", "grace@example.org", "nobody", "alan@example.org"]
    mails = [
        Job(type="send_mail", payload=json.dumps({"to": to}).encode(), tags=["mail"], max_attempts=MAX_ATTEMPTS)
        for to in [*addresses, "lin@example.org"]
    ]
    async with connect(f"sqlite:///{DATABASE}") as backend:
        ids = await backend.enqueue_jobs(mails)
        print(f"enqueued {len(ids)} jobs in {DATABASE.name}; running them:")
        await work_until_done(backend)
        print("\nthe history of the job that failed first:")
        for event in await backend.read_events(job_id=ids[1]):
            moved = f"{event.from_status or 'new'} -> {event.to_status}" if event.to_status else ""
            print(f"  {event.job_seq}  {event.event:<14} {moved} {event.detail.get('error', '')}")
        print("\nall jobs in the file:")
        for status, jobs in (await backend.count_jobs()).items():
            if jobs:
                print(f"  {status:<12} {jobs}")


if __name__ == "__main__":
    asyncio.run(main())
