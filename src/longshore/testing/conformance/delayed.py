"""Delayed jobs: counted, listed, announced when due, and claimable at their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter
from longshore.core.status import ELIGIBLE
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.scenarios import S


async def some_of_each(backend: Backend) -> None:
    """Store due and delayed jobs of every kind, in two queues and with several priorities."""
    for number, queue in enumerate(["mail", "bills", "mail", "bills", "mail", "mail"]):
        await backend.enqueue_job(kit.new_job(f"now {number}", queue=queue, priority=number % 3 - 1, lifo=number == 4))
        later = kit.new_job(f"later {number}", queue=queue, priority=number % 2, lifo=number == 3)
        await backend.enqueue_job(later.replace(run_at=kit.seconds(60 + number)))
    for number in range(2):
        await kit.enqueue(backend, f"again {number}", queue="mail", tags=["again"])
    for job in await backend.dequeue_jobs("worker-1", ["again"], limit=2):
        await backend.fail_job(job.id, "later, please", retry_at=30 if job.id == "again 0" else None)
    await kit.job_in(backend, S.COMPLETED, "over", queue="mail")


async def ids(backend: Backend, **options: object) -> list[str]:
    """Return the ids of all jobs in the requested order, three to a page."""
    found: list[str] = []
    cursor = None
    while True:
        page = await backend.list_jobs(JobFilter(), limit=3, cursor=cursor, **options)  # type: ignore[arg-type]  # options of list_jobs
        found += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


class TestWaiting:
    """`count_delayed`, `next_due`, and `list_jobs` by time and oldest first."""

    async def test_delayed_jobs_are_counted_until_their_time_comes(self, backend: Backend, clock: HeldClock) -> None:
        # M-QUE-06
        assert await backend.count_delayed() == await backend.count_delayed("mail") == 0
        await some_of_each(backend)
        assert [await backend.count_delayed(queue) for queue in (None, "mail", "bills", "none")] == [7, 5, 2, 0]
        clock.advance(62)
        assert [await backend.count_delayed(queue) for queue in (None, "mail", "bills")] == [3, 2, 1]
        clock.advance(10)
        assert await backend.count_delayed() == 0

    @pytest.mark.parametrize("status", kit.EVERY_STATUS)
    async def test_only_jobs_that_wait_for_run_at_are_delayed(self, backend: Backend, status: S) -> None:
        job = await kit.job_in(backend, status)
        assert await backend.count_delayed() == 0
        assert await backend.next_due() is None
        if status is S.INITIAL_PENDING:
            await backend.update_job_status(job.id, S.RUNNING)
            await backend.fail_job(job.id, "later", retry_at=60)
            assert await backend.count_delayed() == 1

    async def test_jobs_are_listed_by_whether_their_time_has_come(self, backend: Backend, clock: HeldClock) -> None:
        # M-QUE-05
        await some_of_each(backend)
        everything = await ids(backend)
        delayed = [job_id for job_id in everything if job_id.startswith("later") or job_id == "again 0"]
        assert await ids(backend, due=False) == [job_id for job_id in everything if job_id in [*delayed, "over"]]
        assert await ids(backend, due=True) == [job_id for job_id in everything if job_id not in delayed]
        for queue in ("mail", "bills"):
            wanted = JobFilter(queues=[queue], statuses=tuple(ELIGIBLE))
            page = await backend.list_jobs(wanted, due=False)
            assert len(page.items) == await backend.count_delayed(queue)
        assert set(await kit.claimable(backend)) == {job for job in everything if job not in [*delayed, "over"]}
        clock.advance(60)
        assert "later 0" in await ids(backend, due=True)
        assert "later 1" in await ids(backend, due=False)

    @pytest.mark.parametrize("status", kit.EVERY_STATUS)
    async def test_ineligible_jobs_are_listed_with_and_without_due(self, backend: Backend, status: S) -> None:
        job = await kit.job_in(backend, status)
        for due in (True, False):
            found = (await backend.list_jobs(JobFilter(statuses=[status]), due=due)).items
            assert found == ([job] if due or status not in ELIGIBLE else [])

    @pytest.mark.parametrize(
        "wanted",
        [
            JobFilter(),
            JobFilter(queues=["mail"]),
            JobFilter(statuses=kit.EVERY_STATUS),
            JobFilter(statuses=[S.INITIAL_PENDING], queues=["mail", "bills"]),
            JobFilter(tags=["again"]),
            JobFilter(data={"n": None}),
            JobFilter(text="later"),
        ],
        ids=repr,
    )
    async def test_oldest_first_is_the_same_the_other_way_round(self, backend: Backend, wanted: JobFilter) -> None:
        await some_of_each(backend)
        newest = (await backend.list_jobs(wanted)).items
        assert (await backend.list_jobs(wanted, oldest_first=True)).items == newest[::-1]

    async def test_pages_keep_their_order_while_jobs_are_added_and_removed(self, backend: Backend) -> None:
        await backend.enqueue_jobs([kit.new_job(f"job {number}") for number in range(5)])
        page = await backend.list_jobs(JobFilter(), limit=2, oldest_first=True)
        assert [job.id for job in page.items] == ["job 0", "job 1"]
        await backend.cancel_jobs(job_ids=["job 1", "job 3"])
        await backend.delete_jobs(job_ids=["job 1", "job 3"])
        await kit.enqueue(backend, "new")
        page = await backend.list_jobs(JobFilter(), limit=2, oldest_first=True, cursor=page.next_cursor)
        assert [job.id for job in page.items] == ["job 2", "job 4"]
        page = await backend.list_jobs(JobFilter(), limit=2, oldest_first=True, cursor=page.next_cursor)
        assert ([job.id for job in page.items], page.next_cursor) == (["new"], None)

    async def test_the_order_and_due_arguments_are_checked(self, backend: Backend) -> None:
        await kit.refused(backend, backend.list_jobs(JobFilter(), oldest_first=1), field="oldest_first")  # type: ignore[arg-type]  # a wrong type on purpose
        await kit.refused(backend, backend.list_jobs(JobFilter(), due="now"), field="due")  # type: ignore[arg-type]  # a wrong type on purpose
        await kit.refused(backend, backend.count_delayed(""), field="queue")
        await kit.refused(backend, backend.next_due("mail"), field="queues")

    async def test_next_due_is_the_first_run_at_of_the_queues(self, backend: Backend, clock: HeldClock) -> None:
        assert await backend.next_due() is None
        assert await backend.next_due([]) is None
        await some_of_each(backend)
        start = clock.now()

        async def due_in(*queues: str) -> timedelta | None:
            first: datetime | None = await backend.next_due(queues or None)
            return None if first is None else first - start

        assert [await due_in(), await due_in("mail")] == [kit.seconds(30), kit.seconds(30)]
        assert [await due_in("bills"), await due_in("bills", "mail"), await due_in("none")] == [
            *(kit.seconds(61), kit.seconds(30)),
            None,
        ]
        clock.advance(30)
        assert await due_in() == kit.seconds(60)
        clock.advance(60)
        assert await due_in() is None

    async def test_next_due_after_includes_jobs_due_since(self, backend: Backend, clock: HeldClock) -> None:
        looked_at = clock.now()
        for delay in (10, 20):
            await kit.enqueue(backend, f"in {delay}", run_at=delay)
        clock.advance(10)
        assert await backend.next_due() == looked_at + kit.seconds(20)
        assert await backend.next_due(after=looked_at) == looked_at + kit.seconds(10)
        assert await backend.next_due(["default"], after=looked_at + kit.seconds(20)) is None
        await kit.refused(backend, backend.next_due(after=7), field="after")  # type: ignore[arg-type]  # a wrong type on purpose

    async def test_the_event_of_a_job_released_for_later_has_its_time(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "a")
        job = await kit.claim(backend)
        await backend.release_lease(job.id, kit.lease_of(job), run_at=5)
        assert await backend.next_due() == clock.now() + kit.seconds(5)
        await backend.promote_job(job.id)
        assert await backend.next_due() is None

    async def test_a_lifo_job_waits_unannounced(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "last", lifo=True, run_at=60)
        assert await backend.next_due() is None
        assert await backend.count_delayed() == 1
        await kit.enqueue(backend, "first", run_at=90)
        assert await backend.next_due() == clock.now() + kit.seconds(90)

    async def test_blocked_jobs_are_delayed_by_their_run_at(self, backend: Backend, clock: HeldClock) -> None:
        await backend.set_limits("default", per_key=1)
        for number in range(4):
            await kit.enqueue(backend, f"k {number}", concurrency_key="k", run_at=0 if number < 3 else 60)
        assert [job.id for job in await backend.dequeue_jobs("worker-1", limit=4)] == ["k 0"]
        assert await backend.count_delayed() == 1
        clock.set(clock.now() - kit.seconds(3600))
        assert await backend.count_delayed() == 3
        assert len((await backend.list_jobs(JobFilter(statuses=tuple(ELIGIBLE)), due=False)).items) == 3

    async def test_the_first_of_many_is_the_first(self, backend: Backend, clock: HeldClock) -> None:
        await backend.enqueue_jobs([kit.new_job(run_at=100 + number % 7, priority=number % 5) for number in range(200)])
        assert kit.moment(await backend.next_due()) == clock.now() + kit.seconds(100)
        assert await backend.count_delayed() == 200


async def names_of(backend: Backend, job_id: str) -> list[str]:
    """Return the names of the job's events, in order."""
    return [event.event for event in await kit.history(backend, job_id)]


