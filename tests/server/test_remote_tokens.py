"""A worker on another machine, let in by a real token: it does its own queue's work, and nothing once it is revoked."""

import asyncio
from typing import Any

import httpx
import pytest

from longshore import Queue, Worker, connect
from longshore.app.harbor import Harbor
from longshore.app.routing import Router
from longshore.backends.base import Backend
from longshore.core.errors import LongshoreError, Unauthenticated
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.server.app import create_app
from longshore.server.auth import TokenGate
from longshore.server.uvicorn_server import ApiServer
from tests.runtime.working import until
from tests.server.conftest import Serve, platform_of
from tests.server.test_tokens import Dial, bearer, keeper


async def test_a_worker_with_a_token_works_in_its_queue_until_the_token_is_revoked(memory: Backend) -> None:
    # F60
    made, secret = await keeper(memory).issue_token("far away", ["work", "read"], queues=["mail"])
    await memory.enqueue_jobs([Job(id="m", type="t", queue="mail"), Job(id="s", type="t", queue="secret")])
    server = ApiServer(create_app(memory, gate=TokenGate(memory)))
    serving = asyncio.create_task(server.run())
    await server.ready()
    try:
        async with connect(server.address, token=secret) as remote:
            seen: list[str] = []

            async def process(job: Any) -> str:
                seen.append(job.id)
                return "done"

            async with Worker(Queue(remote, "mail"), process):
                await until(lambda: _is(memory, "m", JobStatus.COMPLETED))
            assert seen == ["m"]
            assert await _is(memory, "s", JobStatus.INITIAL_PENDING)
            with pytest.raises(LongshoreError, match="secret"):
                await remote.dequeue_jobs("w", queues=["secret"])
            await keeper(memory).revoke_token(made.id)
            told = ""
            while not told:
                try:
                    await remote.dequeue_jobs("w", queues=["mail"])
                except LongshoreError as error:
                    told = str(error)
            assert "the token 'far away' was revoked at " in told
            assert secret not in told
    finally:
        await server.close()
        await serving


async def test_a_claim_that_waits_is_refused_once_its_token_is_revoked(memory: Backend, serve: Serve) -> None:
    made, secret = await keeper(memory).issue_token("far away", ["work"])
    dial = Dial()
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory, clock=dial))
    body = {"assignee_id": "w", "wait": 30}
    waiting = asyncio.create_task(client.post("/v1/work/claim", json=body, headers=bearer(secret)))
    await until(lambda: platform_of(client).streams == 1)
    await keeper(memory).revoke_token(made.id)
    dial.seconds += 1
    await memory.enqueue_job(Job(id="m", type="t"))
    assert (await waiting).status_code == 401
    assert await _is(memory, "m", JobStatus.INITIAL_PENDING)


async def test_a_long_poll_returns_nothing_after_its_token_is_revoked(memory: Backend, serve: Serve) -> None:
    made, secret = await keeper(memory).issue_token("far away", ["read"])
    dial = Dial()
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory, clock=dial))
    await memory.enqueue_job(Job(id="m", type="t"))
    (job,) = await memory.dequeue_jobs("w")
    mark = (await client.post("/v1/store/changes", json={}, headers=bearer(secret))).json()["mark"]
    waiting = [
        asyncio.create_task(client.get("/v1/jobs/m?wait=30", headers=bearer(secret))),
        asyncio.create_task(
            client.post("/v1/store/changes", json={"mark": mark, "timeout": 30}, headers=bearer(secret))
        ),
    ]
    await until(lambda: platform_of(client).streams == 2)
    await keeper(memory).revoke_token(made.id)
    dial.seconds += 1
    await memory.complete_job("m", b"secret", lease=job.lease)
    assert [answered.status_code for answered in await asyncio.gather(*waiting)] == [401, 401]


async def test_a_caller_with_submit_only_gets_existing_jobs_redacted(
    memory: Backend,
) -> None:
    # F60
    secrets: dict[str, Any] = {
        "payload": b'"secret data"',
        "options": {"note": "secret"},
        "tags": ["secret"],
        "parent_id": "secret",
    }
    await memory.enqueue_jobs([Job(id=name, type="pay", queue="mail", **secrets) for name in ("done", "waits")])
    (job,) = await memory.dequeue_jobs("w", limit=1)
    await memory.save_checkpoint("done", "secret checkpoint", lease=job.lease)
    await memory.complete_job("done", b'"secret result"', lease=job.lease)
    _, secret = await keeper(memory).issue_token("shop", ["submit"], queues=["mail"])
    server = ApiServer(create_app(memory, gate=TokenGate(memory)))
    serving = asyncio.create_task(server.run())
    await server.ready()
    try:
        async with connect(server.address, token=secret) as remote:
            given = [
                Job(id=name, type="x", queue="mail", payload=b"1", tags=["t"]) for name in ("done", "waits", "new")
            ]
            done, waits, new = await remote.add_jobs(given)
            again = (await remote.add_jobs([given[2]]))[0]
            added = await Queue(remote, "mail").add("greet", {"to": "ada"}, tags=["eu"])
        async with connect(server.address) as without_token:
            with pytest.raises(Unauthenticated, match=r"the server needs a token; pass connect\(url, token="):
                await without_token.get_job("new")
        async with httpx.AsyncClient(base_url=server.address, headers=bearer(secret)) as client:
            cancelled = (await client.post("/v1/jobs/waits/cancel")).json()
    finally:
        await server.close()
        await serving
    for known, status in ((done, JobStatus.COMPLETED), (waits, JobStatus.INITIAL_PENDING)):
        stored = await memory.get_job(known.id)
        told = Job(id=stored.id, uid=stored.uid, queue="mail", type="pay", status=status)
        assert known == told
    assert new == again == await memory.get_job("new")
    assert added == await memory.get_job(added.id)
    assert (cancelled["id"], cancelled["status"], cancelled["data"]) == ("waits", "UNSCHEDULED", None)
    assert "secret" not in str(cancelled)


async def _is(backend: Backend, job_id: str, status: JobStatus) -> bool:
    return (await backend.get_job(job_id)).status is status


@pytest.mark.parametrize("name", ["os.system", "os:system", "builtins.eval", "subprocess.run", "../../x", "__import__"])
async def test_a_job_named_after_something_that_could_be_run_is_handed_back_and_never_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F60: only what a program registered is ever run
    monkeypatch.setattr(Router, "types", None)  # as an older worker, which claims every type
    async with connect("memory://") as backend:
        harbor = Harbor(backend)
        ran: list[str] = []

        @harbor.task
        async def greet() -> None:
            ran.append("greet")

        await backend.enqueue_jobs([Job(id="evil", type=name, payload=b'["touch /tmp/owned"]')])
        await greet.enqueue()
        async with harbor.worker():
            await until(lambda: bool(ran))
            await until(lambda: _was_handed_back(backend))
        job = await backend.get_job("evil")
        assert job.status is not JobStatus.COMPLETED
        assert job.retry_count == job.crashes == 0


async def _was_handed_back(backend: Backend) -> bool:
    return any(event.event == "job.released" for event in await backend.read_events(job_id="evil"))
