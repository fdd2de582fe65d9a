"""Jobs stored inside the caller's transaction on PostgreSQL: they exist if and only if it commits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from longshore import Job, JobStatus, connect
from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument
from tests.backends.postgres_following import AT_ONCE, read_until, somebody_waits_for_a_lock, waits_for_news
from tests.postgres_run import Clones

WAITING = JobStatus.INITIAL_PENDING


class Caller(NamedTuple):
    """A caller with its own transaction: what it enqueues, and what it writes itself."""

    connection: object
    run: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


Kind = Callable[[str], AbstractAsyncContextManager[Caller]]


def soon(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A blocking call as a coroutine."""

    async def called(*given: Any) -> Any:
        return call(*given)

    return called


def for_sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as found:
        yield Caller(found, soon(found.execute), soon(found.commit), soon(found.rollback))


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as found:
        yield Caller(found, found.execute, found.commit, found.rollback)


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(for_sqlalchemy(url), poolclass=NullPool)
    with engine.connect() as found:
        yield Caller(
            found, soon(lambda text: found.execute(sqlalchemy.text(text))), soon(found.commit), soon(found.rollback)
        )


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(for_sqlalchemy(url), poolclass=NullPool)
    with Session(engine) as found:
        yield Caller(
            found, soon(lambda text: found.execute(sqlalchemy.text(text))), soon(found.commit), soon(found.rollback)
        )


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(for_sqlalchemy(url), poolclass=NullPool)
    async with AsyncConnection(engine) as found:
        yield Caller(found, lambda text: found.execute(sqlalchemy.text(text)), found.commit, found.rollback)


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(for_sqlalchemy(url), poolclass=NullPool)
    async with AsyncSession(engine) as found:
        yield Caller(found, lambda text: found.execute(sqlalchemy.text(text)), found.commit, found.rollback)


KINDS: tuple[Kind, ...] = (
    psycopg_connection,
    psycopg_async_connection,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_async_connection,
    sqlalchemy_async_session,
)
OF_PSYCOPG = KINDS[:2]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mine (x text)")
    async with connect(postgres_url) as opened:
        await opened.count_jobs()
        yield opened


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Backend]:
    """Another process for PostgreSQL; only a hint wakes it."""
    async with connect(postgres_url, poll_seconds=30) as opened:
        yield opened


def new_job(name: str, **fields: object) -> Job:
    return Job(id=name, type="t").replace(**fields)


async def stored(backend: Backend) -> int:
    """Waiting jobs, by the stored counts."""
    return (await backend.count_jobs())[WAITING]


