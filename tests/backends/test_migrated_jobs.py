"""A store with jobs, opened by code with one more migration: the migration changes the jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import apsw
import psycopg
import pytest

from longshore.backends.connect import connect
from longshore.backends.postgres import schema
from longshore.backends.postgres.connection import Server
from longshore.backends.sql.statements import Migration
from longshore.backends.sqlite import connection as sqlite_connection
from longshore.core.clock import HeldClock
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, from_micros, to_micros

HOUR = 3600 * SECOND

INSERT = """
INSERT INTO jobs (uid, id, queue, type, payload, options, tags, priority, lifo, max_attempts, deps_total, created_at,
    deps_left, on_dependency_failure, status, run_at, eligible_at, sort_key, job_seq, updated_at, lease_token)
VALUES ({uid}, '{id}', 'default', 't', {nothing}, '{{}}', '', 0, {false}, 0, 0, {then}, 0, 'wait', '{status}', {run_at},
    {eligible_at}, {eligible_at}, 1, {then}, {token})
"""
COUNT = (
    "INSERT INTO queue_counts (queue, status, jobs, retries) SELECT queue, status, count(*), 0 FROM jobs GROUP BY 1, 2"
)

BODY = (
    '{{"id": "nightly", "job": {{"type": "t", "queue": "default", "tags": [], "priority": 0, "lifo": false,'
    ' "max_attempts": 0, "max_crashes": null, "concurrency_key": null, "parent_id": null, "options": {{}},'
    ' "payload": "00", "delay": null, "expires_at": null, "timeout": null}},'
    ' "repeat": {{"cron": null, "every": 60000000, "tz": "UTC", "limit": null,'
    ' "start": null, "end": null, "on_gap": "next", "on_overlap": "first", "catch_up": "last"}}, "paused": false,'
    ' "last_job_id": "the last", "run_count": 7, "error": "", "next_run_at": {due}, "last_run_at": {last},'
    ' "created_at": 5, "updated_at": {last}}}'
)
SCHEDULE = "INSERT INTO schedules (id, paused, next_run_at, body) VALUES ('nightly', {false}, {due}, '{body}')"

Fill = Callable[[Sequence[str]], str]


# A migration for tests only, after the last real one. It fills columns that the rows of the test leave empty.
MIGRATE = """
UPDATE {schema}jobs SET announce_at = run_at
WHERE run_at > {now} AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
UPDATE {schema}jobs SET cancel_asked_at = updated_at WHERE status = 'CANCELLING';
UPDATE {schema}schedules SET last_run_at = {last_run_at}, last_job_id = {last_job_id}, run_count = {run_count},
    updated_at = {updated_at};
UPDATE {schema}jobs SET blocked = {false} WHERE blocked;
CREATE TABLE {schema}migrated (at INTEGER);
"""
SCHEDULE_COLUMNS = ("last_run_at", "last_job_id", "run_count", "updated_at")


def with_one_more(every: Sequence[Migration], **words: str) -> tuple[Migration, ...]:
    """The migrations of a dialect, and the one of this test."""
    number = len(every) + 1
    return (*every, Migration(number, f"{number:04d}_for_tests.sql", MIGRATE.format(**words)))


@pytest.fixture(params=["sqlite", "postgres"])
def old_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Fill a store, and return the URL for code with one more migration."""

    def in_file(statements: Sequence[str]) -> str:
        path = tmp_path / "jobs.db"
        every = sqlite_connection.MIGRATIONS
        sqlite_connection.prepare(path, busy_seconds=1)
        connection = apsw.Connection(str(path))
        for statement in statements:
            connection.execute(statement.replace("{false}", "0").replace("{nothing}", "x''"))
        connection.execute("UPDATE meta SET next_uid = 100")
        connection.close()
        words = {column: f"json_extract(body, '$.{column}')" for column in SCHEDULE_COLUMNS}
        words |= {"schema": "", "false": "0", "now": "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"}
        monkeypatch.setattr(sqlite_connection, "MIGRATIONS", with_one_more(every, **words))
        return f"sqlite:///{path}"

    def in_server(statements: Sequence[str]) -> str:
        url = str(request.getfixturevalue("postgres_url"))
        schema.prepare(Server(url), "longshore")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET search_path = longshore")
            for statement in statements:
                connection.execute(statement.replace("{false}", "false").replace("{nothing}", "''").encode())
        types = {"last_job_id": "text"}
        words = {name: f"(body::json ->> '{name}')::{types.get(name, 'bigint')}" for name in SCHEDULE_COLUMNS}
        words |= {"schema": "{schema}.", "false": "false"}
        words["now"] = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        monkeypatch.setattr(schema, "MIGRATIONS", with_one_more(schema.MIGRATIONS, **words))
        return url

    return in_file if request.param == "sqlite" else in_server


