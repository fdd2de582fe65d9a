"""The events of one job are in order in the log, whichever transaction began first."""

from __future__ import annotations

import asyncio

import psycopg

from longshore.backends.base import Outcome
from longshore.backends.connect import connect
from longshore.core.job import Job
from tests.backends.postgres_following import read_until

WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def somebody_waits(connection: psycopg.Connection[tuple[int]]) -> None:
    """Wait until a transaction waits for a lock."""
    while connection.execute(WAITING).fetchone() == (0,):  # noqa: ASYNC110 - the server has no event to wait for
        await asyncio.sleep(0)


async def test_an_earlier_transaction_records_a_job_after_a_later_one(postgres_url: str) -> None:
    async with connect(postgres_url) as backend, connect(postgres_url) as other:
        await backend.enqueue_jobs([Job(id=name, type="t") for name in "abc"])
        leases = {job.id: job.lease for job in await backend.dequeue_jobs("w", limit=3)}
        with (
            psycopg.connect(postgres_url) as in_the_way,
            psycopg.connect(postgres_url, autocommit=True) as watching,
        ):
            in_the_way.execute("SELECT 1 FROM longshore.jobs WHERE id = 'b' FOR UPDATE")
            # it has a and its xid; then it waits for b, while c is cancelled under a later xid
            settling = asyncio.create_task(backend.settle_jobs([Outcome(name, leases[name]) for name in "abc"]))
            await somebody_waits(watching)
            await other.cancel_jobs(job_ids=["c"])
            in_the_way.rollback()
        await settling
        reported = [event for event in await read_until(backend, 10) if event.job_id == "c"]
        assert [event.job_seq for event in reported] == [1, 2, 3, 4]
        assert [event.event for event in reported][2:] == ["job.cancelling", "job.completed"]
