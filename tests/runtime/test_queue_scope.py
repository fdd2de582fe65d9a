"""A queue with a name sees its own jobs only; one without a name sees all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore import Job, JobFilter, JobStatus, Outcome, Queue, Repeat
from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, JobNotFound
from longshore.core.schedule import Schedule
from longshore.testing.conformance.scenarios import STALE, claim, job_in, lease_of, new_job, nothing_changes, refused

S = JobStatus

BY_ID: dict[str, tuple[JobStatus, Callable[[Queue, Job], Awaitable[Any]]]] = {
    "get_job": (S.RUNNING, lambda queue, job: queue.get_job(job.id)),
    "complete_job": (S.RUNNING, lambda queue, job: queue.complete_job(job.id)),
    "fail_job": (S.RUNNING, lambda queue, job: queue.fail_job(job.id, "x")),
    "bury_job": (S.RUNNING, lambda queue, job: queue.bury_job(job.id, "x")),
    "stop_job": (S.RUNNING, lambda queue, job: queue.stop_job(job.id)),
    "stop_job_with_retry": (S.CANCELLING, lambda queue, job: queue.stop_job_with_retry(job.id, "x")),
    "mark_job_unknown_stopped": (S.RUNNING, lambda queue, job: queue.mark_job_unknown_stopped(job.id)),
    "update_job_status": (S.RUNNING, lambda queue, job: queue.update_job_status(job.id, S.STOPPED)),
    "release_lease": (S.RUNNING, lambda queue, job: queue.release_lease(job.id, lease_of(job))),
    "extend_leases": (S.RUNNING, lambda queue, job: queue.extend_leases({job.id: lease_of(job)}, 60)),
    "acknowledge_cancellation": (S.CANCELLING, lambda queue, job: queue.acknowledge_cancellation(job.id, True)),
    "set_progress": (S.RUNNING, lambda queue, job: queue.set_progress(job.id, 1)),
    "append_log": (S.RUNNING, lambda queue, job: queue.append_log(job.id, "x")),
    "save_checkpoint": (S.RUNNING, lambda queue, job: queue.save_checkpoint(job.id, 1)),
    "read_logs": (S.RUNNING, lambda queue, job: queue.read_logs(job.id)),
    "accept_jobs": (S.CREATED, lambda queue, job: queue.accept_jobs([job.id])),
    "cancel_jobs": (S.INITIAL_PENDING, lambda queue, job: queue.cancel_jobs(job_ids=[job.id])),
    "delete_jobs": (S.COMPLETED, lambda queue, job: queue.delete_jobs(job_ids=[job.id])),
    "retry_job": (S.DEAD, lambda queue, job: queue.retry_job(job.id)),
    "promote_job": (S.INITIAL_PENDING, lambda queue, job: queue.promote_job(job.id)),
    "remove_job": (S.COMPLETED, lambda queue, job: queue.remove_job(job.id)),
    "add": (S.COMPLETED, lambda queue, job: queue.add("x", job_id=job.id)),
    "add_bulk": (S.COMPLETED, lambda queue, job: queue.add_bulk([("new", 1), ("x", 1, {"job_id": job.id})])),
}
BY_QUEUE: dict[str, Callable[[Queue, str], Awaitable[Any]]] = {
    "enqueue_job": lambda queue, name: queue.enqueue_job(new_job(queue=name)),
    "enqueue_jobs": lambda queue, name: queue.enqueue_jobs([new_job(), new_job(queue=name)]),
    "put_schedule": lambda queue, name: queue.put_schedule(
        Schedule(id="s", job=new_job(queue=name), repeat=Repeat(every=60))
    ),
    "dequeue_jobs": lambda queue, name: queue.dequeue_jobs("w", queues=[name]),
    "cancel_jobs": lambda queue, name: queue.cancel_jobs(["x"], queue=name),
    "delete_jobs": lambda queue, name: queue.delete_jobs(["x"], queue=name),
    "reset_running_jobs": lambda queue, name: queue.reset_running_jobs(queue=name),
    "list_jobs": lambda queue, name: queue.list_jobs(JobFilter(queues=[name])),
    "get_job_stats": lambda queue, name: queue.get_job_stats(queue=name),
    "count_jobs": lambda queue, name: queue.count_jobs(name),
    "read_events": lambda queue, name: queue.read_events(queue=name),
    "pause_queue": lambda queue, name: queue.pause_queue(name),
    "resume_queue": lambda queue, name: queue.resume_queue(name),
    "set_limits": lambda queue, name: queue.set_limits(name, running=1),
    "set_retention": lambda queue, name: queue.set_retention(name, dead=60),
    "cleanup_expired_jobs": lambda queue, name: queue.cleanup_expired_jobs(60, queue=name),
    "retry_jobs": lambda queue, name: queue.retry_jobs(JobFilter(queues=[name])),
}


@pytest.mark.parametrize("verb", BY_ID)
async def test_a_job_of_another_queue_is_refused_and_the_refusal_names_both(
    queue: Queue, mail: Queue, backend: Backend, verb: str
) -> None:
    # M-JOB-03 M-QUE-01
    status, call = BY_ID[verb]
    other = await job_in(backend, status, queue="billing")
    refusal = await refused(backend, call(mail, other))
    assert "'billing'" in str(refusal)
    assert "'mail'" in str(refusal)
    own = await job_in(backend, status, queue="mail")
    await call(mail, own)
    await call(queue, other)


@pytest.mark.parametrize("verb", BY_QUEUE)
async def test_another_queue_cannot_be_named_through_a_named_one(
    queue: Queue, mail: Queue, backend: Backend, verb: str
) -> None:
    # M-JOB-03
    await refused(backend, BY_QUEUE[verb](mail, "billing"))
    await BY_QUEUE[verb](mail, "mail")
    await BY_QUEUE[verb](queue, "billing")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", 7])
def test_a_name_is_checked(name: Any, store_url: str, backend: Backend) -> None:
    # M-QUE-01
    with pytest.raises(InvalidArgument):
        Queue(backend, name)


def test_a_queue_is_made_on_a_backend() -> None:
    # M-QUE-01
    wrong: Any = "sqlite:///jobs.db"
    with pytest.raises(InvalidArgument, match="connect"):
        Queue(wrong)


async def test_a_job_that_names_no_queue_takes_the_queues_name(queue: Queue, mail: Queue) -> None:
    # M-JOB-03
    jobs = [Job(type="a"), Job(type="b", queue="mail")]
    for job_id in [await mail.enqueue_job(jobs[0]), *await mail.enqueue_jobs([jobs[1], Job(type="c")])]:
        assert (await mail.get_job(job_id)).queue == "mail"
    assert (await mail.add("d")).queue == "mail"
    assert [job.queue for job in await mail.add_bulk([("e", 1), {"type": "f"}])] == ["mail"] * 2
    assert (await queue.add("g")).queue == "default"
    # a job with the queue "default" has named a queue
    with pytest.raises(InvalidArgument):
        await mail.enqueue_job(Job(type="h", queue="default"))


async def test_looking_shows_a_queues_own_jobs_and_all_of_them_without_a_name(
    queue: Queue, mail: Queue, backend: Backend
) -> None:
    # M-JOB-03 M-QUE-06
    for name in ("mail", "billing"):
        for status in (S.INITIAL_PENDING, S.DEAD):
            await job_in(backend, status, queue=name, tags=["t"])
    assert {job.queue for job in (await mail.list_jobs(JobFilter())).items} == {"mail"}
    assert {job.queue for job in await mail.get_jobs(list(S))} == {"mail"}
    assert ((await mail.get_job_stats(["t"])).total_jobs, (await queue.get_job_stats(["t"])).total_jobs) == (2, 4)
    assert ((await mail.count_jobs())[S.DEAD], (await queue.count_jobs())[S.DEAD]) == (1, 2)
    assert ((await mail.get_job_counts())["FAILED"], (await queue.get_job_counts())["FAILED"]) == (1, 2)
    assert {event.queue for event in await mail.read_events()} == {"mail"}
    assert [info.name for info in await mail.list_queues()] == ["mail"]
    assert [info.name for info in await queue.list_queues()] == ["billing", "mail"]
    assert [job.queue for job in await mail.dequeue_jobs("w", limit=9)] == ["mail"]
    assert [job.queue for job in await queue.dequeue_jobs("w", limit=9)] == ["billing"]


async def test_acting_on_many_touches_a_queues_own_only(queue: Queue, mail: Queue, backend: Backend) -> None:
    # M-JOB-03 M-QUE-09 Q-RST-01 Q-CLN-02
    for name in ("mail", "billing"):
        for status in (S.INITIAL_PENDING, S.RUNNING, S.COMPLETED, S.STOPPED, S.DEAD):
            await job_in(backend, status, f"{name} {status}", queue=name, tags=["t"])
    theirs = JobFilter(queues=["billing"])
    before = (await backend.list_jobs(theirs)).items
    await mail.empty()
    await mail.reset_running_jobs()
    await mail.clean(0)
    await mail.retry_jobs()
    await mail.cancel_jobs(["t"])
    await mail.delete_jobs(["t"])
    assert (await backend.list_jobs(theirs)).items == before
    assert (await mail.list_jobs(JobFilter())).items == []


async def test_a_batch_refuses_only_the_outcomes_of_other_queues(mail: Queue, backend: Backend) -> None:
    # M-JOB-03
    own = await job_in(backend, S.RUNNING, "own", queue="mail")
    other = await job_in(backend, S.RUNNING, "other", queue="billing")
    report = await mail.settle_jobs([Outcome("own", own.lease), Outcome("other", other.lease)])
    assert report.settled == {"own": S.COMPLETED}
    assert isinstance(report.refused["other"], InvalidArgument)
    assert (await backend.get_job("other")).status is S.RUNNING
    wrong: Any = ["own"]
    with pytest.raises(InvalidArgument):
        await mail.settle_jobs(wrong)


async def test_an_unknown_job_raises_job_not_found_in_a_named_queue(mail: Queue, backend: Backend) -> None:
    # Q-GET-01
    for call in (mail.get_job("x"), mail.complete_job("x"), mail.retry_job("x"), mail.accept_jobs(["x"])):
        with pytest.raises(JobNotFound):
            await call
    async with nothing_changes(backend):
        assert await mail.cancel_jobs(job_ids=["x"]) == ([], ["x"])
        assert await mail.extend_leases({"x": STALE}, 30) == {}
        await mail.delete_jobs(job_ids=["x"])
        await mail.remove_job("x")


async def test_a_named_queue_has_only_its_own_schedules(queue: Queue, mail: Queue) -> None:
    # M-JOB-18 X-93
    ours = await mail.add("report", repeat=Repeat(every=60), job_id="ours")
    theirs = await queue.put_schedule(Schedule(id="theirs", job=new_job(queue="billing"), repeat=Repeat(every=60)))
    assert [schedule.id for schedule in await mail.get_schedules()] == ["ours"]
    assert [schedule.id for schedule in await queue.get_schedules()] == ["ours", "theirs"]
    assert ours.job.queue == "mail"
    assert not await mail.remove_schedule(theirs.id)
    assert await mail.remove_schedule(ours.id)
    assert await queue.remove_schedule(theirs.id)


async def test_limits_and_retention_are_the_named_queues(queue: Queue, mail: Queue, backend: Backend) -> None:
    # M-QUE-10
    await mail.set_limits(running=1)
    await mail.set_retention(finished=60)
    await mail.add_bulk([("a",), ("b",)])
    assert len(await mail.dequeue_jobs("w", limit=5)) == 1
    for call in (queue.set_limits(running=1), queue.set_retention(dead=1), queue.pause_queue(), queue.resume_queue()):
        await refused(backend, call, field="queue")


async def test_a_paused_queue_starts_nothing_for_anybody_until_it_is_resumed(
    queue: Queue, mail: Queue, backend: Backend
) -> None:
    # M-QUE-10 X-99
    first = await mail.add("first")
    await claim(backend)
    await mail.pause()
    await mail.add("second")
    await queue.enqueue_job(new_job("elsewhere", queue="billing"))
    assert [job.id for job in await backend.dequeue_jobs("w", limit=9)] == ["elsewhere"]
    await mail.complete_job(first.id)
    await mail.resume()
    assert [job.type for job in await backend.dequeue_jobs("w", limit=9)] == ["second"]
    told = [event.event for event in await mail.read_events() if event.job_id is None]
    assert told == ["queue.paused", "queue.resumed"]


async def test_without_a_name_all_queues_there_are_are_paused(queue: Queue, mail: Queue, backend: Backend) -> None:
    # M-QUE-10
    await mail.add("a")
    await queue.pause()
    await queue.add("b")
    assert await backend.dequeue_jobs("w", limit=9) == []
    await queue.resume()
    assert len(await backend.dequeue_jobs("w", limit=9)) == 2


async def test_a_job_of_another_queue_is_found_among_thousands_of_ids(mail: Queue, backend: Backend) -> None:
    await backend.enqueue_job(new_job("other", queue="bills"))
    ids = [*(f"unknown {number}" for number in range(2_000)), "other"]
    await refused(backend, mail.cancel_jobs(job_ids=ids), field="job_ids")