def rows_of_mine(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [x for (x,) in connection.execute("SELECT x FROM mine ORDER BY x")]


# --- commit and rollback ---


@every_kind
async def test_the_jobs_are_there_after_a_commit_and_nothing_is_after_a_rollback(
    kind: Kind, backend: Backend, postgres_url: str
) -> None:
    jobs = [new_job("a", queue="fresh", tags=["x"]), new_job("b", queue="fresh", depends_on=["a"])]
    async with kind(postgres_url) as caller:
        assert await backend.enqueue_jobs(jobs, connection=caller.connection) == ["a", "b"]
        assert await stored(backend) == 0
        await caller.rollback()
        assert await stored(backend) == 0
        assert await backend.list_queues() == []
        assert await backend.read_events() == []
        assert await backend.enqueue_jobs(jobs, connection=caller.connection) == ["a", "b"]
        await caller.commit()
    assert await stored(backend) == 1
    assert (await backend.get_job_stats(["x"])).pending_jobs == 1
    assert len(await read_until(backend, 3)) == 3
    (job,) = await backend.dequeue_jobs("w", ["x"], limit=5)
    await backend.complete_job("a", lease=job.lease)
    assert [job.id for job in await backend.dequeue_jobs("w", limit=5)] == ["b"]


@every_kind
async def test_a_duplicate_never_aborts_the_callers_transaction(
    kind: Kind, backend: Backend, postgres_url: str
) -> None:
    await backend.enqueue_jobs([new_job("taken"), new_job("keyed", idempotency_key="k")])
    async with kind(postgres_url) as caller:
        await caller.run("INSERT INTO mine VALUES ('before')")
        with pytest.raises(DuplicateJob) as refusal:
            await backend.enqueue_jobs([new_job("fresh"), new_job("taken")], connection=caller.connection)
        assert refusal.value.job_ids == ["taken"]
        again = [new_job("same", idempotency_key="k"), new_job("own")]
        assert await backend.enqueue_jobs(again, connection=caller.connection) == ["keyed", "own"]
        await caller.run("INSERT INTO mine VALUES ('after')")
        await caller.commit()
    assert rows_of_mine(postgres_url) == ["after", "before"]
    assert await stored(backend) == 3
    await backend.enqueue_job(new_job("fresh"))


@pytest.mark.parametrize("kind", OF_PSYCOPG)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_nor_does_one_that_its_snapshot_cannot_see(
    kind: Kind, level: str, backend: Backend, postgres_url: str
) -> None:
    """At these levels PostgreSQL fails a statement that finds a row committed since the transaction began."""
    await backend.enqueue_job(new_job("old"))
    async with kind(postgres_url) as caller:
        await caller.run(f"SET TRANSACTION ISOLATION LEVEL {level}")
        await caller.run("INSERT INTO mine VALUES ('before')")
        await backend.enqueue_jobs([new_job("taken"), new_job("keyed", idempotency_key="k")])
        for name in ("old", "taken"):
            with pytest.raises(DuplicateJob) as refusal:
                await backend.enqueue_jobs([new_job("fresh"), new_job(name)], connection=caller.connection)
            assert refusal.value.job_ids == [name]
        await backend.enqueue_jobs([new_job("mine")], connection=caller.connection)
        for batch in (("taken", "fresh", "old", "mine"), ("fresh", "taken", "mine", "old", "fresh", "mine")):  # M5
            with pytest.raises(DuplicateJob) as refusal:
                await backend.enqueue_jobs(list(map(new_job, batch)), connection=caller.connection)
            assert set(refusal.value.job_ids) == {*batch} - ({"fresh"} if batch.count("fresh") == 1 else set())
            assert refusal.value.job_ids == [name for name in dict.fromkeys(batch) if name in refusal.value.job_ids]
        same = [new_job("same", idempotency_key="k")]
        assert await backend.enqueue_jobs(same, connection=caller.connection) == ["keyed"]
        await backend.enqueue_jobs([new_job("own")], connection=caller.connection)
        await caller.run("INSERT INTO mine VALUES ('after')")
        await caller.commit()
    assert rows_of_mine(postgres_url) == ["after", "before"]
    assert await stored(backend) == 5


@pytest.mark.parametrize("kind", OF_PSYCOPG)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_jobs_added_are_answered_as_stored_and_known_ones_even_if_its_snapshot_cannot_see_them(
    kind: Kind, level: str, backend: Backend, postgres_url: str
) -> None:
    #
    await backend.enqueue_jobs([new_job("old"), new_job("old key", idempotency_key="o")])
    async with kind(postgres_url) as caller:
        await caller.run(f"SET TRANSACTION ISOLATION LEVEL {level}")
        await caller.run("INSERT INTO mine VALUES ('before')")
        await backend.enqueue_jobs([new_job("taken"), new_job("keyed", idempotency_key="k")])
        again = [new_job("x", idempotency_key="k"), new_job("old"), new_job("taken"), new_job("y", idempotency_key="o")]
        answers = await backend.add_jobs([new_job("fresh"), *again, new_job("fresh")], connection=caller.connection)
        known = ["keyed", "old", "taken", "old key"]
        assert [job.id for job in answers] == ["fresh", *known, "fresh"]
        assert answers[1:5] == [await backend.get_job(job_id) for job_id in known]
        await caller.run("INSERT INTO mine VALUES ('after')")
        await caller.commit()
    assert rows_of_mine(postgres_url) == ["after", "before"]
    assert await backend.get_job("fresh") == answers[0]
    assert await stored(backend) == 5


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
async def test_an_open_transaction_that_found_known_jobs_blocks_no_other(
    level: str, backend: Backend, postgres_url: str
) -> None:
    await backend.enqueue_jobs([new_job("known"), new_job("keyed", idempotency_key="k")])
    async with psycopg_connection(postgres_url) as caller:
        await caller.run(f"SET TRANSACTION ISOLATION LEVEL {level}")
        again = [new_job("known"), new_job("another", idempotency_key="k")]
        answers = await backend.add_jobs(again, connection=caller.connection)
        assert [job.id for job in answers] == ["known", "keyed"]
        async with asyncio.timeout(AT_ONCE):
            await backend.cancel_jobs(job_ids=["known", "keyed"])
        await caller.commit()


async def test_what_the_caller_takes_back_to_a_savepoint_is_gone(backend: Backend, postgres_url: str) -> None:
    async with psycopg_connection(postgres_url) as caller:
        await backend.enqueue_jobs([new_job("kept")], connection=caller.connection)
        await caller.run("SAVEPOINT mine")
        await backend.enqueue_jobs([new_job("gone")], connection=caller.connection)
        await caller.run("ROLLBACK TO SAVEPOINT mine")
        await caller.commit()
    assert [job.id for job in await backend.dequeue_jobs("w", limit=5)] == ["kept"]
    assert await stored(backend) == 0


async def test_a_connection_in_autocommit_mode_is_joined_inside_a_transaction_block(
    backend: Backend, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True, row_factory=dict_row) as connection:
        with connection.transaction():
            await backend.enqueue_jobs([new_job("a")], connection=connection)
            assert await stored(backend) == 0
        assert await stored(backend) == 1
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


async def test_a_call_that_is_cancelled_leaves_the_callers_connection_in_order(
    backend: Backend, postgres_url: str
) -> None:
    async with psycopg_async_connection(postgres_url) as caller:
        await caller.run("INSERT INTO mine VALUES ('before')")
        calling = asyncio.create_task(
            backend.enqueue_jobs([new_job(f"{n}") for n in range(100)], connection=caller.connection)
        )
        await in_use(caller.connection)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await caller.run("INSERT INTO mine VALUES ('after')")
        await caller.commit()
    assert rows_of_mine(postgres_url) == ["after", "before"]
    assert await stored(backend) in (0, 100)


async def in_use(connection: object) -> None:
    """Return while a statement is running on it."""
    assert isinstance(connection, psycopg.AsyncConnection)
    while not connection.lock.locked():  # noqa: ASYNC110 - psycopg has no event for its start
        await asyncio.sleep(0)


async def test_several_calls_at_once_on_one_connection_take_turns(backend: Backend, postgres_url: str) -> None:
    await backend.enqueue_job(new_job("3"))
    async with psycopg_async_connection(postgres_url) as caller:
        calls = [
            backend.enqueue_jobs([new_job(f"{n}"), new_job(f"{n} too")], connection=caller.connection) for n in range(6)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await caller.commit()
    assert [type(answer) for answer in answers] == [list, list, list, DuplicateJob, list, list]
    assert await stored(backend) == 11


# --- concurrent callers ---


@pytest.mark.parametrize("same", ["id", "key"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_of_two_who_bring_the_same_the_second_waits_for_the_first_to_end(
    same: str, ending: str, backend: Backend, postgres_url: str
) -> None:
    jobs = [new_job("a", idempotency_key="k"), new_job("a" if same == "id" else "b", idempotency_key="k")]
    if same == "id":
        jobs = [job.replace(idempotency_key=None) for job in jobs]
    async with psycopg_async_connection(postgres_url) as first, psycopg_async_connection(postgres_url) as second:
        await backend.enqueue_jobs([jobs[0]], connection=first.connection)
        await second.run("INSERT INTO mine VALUES ('second')")
        waiting = asyncio.create_task(backend.enqueue_jobs([jobs[1]], connection=second.connection))
        await somebody_waits_for_a_lock(postgres_url)
        await (first.commit if ending == "commit" else first.rollback)()
        async with asyncio.timeout(AT_ONCE):
            if ending == "rollback":
                assert await waiting == [jobs[1].id]
            elif same == "key":
                assert await waiting == ["a"]
            else:
                with pytest.raises(DuplicateJob):
                    await waiting
        await second.commit()
    assert rows_of_mine(postgres_url) == ["second"]
    assert await stored(backend) == 1


# --- its locks block no other transaction ---


async def test_an_open_transaction_with_the_first_job_of_a_queue_blocks_no_other(
    backend: Backend, other: Backend, postgres_url: str
) -> None:
    async with psycopg_connection(postgres_url) as caller:
        await backend.enqueue_jobs([new_job("first", queue="new")], connection=caller.connection)
        async with asyncio.timeout(AT_ONCE):
            await other.enqueue_job(new_job("second", queue="new"))
            assert [job.id for job in await other.dequeue_jobs("w", limit=5)] == ["second"]
            await other.complete_job("second")
            await other.pause_queue("new")
            await other.resume_queue("new")
            await other.set_limits("new", running=3, per_key=1)
            await other.set_retention("new", finished=1)
            await other.cleanup_expired_jobs(1)
            await other.apply_retention()
            await other.reclaim_expired_leases()
            assert [queue.name for queue in await other.list_queues()] == ["new"]
        await caller.commit()
    assert [job.id for job in await other.dequeue_jobs("w", limit=5)] == ["first"]


async def test_an_open_transaction_with_a_child_lets_its_parent_complete_and_the_sweep_releases_the_child(
    backend: Backend, other: Backend, postgres_url: str
) -> None:
    await backend.enqueue_jobs([new_job("parent"), new_job("second parent"), new_job("third")])
    jobs = {job.id: job for job in await backend.dequeue_jobs("w", limit=5)}
    async with psycopg_connection(postgres_url) as caller:
        children = [new_job("child", depends_on=["parent"]), new_job("both", depends_on=["parent", "second parent"])]
        await backend.enqueue_jobs(children, connection=caller.connection)
        async with asyncio.timeout(AT_ONCE):
            await other.complete_job("parent", lease=jobs["parent"].lease)
            await other.complete_job("third", lease=jobs["third"].lease)
            await other.delete_jobs(job_ids=["third"])
            await other.reclaim_expired_leases()
        await caller.commit()
    assert (await backend.get_job("child")).status is JobStatus.WAITING_CHILDREN
    await other.reclaim_expired_leases()
    assert (await backend.get_job("child")).status is WAITING
    assert (await backend.get_job("both")).status is JobStatus.WAITING_CHILDREN
    await other.complete_job("second parent", lease=jobs["second parent"].lease)
    assert (await backend.get_job("both")).status is WAITING
    assert [job.id for job in await backend.dequeue_jobs("w", limit=5)] == ["child", "both"]


async def test_the_sweep_stops_a_child_whose_parent_failed_meanwhile(
    backend: Backend, other: Backend, postgres_url: str
) -> None:
    await backend.enqueue_job(new_job("parent"))
    await backend.dequeue_jobs("w")
    async with psycopg_connection(postgres_url) as caller:
        child = new_job("child", depends_on=["parent"], on_dependency_failure="stop")
        await backend.enqueue_jobs([child], connection=caller.connection)
        await other.bury_job("parent", "broken")
        await caller.commit()
    await other.reclaim_expired_leases()
    assert (await backend.get_job("child")).status is JobStatus.UNSCHEDULED


async def test_an_open_transaction_with_a_key_of_a_limited_queue_blocks_no_other(
    backend: Backend, other: Backend, postgres_url: str
) -> None:
    await backend.set_limits("default", running=2, per_key=1)
    await backend.enqueue_jobs([new_job("a", concurrency_key="k"), new_job("b", concurrency_key="k")])
    async with psycopg_connection(postgres_url) as caller:
        await backend.enqueue_jobs([new_job("c", concurrency_key="k")], connection=caller.connection)
        async with asyncio.timeout(AT_ONCE):
            await other.enqueue_job(new_job("d", concurrency_key="k"))
            for name in "abd":
                assert [job.id for job in await other.dequeue_jobs("w", limit=5)] == [name]
                await other.complete_job(name)
            await other.set_limits("default", per_key=2)
            await other.pause_queue("default")
            await other.resume_queue("default")
        await caller.commit()
    assert [job.id for job in await other.dequeue_jobs("w", limit=5)] == ["c"]


@pytest.mark.parametrize("policy", ["wait", "stop", "ignore"])
async def test_two_callers_who_close_a_circle_unseen_are_found_by_the_sweep(
    policy: str, backend: Backend, postgres_url: str
) -> None:
    async with psycopg_connection(postgres_url) as first, psycopg_connection(postgres_url) as second:
        for caller, name, awaited in ((first, "a", "b"), (second, "b", "a")):
            job = new_job(name, depends_on=[awaited], on_dependency_failure=policy)
            await backend.enqueue_jobs([job], connection=caller.connection)
        await first.commit()
        await second.commit()
    await backend.reclaim_expired_leases()
    statuses = {name: (await backend.get_job(name)).status for name in "ab"}
    assert statuses == {"a": JobStatus.UNSCHEDULED, "b": JobStatus.UNSCHEDULED}


# --- notifications ---


@every_kind
async def test_a_waiting_caller_is_woken_by_the_commit_and_not_before(
    kind: Kind, backend: Backend, other: Backend, postgres_url: str
) -> None:
    async with kind(postgres_url) as caller:
        waiting = await waits_for_news(other)
        await backend.enqueue_jobs([new_job("a")], connection=caller.connection)
        for _ in range(20):
            assert await backend.dequeue_jobs("w") == []
        assert not waiting.done()
        await caller.commit()
        async with asyncio.timeout(AT_ONCE):
            assert await waiting
    assert [job.id for job in await other.dequeue_jobs("w")] == ["a"]


# --- rejected connections ---


@pytest.fixture
async def elsewhere(postgres_clones: Clones) -> AsyncIterator[str]:
    url = postgres_clones.add()
    yield url
    postgres_clones.drop(url)


async def refused(backend: Backend, connection: object, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as refusal:
        await backend.enqueue_jobs([new_job("a")], connection=connection)
    assert refusal.value.field == "connection"
    assert await stored(backend) == 0


async def test_a_closed_connection_is_refused(backend: Backend, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        pass
    await refused(backend, connection, "is closed")
    async with await psycopg.AsyncConnection.connect(postgres_url) as async_connection:
        pass
    await refused(backend, async_connection, "is closed")


async def test_a_transaction_that_has_failed_is_refused(backend: Backend, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT 1 FROM nothing")
        await refused(backend, connection, "roll it back first")
        connection.rollback()
        assert await backend.enqueue_jobs([new_job("a")], connection=connection) == ["a"]


async def test_autocommit_without_a_transaction_is_refused(backend: Backend, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        await refused(backend, connection, "no transaction open; begin one first")


async def test_a_pipeline_is_rejected_and_continues(backend: Backend, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        with connection.pipeline():
            connection.execute("INSERT INTO mine VALUES ('kept')")
            await refused(backend, connection, "pipeline mode")
        await backend.enqueue_jobs([new_job("a")], connection=connection)
    async with await psycopg.AsyncConnection.connect(postgres_url) as async_connection, async_connection.pipeline():
        with pytest.raises(InvalidArgument, match="pipeline mode"):
            await backend.enqueue_jobs([new_job("b")], connection=async_connection)
    assert rows_of_mine(postgres_url) == ["kept"]
    assert await stored(backend) == 1


async def test_another_database_is_rejected_and_its_transaction_continues(backend: Backend, elsewhere: str) -> None:
    async with psycopg_connection(elsewhere) as caller:
        await caller.run("CREATE TABLE mine (x text)")
        await refused(backend, caller.connection, "another database")
        await caller.run("INSERT INTO mine VALUES ('kept')")
        await caller.commit()
    assert rows_of_mine(elsewhere) == ["kept"]


async def test_a_database_without_our_schema_is_refused(postgres_url: str, elsewhere: str) -> None:
    async with connect(postgres_url, schema="apart") as backend:
        await backend.count_jobs()
        with psycopg.connect(elsewhere) as connection:
            await refused(backend, connection, "lacks the schema apart")
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with psycopg.connect(postgres_url) as connection:
            assert await backend.enqueue_jobs([new_job("a")], connection=connection) == ["a"]


async def test_a_role_without_write_access_gets_an_error_and_its_transaction_continues(
    backend: Backend, postgres_url: str
) -> None:
    role = f"guest_{postgres_url.rsplit('_', 1)[-1]}"
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            connection.execute(f"GRANT INSERT, SELECT ON mine TO {role}")
            connection.execute(f"SET LOCAL ROLE {role}")
            connection.execute("INSERT INTO mine VALUES ('kept')")
            with pytest.raises(BackendUnavailable, match="does not allow this user"):
                await backend.enqueue_jobs([new_job("a")], connection=connection)
            assert connection.execute("SELECT x FROM mine").fetchall() == [("kept",)]
        finally:
            connection.rollback()  # the role as well


async def test_what_is_no_connection_to_postgresql_is_refused_with_the_kinds_that_are(backend: Backend) -> None:
    like_asyncpg = type("Connection", (), {"__module__": "asyncpg.connection"})
    for unknown in (object(), like_asyncpg(), "postgresql://localhost", 5):
        await refused(backend, unknown, "must be a psycopg connection")
    of_sqlite = sqlite3.connect(":memory:")
    await refused(backend, of_sqlite, "must be a psycopg connection")
    of_sqlite.close()
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        await refused(backend, connection, "driver sqlite3")
    with Session(engine) as session:
        await refused(backend, session, "driver sqlite3")
    await refused(backend, engine, "must be")
    engine.dispose()
