"""Stores with a few jobs in them, for tests that read."""

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.job import Job

JOBS = 120
DONE = 10


async def fill(url: str) -> None:
    """Jobs of three queues and two types; ten of them are completed, each with a line in its log."""
    async with connect(url) as backend:
        await backend.enqueue_jobs([new_job(number) for number in range(JOBS)])
        await complete_some(backend, DONE)


def new_job(number: int) -> Job:
    odd = number % 2 == 1
    return Job(
        id=f"job-{number}",
        type="mail" if odd else "text",
        queue=f"queue-{number % 3}",
        payload=b'{"to": "ada"}',
        tags=["a", "b"] if odd else (),
        delay=None if number else 90,
        timeout=1.5,
    )


async def complete_some(backend: Backend, count: int) -> None:
    for job in await backend.dequeue_jobs("worker-1", limit=count):
        await backend.append_log(job.id, f"about {job.id}")
        await backend.complete_job(job.id, b'"done"', lease=job.lease)
