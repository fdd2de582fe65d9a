"""The documented events and details, compared with what a store writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from longshore import Job, Outcome, Queue, Rate, Repeat
from longshore.backends.base import Backend
from longshore.backends.token_store import SupportsTokens
from longshore.core.actor import acting
from longshore.core.clock import HeldClock
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.runtime import events as event_module
from longshore.testing.conformance.scenarios import lease_of, log_of

PAGE = Path(__file__).parents[2] / "docs" / "queue.md"
LOADED = re.compile(r"`(\w+)`(\*?)")
LARGE = b'"' + b"x" * 9_000 + b'"'


def table() -> dict[str, set[str]]:
    """Return every event on the page, with the details that the log stores."""
    rows = re.findall(r"^\| `([a-z_.]+)` \|[^|]*\|([^|]*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {event: {name for name, loaded in LOADED.findall(details) if not loaded} for event, details in rows}


async def live_every_life(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    """Make the store write every event with each of its details."""

    async def claimed(**options: Any) -> Job:
        await queue.add("t", **options)
        [job] = await queue.dequeue_jobs("w")
        return job

    for result in (b"1", b"\xff", LARGE):
        job = await claimed(remove_on_complete=True)
        await queue.settle_jobs([Outcome(job.id, job.lease, result=result)])
    job = await claimed(concurrency_key="k", parent_id=job.id, attempts=0)
    await queue.set_progress(job.id, 1)
    await queue.append_log(job.id, "half")
    await queue.fail_job(job.id, "no", retry_at=60)
    await queue.promote_job(job.id)
    [job] = await queue.dequeue_jobs("w")
    await queue.release_lease(job.id, lease_of(job), reason="stopping")
    await queue.dequeue_jobs("w")
    await queue.bury_job(job.id, "for good")
    await queue.retry_job(job.id)
    await queue.dequeue_jobs("w")
    await queue.mark_worker_unresponsive("w")
    await queue.update_job_status(job.id, JobStatus.STOPPED)
    await queue.remove_job(job.id)
    first = await queue.add("t")
    await queue.add("t", depends_on=[first.id])
    await queue.add("t", depends_on=[first.id], on_dependency_failure="stop", hold=True, job_id="held")
    await queue.accept_jobs(["held"])
    [job] = await queue.dequeue_jobs("w")
    await queue.complete_job(job.id)
    broken = await queue.add("t", priority=-1)
    await queue.add("t", depends_on=[broken.id], on_dependency_failure="stop")
    [job] = await queue.dequeue_jobs("w")
    await queue.cancel_jobs(job_ids=[job.id])
    await queue.stop_job_with_retry(job.id, "failed while being cancelled")
    job = await claimed(priority=-1)
    await queue.cancel_jobs(job_ids=[job.id])
    await queue.acknowledge_cancellation(job.id, False)
    await queue.mark_worker_unresponsive("w")
    await backend.record_worker_event("worker.drained", "w")
    await queue.pause_queue("default")
    await queue.resume_queue("default")
    every = Repeat(every=60)
    await queue.put_schedule(Schedule(id="s", job=Job(type="t", queue="default"), repeat=every))
    clock.advance(61)
    await queue.fire_due_schedules()
    await queue.pause_schedule("s")
    await queue.resume_schedule("s")
    with acting("ada"):
        await backend.set_limits("default", running=1, per_key=1, rate=Rate(1, 1), rate_per_key=Rate(1, 1))
        await backend.set_retention("default", finished=1, dead=1, events=None)
        await backend.put_schedule(Schedule(id="s", job=Job(type="t", queue="default"), repeat=Repeat(every=90)))
        await backend.remove_schedule("s")
    assert isinstance(backend, SupportsTokens)
    issued = await backend.issue_token("reader", ["read"], queues=["mail"])
    await backend.revoke_token(issued.token.id)


async def test_the_documented_details_of_every_event_are_those_the_store_writes(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M8 M-EV-01 M-EV-02 M-EV-04 M-EV-15
    await live_every_life(queue, backend, clock)
    written: dict[str, set[str]] = {}
    for event in await log_of(backend):
        written.setdefault(event.event, set()).update(event.detail)
    documented = table()
    assert documented.keys() == set(event_module.EVENTS)
    assert written.keys() == documented.keys()
    documented["schedule.paused"].discard("error")  # of a failing schedule, which the schedule tests cover
    assert written == documented
