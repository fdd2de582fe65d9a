"""The platform's own promises, seen from outside: through HTTP alone, with workers that come and vanish."""

import asyncio

import httpx
import pytest

from longshore.app.harbor import builtin_harbor
from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import LeaseLost
from longshore.core.status import LEGAL_PAIRS, JobStatus


async def test_another_worker_resumes_the_job_of_a_lost_worker_from_its_checkpoint(
    client: httpx.AsyncClient, backend: Backend, clock: HeldClock
) -> None:
    # O-INV-02, O-INV-04, O-ST-04, O-ST-05, O-FAIL-01, O-FAIL-02, O-DM-04, X-61, X-62, X-66, X-67
    job_id = (await client.post("/v1/jobs", json={"type": "t"})).json()["id"]
    (first,) = await backend.dequeue_jobs("first", lease=30)
    await backend.save_checkpoint(job_id, {"page": 7}, lease=first.lease)
    held = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (held["state"], held["assignee_id"], held["lease"]["epoch"]) == ("RUNNING", "first", 1)
    clock.advance(31)
    await backend.reclaim_expired_leases()
    back = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (back["state"], back["crashes"], back["retry_count"], back["lease"]) == ("QUEUED", 1, 0, None)
    (second,) = await backend.dequeue_jobs("second", lease=30)
    assert second.checkpoint == {"page": 7}
    # O-INV-03, O-NG-01: it may run twice, but only the owner of the lease settles it
    with pytest.raises(LeaseLost):
        await backend.complete_job(job_id, b"1", lease=first.lease)
    await backend.complete_job(job_id, b"2", lease=second.lease)
    done = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (done["state"], done["result"], done["executions"]) == ("SUCCESS", 2, 2)


async def test_of_many_workers_that_reach_for_a_job_one_gets_it(client: httpx.AsyncClient, backend: Backend) -> None:
    # O-FAIL-03; O-NG-02, O-NG-03: when, and before which other job, is not promised
    await client.post("/v1/jobs/batch", json={"jobs": [{"type": "t"}] * 5})
    claimed = await asyncio.gather(*(backend.dequeue_jobs(f"w{n}", limit=2) for n in range(20)))
    owners = [job.id for jobs in claimed for job in jobs]
    assert len(owners) == len(set(owners)) == 5


async def test_the_history_holds_only_moves_of_the_table_and_ends_where_the_job_stands(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # O-SM-01, O-SM-02, O-DM-02
    job_id = (await client.post("/v1/jobs", json={"type": "t"})).json()["id"]
    (job,) = await backend.dequeue_jobs("w")
    await backend.fail_job(job_id, "no", lease=job.lease)
    await client.post(f"/v1/jobs/{job_id}/cancel")
    events = (await client.get(f"/v1/jobs/{job_id}/events")).json()["items"]
    moves = [(event["from_status"], event["to_status"]) for event in events if event["to_status"]]
    assert moves[0] == (None, "CREATED")
    for before, after in moves[1:]:
        assert (JobStatus(before), JobStatus(after)) in LEGAL_PAIRS
    assert [after for _, after in moves[:-1]] == [before for before, _ in moves[1:]]
    assert moves[-1][1] == (await client.get(f"/v1/jobs/{job_id}")).json()["status"] == "STOPPED"


@pytest.mark.parametrize("kind", ["os.system", "longshore.cli.main:run", "__import__('os').system", "../../bin/sh"])
async def test_a_type_is_a_name_and_never_something_to_import(
    quick: httpx.AsyncClient, memory: Backend, kind: str
) -> None:
    # F60
    job_id = (await quick.post("/v1/jobs", json={"type": kind, "data": {"command": "true"}})).json()["id"]
    await builtin_harbor(memory).run_until_empty()
    shown = (await quick.get(f"/v1/jobs/{job_id}")).json()
    assert (shown["status"], shown["executions"], shown["crashes"]) == ("INITIAL_PENDING", 0, 0)  # never claimed
