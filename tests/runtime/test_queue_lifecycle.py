"""The effect of a queue's operations on a job, by the transition table, from every status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore import Job, JobStatus, Outcome, Queue
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound, LeaseLost
from longshore.testing.conformance.scenarios import (
    EVERY_STATUS,
    STALE,
    WORKER,
    all_jobs,
    claimable,
    history,
    job_in,
    lease_of,
    new_job,
    nothing_changes,
    refused,
    seconds,
    status_of,
    steps,
)

S = JobStatus
Call = Callable[[Queue, str], Awaitable[Any]]

VERBS: dict[str, tuple[Call, JobStatus, set[JobStatus]]] = {
    "complete": (
        lambda queue, job_id: queue.complete_job(job_id, b"42"),
        S.COMPLETED,
        {S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED},
    ),
    "fail": (lambda queue, job_id: queue.fail_job(job_id, "broke"), S.FAILED_RETRY, {S.RUNNING, S.UNKNOWN_RETRY}),
    "stop": (
        lambda queue, job_id: queue.stop_job(job_id, "enough"),
        S.STOPPED,
        {S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY},
    ),
    "stop with retry": (lambda queue, job_id: queue.stop_job_with_retry(job_id, "broke"), S.STOPPED, {S.CANCELLING}),
    "mark unknown stopped": (
        lambda queue, job_id: queue.mark_job_unknown_stopped(job_id, "gone"),
        S.UNKNOWN_STOPPED,
        {S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY},
    ),
    "acknowledge": (lambda queue, job_id: queue.acknowledge_cancellation(job_id, True), S.STOPPED, {S.CANCELLING}),
    "disown": (
        lambda queue, job_id: queue.acknowledge_cancellation(job_id, False),
        S.UNKNOWN_STOPPED,
        {S.CANCELLING},
    ),
    "bury": (
        lambda queue, job_id: queue.bury_job(job_id, "hopeless"),
        S.DEAD,
        {S.RUNNING, S.FAILED_RETRY, S.UNKNOWN_RETRY},
    ),
    "retry": (lambda queue, job_id: queue.retry_job(job_id), S.FAILED_RETRY, {S.DEAD}),
}
every_verb = pytest.mark.parametrize("verb", VERBS)


@every_verb
async def test_a_verb_moves_a_job_from_the_statuses_the_table_has_and_is_refused_in_the_others(
    queue: Queue, backend: Backend, verb: str
) -> None:
    # Q-COMP-01 Q-FAIL-02 Q-STOP-01 Q-SWR-01 Q-MUS-01 Q-ACK-01 Q-ACK-02 Q-ACK-03 Q-ERR-02 Q-STS-10 Q-STS-11 Q-INV-04
    call, target, sources = VERBS[verb]
    for status in EVERY_STATUS:
        job = await job_in(backend, status)
        if status in sources:
            await call(queue, job.id)
            assert await status_of(backend, job.id) is target
        else:
            refusal = await refused(backend, call(queue, job.id), InvalidTransition)
            assert (refusal.job_id, refusal.status) == (job.id, status)


@every_verb
async def test_a_verb_on_a_job_that_is_not_there_says_so(queue: Queue, verb: str) -> None:
    # Q-COMP-01 Q-ERR-02
    with pytest.raises(JobNotFound):
        await VERBS[verb][0](queue, "nobody")
    with pytest.raises(InvalidArgument):
        await VERBS[verb][0](queue, "")


@pytest.mark.parametrize("verb", [verb for verb, (_, target, _) in VERBS.items() if target.final])
async def test_an_ended_job_has_a_time_a_reason_and_its_last_assignee(
    queue: Queue, backend: Backend, clock: HeldClock, verb: str
) -> None:
    # Q-COMP-02 Q-STOP-02 Q-SWR-01 Q-MUS-01 Q-ACK-04 Q-JOB-07 Q-JOB-08 Q-JOB-09 Q-JOB-10 Q-JOB-13 Q-JOB-14
    call, _, sources = VERBS[verb]
    job = await job_in(backend, S.RUNNING if S.RUNNING in sources else S.CANCELLING)
    claimed_at = clock.now()
    clock.advance(5)
    await call(queue, job.id)
    ended = await queue.get_job(job.id)
    assert (ended.started_at, ended.assigned_at, ended.finalized_at) == (claimed_at, claimed_at, clock.now())
    assert (ended.assignee_id, ended.lease) == (WORKER, None)
    assert ended.result == (b"42" if verb == "complete" else None)
    said = {"stop": "enough", "stop with retry": "broke", "mark unknown stopped": "gone", "bury": "hopeless"}
    assert ended.error_message == said.get(verb, "")
    assert await claimable(backend) == []


async def test_a_failure_is_counted_and_the_job_is_eligible_at_once_with_its_words(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # Q-FAIL-03 Q-FAIL-07 Q-JOB-09 Q-JOB-11 Q-JOB-12 Q-STS-04 Q-INV-04
    job = await job_in(backend, S.RUNNING)
    clock.advance(5)
    await queue.fail_job(job.id, "the mail server did not answer")
    failed = await queue.get_job(job.id)
    assert (failed.status, failed.retry_count, failed.last_retry_at) == (S.FAILED_RETRY, 1, clock.now())
    assert (failed.error_message, failed.finalized_at) == ("the mail server did not answer", None)
    assert (failed.assignee_id, failed.assigned_at) == (job.assignee_id, job.assigned_at)
    clock.advance(3_600)
    assert await status_of(backend, job.id) is S.FAILED_RETRY
    assert await claimable(backend) == [job.id]


async def test_a_failure_needs_words_and_a_stop_does_not(queue: Queue, backend: Backend) -> None:
    # Q-FAIL-01 Q-STOP-01
    job = await job_in(backend, S.RUNNING)
    await refused(backend, queue.fail_job(job.id, ""), field="error")
    await queue.stop_job(job.id)
    assert (await queue.get_job(job.id)).error_message == ""


async def test_any_caller_may_end_a_job_but_with_a_lease_only_its_holder(queue: Queue, backend: Backend) -> None:
    # Q-FAIL-06
    first, second = await job_in(backend, S.RUNNING), await job_in(backend, S.RUNNING)
    await queue.complete_job(first.id)
    for call in (
        queue.complete_job(second.id, lease=STALE),
        queue.fail_job(second.id, "x", lease=STALE),
        queue.bury_job(second.id, "x", lease=STALE),
        queue.stop_job(second.id, lease=STALE),
        queue.mark_job_unknown_stopped(second.id, lease=STALE),
        queue.release_lease(second.id, STALE),
        queue.set_progress(second.id, 1, lease=STALE),
        queue.append_log(second.id, "x", lease=STALE),
        queue.save_checkpoint(second.id, 1, lease=STALE),
    ):
        await refused(backend, call, LeaseLost)
    await queue.complete_job(second.id, lease=lease_of(second))


async def test_a_failure_while_being_cancelled_is_counted(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # Q-SWR-01
    job = await job_in(backend, S.CANCELLING)
    clock.advance(1)
    await queue.stop_job_with_retry(job.id, "failed while stopping")
    stopped = await queue.get_job(job.id)
    assert (stopped.retry_count, stopped.last_retry_at, stopped.finalized_at) == (1, clock.now(), clock.now())
    assert stopped.error_message == "failed while stopping"


async def test_cancelling_ends_waiting_jobs_and_requests_the_end_of_running_ones(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # Q-CAN-01 Q-STS-05 Q-STS-06 Q-STS-08 Q-JOB-08
    expected = {
        S.CREATED: S.UNSCHEDULED,
        S.WAITING_CHILDREN: S.UNSCHEDULED,
        S.INITIAL_PENDING: S.UNSCHEDULED,
        S.FAILED_RETRY: S.STOPPED,
        S.UNKNOWN_RETRY: S.STOPPED,
        S.RUNNING: S.CANCELLING,
        S.CANCELLING: S.CANCELLING,
    }
    for status in EVERY_STATUS:
        job = await job_in(backend, status)
        cancelled, unknown = await queue.cancel_jobs(job_ids=[job.id, "nobody", job.id])
        if status.final:
            assert (cancelled, sorted(unknown)) == ([], sorted([job.id, "nobody"]))
            assert await status_of(backend, job.id) is status
        else:
            assert (cancelled, unknown) == ([job.id], ["nobody"])
            found = await queue.get_job(job.id)
            assert found.status is expected[status]
            assert found.finalized_at == (clock.now() if found.status.final else None)


async def test_cancelling_takes_tags_and_ids_together_and_never_neither(queue: Queue, backend: Backend) -> None:
    # Q-CAN-01 Q-CAN-02
    for job_id, tags in (("both", ["a", "b"]), ("one", ["a"]), ("named", [])):
        await queue.enqueue_job(new_job(job_id, tags=tags))
    await refused(backend, queue.cancel_jobs())
    cancelled, unknown = await queue.cancel_jobs(["b", "a"], ["named", "both"])
    assert (sorted(cancelled), unknown) == (["both", "named"], [])
    assert await status_of(backend, "one") is S.INITIAL_PENDING


async def test_only_a_vanished_worker_loses_its_jobs(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # Q-MWU-01 Q-STS-07 Q-STS-09 Q-JOB-13 Q-JOB-14 Q-JOB-08
    running, cancelling = await job_in(backend, S.RUNNING), await job_in(backend, S.CANCELLING)
    await queue.enqueue_job(new_job("other"))
    await queue.dequeue_jobs("worker-2")
    await queue.mark_worker_unresponsive(WORKER)
    assert await status_of(backend, running.id) is S.UNKNOWN_RETRY
    ended = await queue.get_job(cancelling.id)
    assert (ended.status, ended.finalized_at) == (S.UNKNOWN_STOPPED, clock.now())
    assert (ended.assignee_id, ended.assigned_at) == (WORKER, cancelling.assigned_at)
    assert await status_of(backend, "other") is S.RUNNING
    async with nothing_changes(backend):
        await queue.mark_worker_unresponsive("nobody")


async def test_a_reset_takes_back_all_that_anybody_held(queue: Queue, backend: Backend) -> None:
    # Q-RST-01 Q-RST-02
    jobs = {status: await job_in(backend, status) for status in EVERY_STATUS}
    await queue.reset_running_jobs()
    after = {status: await queue.get_job(job.id) for status, job in jobs.items()}
    moved = {S.RUNNING: S.UNKNOWN_RETRY, S.CANCELLING: S.UNKNOWN_STOPPED}
    assert {status: job.status for status, job in after.items()} == {s: moved.get(s, s) for s in EVERY_STATUS}
    assert all(job.assignee_id == jobs[status].assignee_id for status, job in after.items())
    async with nothing_changes(backend):
        await queue.reset_running_jobs()


async def test_final_jobs_are_deleted_all_or_none(queue: Queue, backend: Backend) -> None:
    # Q-DEL-01
    for status in EVERY_STATUS:
        await job_in(backend, status, f"{status}", tags=["final"] if status.final else [])
    for status in EVERY_STATUS:
        if not status.final:
            await refused(backend, queue.delete_jobs(["final"], [f"{status}"]), InvalidTransition)
    await refused(backend, queue.delete_jobs())
    await queue.delete_jobs(["final"], ["nobody"])
    assert {job.status for job in await all_jobs(backend)} == {status for status in EVERY_STATUS if not status.final}


async def test_a_move_by_hand_follows_the_table_and_counts_nothing(queue: Queue, backend: Backend) -> None:
    # Q-STS-10 Q-STS-11 Q-INV-04
    job = await job_in(backend, S.RUNNING)
    await queue.update_job_status(job.id, S.UNKNOWN_STOPPED, error="by hand")
    await queue.update_job_status(job.id, S.UNKNOWN_STOPPED)
    moved = await queue.get_job(job.id)
    assert (moved.status, moved.error_message, moved.retry_count, moved.crashes) == (S.UNKNOWN_STOPPED, "by hand", 0, 0)
    for status in EVERY_STATUS:
        if status is not S.INITIAL_PENDING:
            begun = await job_in(backend, status)
            await refused(backend, queue.update_job_status(begun.id, S.INITIAL_PENDING), InvalidTransition)
    wrong: Any = "HAPPY"
    await refused(backend, queue.update_job_status(job.id, wrong))


async def test_many_endings_are_settled_together_and_a_stale_one_is_refused_alone(
    queue: Queue, backend: Backend
) -> None:
    # Q-CON-02
    good, bad = await job_in(backend, S.RUNNING), await job_in(backend, S.RUNNING)
    report = await queue.settle_jobs([Outcome(good.id, good.lease, result=b"1"), Outcome(bad.id, STALE)])
    assert report.settled == {good.id: S.COMPLETED}
    assert isinstance(report.refused[bad.id], LeaseLost)
    assert await status_of(backend, bad.id) is S.RUNNING


async def test_every_step_of_a_life_is_in_its_history(queue: Queue, backend: Backend) -> None:
    # Q-INV-04 Q-STS-02 Q-STS-03
    await queue.enqueue_job(new_job("a"))
    [claimed] = await queue.dequeue_jobs("w")
    await queue.fail_job("a", "no")
    [again] = await queue.dequeue_jobs("w")
    await queue.release_lease("a", lease_of(again), reason="shutting down")
    [last] = await queue.dequeue_jobs("w")
    assert await queue.extend_leases({"a": lease_of(last)}, 60)
    await queue.complete_job("a", b"done")
    assert (claimed.epoch, again.epoch, last.epoch) == (1, 2, 3)
    assert [target for _, target in steps(await history(backend, "a"))] == [
        S.INITIAL_PENDING,
        *(S.RUNNING, S.FAILED_RETRY, S.RUNNING, S.UNKNOWN_RETRY, S.RUNNING, S.COMPLETED),
    ]


async def test_the_notes_of_a_job_are_stored(queue: Queue, backend: Backend) -> None:
    # M-JOB-07 M-JOB-16 M-JM-01 M-JM-02
    job: Job = await job_in(backend, S.RUNNING)
    await queue.set_progress(job.id, {"done": 3, "of": 4}, lease=job.lease)
    await queue.append_log(job.id, "half way", lease=job.lease)
    await queue.append_log(job.id, "slow", "warn")
    await queue.save_checkpoint(job.id, {"page": 3})
    noted = await queue.get_job(job.id)
    assert (noted.progress, noted.checkpoint) == ({"done": 3, "of": 4}, {"page": 3})
    lines = await queue.read_logs(job.id)
    assert [(line.number, line.level, line.message) for line in lines] == [(1, "info", "half way"), (2, "warn", "slow")]
    assert await queue.read_logs(job.id, after=1) == lines[1:]
    await refused(backend, queue.append_log(job.id, "x", "shout"))
    told = [event.event for event in await queue.read_events(job_id=job.id)]
    assert told[-3:] == ["job.progress", "job.log_added", "job.log_added"]


async def test_a_record_has_what_bullmq_shows_of_a_job(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # M-JOB-08 M-JOB-09 M-JOB-10 M-JOB-12 M-JOB-13 M-JOB-15 M-JOB-17 X-75
    added = await queue.add("sum", [1, 2])
    [first] = await queue.dequeue_jobs("w1", lease=30)
    started_at = clock.now()
    assert (first.executions, first.started_at, first.assignee_id) == (1, started_at, "w1")
    assert lease_of(first).expires_at == started_at + seconds(30)
    clock.advance(1)
    await queue.fail_job(added.id, "ValueError: no")
    failed = await queue.get_job(added.id)
    assert (failed.executions, failed.error_message, failed.finalized_at) == (1, "ValueError: no", None)
    assert (failed.lease, failed.assignee_id) == (None, "w1")
    await queue.dequeue_jobs("w2")
    clock.advance(1)
    await queue.complete_job(added.id, b'{"sum":3}')
    done = await queue.get_job(added.id)
    assert (done.executions, done.started_at, done.finalized_at) == (2, started_at, clock.now())
    assert (failed.updated_at, done.updated_at) == (started_at + seconds(1), clock.now())
    assert (done.result, done.error_message, done.lease) == (b'{"sum":3}', "", None)
