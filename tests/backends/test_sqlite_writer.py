"""The writer thread: many callers, one commit; whatever one caller does, the others get their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.backends.port import Operation, Transaction
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.backends.sqlite.writer import LONGEST_BATCH
from longshore.core.errors import DuplicateJob, JobNotFound, QueueClosed
from longshore.core.job import Job
from tests.backends.audit import all_jobs, audit

PATIENCE = 20


class Gate:
    """An operation that keeps the writer busy until it is opened, so that later requests wait together."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, _tx: Transaction) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SQLiteBackend]:
    async with SQLiteBackend(tmp_path / "jobs.db") as opened:
        await opened.enqueue_job(Job(id="first", type="t"))
        yield opened


@pytest.fixture
def commits() -> Iterator[list[int]]:
    """One entry for each commit that changed anything, on connections opened from now on."""
    seen: list[int] = []

    def watch(connection: apsw.Connection) -> None:
        def committed() -> bool:
            seen.append(1)
            return False

        connection.set_commit_hook(committed)

    apsw.connection_hooks.append(watch)
    yield seen
    apsw.connection_hooks.remove(watch)


async def held(backend: SQLiteBackend) -> tuple[Gate, asyncio.Task[None]]:
    """The writer, busy until the gate is opened."""
    gate = Gate()
    task = asyncio.create_task(backend._write(Operation(gate)))
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE)
    return gate, task


async def queued(*calls: Any) -> list[asyncio.Task[Any]]:
    """The calls, started and waiting for the writer."""
    tasks = [asyncio.create_task(call) for call in calls]
    for _ in range(3):
        await asyncio.sleep(0)  # each runs up to its wait
    return tasks


async def test_all_who_wait_share_one_commit(commits: list[int], backend: SQLiteBackend) -> None:
    gate, task = await held(backend)
    tasks = await queued(*(backend.enqueue_job(Job(id=f"j{n}", type="t")) for n in range(64)))
    commits.clear()
    gate.open()
    assert await asyncio.gather(*tasks) == [f"j{n}" for n in range(64)]
    await task
    assert len(commits) <= 8  # one; more only if the machine is so slow that a batch reaches its time limit


async def test_a_refusal_is_its_callers_alone(backend: SQLiteBackend) -> None:
    gate, _ = await held(backend)
    tasks = await queued(
        backend.enqueue_job(Job(id="a", type="t")),
        backend.enqueue_jobs([Job(id="b", type="t"), Job(id="first", type="t"), Job(id="c", type="t")]),
        backend.complete_job("nobody"),
        backend.enqueue_job(Job(id="d", type="t")),
    )
    gate.open()
    a, duplicate, missing, d = await asyncio.gather(*tasks, return_exceptions=True)
    assert (a, d) == ("a", "d")
    assert isinstance(duplicate, DuplicateJob)
    assert isinstance(missing, JobNotFound)
    jobs, _ = await audit(backend)
    assert {job.id for job in jobs} == {"first", "a", "d"}


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("a bug"), apsw.ConstraintError("a bug")])
async def test_a_bug_inside_one_operation_takes_no_other_with_it(error: Exception, backend: SQLiteBackend) -> None:
    def bug(tx: Transaction) -> None:
        records = tx.jobs_by_id(["first"])
        tx.put_queue(tx.queue_states(["half done"])["half done"])
        assert records
        raise error

    gate, _ = await held(backend)
    tasks = await queued(
        backend.enqueue_job(Job(id="before", type="t")),
        backend._write(Operation(bug)),
        backend.enqueue_job(Job(id="after", type="t")),
    )
    gate.open()
    before, failed, after = await asyncio.gather(*tasks, return_exceptions=True)
    assert (before, after) == ("before", "after")
    assert isinstance(failed, Exception)
    assert "a bug" in str(failed)
    jobs, _ = await audit(backend)
    assert {job.id for job in jobs} == {"first", "before", "after"}
    assert "half done" not in {queue.name for queue in await backend.list_queues()}
    assert await backend.enqueue_job(Job(id="later", type="t")) == "later"


async def test_lease_renewals_go_ahead_of_everything_that_waits(backend: SQLiteBackend) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[[Transaction], None]:
        return lambda _tx: order.append(name)

    gate, _ = await held(backend)
    tasks = await queued(
        *(backend._write(Operation(noted(f"other {n}"))) for n in range(5)),
        backend._write(Operation(noted("renewal 1"), urgent=True)),
        backend._write(Operation(noted("renewal 2"), urgent=True)),
    )
    gate.open()
    await asyncio.gather(*tasks)
    assert order == ["renewal 1", "renewal 2", *(f"other {n}" for n in range(5))]


