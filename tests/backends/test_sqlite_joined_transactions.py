"""Jobs stored inside the caller's transaction on the queue's file: they exist if and only if it commits."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from longshore import Job, JobStatus
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SQLiteBackend]:
    async with SQLiteBackend(tmp_path / "jobs.db") as opened:
        await opened.count_jobs()
        yield opened


async def stored(backend: SQLiteBackend) -> int:
    """Waiting jobs, by the stored counts."""
    return (await backend.count_jobs())[JobStatus.INITIAL_PENDING]


async def test_the_jobs_are_there_after_a_commit_and_not_after_a_rollback(backend: SQLiteBackend) -> None:
    connection = backend.new_connection()
    for ending, expected in (("ROLLBACK", 0), ("COMMIT", 2)):
        connection.execute("BEGIN IMMEDIATE")
        ids = await backend.enqueue_jobs([Job(id="a", type="t"), Job(id="b", type="t")], connection=connection)
        assert ids == ["a", "b"]
        assert await stored(backend) == 0
        connection.execute(ending)
        assert await stored(backend) == expected
    assert [job.id for job in await backend.dequeue_jobs("w", limit=5)] == ["a", "b"]
    connection.close()


async def test_a_refusal_leaves_the_callers_transaction_as_it_was(backend: SQLiteBackend) -> None:
    connection = backend.new_connection()
    connection.execute("CREATE TABLE mine (x)")
    await backend.enqueue_job(Job(id="taken", type="t"))
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO mine VALUES (1)")
    with pytest.raises(DuplicateJob):
        await backend.enqueue_jobs([Job(id="fresh", type="t"), Job(id="taken", type="t")], connection=connection)
    await backend.enqueue_jobs([Job(id="other", type="t")], connection=connection)
    connection.execute("COMMIT")
    assert connection.execute("SELECT count(*) FROM mine").fetchone() == (1,)
    assert await stored(backend) == 2
    await backend.enqueue_job(Job(id="fresh", type="t"))
    connection.close()


async def test_jobs_added_are_answered_as_stored_and_known_ones_as_they_are(backend: SQLiteBackend) -> None:
    #
    connection = backend.new_connection()
    await backend.enqueue_jobs([Job(id="known", type="t"), Job(id="keyed", type="t", idempotency_key="k")])
    connection.execute("BEGIN IMMEDIATE")
    batch = [Job(id="fresh", type="t"), Job(id="known", type="u"), Job(id="x", type="u", idempotency_key="k")]
    answers = await backend.add_jobs(batch, connection=connection)
    connection.execute("COMMIT")
    assert [job.id for job in answers] == ["fresh", "known", "keyed"]
    assert answers == [await backend.get_job(job.id) for job in answers]
    connection.close()


async def test_an_error_half_way_leaves_nothing_of_the_jobs_even_if_the_caller_commits(backend: SQLiteBackend) -> None:
    connection = backend.new_connection()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TEMP TRIGGER trouble BEFORE INSERT ON job_events BEGIN SELECT raise(FAIL, 'no'); END")
    with pytest.raises(BackendUnavailable):
        await backend.enqueue_jobs([Job(id="half", type="t")], connection=connection)
    connection.execute("DROP TRIGGER trouble")
    connection.execute("COMMIT")
    connection.close()
    assert await stored(backend) == 0
    await backend.enqueue_jobs([Job(id="half", type="t"), Job(type="t")])
    assert len(await backend.read_events()) == 2


async def test_what_is_no_connection_of_ours_is_refused_with_the_reason(backend: SQLiteBackend, tmp_path: Path) -> None:
    other = sqlite3.connect(":memory:")
    with pytest.raises(InvalidArgument, match="two SQLite libraries"):
        await backend.enqueue_jobs([Job(type="t")], connection=other)
    other.close()
    connection = backend.new_connection()
    with pytest.raises(InvalidArgument, match="no transaction open"):
        await backend.enqueue_jobs([Job(type="t")], connection=connection)
    connection.close()
    elsewhere = apsw.Connection(str(tmp_path / "elsewhere.db"))
    elsewhere.execute("BEGIN IMMEDIATE")
    with pytest.raises(InvalidArgument, match="not on"):
        await backend.enqueue_jobs([Job(type="t")], connection=elsewhere)
    elsewhere.close()
