"""The server ends sessions of a worker, one kind after another and all at once: it continues, and wakes as quickly."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

import pytest

from longshore.backends.connect import connect
from longshore.backends.postgres.schema import quoted
from longshore.backends.sql.statements import Statements
from longshore.core.job import Job
from tests.postgres_server import Connection
from tests.postgres_server import connect as connect_to
from tests.processes.process_group import ProcessGroup, StartedProcess
from tests.processes.workload import HEALED_WITHIN, STARTED_WITHIN, Workload

QUICK = 3.0
"""Seconds in which only a notification explains a wake-up: these workers poll once a minute."""


SQL = Statements("longshore.backends.postgres", schema=quoted("longshore"))
SHOWN = 60
"""Characters by which a statement is recognised; the server shows a thousand."""


class Doing(NamedTuple):
    """What a session of a worker does."""

    statements: tuple[str, ...]
    """The statements by which it is recognised."""
    held_up_at: str | None = None
    """A table that they write; without one, the session is ended during them or idle after them."""


CLAIMS = Doing((SQL.claim_next, SQL.claim_from_cursor), held_up_at="queue_counts")
SETTLES = Doing((SQL.complete_jobs,), held_up_at="job_events")
REPORTS = Doing((SQL.put_worker,), held_up_at="workers")
HINTS = Doing(("SELECT pg_notify(",))
LISTENS = Doing(('LISTEN "', SQL.snapshot, SQL.changes_since, SQL.horizon, SQL.last_event))

FOUND = f"""
SELECT pid FROM pg_stat_activity
WHERE application_name = 'worker' AND EXISTS (
    SELECT 1 FROM unnest(%s::text[]) AS statement WHERE starts_with(query, left(statement, {SHOWN}))
)
AND (wait_event_type = 'Lock' OR %s)
"""


def session_that(server: Connection, doing: Doing, looks: int = 5_000) -> int | None:
    """Return the pid of the worker's session that runs this, or ran it last."""
    for _ in range(looks):
        server.execute("SELECT pg_sleep(0.002), pg_stat_clear_snapshot()")
        found = server.execute(FOUND, [list(doing.statements), doing.held_up_at is None]).fetchone()
        if found is not None:
            return int(found[0])
    return None


def end_session(url: str, doing: Doing) -> None:
    """End it, during its statement if that can be blocked."""
    victim = None
    with connect_to(url) as server:
        began = monotonic()
        while victim is None:
            assert monotonic() - began < HEALED_WITHIN, f"no session was seen to do this: {doing}"
            with server.transaction():
                if doing.held_up_at is not None:
                    server.execute(f"LOCK TABLE longshore.{doing.held_up_at} IN EXCLUSIVE MODE")
                # another statement that writes this table may be blocked first: try again
                victim = session_that(server, doing, looks=100)
                server.execute("SELECT pg_terminate_backend(%s, 5000)", [victim])


def end_all_sessions(url: str) -> int:
    with connect_to(url) as server:
        statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'worker'"
        return len(server.execute(statement).fetchall())


@pytest.mark.prove
def test_a_worker_whose_sessions_are_terminated_at_any_moment_loses_nothing_and_continues(
    postgres_url: str, proving: bool
) -> None:
    rounds = 20 if proving else 1
    slowest, ended = 0.0, 0
    with ProcessGroup(postgres_url) as processes:
        workload = Workload(processes, workers=["worker"], writers=["writer"])
        workload.all_at_work(STARTED_WITHIN)
        for _ in range(rounds):
            for doing in (CLAIMS, SETTLES, REPORTS, HINTS, LISTENS):
                end_session(postgres_url, doing)
                ended += 1
                slowest = max(slowest, workload.all_at_work(HEALED_WITHIN))
            ended += end_all_sessions(postgres_url)
            slowest = max(slowest, workload.all_at_work(HEALED_WITHIN))
        output = workload.end()
    print(f"{ended} sessions ended, {output}, recovered within {slowest:.1f} seconds")


def rest(processes: ProcessGroup, started_process: StartedProcess) -> None:
    """Wait until the worker waits, and was not woken for the duration of a sweep."""
    while not started_process.lines_of("waiting"):
        processes.next_line()
    woken = -1
    while woken != len(started_process.lines_of("waiting")):
        woken = len(started_process.lines_of("waiting"))
        while processes.next_line()[1] != "swept":
            continue


async def add(url: str, job_id: str) -> None:
    async with connect(url) as backend:
        await backend.enqueue_job(Job(id=job_id, type="t"))


@pytest.mark.parametrize("all_at_once", [False, True], ids=["the one that listens", "all at once"])
def test_a_worker_whose_listening_session_was_ended_listens_again(postgres_url: str, all_at_once: bool) -> None:
    with ProcessGroup(postgres_url) as processes:
        workload = Workload(processes, workers=["worker"])
        (worker,) = workload.workers
        rest(processes, worker)
        with connect_to(postgres_url) as server:
            before = session_that(server, LISTENS)
            if all_at_once:
                end_all_sessions(postgres_url)
            else:
                end_session(postgres_url, LISTENS)
            began = monotonic()
            while session_that(server, LISTENS) == before:
                assert monotonic() - began < HEALED_WITHIN
        for job_id in ("a", "b"):
            rest(processes, worker)
            asyncio.run(add(postgres_url, job_id))

            def claimed(job_id: str = job_id) -> bool:
                return job_id in str(worker.lines_of("claimed"))

            woken = workload.until(claimed, QUICK, "it is claimed")
            assert woken < QUICK
        worker.finish()
