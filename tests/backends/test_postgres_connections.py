"""Too few connections, or a pooler that gives each transaction another session: slower, but never wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import psycopg
import pytest

from longshore.backends.base import Backend, Outcome
from longshore.backends.connect import connect
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from tests.backends.audit import audit, audit_at
from tests.postgres_pooler import Pooler
from tests.postgres_server import Connection, Server, at_database
from tests.postgres_server import connect as connect_to

MOST = 12
WAIT = 3.0
"""Seconds for which these backends wait for a connection: longer than the pool's pause between two tries."""


# --- too few connections ---


@pytest.fixture
def small_url() -> Iterator[str]:
    """A database on a server that takes only a few connections."""
    with Server({"max_connections": MOST, "superuser_reserved_connections": 0}) as server:
        yield server.create_database("harbour")


def take_all(url: str, until_the_end: ExitStack) -> list[Connection]:
    taken: list[Connection] = []
    while True:
        try:
            taken.append(until_the_end.enter_context(connect_to(url)))
        except psycopg.OperationalError:
            return taken


async def test_a_server_without_free_connections_is_retried_then_reported_and_recovers(
    small_url: str,
) -> None:
    with ExitStack() as until_the_end:
        async with connect(small_url, wait_seconds=WAIT) as known, connect(small_url, wait_seconds=WAIT) as new:
            await known.enqueue_job(Job(id="before", type="t"))
            taken = take_all(small_url, until_the_end)
            with pytest.raises(BackendUnavailable, match="has no connection left; raise max_connections"):
                await new.enqueue_job(Job(id="refused", type="t"))
            taken[0].execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'longshore'"
            )
            taken += take_all(small_url, until_the_end)
            began = monotonic()
            with pytest.raises(BackendUnavailable, match=r"gave no connection in time\. Check that it is reachable"):
                await known.enqueue_job(Job(id="refused", type="t"))
            assert WAIT / 2 < monotonic() - began < WAIT + 5
            waiting = asyncio.create_task(known.enqueue_job(Job(id="waited", type="t")))
            for connection in taken[:5]:
                connection.close()
            assert await waiting == "waited"
            await new.enqueue_job(Job(id="after", type="t"))
            for connection in taken:
                connection.close()
            assert {job.id for job in (await audit(known))[0]} == {"before", "waited", "after"}


async def test_more_callers_than_connections_wait_for_one_another(small_url: str) -> None:
    async with connect(small_url, pool_size=20) as one, connect(small_url, pool_size=20) as other:
        calls = [backend.enqueue_job(Job(type="t")) for _ in range(100) for backend in (one, other)]
        added = set(await asyncio.gather(*calls))
    jobs, _ = await audit_at(small_url)
    assert len(added) == 200
    assert jobs.keys() == added


async def test_a_database_or_user_that_is_not_there_is_named_in_plain_words(postgres_url: str) -> None:
    async with connect(at_database(postgres_url, "nowhere")) as backend:
        with pytest.raises(BackendUnavailable, match="/nowhere has no such database; create it first"):
            await backend.count_jobs()
    async with connect(f"{postgres_url}?user=nobody%20we%20know") as backend:
        with pytest.raises(BackendUnavailable, match="rejects this user; check the user and the database"):
            await backend.count_jobs()
    async with connect("postgresql://app:xsesame@db.invalid/app", wait_seconds=1) as backend:
        with pytest.raises(BackendUnavailable, match=r"at db\.invalid/app cannot be reached: the host name is unknown"):
            await backend.count_jobs()


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("db:port/app", "the port must be a number, as in postgresql://user@host:5432/database"),
        ("db/app?foo=1", "'foo' is not a connection parameter of PostgreSQL; remove it"),
        ("db/app?foo=x@y", "must be like postgresql://user:password@host:5432/database"),
    ],
)
def test_a_wrong_part_of_the_address_is_named(rest: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        connect(f"postgresql://app:xsesame@{rest}")
    assert str(refusal.value) == f"url: {problem}"


# --- a pooler in transaction mode ---


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url) as pooler:
        yield pooler


def prepared(pooler: Pooler) -> int:
    """The number of statements prepared by name, in any session behind the pooler."""
    found = 0
    for _ in range(6):
        with psycopg.connect(pooler.url, prepare_threshold=None) as session:
            (here,) = session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() or (0,)
            found += here
    return found


async def a_life_of_everything(backend: Backend, name: str) -> None:
    """Most operations once, several of them in bulk and in many statements."""
    ids = [f"{name}{number}" for number in range(120)]
    await backend.enqueue_jobs([Job(id=job_id, type="t", queue=name, tags=["all"]) for job_id in ids])
    await backend.enqueue_job(Job(id=f"{name} child", type="t", queue=name, depends_on=[ids[0]]))
    claimed = await backend.dequeue_jobs(name, limit=60, queues=[name])
    assert [job.id for job in claimed] == ids[:60]
    renewed = await backend.extend_leases({job.id: job.lease for job in claimed if job.lease}, 60)
    assert len(renewed) == 60
    await backend.set_progress(ids[0], 0.5, lease=renewed[ids[0]])
    await backend.append_log(ids[0], "half", lease=renewed[ids[0]])
    report = await backend.settle_jobs([Outcome(job_id, lease) for job_id, lease in renewed.items()])
    assert len(report.settled) == 60
    await backend.set_limits(name, running=2)
    assert len(await backend.dequeue_jobs(name, ["all"], limit=5, queues=[name])) == 2
    cancelled, _ = await backend.cancel_jobs(tags=["all"], queue=name)
    assert len(cancelled) == 60
    await backend.put_schedule(Schedule(id=name, job=Job(id="p", type="t", queue=name), repeat=Repeat(every=3600)))
    counts = await backend.count_jobs(name)
    assert counts[JobStatus.COMPLETED] == 60
    assert (await backend.get_job(f"{name} child")).status is JobStatus.INITIAL_PENDING


async def test_behind_a_pooler_every_verb_is_right_and_no_statement_is_prepared(
    pooler: Pooler, postgres_url: str
) -> None:
    async with connect(pooler.url) as one, connect(pooler.url) as other:
        await asyncio.gather(
            *(
                a_life_of_everything(backend, f"{place}{number}")
                for number in range(3)
                for place, backend in (("a", one), ("b", other))
            )
        )
        assert pooler.handed_out > 100
        assert prepared(pooler) == 0
    jobs, _ = await audit_at(postgres_url)
    assert len(jobs) == 6 * 121


async def test_behind_a_pooler_waiting_callers_are_woken_by_polling(pooler: Pooler, postgres_url: str) -> None:
    async with connect(pooler.url, poll_seconds=0.1) as backend, connect(postgres_url) as direct:
        await direct.enqueue_job(Job(id="first", type="t"))
        while await backend.wait_for_change(0.3):
            continue
        waiting = asyncio.create_task(backend.wait_for_change(30))
        await direct.enqueue_job(Job(id="second", type="t"))
        assert await waiting
