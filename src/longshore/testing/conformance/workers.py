"""Workers in the store: what they say of themselves, and what they have to say beside their jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend, WorkerInfo
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.validation import LARGEST_DETAIL, LONGEST_DETAIL_TEXT, LONGEST_TEXT
from longshore.testing.conformance.staging import log_of, refused


class TestWorkers:
    """`heartbeat_worker`, `list_workers`, `record_worker_event`."""

    async def test_what_a_worker_says_of_itself_is_kept_with_the_time(self, backend: Backend, clock: HeldClock) -> None:
        told = WorkerInfo(
            id="w2",
            queues=("mail", "bills"),
            tags=("eu",),
            concurrency=4,
            running=2,
            host="box",
            pid=77,
            version="0.1.0",
            state="draining",
            started_at=clock.now() - timedelta(days=1),
            detail={"threads": [1, 2]},
        )
        await backend.heartbeat_worker(told)
        await backend.heartbeat_worker(WorkerInfo(id="w1"))
        first, second = await backend.list_workers()
        assert (first.id, first.seen_at) == ("w1", clock.now())
        assert (second.queues, second.tags, second.concurrency, second.running) == (("mail", "bills"), ("eu",), 4, 2)
        assert (second.host, second.pid, second.version, second.state) == ("box", 77, "0.1.0", "draining")
        assert (second.started_at, dict(second.detail)) == (clock.now() - timedelta(days=1), {"threads": [1, 2]})
        clock.advance(10)
        await backend.heartbeat_worker(WorkerInfo(id="w2", running=1))
        [_, second] = await backend.list_workers()
        assert (second.running, second.seen_at) == (1, clock.now())

    async def test_what_a_worker_has_to_say_beside_its_jobs_is_in_the_log(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M-EV-13 M-EV-14 X-83
        cursor = await backend.end_of_events()
        await backend.record_worker_event("worker.error", "w1", queue="mail", detail={"error": "no route", "tries": 3})
        clock.advance(1)
        await backend.record_worker_event("worker.drained", "w2")
        assert await backend.wait_for_change(0, after=cursor) is True
        failed, drained = await backend.read_events(cursor)
        assert (failed.event, failed.assignee_id, failed.queue) == ("worker.error", "w1", "mail")
        assert failed.detail == {"error": "no route", "tries": 3}
        assert (drained.event, drained.assignee_id, drained.queue) == ("worker.drained", "w2", "")
        assert (drained.detail, drained.occurred_at) == ({}, clock.now())
        for event in (failed, drained):
            assert (event.job_uid, event.job_id, event.type, event.actor) == (None, None, None, "")
            assert (event.job_seq, event.from_status, event.to_status) == (0, None, None)
        assert await backend.read_events(cursor, queue="mail") == [failed]

    async def test_an_error_is_told_however_odd_its_words(self, backend: Backend) -> None:
        # M-EV-13
        odd = "\x00 \ud800" + "x" * 2 * LONGEST_TEXT
        await backend.record_worker_event("worker.error", "w1", detail={"error": odd})
        [event] = await log_of(backend)
        assert event.detail["error"].startswith("\ufffd \ufffdxxx")
        assert len(event.detail["error"]) < LONGEST_DETAIL_TEXT + 100

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("event", value) for value in ("job.completed", "worker.", "", None)),
            *(
                ("detail", value)
                for value in ("text", [1], {1: "one"}, {"n": float("nan")}, {"x": ["x" * LARGEST_DETAIL]})
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else repr(value)[:20],
    )
    async def test_nothing_else_gets_into_the_log_by_this_way(self, backend: Backend, field: str, value: Any) -> None:
        call: dict[str, Any] = {"event": "worker.error", "worker_id": "w1", field: value}
        async with refused(backend, InvalidArgument) as caught:
            await backend.record_worker_event(**call)
        assert caught.value.field.startswith(field)

    @pytest.mark.parametrize("queue", ["", "a queue that never had a job"])
    async def test_what_workers_said_is_pruned_in_its_time_and_makes_no_queue(
        self, backend: Backend, clock: HeldClock, queue: str
    ) -> None:
        await backend.record_worker_event("worker.drained", "w1", queue=queue)
        assert await backend.list_queues() == []
        assert await backend.dequeue_jobs("w1") == []
        clock.advance(timedelta(days=31))
        while await backend.apply_retention():
            pass
        assert await log_of(backend) == []