class TestAnnouncements:
    """`announce_due_jobs`."""

    async def test_a_due_job_is_claimable_without_announcement(self, backend: Backend, clock: HeldClock) -> None:
        # M-TR-05 M-SCHED-02 M-OPT-02
        await kit.enqueue(backend, "later", delay=10)
        clock.advance(9.999999)
        assert await backend.dequeue_jobs("w") == []
        clock.advance(0.000001)
        assert (await kit.claim(backend)).id == "later"
        assert await names_of(backend, "later") == ["job.added", "job.delayed", "job.active"]

    async def test_a_claimed_job_is_not_announced(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "later", delay=10)
        clock.advance(10)
        job = await kit.claim(backend)
        assert await backend.announce_due_jobs() == []
        await backend.release_lease(job.id, kit.lease_of(job))
        assert await backend.announce_due_jobs() == []
        await backend.complete_job("later")
        assert await backend.announce_due_jobs() == []
        assert "job.promoted" not in await names_of(backend, "later")

    async def test_a_delayed_job_is_announced_once_when_due(self, backend: Backend, clock: HeldClock) -> None:
        # M-TR-05 M-SCHED-02 M-EV-09
        stored = await kit.enqueue(backend, "later", delay=10)
        clock.advance(9.999999)
        assert await backend.announce_due_jobs() == []
        clock.advance(0.000001)
        assert await backend.announce_due_jobs() == ["later"]
        assert await backend.announce_due_jobs() == []
        *_, event = await kit.history(backend, "later")
        assert (event.event, event.job_seq, event.occurred_at) == ("job.promoted", 3, clock.now())
        assert (event.from_status, event.to_status) == (None, None)
        job = await backend.get_job("later")
        assert (job.status, job.run_at) == (S.INITIAL_PENDING, stored.run_at)
        assert job.updated_at == clock.now()
        assert await kit.claimable(backend) == ["later"]

    async def test_jobs_without_a_future_run_at_are_not_announced(self, backend: Backend, clock: HeldClock) -> None:
        #
        await kit.enqueue(backend, "plain")
        await kit.enqueue(backend, "of yesterday", run_at=clock.now() - kit.seconds(86_400))
        await kit.enqueue(backend, "of now", run_at=clock.now())
        clock.advance(100)
        assert await backend.announce_due_jobs() == []

    async def test_every_further_delay_is_announced_again(self, backend: Backend, clock: HeldClock) -> None:
        # M-TR-08 M-RTY-06
        await kit.enqueue(backend, "again", delay=10)
        clock.advance(10)
        assert await backend.announce_due_jobs() == ["again"]
        job = await kit.claim(backend)
        await backend.fail_job(job.id, "broken", retry_at=5)
        clock.advance(5)
        assert await backend.announce_due_jobs() == ["again"]
        job = await kit.claim(backend)
        await backend.release_lease(job.id, kit.lease_of(job), run_at=5)
        assert await backend.announce_due_jobs() == []
        clock.advance(5)
        assert await backend.announce_due_jobs() == ["again"]
        assert (await names_of(backend, "again")).count("job.promoted") == 3

    async def test_promoted_and_cancelled_jobs_are_not_announced(self, backend: Backend, clock: HeldClock) -> None:
        # M-JM-05
        for name in ("by hand", "called off", "buried", "removed"):
            await kit.enqueue(backend, name, delay=10)
        await backend.promote_job("by hand")
        await backend.cancel_jobs(job_ids=["called off", "removed"])
        await backend.delete_jobs(job_ids=["removed"])
        await backend.update_job_status("buried", S.RUNNING)
        await backend.bury_job("buried", "broken")
        clock.advance(10)
        assert await backend.announce_due_jobs() == []
        assert (await names_of(backend, "by hand")).count("job.promoted") == 1

    async def test_only_what_stands_in_line_is_announced(self, backend: Backend, clock: HeldClock) -> None:
        # M-TR-06
        await kit.enqueue(backend, "created", delay=10, status=S.CREATED)
        await kit.enqueue(backend, "first")
        await kit.enqueue(backend, "dependent", delay=10, depends_on=("first",))
        await kit.enqueue(backend, "impatient", delay=30, depends_on=("first",))
        clock.advance(10)
        assert await backend.announce_due_jobs() == []
        await backend.accept_jobs(["created"])
        await backend.complete_job((await kit.claim(backend, limit=1)).id)
        assert await backend.announce_due_jobs() == []
        clock.advance(20)
        assert await backend.announce_due_jobs() == ["impatient"]
        last = ["job.dependencies_completed", "job.delayed", "job.promoted"]
        assert (await names_of(backend, "impatient"))[-3:] == last

    async def test_announcements_are_limited_the_longest_due_first(self, backend: Backend, clock: HeldClock) -> None:
        # M-SCHED-02
        await backend.enqueue_jobs([kit.new_job(f"j{after}", delay=after) for after in (5, 3, 1, 4, 2)])
        clock.advance(4)
        assert await backend.announce_due_jobs(limit=3) == ["j1", "j2", "j3"]
        assert await backend.announce_due_jobs(limit=3) == ["j4"]
        assert await backend.announce_due_jobs(limit=3) == []

    async def test_paused_and_blocked_jobs_are_announced(self, backend: Backend, clock: HeldClock) -> None:
        await backend.pause_queue("quiet")
        await backend.set_limits("default", per_key=1)
        await kit.enqueue(backend, "holder", concurrency_key="k")
        await kit.claim(backend)
        await kit.enqueue(backend, "paused", queue="quiet", delay=1)
        await kit.enqueue(backend, "behind", concurrency_key="k", delay=1)
        clock.advance(1)
        assert await backend.dequeue_jobs("w", limit=5) == []
        assert await backend.announce_due_jobs() == ["paused", "behind"]
        await backend.complete_job("holder")
        assert (await kit.claim(backend)).id == "behind"

    async def test_a_clock_set_back_announces_nothing_twice(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "later", delay=10)
        clock.advance(10)
        assert await backend.announce_due_jobs() == ["later"]
        clock.set(clock.now() - kit.seconds(3600))
        assert await backend.announce_due_jobs() == []
        clock.advance(3700)
        assert await backend.announce_due_jobs() == []

    async def test_an_announcement_changes_no_order_and_no_count(self, backend: Backend, clock: HeldClock) -> None:
        for name in ("a", "b", "c"):
            await kit.enqueue(backend, name, delay=10, tags=["eu"])
        clock.advance(10)
        before = (await backend.count_jobs(), await backend.get_job_stats(["eu"]))
        assert await backend.announce_due_jobs(limit=2) == ["a", "b"]
        assert (await backend.count_jobs(), await backend.get_job_stats(["eu"])) == before
        assert await kit.claimable(backend, tags=["eu"]) == ["a", "b", "c"]

    async def test_a_caller_that_waits_for_work_is_woken(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "newest first", delay=10, lifo=True)
        clock.advance(10)
        waiting = asyncio.create_task(backend.wait_for_change(30))
        await asyncio.sleep(0.01)
        await backend.announce_due_jobs()
        assert await waiting is True

    @pytest.mark.parametrize("others", ["another scheduler", "a worker"])
    async def test_each_job_is_announced_once(self, open_backend: OpenBackend, clock: HeldClock, others: str) -> None:
        # M-SCHED-13
        backend = open_backend()
        second = open_backend() if backend.capabilities.shared else backend
        await backend.enqueue_jobs([kit.new_job(f"j{number}", delay=1) for number in range(100)])
        clock.advance(1)
        rival: Callable[[], Any] = (
            (lambda: second.announce_due_jobs(7))
            if others == "another scheduler"
            else (lambda: second.dequeue_jobs("w", limit=7))
        )
        announced: list[str] = []

        async def announce() -> None:
            while batch := await backend.announce_due_jobs(7):
                announced.extend(batch)

        async def keep_at_it() -> None:
            while found := await rival():
                announced.extend(found if isinstance(found[0], str) else [])

        await asyncio.gather(announce(), keep_at_it())
        announced += await backend.announce_due_jobs()
        assert len(announced) == len(set(announced))
        for number in range(100):
            events = await names_of(backend, f"j{number}")
            assert events.count("job.promoted") == announced.count(f"j{number}")
            if "job.active" in events and "job.promoted" in events:
                assert events.index("job.promoted") < events.index("job.active")
