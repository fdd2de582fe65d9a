"""A task is enqueued in the caller's transaction: it exists only if that commits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from longshore import Harbor, JobStatus
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import DuplicateJob, InvalidArgument

S = JobStatus


async def waiting(harbor: Harbor) -> int:
    return (await harbor.backend.count_jobs())[S.INITIAL_PENDING]


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_on_sqlite_in_either_form(ending: str, tmp_path: Path) -> None:
    backend = SQLiteBackend(str(tmp_path / "jobs.db"))
    async with Harbor(backend) as harbor:

        @harbor.task
        def work(number: int) -> int:
            return number

        def in_a_thread() -> None:
            connection = backend.new_connection()
            connection.execute("BEGIN IMMEDIATE")
            work.options(connection=connection).enqueue_sync(1)
            work.options(connection=connection).enqueue_many_sync([work.call(2), work.call(3)])
            harbor.enqueue_many_sync([work.call(4)], connection=connection)
            connection.execute(ending)
            connection.close()

        await asyncio.to_thread(in_a_thread)
        assert await waiting(harbor) == (4 if ending == "COMMIT" else 0)

        connection = backend.new_connection()
        connection.execute("BEGIN IMMEDIATE")
        handle = await work.options(connection=connection).enqueue(5)
        connection.execute(ending)
        connection.close()
        assert await waiting(harbor) == (5 if ending == "COMMIT" else 0)
        await harbor.run_until_empty()
        if ending == "COMMIT":
            assert await handle.result() == 5


@pytest.mark.parametrize("commit", [True, False])
async def test_on_postgres_in_either_form(commit: bool, postgres_url: str) -> None:
    async with Harbor(postgres_url) as harbor:

        @harbor.task
        def work(number: int) -> int:
            return number

        def in_a_thread() -> None:
            with psycopg.connect(postgres_url) as connection:
                work.options(connection=connection).enqueue_sync(1)
                work.options(connection=connection, job_id="same").enqueue_sync(2)
                work.options(connection=connection, job_id="same").enqueue_sync(3)
                if not commit:
                    connection.rollback()

        await asyncio.to_thread(in_a_thread)
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            await work.options(connection=connection).enqueue(4)
            await harbor.enqueue_many([work.call(5), work.call(6)], connection=connection)
            if not commit:
                await connection.rollback()
        assert await waiting(harbor) == (5 if commit else 0)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_a_flow_is_known_again_within_the_transaction_that_stores_it(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Harbor(url) as harbor:

        @harbor.task
        def work(number: int) -> int:
            return number

        def flow_of(*numbers: int) -> Any:
            flow = harbor.flow(id="once")
            for number in numbers:
                flow.add(work.call(number))
            return flow

        def in_a_thread() -> None:
            connection: Any
            if isinstance(harbor.backend, SQLiteBackend):
                connection = harbor.backend.new_connection()
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection = psycopg.connect(url)
            for _ in range(2):
                assert flow_of(1, 2).enqueue_sync(connection=connection).id == "once"
            with pytest.raises(DuplicateJob, match=r"'once\.1'"):
                flow_of(1, 2, 3).enqueue_sync(connection=connection)
            connection.execute("COMMIT")
            connection.close()

        await asyncio.to_thread(in_a_thread)
        assert await waiting(harbor) == 2


async def test_a_connection_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    import sqlite3

    async with Harbor(f"sqlite:///{tmp_path / 'jobs.db'}") as harbor:

        @harbor.task
        def work() -> None: ...

        foreign = sqlite3.connect(":memory:")
        with pytest.raises(InvalidArgument, match="connection"):
            await work.options(connection=foreign).enqueue()
        foreign.close()
