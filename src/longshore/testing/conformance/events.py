"""The durable log: one event for every transition, numbered within its job without a gap, read by cursors."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import CursorExpired, InvalidArgument
from longshore.core.status import JobStatus
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

STORIES: dict[S, list[str]] = {
    S.CREATED: ["job.added"],
    S.WAITING_CHILDREN: ["job.added", "job.waiting_children"],
    S.INITIAL_PENDING: ["job.added"],
    S.RUNNING: ["job.added", "job.active"],
    S.CANCELLING: ["job.added", "job.active", "job.cancelling"],
    S.FAILED_RETRY: ["job.added", "job.active", "job.failed", "job.promoted"],
    S.UNKNOWN_RETRY: ["job.added", "job.active", "job.released"],
    S.COMPLETED: ["job.added", "job.active", "job.completed"],
    S.STOPPED: ["job.added", "job.active", "job.stopped"],
    S.UNSCHEDULED: ["job.added", "job.stopped"],
    S.UNKNOWN_STOPPED: ["job.added", "job.active", "job.stopped"],
    S.DEAD: ["job.added", "job.active", "job.failed", "job.dead"],
}


async def long_history(backend: Backend, clock: HeldClock, job_id: str = "j1") -> None:
    """Run a job through a two-phase submit, a crash, a release, a failure, a burial, a retry and a cancellation."""
    await kit.enqueue(backend, job_id, status=S.CREATED, max_crashes=5)
    await backend.accept_jobs([job_id])
    await kit.claim(backend, "worker-1")
    clock.advance(30)
    await backend.reclaim_expired_leases()
    await backend.release_lease(job_id, kit.lease_of(await kit.claim(backend, "worker-2")), reason="deploy")
    await kit.claim(backend, "worker-3")
    await backend.fail_job(job_id, "busy", retry_at=10)
    await backend.promote_job(job_id)
    await kit.claim(backend, "worker-1")
    await backend.set_progress(job_id, 50)
    await backend.append_log(job_id, "half way")
    await backend.bury_job(job_id, "hopeless")
    await backend.retry_job(job_id, actor="ada")
    await kit.claim(backend, "worker-1")
    await backend.cancel_jobs(job_ids=[job_id])
    await backend.complete_job(job_id, b"done")


class TestEvents:
    """`read_events`, `end_of_events` and `wait_for_change`."""

    # -- write

    @pytest.mark.parametrize("status", kit.EVERY_STATUS)
    async def test_every_transition_writes_its_event_and_nothing_else_does(self, backend: Backend, status: S) -> None:
        job = await kit.job_in(backend, status)
        assert await kit.story(backend, job.id) == STORIES[status]

    async def test_a_long_history_is_complete_and_legal(self, backend: Backend, clock: HeldClock) -> None:
        # B-TST-01 B-IMP-01
        await long_history(backend, clock)
        events = await kit.history(backend, "j1")
        assert [event.event for event in events] == [
            *("job.added", "job.accepted", "job.active", "job.stalled", "job.promoted", "job.active", "job.released"),
            *("job.active", "job.failed", "job.delayed", "job.promoted", "job.active", "job.progress", "job.log_added"),
            *("job.failed", "job.dead", "job.retried", "job.active", "job.cancelling", "job.completed"),
        ]
        assert [event.job_seq for event in events] == list(range(1, len(events) + 1))
        kit.assert_legal_history(events)
        assert kit.steps(events) == [
            (None, S.CREATED),
            (S.CREATED, S.INITIAL_PENDING),
            (S.INITIAL_PENDING, S.RUNNING),
            (S.RUNNING, S.UNKNOWN_RETRY),
            (S.UNKNOWN_RETRY, S.RUNNING),
            (S.RUNNING, S.UNKNOWN_RETRY),
            (S.UNKNOWN_RETRY, S.RUNNING),
            (S.RUNNING, S.FAILED_RETRY),
            (S.FAILED_RETRY, S.RUNNING),
            (S.RUNNING, S.FAILED_RETRY),
            (S.FAILED_RETRY, S.DEAD),
            (S.DEAD, S.FAILED_RETRY),
            (S.FAILED_RETRY, S.RUNNING),
            (S.RUNNING, S.CANCELLING),
            (S.CANCELLING, S.COMPLETED),
        ]

    async def test_an_event_names_its_job_and_claim(self, backend: Backend, clock: HeldClock) -> None:
        job = await kit.enqueue(backend, "j1", queue="mail", type="invoice")
        clock.advance(5)
        await kit.claim(backend, "worker-7")
        added, active = await kit.history(backend, "j1")
        assert (active.job_uid, active.job_id, active.queue, active.type) == (job.uid, "j1", "mail", "invoice")
        assert (active.epoch, active.execution, active.assignee_id) == (1, 1, "worker-7")
        assert (active.from_status, active.to_status) == (S.INITIAL_PENDING, S.RUNNING)
        assert active.occurred_at == clock.now()
        assert (added.epoch, added.execution, added.assignee_id, added.from_status) == (0, 0, None, None)
        assert isinstance(active.to_status, JobStatus)

    async def test_an_event_that_is_not_a_transition_has_no_statuses(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await backend.set_progress(job.id, 10)
        await backend.append_log(job.id, "hello")
        await backend.pause_queue("default")
        for event in (await kit.log_of(backend))[-3:]:
            assert (event.from_status, event.to_status) == (None, None)

    async def test_the_log_keeps_the_events_of_removed_jobs(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.COMPLETED, "j1")
        await backend.delete_jobs(job_ids=["j1"])
        await kit.enqueue(backend, "j1")
        events = await kit.history(backend, "j1")
        assert [event.event for event in events] == [
            "job.added",
            "job.active",
            "job.completed",
            "job.removed",
            "job.added",
        ]
        assert [event.job_seq for event in events] == [1, 2, 3, 4, 1]
        assert events[3].job_uid == job.uid != events[4].job_uid

    # -- read

    async def test_a_follower_gets_every_event_once(self, backend: Backend, clock: HeldClock) -> None:
        await long_history(backend, clock)
        await backend.enqueue_jobs([kit.new_job() for _ in range(5)])
        whole = await backend.read_events()
        for size in (1, 2, 7, 1000):
            followed = []
            cursor = None
            while batch := await backend.read_events(cursor, size):
                assert len(batch) <= size
                followed += batch
                cursor = batch[-1].cursor
            assert followed == whole
        assert len({event.cursor for event in whole}) == len(whole)

    async def test_the_log_can_be_read_after_any_cursor(self, backend: Backend, clock: HeldClock) -> None:
        await long_history(backend, clock)
        whole = await backend.read_events()
        for number, event in enumerate(whole):
            assert await backend.read_events(event.cursor) == whole[number + 1 :]
        await kit.enqueue(backend, "news")
        assert [event.job_id for event in await backend.read_events(whole[-1].cursor)] == ["news"]

    async def test_a_follower_may_ask_for_one_queue_or_one_job(self, backend: Backend) -> None:
        await kit.enqueue(backend, "a", queue="mail")
        await kit.enqueue(backend, "b", queue="bills")
        await backend.pause_queue("mail")
        await kit.claim(backend)
        assert [(e.event, e.job_id) for e in await kit.log_of(backend, queue="mail")] == [
            ("job.added", "a"),
            ("queue.paused", None),
        ]
        assert [e.event for e in await kit.log_of(backend, job_id="b")] == ["job.added", "job.active"]
        assert await kit.log_of(backend, queue="mail", job_id="b") == []
        assert await kit.log_of(backend, queue="unheard of") == []

    async def test_a_reader_of_one_queue_continues_from_a_cursor_of_the_whole_log(self, backend: Backend) -> None:
        for number in range(6):
            await kit.enqueue(backend, f"j{number}", queue=["mail", "bills"][number % 2])
        whole = await backend.read_events()
        assert [e.job_id for e in await backend.read_events(whole[2].cursor, 1, queue="mail")] == ["j4"]

    async def test_a_follower_from_the_end_gets_only_later_events(self, backend: Backend, clock: HeldClock) -> None:
        at_the_start = await backend.end_of_events()
        assert await backend.read_events(at_the_start) == []
        assert await backend.wait_for_change(0, after=at_the_start) is False
        await long_history(backend, clock)
        whole = await kit.log_of(backend)
        assert await backend.read_events(at_the_start) == whole
        assert await backend.wait_for_change(0, after=at_the_start) is True
        at_the_end = await backend.end_of_events()
        assert await backend.read_events(at_the_end) == []
        assert at_the_end == whole[-1].cursor
        await kit.enqueue(backend, "news", queue="mail")
        await backend.pause_queue("bills")
        assert [event.job_id for event in await backend.read_events(at_the_end)] == ["news", None]
        assert [event.job_id for event in await backend.read_events(at_the_end, queue="mail")] == ["news"]
        assert [event.event for event in await backend.read_events(at_the_end, job_id="news")] == ["job.added"]

    async def test_the_end_of_a_pruned_log_is_a_valid_cursor(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job(queue=name) for name in ("mail", "bills")])
        clock.advance(timedelta(days=31))
        await kit.retain(backend)
        assert await kit.log_of(backend) == []
        cursor = await backend.end_of_events()
        await kit.enqueue(backend, "news", queue="mail")
        for queue in (None, "mail"):
            assert [event.job_id for event in await backend.read_events(cursor, queue=queue)] == ["news"]

    # -- prune

    async def test_old_events_are_pruned_and_their_cursors_say_so(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "old")
        await kit.enqueue(backend, "old too")
        [first, second] = await backend.read_events()
        clock.advance(timedelta(days=31))
        await kit.enqueue(backend, "new")
        await kit.retain(backend)
        with pytest.raises(CursorExpired):
            await backend.read_events(first.cursor)
        assert [event.job_id for event in await backend.read_events()] == ["new"]
        # no event was lost between this cursor and the oldest event kept
        assert [event.job_id for event in await backend.read_events(second.cursor)] == ["new"]
        # there are later events; only a read reports that some are gone
        assert await backend.wait_for_change(0, after=first.cursor) is True

    async def test_waiting_ignores_what_other_queues_prune(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_retention("noisy", events=60)
        await backend.set_retention("archive", events=None)
        await kit.enqueue(backend, "kept", queue="archive")
        [kept] = await backend.read_events(queue="archive")
        await kit.enqueue(backend, "pruned", queue="noisy")
        clock.advance(61)
        await kit.retain(backend)
        assert await backend.wait_for_change(0, after=kept.cursor) is True
        assert await backend.read_events(kept.cursor, queue="archive") == []

    async def test_retention_of_events_is_per_queue(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_retention("archive", events=None)
        await backend.set_retention("noisy", events=60)
        await kit.enqueue(backend, "kept", queue="archive")
        await kit.enqueue(backend, "pruned", queue="noisy")
        clock.advance(61)
        await kit.retain(backend)
        assert [event.job_id for event in await kit.log_of(backend, queue="archive")] == ["kept"]
        assert [event.job_id for event in await kit.log_of(backend, queue="noisy")] == []
        assert [event.job_id for event in await kit.log_of(backend)] == ["kept"]

    async def test_pruning_goes_in_batches(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job() for _ in range(10)])
        clock.advance(timedelta(days=31))
        assert await backend.apply_retention(limit=4) == 4
        assert len(await kit.log_of(backend)) == 6

    @pytest.mark.parametrize("cursor", ["", "yesterday", "0", "-1", "%", 5])
    async def test_a_cursor_that_was_never_given_out_is_refused(self, backend: Backend, cursor: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await backend.read_events(cursor)
        assert caught.value.field == "after"

    # -- wait

    async def test_waiting_ends_with_the_next_change(self, backend: Backend) -> None:
        # B-INT-01
        cursor = await kit.last_cursor(backend)
        waiting = asyncio.create_task(backend.wait_for_change(30, after=cursor))
        await asyncio.sleep(0)
        await kit.enqueue(backend)
        assert await waiting is True

    async def test_waiting_from_a_cursor_misses_nothing_that_came_before_it(self, backend: Backend) -> None:
        await kit.enqueue(backend)
        cursor = await kit.last_cursor(backend)
        assert await backend.wait_for_change(0, after=cursor) is False
        await kit.enqueue(backend)
        assert await backend.wait_for_change(0, after=cursor) is True

    async def test_waiting_ends_without_a_change_when_its_time_is_up(self, backend: Backend) -> None:
        assert await backend.wait_for_change(0) is False
        assert await backend.wait_for_change(0.001) is False

    async def test_an_empty_claim_wakes_no_waiting_caller(self, backend: Backend) -> None:
        """Otherwise two idle workers would wake each other forever."""
        await backend.count_jobs()
        await backend.dequeue_jobs("worker-1")  # a store may record its first writer, which is a change
        while await backend.wait_for_change(0.1):  # over the network the notification arrives a moment later
            pass
        waiting = asyncio.create_task(backend.wait_for_change(30))
        await asyncio.sleep(0)
        await backend.dequeue_jobs("worker-1")
        await backend.reclaim_expired_leases()
        await backend.fire_due_schedules()
        await backend.settle_jobs([])
        for _ in range(20):
            await asyncio.sleep(0)
        woken = waiting.done()
        waiting.cancel()
        assert not woken

    async def test_many_wait_at_once_and_all_are_woken(self, backend: Backend) -> None:
        await backend.count_jobs()
        waiting = [asyncio.create_task(backend.wait_for_change(30)) for _ in range(10)]
        await asyncio.sleep(0)
        await kit.enqueue(backend)
        assert await asyncio.gather(*waiting) == [True] * 10
