"""PostgreSQL crashes under real workers: nothing is lost, no process exits or loops, and all recover."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from random import Random

import pytest

from longshore.backends.connect import connect
from longshore.core.job import Job
from longshore.core.status import JobStatus
from tests.backends.audit import audit_at
from tests.postgres_server import Server
from tests.postgres_server import connect as connect_to
from tests.processes.process_group import ProcessGroup
from tests.processes.workload import HEALED_WITHIN, STARTED_WITHIN, Workload


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.prove
def test_a_postgres_server_that_crashes_repeatedly_loses_nothing_and_work_resumes_by_itself(
    server: Server, seed: int, proving: bool
) -> None:
    crashes, longest_down = (25, 5.0) if proving else (2, 1.5)
    chance = Random(seed)
    slowest = 0.0
    with ProcessGroup(server.create_database("harbour")) as processes:
        workload = Workload(processes, workers=("one", "two"), writers=("three", "four"))
        workload.all_at_work(STARTED_WITHIN)
        for _ in range(crashes):
            for _ in range(chance.randint(1, 200)):
                processes.next_line()
            server.stop("immediate")
            threading.Event().wait(chance.uniform(0, longest_down))  # it is down for this long
            server.start()
            slowest = max(slowest, workload.all_at_work(HEALED_WITHIN))
        output = workload.end()
    print(f"{crashes} crashes, {output}, recovered within {slowest:.1f} seconds, seed {seed}")


JOBS = 50
LOCK = 4_711
"""The lock that a sweep waits for during its writes."""

A_SWEEP_GETS_STUCK = f"""
CREATE FUNCTION longshore.wait_here() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({LOCK});
    RETURN new;
END $$;
CREATE TRIGGER wait_here BEFORE UPDATE ON longshore.jobs FOR EACH ROW
WHEN (old.status = 'RUNNING' AND new.status = 'UNKNOWN_RETRY' AND new.uid % 2 = 0)
EXECUTE FUNCTION longshore.wait_here()
"""
STUCK = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"


async def leave_jobs_behind(url: str) -> None:
    """Leave a claimed job behind, like a killed worker."""
    async with connect(url) as backend:
        await backend.enqueue_jobs([Job(id=f"j{number}", type="t", queue="q") for number in range(JOBS)])
        assert len(await backend.dequeue_jobs("gone", limit=JOBS, lease=0.001)) == JOBS


def test_a_crash_in_the_middle_of_a_sweep_counts_nothing_and_the_sweep_is_repeated(server: Server) -> None:
    url = server.create_database("harbour")
    asyncio.run(leave_jobs_behind(url))
    with connect_to(url) as holder, ProcessGroup(url) as processes:
        holder.execute(A_SWEEP_GETS_STUCK)
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        workload = Workload(processes, workers=("one", "two"))
        while holder.execute(STUCK, [LOCK]).fetchone() == (0,):
            processes.next_line()
        server.stop("immediate")
        assert not [ids for (ids,) in processes.lines_of("swept") if ids]
        server.start()

        def all_done() -> bool:
            return sum(len(settled) for (settled,) in processes.lines_of("settled")) == JOBS

        workload.until(all_done, HEALED_WITHIN, "all jobs are swept and done")
        for started_process in workload.workers:
            started_process.finish()
        workload.check_no_busy_loop()
    jobs, history = asyncio.run(audit_at(url))
    assert {(job.crashes, job.status) for job in jobs.values()} == {(1, JobStatus.COMPLETED)}
    assert {life.crashes for life in history.lives.values()} == {1}
