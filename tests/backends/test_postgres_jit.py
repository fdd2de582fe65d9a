"""PostgreSQL compiles plans with a high estimated cost: no claim has such a plan."""

# PostgreSQL before 18
from __future__ import annotations

import pytest

from longshore.backends.base import Outcome
from longshore.backends.connect import connect
from longshore.core.job import Job
from tests.postgres_server import Server, Setting
from tests.postgres_versions import DEBIAN

TELLING: dict[str, Setting] = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": 0,
    "auto_explain.log_analyze": True,
    "jit": True,
}


@pytest.mark.timeout(240)  # a machine without this server installs it first
@pytest.mark.parametrize("types", [None, ["t", "u"]])
async def test_a_queue_with_limits_drains_without_compiling_any_statement(types: list[str] | None) -> None:
    with Server(TELLING, version=DEBIAN) as server:
        async with connect(server.create_database("harbour")) as backend:
            await backend.set_limits("q", running=4, per_key=2)
            await backend.enqueue_jobs([Job(type="t", queue="q", concurrency_key=f"k{n % 3}") for n in range(40)])
            done = 0
            while claimed := await backend.dequeue_jobs("w", limit=4, queues=["q"], types=types):
                await backend.settle_jobs([Outcome(job.id, job.lease) for job in claimed if job.lease])
                done += len(claimed)
        assert done == 40
        assert server.log.count("queue_counts") > 10
        assert server.log.count("JIT:") == 0
        assert "using queue_counts_by_queue" in server.log  # otherwise a claim's estimated cost is 1e10


async def test_our_transactions_turn_jit_off_and_do_not_change_the_session() -> None:
    """Behind a transaction pooler, another client gets the session next."""
    with Server({**TELLING, "log_statement": "all"}, version=DEBIAN) as server:
        async with connect(server.create_database("harbour")) as backend:
            await backend.enqueue_job(Job(type="t"))
            await backend.dequeue_jobs("w")
            await backend.count_jobs()
        begun = [line for line in server.log.splitlines() if "BEGIN ISOLATION" in line]
        assert len(begun) >= 3
        assert [line for line in begun if "SET LOCAL jit = off" not in line] == []
        assert "SET jit" not in server.log
