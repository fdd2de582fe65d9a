"""A forgotten session holds an old snapshot: dead rows of claimed jobs cannot be vacuumed, and claims stay fast.

The server counts what a claim reads; nothing is timed.
"""

from __future__ import annotations

from time import monotonic

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.backends.connect import connect
from longshore.backends.postgres.claim_low_water import MOST_DEAD_ENTRIES, RESCAN_SECONDS
from longshore.core.job import Job
from tests.backends.audit import audit
from tests.postgres_server import Connection
from tests.postgres_server import connect as connect_to

CLAIMS = 30
"""Claims of one job each whose reads are counted; together they take a fraction of a second."""
WAITING = 4_000
BATCH = 500
READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_claimable'"


async def pass_through(backend: Backend, jobs: int) -> None:
    """Enqueue and complete this many jobs, which leave dead rows."""
    for start in range(0, jobs, 10 * BATCH):
        numbers = range(start, min(start + 10 * BATCH, jobs))
        await backend.enqueue_jobs([Job(id=f"done{number}", type="t") for number in numbers])
        while claimed := await backend.dequeue_jobs("w", limit=BATCH):
            await backend.settle_jobs([Outcome(job.id, job.lease) for job in claimed])


async def entries_read(url: str, inside: Connection) -> int:
    """The number of index entries that a process reads for claims of one job each."""
    (before,) = inside.execute(READ).fetchone() or (0,)
    async with connect(url) as backend:
        for _ in range(CLAIMS):
            assert len(await backend.dequeue_jobs("w")) == 1
    # the statistics of a session are certain once it has ended
    while inside.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'longshore'").fetchone():
        continue
    (after,) = inside.execute(READ).fetchone() or (0,)
    return int(after - before)


@pytest.mark.prove
@pytest.mark.timeout(600)
async def test_claims_do_not_repeatedly_read_dead_index_entries(postgres_url: str, proving: bool) -> None:
    passed = 300_000 if proving else 12_000
    with connect_to(postgres_url) as forgotten, connect_to(postgres_url) as inside:
        forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM longshore.jobs")
        async with connect(postgres_url) as backend:
            await pass_through(backend, passed)
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(WAITING)])
        littered = await entries_read(postgres_url, inside)
        assert littered > passed > MOST_DEAD_ENTRIES, "there were no dead entries, so this shows nothing"
        # a claim from the start reads them twice, perhaps after a second; without marks each claim would
        assert littered < 5 * passed + 100 * CLAIMS

        forgotten.execute("ROLLBACK")
        inside.execute("VACUUM longshore.jobs")
        assert await entries_read(postgres_url, inside) < 100 * CLAIMS, "all is as before"
        async with connect(postgres_url) as backend:
            await audit(backend)
    print(f"{passed} jobs passed under an old snapshot; {CLAIMS} claims read {littered} entries")


async def test_a_job_that_comes_back_to_its_old_place_is_claimed_within_about_a_second(postgres_url: str) -> None:
    with connect_to(postgres_url) as forgotten:
        forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM longshore.jobs")
        async with connect(postgres_url) as backend:
            await backend.enqueue_job(Job(id="comes back", type="t"))
            (early,) = await backend.dequeue_jobs("w")
            await pass_through(backend, 3 * MOST_DEAD_ENTRIES)
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(WAITING)])
            assert early.lease is not None
            assert [job.id for job in await backend.dequeue_jobs("w")] == ["j0"]
            await backend.release_lease("comes back", early.lease)
            released = monotonic()
            passed_by = 0
            while (await backend.dequeue_jobs("w"))[0].id != "comes back":
                passed_by += 1
            assert passed_by, "the mark was not in use, so nothing was shown"
            assert monotonic() - released < RESCAN_SECONDS + 2
            await audit(backend)
