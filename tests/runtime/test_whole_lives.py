"""End to end, on every store: what an application, its operators and a status page do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore import Job, JobFilter, JobStatus, Queue, Repeat, Scheduler, Worker, connect, fixed
from longshore.backends.base import Backend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.running_job import RunningJob
from tests.runtime import processors
from tests.runtime.conftest import OpenBackend
from tests.runtime.streaming import eventually

S = JobStatus
DOCS = Path(__file__).resolve().parents[2] / "docs"


async def test_a_repeated_job_is_made_announced_run_failed_retried_and_kept_no_longer_than_it_should_be(
    backend: Backend, clock: HeldClock
) -> None:
    # M-FUT-10 M-GOAL-02 M-GOAL-04
    keeper, queue = Queue(backend), Queue(backend)
    ran: list[str] = []

    async def report(job: RunningJob) -> str:
        ran.append(job.id)
        if len(ran) == 1:
            raise RuntimeError("not yet")
        return "written"

    scheduler = Scheduler(backend)
    await queue.add("report", repeat=Repeat(every=3600, limit=1), attempts=2, backoff=fixed(60))
    clock.advance(3600)
    assert (await scheduler.tick()).fired == 1
    [job] = (await backend.list_jobs(JobFilter())).items
    async with Worker(queue, report):

        async def failed() -> bool:
            return (await backend.get_job(job.id)).status is S.FAILED_RETRY

        await eventually(failed)
        clock.advance(60)
        assert (await scheduler.tick()).announced <= 1  # unless the worker claimed it first

        async def done() -> bool:
            return (await backend.get_job(job.id)).status is S.COMPLETED

        await eventually(done)
    told = [event.event for event in await backend.read_events(job_id=job.id) if event.event != "job.promoted"]
    assert told == ["job.added", "job.active", "job.failed", "job.delayed", "job.active", "job.completed"]
    clock.advance(timedelta(days=7))
    assert (await scheduler.tick()).removed >= 1
    assert (await backend.list_jobs(JobFilter())).items == []
    assert not keeper.closed
    await queue.close()


async def test_a_page_about_the_queues_finds_all_it_shows_and_does(queue: Queue, backend: Backend) -> None:
    # M-FUT-01
    for name, end in (("mail", "dead"), ("mail", "done"), ("images", "waiting")):
        await backend.enqueue_job(Job(id=end, type="t", queue=name))
        if end != "waiting":
            await backend.dequeue_jobs("w", queues=[name])
            await (backend.bury_job(end, "broken") if end == "dead" else backend.complete_job(end))
    shown = {info.name: sum(info.counts.values()) for info in await queue.list_queues() if not info.paused}
    assert shown == {"mail": 2, "images": 1}
    assert [job.id for job in await queue.get_jobs("FAILED")] == ["dead"]
    await queue.retry_job("dead")
    await queue.remove_job("done")
    await queue.pause_queue("images")
    counts = {info.name: info for info in await queue.list_queues()}
    assert (counts["mail"].counts[S.FAILED_RETRY], counts["mail"].counts[S.COMPLETED]) == (1, 0)
    assert counts["images"].paused is True


async def test_stored_records_give_counts_processing_times_and_failure_rates(
    backend: Backend, clock: HeldClock
) -> None:
    # M-FUT-02
    for number, (runs, fails) in enumerate([(2, False), (4, False), (6, True)]):
        await backend.enqueue_job(Job(id=f"j{number}", type="t"))
        await backend.dequeue_jobs("w")
        clock.advance(runs)
        await (backend.bury_job(f"j{number}", "broken") if fails else backend.complete_job(f"j{number}"))
    counts = await backend.count_jobs()
    assert (counts[S.COMPLETED], counts[S.DEAD]) == (2, 1)
    assert (await backend.get_job_stats()).total_retries == 1
    jobs = (await backend.list_jobs(JobFilter())).items
    spans = [job.finalized_at - job.started_at for job in jobs if job.finalized_at and job.started_at]
    assert sorted(span.total_seconds() for span in spans) == [2, 4, 6]
    ended = [event.to_status for event in await backend.read_events() if event.to_status in (S.COMPLETED, S.DEAD)]
    assert ended.count(S.DEAD) / len(ended) == pytest.approx(1 / 3)


async def test_a_tree_of_parents_and_children_is_run_from_its_leaves(queue: Queue, backend: Backend) -> None:
    # M-FUT-03 M-JOB-19
    root = await queue.add("root", depends_on=["left", "right"], job_id="root")
    for side in ("left", "right"):
        leaves = [f"{side} {number}" for number in range(2)]
        await queue.add("node", job_id=side, parent_id=root.id, depends_on=leaves)
        for leaf in leaves:
            await queue.add("leaf", job_id=leaf, parent_id=side)
    order: list[str] = []

    async def note(job: RunningJob) -> None:
        order.append(job.id)

    async with Worker(queue, note):
        await eventually(lambda: len(order) == 7)
    assert order[-1] == "root"
    for side in ("left", "right"):
        children = {job.id for job in (await backend.list_jobs(JobFilter(parent_id=side))).items}
        assert children == {f"{side} 0", f"{side} 1"}
        assert max(order.index(child) for child in children) < order.index(side)


async def test_a_processor_in_a_child_process_cannot_end_the_worker(queue: Queue, backend: Backend) -> None:
    # M-FUT-04 M-WRK-20
    executor = ProcessExecutor(processors.double, processes=1)
    async with Worker(queue, executor):
        job = await queue.add("t", 21)

        async def done() -> bool:
            return (await backend.get_job(job.id)).status is S.COMPLETED

        await eventually(done)
    assert (await backend.get_job(job.id)).result == b"42"


async def test_many_callers_that_open_a_store_at_once_find_it_ready(
    open_backend: OpenBackend, backend: Backend
) -> None:
    # M-FUT-09
    others = [open_backend() for _ in range(4)]
    ids = await asyncio.gather(*(one.enqueue_job(Job(type="t")) for one in [backend, *others]))
    if backend.capabilities.shared:
        assert {job.id for job in (await backend.list_jobs(JobFilter())).items} == set(ids)


async def test_queues_share_the_backend_and_its_events(backend: Backend) -> None:
    # M-FUT-11 M-QUE-01 M-WRK-01
    first, second = Queue(backend, "mail"), Queue(backend)
    assert first.backend is second.backend is backend
    heard: list[str | None] = []
    begun: list[str | None] = []
    second.on("job.completed", lambda event: heard.append(event.job_id))
    second.on("job.added", lambda event: begun.append(event.job_id))
    while not begun:  # a listener gets events from its start on
        await first.add("warm up", hold=True)
        await asyncio.sleep(0.01)

    async def nothing(_: RunningJob) -> None:
        pass

    async with Worker(first, nothing):
        job = await first.add("t")
        await eventually(lambda: heard == [job.id])
    await first.close()
    await second.close()


async def test_a_store_is_shared_as_far_as_its_page_says(backend: Backend, store_url: str) -> None:
    # M-GOAL-03 M-FUT-05
    kind = store_url.partition(":")[0]
    durable, shared = backend.capabilities.durable, backend.capabilities.shared
    page: dict[str, tuple[bool, bool, str, str]] = {
        "memory": (False, False, "backend.md", "lives as long as its object"),
        "sqlite": (True, True, "sqlite.md", "Two machines must not share a file"),
        "postgresql": (True, True, "postgres.md", "When one machine is no longer enough"),
    }
    is_durable, is_shared, name, sentence = page[kind]
    assert (durable, shared) == (is_durable, is_shared)
    assert sentence in (DOCS / name).read_text(encoding="utf-8")
    # another store does not know its jobs
    await backend.enqueue_job(Job(id="here", type="t"))
    async with connect("memory://") as elsewhere:
        assert (await elsewhere.list_jobs(JobFilter())).items == []


async def test_a_writer_that_waits_too_long_gets_an_error_and_stores_nothing(tmp_path: Path) -> None:
    # M-SQL-04, besides what every store does: only here a file can be locked
    path = tmp_path / "jobs.db"
    backend: Any = SQLiteBackend(path, busy_seconds=0.05)
    async with backend:
        await backend.count_jobs()
        other = backend.new_connection()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendUnavailable, match="locked for too long"):
            await backend.enqueue_job(Job(id="late", type="t"))
        other.execute("ROLLBACK")
        assert (await backend.list_jobs(JobFilter())).items == []
        await backend.enqueue_job(Job(id="late", type="t"))
        other.close()
