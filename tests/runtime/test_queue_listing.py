"""Jobs by BullMQ's words: listed by range, counted, removed, cleaned up, emptied."""

from __future__ import annotations

from typing import Any

import pytest

from longshore import JobStatus, Queue, Repeat
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, InvalidTransition
from longshore.runtime import job_listing
from longshore.testing.conformance.scenarios import (
    EVERY_STATUS,
    all_jobs,
    claim,
    claimable,
    job_in,
    nothing_changes,
    refused,
    status_of,
    story,
)

S = JobStatus
WAITING = {S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY}
WORDS: dict[str, set[JobStatus]] = {
    "PENDING": WAITING,
    "DELAYED": set(),
    "ACTIVE": {S.RUNNING, S.CANCELLING},
    "COMPLETED": {S.COMPLETED},
    "FAILED": {S.DEAD},
    "WAITING_CHILDREN": {S.WAITING_CHILDREN},
    "CANCELLED": {S.STOPPED, S.UNSCHEDULED, S.UNKNOWN_STOPPED},
}


async def one_of_each(backend: Backend) -> None:
    for status in EVERY_STATUS:
        await job_in(backend, status, f"{status}")


async def test_every_word_finds_its_jobs_and_a_status_finds_itself(queue: Queue, backend: Backend) -> None:
    # M-QUE-05 M-STS-01 M-STS-02 M-STS-03 M-STS-04 M-STS-06 M-JOB-06
    await one_of_each(backend)
    for word, statuses in WORDS.items():
        for spelled in (word, word.lower(), [word]):
            assert {job.status for job in await queue.get_jobs(spelled)} == statuses
    assert {job.status for job in await queue.get_jobs("waiting")} == WAITING
    for status in EVERY_STATUS:
        assert [job.id for job in await queue.get_jobs(status)] == [status]
        assert [job.id for job in await queue.get_jobs([str(status)])] == [status]
    together = await queue.get_jobs(["ACTIVE", S.DEAD, "FAILED"])
    assert {job.status for job in together} == {S.RUNNING, S.CANCELLING, S.DEAD}
    assert await queue.get_jobs([]) == []


