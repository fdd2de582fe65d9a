"""Jobs submitted to a queue: stored whole and at once, or refused with the reason."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from longshore import Job, JobStatus, Lease, Queue
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument, JobNotFound
from longshore.testing.conformance.scenarios import (
    EVERY_STATUS,
    all_jobs,
    claim,
    job_in,
    log_of,
    new_job,
    nothing_changes,
    refused,
    seconds,
)

S = JobStatus
DOCUMENTED = [
    "enqueue_job",
    "enqueue_jobs",
    "stream_jobs",
    "complete_job",
    "fail_job",
    "stop_job",
    "stop_job_with_retry",
    "mark_job_unknown_stopped",
    "cancel_jobs",
    "acknowledge_cancellation",
    "mark_worker_unresponsive",
    "get_job",
    "get_job_stats",
    "cleanup_expired_jobs",
    "reset_running_jobs",
    "delete_jobs",
    "close",
]
BETWEEN_BACKEND_AND_RUNTIME = {
    *("add_jobs", "settle_and_dequeue", "record_worker_event", "end_of_events", "now", "next_due", "count_delayed"),
    *("facts_about", "next_firing", "enqueue_new_jobs"),
}
"""Operations of a backend that a queue does not offer; a queue has all others."""
BY_FILTER = {"cancel_jobs", "delete_jobs"}
"""Operations that a queue also does in batches, on all jobs that match a filter."""
SAME_AS_THE_BACKENDS = sorted(
    name
    for name, _ in inspect.getmembers(Backend, inspect.isfunction)
    if not name.startswith("_") and name not in {*BETWEEN_BACKEND_AND_RUNTIME, "close"}
)


def test_the_queue_has_every_method_of_its_document_and_update_job_status() -> None:
    # Q-API-01 X-11
    assert [name for name in [*DOCUMENTED, "update_job_status"] if not hasattr(Queue, name)] == []


@pytest.mark.parametrize("verb", SAME_AS_THE_BACKENDS)
def test_an_operation_of_a_queue_has_the_parameters_of_the_backends(verb: str) -> None:
    # Q-API-01 Q-CON-02
    theirs = inspect.signature(getattr(Backend, verb)).parameters
    ours = dict(inspect.signature(getattr(Queue, verb)).parameters)
    only_ours = {"where"} if verb in BY_FILTER else set()
    assert set(ours) - set(theirs) == only_ours
    ours = {name: parameter for name, parameter in ours.items() if name not in only_ours}
    assert list(ours) == [name for name in theirs if name in ours]
    assert [name for name in theirs if name not in ours and theirs[name].default is inspect.Parameter.empty] == []
    for name, parameter in ours.items():
        assert parameter.kind is theirs[name].kind
        # a queue with a name needs no queue argument
        assert parameter.default == theirs[name].default or (name, parameter.default) == ("queue", None)


async def test_settle_operations_of_a_queue_return_nothing(queue: Queue, backend: Backend) -> None:
    # Q-API-01
    jobs = {verb: await job_in(backend, S.RUNNING) for verb in ("complete", "fail", "stop", "unknown", "bury", "give")}
    answers: list[Any] = [
        await queue.complete_job(jobs["complete"].id),  # type: ignore[func-returns-value]  # it must return nothing
        await queue.fail_job(jobs["fail"].id, "no"),  # type: ignore[func-returns-value]  # it must return nothing
        await queue.stop_job(jobs["stop"].id),  # type: ignore[func-returns-value]  # it must return nothing
        await queue.mark_job_unknown_stopped(jobs["unknown"].id),  # type: ignore[func-returns-value]  # it must return nothing
        await queue.bury_job(jobs["bury"].id, "no"),  # type: ignore[func-returns-value]  # it must return nothing
        await queue.release_lease(jobs["give"].id, lease(jobs["give"])),  # type: ignore[func-returns-value]  # it must return nothing
    ]
    assert answers == [None] * 6


def lease(job: Job) -> Lease:
    assert job.lease is not None
    return job.lease


async def test_an_enqueued_job_is_stored_as_it_was_given_and_its_id_returned(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # Q-ENQ-02 Q-GET-01 Q-JOB-01 Q-JOB-02 Q-JOB-03 Q-JOB-04 Q-JOB-05 Q-JOB-06 Q-STS-01 Q-CON-02
    job = Job(id="j1", type="email", payload=b"\x00\xff", tags=["eu", "slow"])
    assert await queue.enqueue_job(job) == "j1"
    stored = await queue.get_job("j1")
    assert (stored.id, stored.type, stored.payload, stored.tags) == ("j1", "email", b"\x00\xff", ("eu", "slow"))
    assert (stored.status, stored.created_at) == (S.INITIAL_PENDING, clock.now())
    assert stored == await backend.get_job("j1")
    assert (stored.started_at, stored.finalized_at, stored.last_retry_at, stored.assigned_at) == (None,) * 4
    assert (stored.assignee_id, stored.result, stored.error_message, stored.retry_count) == (None, None, "", 0)


async def test_an_invalid_job_is_refused_and_nothing_is_stored(queue: Queue, backend: Backend) -> None:
    # Q-ENQ-01 Q-ENQ-04 Q-ERR-02 Q-ENQS-04
    wrong: list[Any] = [None, "email", new_job(""), new_job().replace(id=7), new_job(type="")]
    begun = [new_job(status=status) for status in EVERY_STATUS if status not in (S.INITIAL_PENDING, S.CREATED)]
    async with nothing_changes(backend):
        for job in [*wrong, *begun]:
            with pytest.raises(InvalidArgument):
                await queue.enqueue_job(job)
            with pytest.raises(InvalidArgument, match=r"jobs\[1\]"):
                await queue.enqueue_jobs([new_job("good"), job])


async def test_an_id_is_enqueued_once(queue: Queue, backend: Backend) -> None:
    # Q-ENQ-04
    await queue.enqueue_job(new_job("a"))
    refusal = await refused(backend, queue.enqueue_job(new_job("a")), DuplicateJob)
    assert refusal.job_ids == ["a"]


async def test_a_batch_is_stored_in_one_go_and_answered_in_its_order(queue: Queue) -> None:
    # Q-ENQS-01
    ids = [f"job {number}" for number in (3, 1, 2)]
    assert await queue.enqueue_jobs([new_job(job_id) for job_id in ids]) == ids
    assert await queue.enqueue_jobs([]) == []
    assert (await queue.get_job_stats()).pending_jobs == 3


async def test_a_batch_with_an_id_in_use_or_twice_leaves_nothing(queue: Queue, backend: Backend) -> None:
    # Q-ENQS-03 Q-ENQS-04
    await queue.enqueue_job(new_job("used"))
    in_use = await refused(backend, queue.enqueue_jobs([new_job("new"), new_job("used")]), DuplicateJob)
    twice = await refused(backend, queue.enqueue_jobs([new_job("twin"), new_job("twin")]), DuplicateJob)
    assert (in_use.job_ids, twice.job_ids) == (["used"], ["twin"])


async def test_a_batch_is_one_write_to_the_backend(queue: Queue, backend: Backend, monkeypatch: Any) -> None:
    # Q-ENQS-05 Q-CON-02
    writes: list[str] = []
    write = backend._write  # type: ignore[attr-defined]  # only counted here

    async def counted(verb: Any, *args: Any, **kwargs: Any) -> Any:
        writes.append(verb.run.__name__)
        return await write(verb, *args, **kwargs)

    monkeypatch.setattr(backend, "_write", counted)
    await queue.enqueue_jobs([new_job() for _ in range(50)])
    assert writes == ["enqueue_jobs"]


async def test_many_threads_and_loops_use_one_queue_at_once(queue: Queue) -> None:
    # Q-CON-01
    def enqueue_some(who: int) -> None:
        async def some() -> None:
            await asyncio.gather(*(queue.enqueue_job(new_job(f"{who}-{number}")) for number in range(10)))

        asyncio.run(some())

    threads = [threading.Thread(target=enqueue_some, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    claims = await asyncio.gather(*(queue.dequeue_jobs(f"w{number}", limit=10) for number in range(6)))
    claimed = [job.id for jobs in claims for job in jobs]
    assert len(claimed) == len(set(claimed)) == 40


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["a", "b"], ["exact", "more"]),
        (["b", "a"], ["exact", "more"]),
        (["a"], ["exact", "more", "less"]),
        (["A"], []),
        (["a", "d"], []),
        ([], ["exact", "more", "less", "none"]),
    ],
)
async def test_a_filter_matches_jobs_that_carry_all_its_tags(queue: Queue, wanted: list[str], found: list[str]) -> None:
    # Q-TAG-01 Q-TAG-02 Q-TAG-03 Q-TAG-04 Q-STATQ-01
    tags = {"exact": ["a", "b"], "more": ["c", "b", "a"], "less": ["a"], "none": []}
    await queue.enqueue_jobs([new_job(job_id, tags=tags[job_id]) for job_id in tags])
    stats = await queue.get_job_stats(wanted)
    assert (stats.tags, stats.total_jobs) == (tuple(wanted), len(found))
    assert [job.id for job in await queue.dequeue_jobs("w", wanted, 10)] == found


async def test_statistics_put_every_status_in_its_bucket_and_change_nothing(queue: Queue, backend: Backend) -> None:
    # Q-STT-01 Q-STATQ-01 Q-JOB-11
    for status in EVERY_STATUS:
        await job_in(backend, status, tags=["all"])
    async with nothing_changes(backend):
        stats = await queue.get_job_stats(["all"])
    assert (stats.total_jobs, stats.pending_jobs, stats.running_jobs, stats.completed_jobs) == (12, 1, 1, 1)
    assert (stats.stopped_jobs, stats.failed_jobs, stats.total_retries) == (4, 2, 2)


async def test_an_unknown_job_raises_job_not_found(queue: Queue) -> None:
    # Q-GET-01 Q-ERR-02
    with pytest.raises(JobNotFound) as missing:
        await queue.get_job("nobody")
    assert missing.value.job_id == "nobody"
    with pytest.raises(InvalidArgument):
        await queue.get_job("")


async def test_reading_shows_what_is_committed_now_and_changes_nothing(queue: Queue, backend: Backend) -> None:
    # Q-GET-01
    await queue.enqueue_job(new_job("a"))
    before = await queue.get_job("a")
    claimed = await claim(backend)
    async with nothing_changes(backend):
        after = await queue.get_job("a")
    assert (before.status, after.status, after.lease) == (S.INITIAL_PENDING, S.RUNNING, claimed.lease)


async def test_completed_jobs_older_than_a_time_are_cleaned_up_and_no_others(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # Q-CLN-01 Q-CLN-02
    for status in EVERY_STATUS:
        await job_in(backend, status, f"old {status}")
    clock.advance(60)
    await job_in(backend, S.COMPLETED, "young")
    for ttl in (0, -1, seconds(0)):
        await refused(backend, queue.cleanup_expired_jobs(ttl), field="ttl")
    await queue.cleanup_expired_jobs(60)
    left = {job.id for job in await all_jobs(backend)}
    assert left == {f"old {status}" for status in EVERY_STATUS if status is not S.COMPLETED} | {"young"}


async def test_an_error_of_the_backend_comes_through_unchanged(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q-ERR-03
    error = BackendUnavailable("the disk is full")

    async def full(*_: object, **__: object) -> Any:
        raise error

    for verb in ("enqueue_job", "complete_job", "get_job_stats", "dequeue_jobs"):
        monkeypatch.setattr(backend, verb, full)
    calls = (queue.enqueue_job(new_job()), queue.complete_job("x"), queue.get_job_stats(), queue.dequeue_jobs("w"))
    for call in calls:
        with pytest.raises(BackendUnavailable) as caught:
            await call
        assert caught.value is error


async def test_a_call_that_is_cancelled_ends_with_that(queue: Queue, backend: Backend) -> None:
    # Q-ERR-01
    waiting = asyncio.create_task(queue.wait_for_change(60, after=None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await log_of(backend) == []
