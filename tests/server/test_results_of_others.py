"""A job gets no results of queues that its caller may not read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from longshore import Job, JobStatus, current_job
from longshore.app.harbor import Harbor
from longshore.backends.base import Backend
from longshore.backends.remote.backend import are_those_sent
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.tokens import Scope
from longshore.server.auth import Caller
from tests.server.conftest import Serve
from tests.server.test_access import NameGate, as_caller

SCOPES = frozenset({Scope.READ, Scope.SUBMIT})
MAILER = Caller("mailer", SCOPES, frozenset({"mail", "letters"}))
ANYBODY = Caller("anybody", SCOPES)
SECRET = "120000 EUR"


@pytest.fixture
def harbor(memory: Backend) -> Harbor:
    """Tasks that return their inputs, run by a worker that may read everything."""
    harbor = Harbor(memory)

    @harbor.task(queue="mail")
    async def echo(say: Any) -> Any:
        return say

    @harbor.task(queue="mail")
    async def ask() -> Any:
        return await current_job().dependency_results()

    return harbor


@pytest.fixture
async def client(memory: Backend, serve: Serve) -> httpx.AsyncClient:
    """A server on a store where the queue `bills` has a result."""
    await done(memory, "payroll", "bills")
    opened: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER, ANYBODY))
    return opened


async def done(store: Backend, job_id: str, queue: str, result: str = SECRET, **options: Any) -> None:
    await store.enqueue_job(Job(id=job_id, type="pay", queue=queue, options=options))
    [job] = await store.dequeue_jobs("w", queues=[queue])
    await store.complete_job(job_id, f'"{result}"'.encode(), lease=job.lease)


def asking(depends_on: str) -> dict[str, Any]:
    return {"id": "asking", "type": "ask", "queue": "mail", "depends_on": [depends_on], "attempts": 1}


def asking_the_store(depends_on: str) -> dict[str, Any]:
    job = {**asking(depends_on), "payload": "{}", "max_attempts": 1}
    del job["attempts"]
    return job


def taking(depends_on: str, **options: Any) -> dict[str, Any]:
    told = {"inputs": [[["say"], 0, 1]], **options}
    job = {"id": "taking", "type": "echo", "queue": "mail", "payload": '{"say":null}'}
    return {**job, "depends_on": [depends_on], "options": told}


WAYS_IN = [
    ("store/enqueue_job", lambda named: {"job": taking(named)}),
    ("store/enqueue_job", lambda named: {"job": taking(named, **{RESULTS_FROM: ["mail", "bills"]})}),
    ("store/enqueue_jobs", lambda named: {"jobs": [taking(named)]}),
    ("store/enqueue_new_jobs", lambda named: {"jobs": [taking(named)]}),
    ("store/add_jobs", lambda named: {"jobs": [taking(named)]}),
    ("store/add_jobs", lambda named: {"jobs": [asking_the_store(named)]}),
    ("jobs", asking),
    ("jobs/batch", lambda named: {"jobs": [asking(named)]}),
]


@pytest.mark.parametrize(("path", "body"), WAYS_IN)
async def test_a_job_does_not_get_results_of_queues_its_caller_may_not_read(
    client: httpx.AsyncClient, memory: Backend, harbor: Harbor, path: str, body: Any
) -> None:
    # F60
    stored = await client.post(f"/v1/{path}", json=body("payroll"), headers=as_caller(MAILER))
    assert stored.status_code < 300, stored.text
    await harbor.run_until_empty(["mail"])
    job_id = "asking" if "asking" in str(body("payroll")) else "taking"
    job = await memory.get_job(job_id)
    assert job.status is JobStatus.DEAD
    assert SECRET not in str(job)
    assert "or it is in a queue that the caller who stored this job may not read" in job.error_message
    shown = (await client.get(f"/v1/jobs/{job_id}", headers=as_caller(MAILER))).json()
    assert RESULTS_FROM not in shown["options"]


@pytest.mark.parametrize(("path", "body"), WAYS_IN)
async def test_a_job_gets_results_of_queues_its_caller_may_read(
    client: httpx.AsyncClient, memory: Backend, harbor: Harbor, path: str, body: Any
) -> None:
    await done(memory, "letter", "letters", "Dear Ada")
    for caller, named, told in ((MAILER, "letter", "Dear Ada"), (ANYBODY, "payroll", SECRET)):
        stored = await client.post(f"/v1/{path}", json=body(named), headers=as_caller(caller))
        assert stored.status_code < 300, stored.text
        await harbor.run_until_empty(["mail"])
        job_id = "asking" if "asking" in str(body(named)) else "taking"
        assert told in str((await memory.get_job(job_id)).result)
        await memory.delete_jobs(job_ids=[job_id])


async def test_an_id_that_now_belongs_to_another_queue_gives_no_result(
    client: httpx.AsyncClient, memory: Backend, harbor: Harbor
) -> None:
    # F60: they may see it when they name it, and not any more when the result is read
    await done(memory, "payroll-2", "mail", "nothing yet", remove_on_complete=True)
    for named in ("payroll-2", "payroll-3"):
        body = {**asking(named), "id": named + "-asking"}
        assert (await client.post("/v1/jobs", json=body, headers=as_caller(MAILER))).status_code == 202
        await done(memory, named, "bills")
    await harbor.run_until_empty(["mail"])
    for named in ("payroll-2", "payroll-3"):
        job = await memory.get_job(named + "-asking")
        assert (job.status, SECRET in str(job)) == (JobStatus.DEAD, False)


async def test_a_repeated_batch_is_recognised_although_the_server_added_an_option() -> None:
    sent = Job(id="1", type="t", depends_on=["2"], options={"mine": 1})
    noted = sent.replace(options={"mine": 1, RESULTS_FROM: ["mail"]}, queue="default")
    assert are_those_sent([sent], ["1"], {"1": noted})
    assert not are_those_sent([sent], ["1"], {"1": noted.replace(options={RESULTS_FROM: ["mail"]})})