async def test_the_stores_clock_decides_which_jobs_are_delayed(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M-STS-01 M-STS-05 M-QUE-05 M-QUE-06 M-TR-02
    later = await queue.add("later", delay=60)
    await queue.add("now")
    failed = await job_in(backend, S.RUNNING)
    await queue.fail_job(failed.id, "x", retry_at=60)
    held = await queue.add("held", delay=60, hold=True)
    assert {job.id for job in await queue.get_jobs("DELAYED")} == {later.id, failed.id}
    assert [job.type for job in await queue.get_jobs("PENDING")] == ["now"]
    assert len(await queue.get_jobs(["PENDING", "DELAYED"])) == 3
    assert {job.id for job in await queue.get_jobs(["DELAYED", S.INITIAL_PENDING])} >= {later.id, failed.id}
    counts = await queue.get_job_counts()
    assert (counts["PENDING"], counts["DELAYED"], counts["waiting"]) == (1, 2, 1)
    clock.advance(60)
    assert await queue.get_jobs("DELAYED") == []
    counts = await queue.get_job_counts()
    assert (counts["PENDING"], counts["DELAYED"], counts["waiting"]) == (3, 0, 3)
    assert held.id not in {job.id for job in await queue.get_jobs(["PENDING", "DELAYED"])}


async def test_a_priority_is_not_a_status(queue: Queue) -> None:
    # M-STS-07
    await queue.add("urgent", priority=-1)
    assert len(await queue.get_jobs("PENDING")) == 1
    with pytest.raises(InvalidArgument):
        await queue.get_jobs("PRIORITIZED")


async def test_a_stalled_job_is_never_stored_as_one(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # M-STS-08
    job = await queue.add("slow")
    await claim(backend)
    clock.advance(31)
    await queue.reclaim_expired_leases()
    assert "job.stalled" in await story(backend, job.id)
    assert [found.id for found in await queue.get_jobs("PENDING")] == [job.id]
    with pytest.raises(InvalidArgument):
        await queue.get_jobs("STALLED")


@pytest.mark.parametrize("asc", [False, True])
async def test_a_range_takes_both_its_ends(
    queue: Queue, backend: Backend, asc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-QUE-05 X-95
    monkeypatch.setattr(job_listing, "_LISTED_AT_ONCE", 4)
    jobs = [job.id for job in await queue.add_bulk([("a", number) for number in range(10)])]
    order = jobs if asc else jobs[::-1]
    for start, end in (
        (0, -1),
        (0, 0),
        (2, 5),
        (7, 99),
        (-3, -1),
        (-99, 2),
        (3, -3),
        (5, 2),
        (20, 30),
        (-1, 0),
        (0, -99),
    ):
        first = start if start >= 0 else max(10 + start, 0)
        last = end if end >= 0 else 10 + end
        found = [job.id for job in await queue.get_jobs("PENDING", start, end, asc)]
        assert found == [order[place] for place in range(first, min(last, 9) + 1)], (start, end)
    assert [job.id for job in await queue.get_jobs("PENDING")] == jobs[::-1]


@pytest.mark.parametrize("wrong", ["SLEEPING", 7, None, ["PENDING", "x"]], ids=str)
async def test_an_unknown_status_word_is_refused(queue: Queue, wrong: Any) -> None:
    # M-QUE-05
    with pytest.raises(InvalidArgument, match="PENDING"):
        await queue.get_jobs(wrong)
    with pytest.raises(InvalidArgument):
        await queue.get_jobs("PENDING", "first")  # type: ignore[arg-type]  # wrong on purpose


async def test_the_counts_have_every_word_even_where_there_are_none(queue: Queue, backend: Backend) -> None:
    # M-QUE-06 X-95
    assert await queue.get_job_counts() == {**dict.fromkeys(WORDS, 0), "waiting": 0}
    await one_of_each(backend)
    async with nothing_changes(backend):
        counts = await queue.get_job_counts()
    assert counts == {word: len(statuses) for word, statuses in WORDS.items()} | {"waiting": 3}


# -- remove


async def test_a_job_is_removed_unless_a_worker_has_it(queue: Queue, backend: Backend) -> None:
    # M-QUE-07 M-EV-10 X-98
    await one_of_each(backend)
    for status in EVERY_STATUS:
        if status.holds_capacity:
            refusal = await refused(backend, queue.remove_job(f"{status}"), InvalidTransition)
            assert "a worker holds it" in str(refusal)
        else:
            await queue.remove_job(f"{status}")
            assert (await story(backend, f"{status}"))[-1] == "job.removed"
    assert {job.status for job in await all_jobs(backend)} == {S.RUNNING, S.CANCELLING}
    async with nothing_changes(backend):
        await queue.remove_job("nobody")


async def test_jobs_are_cleaned_up_by_the_time_they_ended_oldest_first(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M-QUE-08 M-EV-10 X-96
    for number in range(4):
        await job_in(backend, S.COMPLETED, f"done {number}")
        await job_in(backend, S.DEAD, f"dead {number}")
        clock.advance(10)
    assert await queue.clean(31) == ["done 0"]
    assert await queue.clean(0, limit=2) == ["done 1", "done 2"]
    assert await queue.clean(20, "FAILED") == ["dead 0", "dead 1", "dead 2"]
    assert await queue.clean(0, S.DEAD) == ["dead 3"]
    assert await queue.clean(3_600) == []
    assert [job.id for job in await all_jobs(backend)] == ["done 3"]
    assert (await story(backend, "done 0"))[-1] == "job.removed"


async def test_jobs_that_wait_are_cleaned_up_by_the_time_they_were_made(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M-QUE-08 X-96
    await queue.add("old", job_id="old")
    await queue.add("old and delayed", job_id="delayed", delay=3_600)
    clock.advance(60)
    await queue.add("young", job_id="young")
    assert await queue.clean(60, "PENDING") == ["old"]
    assert await queue.clean(60, "DELAYED") == ["delayed"]
    assert [job.id for job in await all_jobs(backend)] == ["young"]


@pytest.mark.parametrize("status", ["ACTIVE", S.RUNNING, S.CANCELLING])
async def test_running_jobs_are_never_cleaned_up(queue: Queue, backend: Backend, status: str) -> None:
    # M-QUE-08 X-96
    await one_of_each(backend)
    await refused(backend, queue.clean(0, status), field="status")
    for wrong in (-1, "x"):
        await refused(backend, queue.clean(wrong))  # type: ignore[arg-type]  # wrong on purpose
    await refused(backend, queue.clean(0, limit=-1))


async def test_empty_removes_waiting_jobs_and_keeps_running_and_final_ones_and_schedules(
    queue: Queue, backend: Backend
) -> None:
    # M-QUE-09 X-97
    await one_of_each(backend)
    await queue.add("delayed", delay=60)
    await queue.add("again", repeat=Repeat(every=60))
    await queue.empty()
    left = {job.status for job in await all_jobs(backend)}
    assert left == {S.CREATED, S.RUNNING, S.CANCELLING, *(status for status in EVERY_STATUS if status.final)}
    assert await claimable(backend) == []
    assert len(await queue.get_schedules()) == 1


async def test_many_are_removed_in_batches(queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    # M-QUE-09
    monkeypatch.setattr(job_listing, "_LISTED_AT_ONCE", 7)
    await queue.add_bulk([("a", number) for number in range(30)])
    await queue.empty()
    assert await all_jobs(backend) == []


# -- operators


async def test_a_delayed_job_is_promoted_to_run_now(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # M-JM-05 M-EV-09
    job = await queue.add("later", delay=3_600)
    await queue.promote_job(job.id)
    assert [found.id for found in await queue.get_jobs("PENDING")] == [job.id]
    assert (await story(backend, job.id))[-1] == "job.promoted"
    for status in EVERY_STATUS:
        if not status.eligible:
            other = await job_in(backend, status)
            await refused(backend, queue.promote_job(other.id), InvalidTransition)


async def test_a_job_claimed_while_the_queue_is_being_emptied_is_left_to_its_worker(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M-QUE-07 M-QUE-08 M-QUE-09 X-96 X-97 X-98
    jobs = [job.id for job in await queue.add_bulk([("a", number) for number in range(3)])]
    cancel = backend.cancel_jobs

    async def claimed_meanwhile(*args: Any, **kwargs: Any) -> Any:
        await backend.dequeue_jobs("worker")
        return await cancel(*args, **kwargs)

    monkeypatch.setattr(backend, "cancel_jobs", claimed_meanwhile)
    await queue.empty()
    assert [job.id for job in await all_jobs(backend)] == [jobs[0]]
    assert await status_of(backend, jobs[0]) is S.RUNNING
    waiting = await queue.add("b")
    with pytest.raises(InvalidTransition):
        await queue.remove_job(waiting.id)
    assert await status_of(backend, waiting.id) is S.RUNNING


@pytest.mark.parametrize("asc", [False, True])
async def test_a_word_and_a_status_that_mean_other_times_are_listed_together(
    queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch, asc: bool
) -> None:
    # M-QUE-05
    monkeypatch.setattr(job_listing, "_LISTED_AT_ONCE", 2)
    for number in range(9):
        await queue.add("now" if number % 3 else "later", job_id=f"{number}", delay=0 if number % 3 else 60)
    for status in (S.FAILED_RETRY, S.COMPLETED, S.DEAD):
        await job_in(backend, status, str(status))
    wanted = ["0", "3", "6", "FAILED_RETRY", "COMPLETED"]
    found = await queue.get_jobs(["DELAYED", S.FAILED_RETRY, "COMPLETED"], asc=asc)
    assert [job.id for job in found] == (wanted if asc else wanted[::-1])
    assert [job.id for job in await queue.get_jobs("DELAYED", -2, -1, asc)] == (["3", "6"] if asc else ["3", "0"])
    assert [job.id for job in await queue.get_jobs("PENDING", 1, 2, asc)] == (["2", "4"] if asc else ["8", "7"])