async def test_one_commit_gathers_no_longer_than_its_bound(commits: list[int], backend: SQLiteBackend) -> None:
    """The next request, above all a renewal, waits for one bounded batch and not for all waiting requests."""
    slow = threading.Event()

    def slow_one(number: int) -> Callable[[Transaction], None]:
        def work(tx: Transaction) -> None:
            tx.put_queue(tx.queue_states([f"q{number}"])[f"q{number}"])
            slow.wait(LONGEST_BATCH / 2)

        return work

    gate, _ = await held(backend)
    tasks = await queued(*(backend._write(Operation(slow_one(number))) for number in range(9)))
    commits.clear()
    gate.open()
    await asyncio.gather(*tasks)
    assert len(commits) >= 3  # a slower machine only makes more of them


async def test_a_caller_who_gives_up_before_its_turn_has_done_nothing(backend: SQLiteBackend) -> None:
    gate, _ = await held(backend)
    given_up, kept = await queued(
        backend.enqueue_job(Job(id="given up", type="t")), backend.enqueue_job(Job(id="kept", type="t"))
    )
    given_up.cancel()
    await asyncio.sleep(0)
    gate.open()
    assert await kept == "kept"
    assert {job.id for job in await all_jobs(backend)} == {"first", "kept"}


async def test_a_caller_who_gives_up_while_it_is_written_has_done_it_all_the_same(backend: SQLiteBackend) -> None:
    gate, _ = await held(backend)
    second = Gate()
    given_up, blocked, other = await queued(
        backend.enqueue_job(Job(id="given up", type="t")),
        backend._write(Operation(second)),
        backend.enqueue_job(Job(id="other", type="t")),
    )
    gate.open()
    assert await asyncio.to_thread(second.reached.wait, PATIENCE)  # the first of them has run, but is not committed yet
    given_up.cancel()
    await asyncio.sleep(0)
    second.open()
    assert await other == "other"
    await blocked
    assert {job.id for job in await all_jobs(backend)} == {"first", "given up", "other"}
    await audit(backend)


async def test_any_thread_and_any_event_loop_may_call(backend: SQLiteBackend) -> None:
    async def some(name: str) -> list[str]:
        calls = (backend.enqueue_job(Job(id=f"{name}-{n}", type="t")) for n in range(20))
        ids = await asyncio.gather(*calls)
        assert (await backend.get_job(ids[0])).id == ids[0]
        return ids

    here = asyncio.create_task(some("here"))
    threads = [asyncio.to_thread(asyncio.run, some(f"thread{n}")) for n in range(4)]
    answers = await asyncio.gather(here, *threads)
    assert len({job_id for ids in answers for job_id in ids}) == 100
    jobs, _ = await audit(backend)
    assert len(jobs) == 101


async def test_a_loop_that_was_closed_before_its_answer_came_is_no_burden_to_the_others(
    backend: SQLiteBackend,
) -> None:
    gate, _ = await held(backend)

    def leave() -> None:
        loop = asyncio.new_event_loop()
        left = loop.create_task(backend.enqueue_job(Job(id="left behind", type="t")))
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        left.cancel()
        loop.run_until_complete(asyncio.gather(left, return_exceptions=True))
        loop.close()

    await asyncio.to_thread(leave)
    (kept,) = await queued(backend.enqueue_job(Job(id="kept", type="t")))
    gate.open()
    assert await kept == "kept"


async def test_closing_writes_pending_operations_and_rejects_later_ones(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "jobs.db")
    await backend.enqueue_job(Job(id="first", type="t"))
    gate, _ = await held(backend)
    tasks = await queued(*(backend.enqueue_job(Job(id=f"j{n}", type="t")) for n in range(10)))
    closing = asyncio.create_task(backend.close())
    await asyncio.sleep(0)
    gate.open()
    assert await asyncio.gather(*tasks) == [f"j{n}" for n in range(10)]
    await closing
    for call in (backend.enqueue_job(Job(type="t")), backend.get_job("first"), backend.wait_for_change(0)):
        with pytest.raises(QueueClosed):
            await call
    await backend.close()
    async with SQLiteBackend(tmp_path / "jobs.db") as again:
        assert len(await all_jobs(again)) == 11


async def test_whoever_waits_for_a_change_is_let_go_when_the_backend_closes(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "jobs.db")
    await backend.enqueue_job(Job(id="first", type="t"))
    (waiting,) = await queued(backend.wait_for_change(PATIENCE))
    await backend.close()
    async with asyncio.timeout(PATIENCE / 2):
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_backend_that_was_never_used_leaves_no_file(tmp_path: Path) -> None:
    await SQLiteBackend(tmp_path / "jobs.db").close()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - an empty folder is listed at once
