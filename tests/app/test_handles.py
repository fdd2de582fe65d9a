"""Handles: the caller reads, awaits and cancels its job, in this or another process."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from contextlib import suppress
from typing import Any

import pytest

from longshore import Harbor, Job, JobStatus, connect
from longshore.backends.base import Page
from longshore.backends.memory import MemoryBackend
from longshore.core.errors import (
    BackendUnavailable,
    Fatal,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    JobNotFound,
    QueueClosed,
)
from longshore.core.filters import JobFilter


@dataclasses.dataclass(frozen=True)
class Receipt:
    number: int


async def test_a_result_has_the_annotated_type_for_callers_that_waited_before_the_end(
    stored_harbor: Harbor,
) -> None:
    @stored_harbor.task
    async def pay(amount: int) -> Receipt:
        return Receipt(amount + 1)

    handle = await pay.enqueue(5)
    waiting = asyncio.create_task(handle.result(timeout=30))
    worker = stored_harbor.worker()
    assert await waiting == Receipt(6)
    assert await handle.result() == Receipt(6), "asking again is free"
    assert await handle.status() is JobStatus.COMPLETED
    await worker.close()


@pytest.mark.parametrize("option", ["idempotency_key", "job_id"])
async def test_a_handle_says_whether_its_job_existed_before(option: str, stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def pay(amount: int) -> int:
        return amount

    named: list[dict[str, Any]] = [{option: "order-17"}, {option: "order-18"}]
    once, other = (pay.options(**one) for one in named)
    first, again = await once.enqueue(5), await once.enqueue(6)
    assert (first.replayed, again.replayed, again.id) == (False, True, first.id)
    batch = await pay.enqueue_many([once.call(7), other.call(7), other.call(8), pay.call(9)])
    assert [handle.replayed for handle in batch] == [True, False, True, False]
    assert (await asyncio.to_thread(once.enqueue_sync, 5)).replayed
    await stored_harbor.run_until_empty()
    assert await again.result() == 5
    assert (await once.enqueue(6)).replayed, "after its end as well"
    await stored_harbor.queue().delete_jobs(job_ids=[first.id])
    assert (await once.enqueue(6)).replayed is (option == "idempotency_key"), "a key outlives its job"
    assert not pay.handle(first.id).replayed


async def test_a_job_that_failed_permanently_raises_its_error(stored_harbor: Harbor) -> None:
    @stored_harbor.task(attempts=2)
    def fail() -> None:
        raise ValueError("no such address")

    handle = await fail.enqueue()
    await stored_harbor.run_until_empty()
    with pytest.raises(JobFailed, match="ValueError: no such address") as failed:
        await handle.result()
    assert failed.value.job_id == handle.id
    assert "Traceback" in failed.value.error
    assert (await handle.job()).retry_count == 2


async def test_a_cancelled_job_raises_job_cancelled(stored_harbor: Harbor) -> None:
    @stored_harbor.task
    def work() -> None: ...

    handle = await work.enqueue()
    waiting = asyncio.create_task(handle.result())
    assert await handle.cancel() is True
    with pytest.raises(JobCancelled, match="UNSCHEDULED") as cancelled:
        await waiting
    assert cancelled.value.status is JobStatus.UNSCHEDULED
    assert await handle.cancel() is False


async def test_a_running_job_is_cancelled_through_its_handle(harbor: Harbor) -> None:
    begun = asyncio.Event()

    @harbor.task
    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = harbor.worker()
    handle = await wait_for_ever.enqueue()
    await begun.wait()
    assert await handle.cancel() is True
    with pytest.raises(JobCancelled, match="STOPPED"):
        await handle.result()
    await worker.close()


async def test_a_wait_that_takes_too_long_says_where_the_job_is(harbor: Harbor) -> None:
    @harbor.task(queue="mail", attempts=0, backoff=3600)
    def work() -> None:
        raise ConnectionError("nobody there")

    handle = await work.enqueue()
    with pytest.raises(
        TimeoutError, match=r"is still INITIAL_PENDING after 0.01 seconds: it has not started\. .*'mail'"
    ):
        await handle.result(timeout=0.01)
    await harbor.run_until_empty()
    with pytest.raises(
        TimeoutError, match=r"is still FAILED_RETRY after .* execution 1; the last one failed with ConnectionError"
    ):
        await handle.result(timeout=0)
    with pytest.raises(InvalidArgument, match="timeout"):
        await handle.result(timeout=-1)


@pytest.mark.slow
async def test_a_wait_ends_when_its_job_is_removed(stored_harbor: Harbor) -> None:
    @stored_harbor.task(remove_on_complete=True)
    def work() -> None: ...

    handle = await work.enqueue()
    waiting = asyncio.create_task(handle.result(timeout=30))
    await asyncio.sleep(0)
    await stored_harbor.run_until_empty()
    with suppress(JobNotFound):  # unless it was read between its end and its removal
        await waiting
    with pytest.raises(JobNotFound, match=handle.id):
        await handle.result()


async def test_a_handle_of_another_process_and_one_by_its_id_see_the_same_job(store_url: str) -> None:
    first = connect(store_url)
    if not first.capabilities.shared:
        pytest.skip("no other process can open this store")
    async with Harbor(first) as here, Harbor(store_url) as there:

        @here.task(name="double")
        def double(number: int) -> int:
            return 2 * number

        @there.task(name="double")
        def sent_only(number: int) -> int:
            raise Fatal("this side has no worker")

        handle = await sent_only.enqueue(4)
        waiting = asyncio.create_task(sent_only.handle(handle.id).result(timeout=30))
        await here.run_until_empty()
        assert await waiting == 8
        assert await double.handle(handle.id).result() == 8


class CountingBackend(MemoryBackend):
    """Counts how often jobs are read."""

    looks = 0

    async def list_jobs(self, filter: JobFilter, **more: Any) -> Page:
        self.looks += 1
        return await super().list_jobs(filter, **more)


@pytest.mark.slow
async def test_a_thousand_waiting_callers_share_one_read() -> None:
    backend = CountingBackend()
    async with Harbor(backend) as harbor:

        @harbor.task
        async def double(number: int) -> int:
            return 2 * number

        handles = await double.enqueue_many([double.call(number) for number in range(1_000)])
        waiting = asyncio.gather(*(handle.result(timeout=60) for handle in handles))
        await asyncio.sleep(0)
        worker = harbor.worker(concurrency=50)
        assert await waiting == [2 * number for number in range(1_000)]
        await worker.close()
        assert backend.looks < 500, "two for each look at a thousand, and looks are spaced out"


class AbsentBackend(MemoryBackend):
    """A store that can be unavailable for a while."""

    away = False

    def __init__(self) -> None:
        super().__init__()
        self.missed = threading.Semaphore(0)  # the background thread reads, too

    async def list_jobs(self, filter: JobFilter, **more: Any) -> Page:
        self._refuse_if_away()
        return await super().list_jobs(filter, **more)

    async def get_job(self, job_id: str) -> Job:
        self._refuse_if_away()
        return await super().get_job(job_id)

    def _refuse_if_away(self) -> None:
        if self.away:
            self.missed.release()
            raise BackendUnavailable("it restarts")


async def test_a_store_that_is_away_for_a_while_is_waited_for() -> None:
    backend = AbsentBackend()
    async with Harbor(backend) as harbor:

        @harbor.task
        async def work() -> str:
            return "done"

        handle = await work.enqueue()
        waiting = asyncio.create_task(handle.result(timeout=30))
        await handle.job()
        backend.away = True
        late = asyncio.create_task(handle.result(timeout=30))
        for _ in range(4):
            assert await asyncio.to_thread(backend.missed.acquire, timeout=30)
        with pytest.raises(BackendUnavailable):  # instead of a TimeoutError without the status of the job
            await handle.result(timeout=0)
        backend.away = False
        await harbor.run_until_empty()
        assert (await waiting, await late) == ("done", "done")


async def test_waiting_ends_with_an_error_when_the_store_is_closed(harbor: Harbor) -> None:
    @harbor.task
    def work() -> None: ...

    handle = await work.enqueue()
    waiting = asyncio.create_task(handle.result(timeout=30))
    await handle.job()  # by now the first read is done
    await harbor.close()
    with pytest.raises(QueueClosed):
        await waiting


def test_threads_may_wait_side_by_side() -> None:
    with Harbor("memory://") as harbor:

        @harbor.task
        def double(number: int) -> int:
            return 2 * number

        handles = [double.enqueue_sync(number) for number in range(5)]
        answers: dict[int, int] = {}

        def wait(position: int) -> None:
            answers[position] = handles[position].result_sync(timeout=30)

        threads = [threading.Thread(target=wait, args=(position,)) for position in range(5)]
        for thread in threads:
            thread.start()
        harbor.run_until_empty_sync()
        for thread in threads:
            thread.join(30)
        assert answers == {position: 2 * position for position in range(5)}