async def test_delayed_jobs_and_cancellations_of_an_older_store_are_announced_and_timed_out(old_store: Fill) -> None:
    now = to_micros(await connect("memory://").now())
    jobs = [
        ("plain", JobStatus.INITIAL_PENDING, None),
        ("due before", JobStatus.INITIAL_PENDING, now - HOUR),
        ("later", JobStatus.INITIAL_PENDING, now + HOUR),
        ("retried later", JobStatus.FAILED_RETRY, now + 2 * HOUR),
        ("waits for others", JobStatus.WAITING_CHILDREN, now + HOUR),
        ("runs", JobStatus.RUNNING, now - HOUR),
        ("being cancelled", JobStatus.CANCELLING, None),
    ]
    statements = []
    for uid, (job_id, status, run_at) in enumerate(jobs, start=1):
        row = {
            "uid": uid,
            "id": job_id,
            "status": status,
            "then": now - 60 * SECOND,
            "false": "{false}",
            "nothing": "{nothing}",
        }
        row |= {"run_at": run_at or "NULL", "eligible_at": run_at or now - 60 * SECOND}
        row |= {"token": "'token'" if status.holds_capacity else "NULL"}
        statements.append(INSERT.format(**row))
    statements.append(COUNT)
    clock = HeldClock(from_micros(now))
    async with connect(old_store(statements), clock=clock) as backend:
        assert await backend.announce_due_jobs() == []
        assert await backend.time_out_cancellations(61) == []
        assert [job.id for job in await backend.time_out_cancellations(60)] == ["being cancelled"]
        clock.advance(timedelta(hours=3))
        assert await backend.announce_due_jobs() == ["later", "retried later"]
        claimed = {job.id for job in await backend.dequeue_jobs("w", limit=9, queues=["default"])}
        assert claimed == {"plain", "due before", "later", "retried later"}


async def test_schedules_of_an_older_store_stand_where_they_stood_and_go_on(old_store: Fill) -> None:
    #
    now = to_micros(await connect("memory://").now())
    last, due = now - 50 * SECOND, now + 10 * SECOND
    body = BODY.format(due=due, last=last)
    statement = SCHEDULE.format(due=due, body=body, false="{false}")
    clock = HeldClock(from_micros(now))
    async with connect(old_store([statement]), clock=clock) as backend:
        [kept] = await backend.get_schedules()
        assert (kept.run_count, kept.last_job_id, kept.job.type) == (7, "the last", "t")
        assert (kept.last_run_at, kept.updated_at) == (from_micros(last), from_micros(last))
        assert (kept.next_run_at, kept.created_at, kept.paused) == (from_micros(due), from_micros(5), False)
        clock.advance(10)
        [job] = await backend.fire_due_schedules()
        moved = await backend.get_schedule("nightly")
        assert (moved.run_count, moved.last_job_id, moved.last_run_at) == (8, job.id, clock.now())
        assert moved.created_at == kept.created_at


async def test_a_job_that_an_older_store_blocked_starts_in_a_claim_by_its_type(old_store: Fill) -> None:
    # S5: its key has free slots, and a job of another type comes first
    now = to_micros(await connect("memory://").now())
    row = {"status": JobStatus.INITIAL_PENDING, "then": now, "false": "{false}", "nothing": "{nothing}"}
    row |= {"run_at": "NULL", "eligible_at": now, "token": "NULL"}
    statements = [INSERT.format(uid=uid, id=name, **row) for uid, name in ((1, "other"), (2, "mine"))]
    statements += [
        "UPDATE jobs SET concurrency_key = 'k'",
        "UPDATE jobs SET type = 'mine', blocked = NOT {false} WHERE id = 'mine'",
        COUNT,
        "INSERT INTO queues (name, paused, per_key, window_start, window_count) VALUES ('default', {false}, 1, 0, 0)",
    ]
    async with connect(old_store(statements), clock=HeldClock(from_micros(now))) as backend:
        assert [job.id for job in await backend.dequeue_jobs("w", queues=["default"], types=["mine"])] == ["mine"]
