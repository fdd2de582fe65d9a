"""Every route × method × role, generated from the application: a new route cannot escape it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from longshore.backends.base import Backend
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.tokens import EVERYTHING, Scope
from longshore.server.app import create_app
from longshore.server.auth import TokenGate
from longshore.server.uvicorn_server import ApiServer
from tests.server.test_access import PUBLIC, routes_of
from tests.server.test_tokens import bearer, keeper

HUSH = "hush-hush"
"""Objects with this name belong to a queue that the caller may not see."""


@asynccontextmanager
async def asking(backend: Backend) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """On a real socket, so that a stream can be left after its head."""
    app = create_app(backend, gate=TokenGate(backend))
    server = ApiServer(app)
    running = asyncio.create_task(server.run())
    await server.ready()
    try:
        async with httpx.AsyncClient(base_url=server.address) as client:
            yield app, client
    finally:
        await server.close()
        await running


async def answered(client: httpx.AsyncClient, method: str, address: str, **options: Any) -> tuple[int, str]:
    """The status and the body; no body for streams."""
    async with client.stream(method, address, **options) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, ""
        return answer.status_code, (await answer.aread()).decode()


def address_of(path: str) -> str:
    return path.replace("{", "").replace("}", "")


async def test_without_a_token_that_is_in_force_every_route_says_401(memory: Backend) -> None:
    # F53: streams and pages included
    tokens = keeper(memory)
    _, expired = await tokens.issue_token("expired", EVERYTHING, expires_in=0.001)
    gone, revoked = await tokens.issue_token("revoked", EVERYTHING)
    await tokens.revoke_token(gone.id)
    strangers: dict[str, dict[str, str]] = {"none": {}, "expired": bearer(expired), "revoked": bearer(revoked)}
    async with asking(memory) as (app, client):
        table = list(routes_of(app))
        assert len(table) > 40
        wrong = {}
        for method, path, _ in table:
            if path in PUBLIC:
                continue
            for role, headers in strangers.items():
                status, _ = await answered(client, method, address_of(path), headers=headers, content=b"{not json")
                if status not in ((401,) if role == "none" else (401, 429)):
                    wrong[f"{method} {path} as {role}"] = status
        assert wrong == {}
    assert await memory.list_queues() == []


async def test_every_scope_allows_its_routes_and_no_others(memory: Backend) -> None:
    # F53
    secrets = {scope: (await keeper(memory).issue_token(f"only {scope}", [scope])).secret for scope in EVERYTHING}
    async with asking(memory) as (app, client):
        table: dict[str, dict[str, int]] = {}
        for method, path, needed in routes_of(app):
            if path in PUBLIC:
                continue
            for scope, secret in secrets.items():
                status, told = await answered(
                    client, method, address_of(path), headers=bearer(secret), content=b"{not json"
                )
                may = scope in (needed, Scope.ADMIN)
                if (status == 403) is may or status == 401 or status >= 500:
                    table.setdefault(f"{method} {path} needs {needed}", {})[str(scope)] = status
                if status == 403:
                    assert f"needs the scope {needed}" in told
        assert table == {}, "answers that a scope should not have got"


async def test_a_token_of_another_queue_reads_and_changes_nothing_on_any_route(memory: Backend) -> None:
    # F53, F60
    await memory.enqueue_jobs([Job(id="job_id", type=HUSH, queue="mail", payload=b'"hush-hush"')])
    step = {"name": HUSH, "step": HUSH, "steps": 1, "last": "alone"}
    await memory.enqueue_job(
        Job(id="flow_id.0", type=HUSH, queue="mail", parent_id="flow_id", options={"flow": step}, max_attempts=1)
    )
    await memory.dequeue_jobs("w", queues=["mail"], limit=2)
    await memory.bury_job("flow_id.0", HUSH)  # so that there is something to be retried and run again
    await memory.put_schedule(Schedule(id="schedule_id", job=Job(type=HUSH, queue="mail"), repeat=Repeat(every=3600)))
    mine, _ = await keeper(memory).issue_token(HUSH, ["read"], queues=["mail"])
    _, secret = await keeper(memory).issue_token("other", EVERYTHING, queues=["elsewhere"])
    async with asking(memory) as (app, client):
        document = app.openapi()
        before = await picture(memory)
        assert {job.status for job in before["jobs"]} == {JobStatus.RUNNING, JobStatus.DEAD}
        leaked, met, unlike = {}, 0, []
        for method, path, _ in routes_of(app):
            if path in PUBLIC:
                continue
            address = {
                "/v1/queues/{queue}": "/v1/queues/mail",
                "/v1/tokens/{token_id}": f"/v1/tokens/{mine.id}",
            }
            known = next((real + path[len(form) :] for form, real in address.items() if path.startswith(form)), None)
            body = example(document, method, path)
            if path == "/v1/schedules/{schedule_id}" and method == "PUT":  # the id is another's, the queue their own
                body = {"job": {"type": "x", "queue": "elsewhere"}, "repeat": {"every": 60}}
            options: dict[str, Any] = {} if body is None else {"json": body}
            status, told = await answered(client, method, known or address_of(path), headers=bearer(secret), **options)
            assert status < 500, f"{method} {path}: {told}"
            met += status in (403, 404)
            if HUSH in told:
                leaked[f"{method} {path}"] = told
            if "_id}" in path and method != "PUT":  # which would make a new one
                asked = (known or address_of(path)).split("/")
                other = "/".join([*asked[:3], "nobodys", *asked[4:]])
                _, unknown = await answered(client, method, other, headers=bearer(secret), **options)
                if words_of(told).replace(asked[3], "nobodys") != words_of(unknown):
                    unlike.append(f"{method} {path}: {told} or {unknown}")
        assert leaked == {}
        assert unlike == [], "the response reveals that the name exists"
        assert met > 25
        assert await picture(memory) == before


async def test_a_stream_ends_with_the_token_that_opened_it(memory: Backend) -> None:
    made, secret = await keeper(memory).issue_token("ada", ["read"])
    async with asking(memory) as (_, client):
        async with client.stream("GET", "/v1/events/stream", headers=bearer(secret), timeout=30) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await keeper(memory).revoke_token(made.id)
            rest = [line async for line in lines]
        assert rest[-2:] == [": your token has expired or was revoked; reconnect with another", ""]


def example(document: dict[str, Any], method: str, path: str) -> Any:
    """The body that the document of the API shows for this route."""
    operation = document["paths"].get(path, {}).get(method.lower(), {})
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = document["components"]["schemas"].get(str(schema.get("$ref", "")).rpartition("/")[2], {})
    return next(iter(model.get("examples", [])), None)


def words_of(problem: str) -> str:
    """What an answer says, without the number of its request, which is always another."""
    told = json.loads(problem) if problem else {}
    return str([value for name, value in told.items() if name != "request_id"])


async def picture(backend: Backend) -> dict[str, Any]:
    """All that belongs to the queue that is not the caller's."""
    events = await backend.read_events(limit=1000, queue="mail")
    return {
        "jobs": (await backend.list_jobs(JobFilter(queues=["mail"]))).items,
        "queues": [info for info in await backend.list_queues() if info.name == "mail"],
        "schedules": await backend.get_schedules(),
        "tokens": [(token.id, token.revoked_at) for token in await keeper(backend).list_tokens() if token.name == HUSH],
        "events": [(event.event, event.job_id) for event in events],
    }
