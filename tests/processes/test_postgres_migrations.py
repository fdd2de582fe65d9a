"""Many processes migrate an empty database at once, one is killed between any two statements, and one is too old."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from random import Random

import pytest

from longshore.backends.connect import connect
from longshore.backends.postgres import schema
from longshore.backends.postgres.schema import MIGRATIONS
from longshore.core.errors import BackendUnavailable
from longshore.core.job import Job
from tests.backends.audit import audit_at
from tests.postgres_server import Server
from tests.postgres_server import connect as connect_to
from tests.processes.process_group import ProcessGroup
from tests.processes.store_process import POSTGRES_MIGRATIONS


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # not the run's server, whose databases are already migrated
    with Server() as server:
        yield server


def test_many_processes_that_open_an_empty_database_at_once_all_find_it_ready(server: Server) -> None:
    with ProcessGroup(server.create_database("empty")) as processes:
        started_processes = [processes.start_process("writer", f"writer{number}", "3") for number in range(8)]
        for started_process in started_processes:
            started_process.finish()
        assert not processes.lines_of("error")
        promised = {job_id for (ids,) in processes.lines_of("enqueued") for job_id in ids}
        jobs, _ = asyncio.run(audit_at(processes.url))
        assert promised == jobs.keys()
    with connect_to(processes.url) as session:
        applied = session.execute("SELECT number FROM longshore.migrations ORDER BY number").fetchall()
        assert applied == [(migration.number,) for migration in MIGRATIONS]


async def enqueue(url: str) -> None:
    async with connect(url) as backend:
        await backend.enqueue_job(Job(id="after", type="t"))


@pytest.mark.prove
def test_a_postgres_migration_killed_between_two_statements_is_completed_by_the_next_process(
    server: Server, seed: int, proving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", POSTGRES_MIGRATIONS)
    with ProcessGroup(server.create_database("whole")) as processes:
        counter = processes.start_process("postgres migrator", "counter", "0")
        counter.finish()
        ((statements,),) = counter.lines_of("statements")
    assert statements > 40
    points = range(1, statements + 1)
    for number in points if proving else Random(seed).sample(points, 3):
        with ProcessGroup(server.create_database(f"point{number}")) as processes:
            victim = processes.start_process("postgres migrator", "victim", str(number))
            assert victim.wait() == -signal.SIGKILL
        asyncio.run(enqueue(processes.url))
        jobs, _ = asyncio.run(audit_at(processes.url))
        assert jobs.keys() == {"after"}
        with connect_to(processes.url) as session:
            applied = session.execute("SELECT number FROM longshore.migrations ORDER BY number").fetchall()
            assert applied == [(migration.number,) for migration in POSTGRES_MIGRATIONS]
            assert session.execute("SELECT note FROM longshore.jobs").fetchall() == [(None,)]
        server.drop_database(f"point{number}")
    print(f"{len(points) if proving else 3} of {statements} statements, seed {seed}")


async def test_an_old_process_must_upgrade_when_it_connects_again(postgres_url: str) -> None:
    async with connect(postgres_url) as backend:
        await backend.enqueue_job(Job(id="before", type="t"))
        with connect_to(postgres_url) as session:
            newer = len(MIGRATIONS) + 1
            session.execute("INSERT INTO longshore.migrations (number, name) VALUES (%s, 'of tomorrow')", [newer])
            session.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'longshore'"
            )
            for verb in (backend.enqueue_job(Job(id="after", type="t")), backend.dequeue_jobs("w")):
                with pytest.raises(BackendUnavailable, match=rf"schema {newer}.*newer Longshore.*Upgrade"):
                    await verb
            assert session.execute("SELECT id, status FROM longshore.jobs").fetchall() == [
                ("before", "INITIAL_PENDING")
            ]
            session.execute("DELETE FROM longshore.migrations WHERE number = %s", [newer])
        assert [job.id for job in await backend.dequeue_jobs("w")] == ["before"]
