"""Around every request: bounds, ids, headers, and an answer that says nothing it should not."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from longshore.backends.base import Backend
from longshore.core import errors
from longshore.core.errors import LongshoreError
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.server import http_errors, problems, replays
from longshore.server.auth import GuardedRoute, needs
from longshore.server.middleware import RequestMiddleware
from longshore.server.options import ServerOptions
from longshore.server.request_origin import Hosts
from tests.server.conftest import Serve, platform_of

JSON = {"content-type": "application/json"}


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(memory: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(memory, options=ServerOptions(max_body=1000))
    announced = await client.post("/v1/jobs", content=b" " * 1001, headers=JSON)
    assert (announced.status_code, announced.headers["connection"]) == (413, "close")
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b" " * 100

    streamed = await client.post("/v1/jobs", content=endless(), headers=JSON)
    assert (streamed.status_code, streamed.headers["connection"]) == (413, "close")
    assert read <= 1200
    assert (await client.post("/v1/jobs", json={"type": "t", "data": "x" * 900})).status_code == 202


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "x"])
async def test_a_packed_body_is_not_unpacked(quick: httpx.AsyncClient, coding: str) -> None:
    # F52: a compressed body is not unpacked
    refused = await quick.post("/v1/jobs", content=b"\x1f\x8b", headers={**JSON, "content-encoding": coding})
    assert refused.status_code == 415


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    sent: list[dict[str, Any]] = []
    chunks = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Any:
        if chunks:
            return chunks.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    envelope = RequestMiddleware(
        app, ServerOptions(body_patience=0.02), Hosts([], strict=True), lambda *_: None, lambda: False
    )
    scope = {"type": "http", "method": "POST", "headers": [(b"host", b"localhost")], "raw_path": b"/", "path": "/"}
    await envelope(scope, receive, send)
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("closing", [True, False])
async def test_a_request_cancelled_by_the_shutdown_gets_a_503_and_is_counted(
    closing: bool,
) -> None:
    sent: list[dict[str, Any]] = []
    counted: list[Any] = []
    began = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    envelope = RequestMiddleware(
        app, ServerOptions(), Hosts([], strict=True), lambda *told: counted.append(told[:3]), lambda: closing
    )
    scope = {"type": "http", "method": "POST", "headers": [(b"host", b"localhost")], "raw_path": b"/", "path": "/"}
    serving = asyncio.ensure_future(envelope(scope, receive, send))
    await began.wait()
    serving.cancel()
    await asyncio.wait({serving})
    assert serving.cancelled() is not closing
    assert [message["status"] for message in sent if "status" in message] == [503] * closing
    assert counted == [("POST", "unknown", 503 if closing else 0)]


async def test_every_answer_has_an_id_and_headers_that_browsers_heed(quick: httpx.AsyncClient) -> None:
    # F55
    for address in ("/healthz", "/nothing", "/v1/jobs", "/", "/metrics"):
        answer = await quick.get(address, headers={"X-Request-ID": "abc-1"})
        assert answer.headers["x-request-id"] == "abc-1"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
    for bad in ("a b", "x" * 65, "<script>"):
        answer = await quick.get("/nothing", headers={"X-Request-ID": bad})
        assert answer.headers["x-request-id"] == answer.json()["request_id"] != bad


async def test_an_unexpected_error_is_logged_and_not_shown(
    memory: Backend, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    # F59
    router = APIRouter(route_class=GuardedRoute)

    @router.get("/broken")
    @needs(Scope.READ)
    async def broken() -> None:
        raise RuntimeError("the password is hunter2")

    client: httpx.AsyncClient = await serve(memory, routers=[router])
    with caplog.at_level(logging.ERROR, "longshore.http"):
        answer = await client.get("/broken", headers={"X-Request-ID": "find-me"})
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert answer.json()["type"] == "urn:longshore:internal"
    assert "find-me" in caplog.text


async def test_the_log_of_requests_knows_no_secrets(
    memory: Backend, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    # F59
    client: httpx.AsyncClient = await serve(memory, options=ServerOptions(access_log=True))
    with caplog.at_level(logging.DEBUG):
        await client.get("/v1/jobs/hunter2?text=hunter2", headers={"Authorization": "Bearer hunter2", "X-A": "hunter2"})
        await client.post("/v1/jobs", json={"type": "t", "data": {"password": "hunter2"}})
        await client.get("/hunter2")
    ours = [record for record in caplog.records if record.name.startswith(("longshore", "uvicorn"))]
    assert [record.getMessage() for record in ours] == [
        "GET /v1/jobs/{job_id} -> 422",
        "POST /v1/jobs -> 202",
        "GET unknown -> 404",
    ]
    assert "hunter2" not in str([vars(record) for record in ours])


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, "body"),
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
        (b"[]", 422, "body"),
        (b'"text"', 422, "body"),
        (b"{}", 422, "type"),
        (b'{"type":"t","data":NaN}', 422, "data"),
        (b'{"type":"t","data":1e999}', 422, "data"),
        (b'{"type":"t","data":{"a":9223372036854775808}}', 422, "data.a"),
        (b'{"type":"t","data":"\\ud800"}', 422, "data"),
        (b'{"type":"t","data":{"a":1,"a":2}}', 422, "data"),
        (b'{"type":"t","type":"u"}', 422, "body"),
        (b'{"type":"t","data":' + b"[" * 5000 + b"]" * 5000 + b"}", 422, None),
        (b'{"type":"\\u0000"}', 422, "type"),
        (b'{"type":1}', 422, "type"),
        (b'{"type":"t","tags":"eu"}', 422, "tags"),
        (b'{"type":"t","tags":["a\\u0001"]}', 422, "tags"),
        (b'{"type":"t","priority":true}', 422, "priority"),
        (b'{"type":"t","priority":4294967296}', 422, "priority"),
        (b'{"type":"t","delay":-1}', 422, "delay"),
        (b'{"type":"t","delay":1e12}', 422, "delay"),
        (b'{"type":"t","timeout":0}', 422, "timeout"),
        (b'{"type":"t","run_at":"2026-01-01T00:00:00"}', 422, "run_at"),
        (b'{"type":"t","run_at":"9999-12-31T23:59:59-12:00"}', 422, "run_at"),
        (b'{"type":"t","lease":{}}', 422, "lease"),
        (b'{"type":"t","status":"COMPLETED"}', 422, "status"),
    ],
)
async def test_a_bad_body_is_refused_by_field_and_changes_nothing(
    quick: httpx.AsyncClient, memory: Backend, body: bytes, status: int, field: str | None
) -> None:
    # F48, F52
    refused = await quick.post("/v1/jobs", content=body, headers=JSON)
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    if field is not None:
        assert refused.json()["field"] == field
    assert sum((await memory.count_jobs()).values()) == 0


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_only_json_is_read_as_json(quick: httpx.AsyncClient, memory: Backend, kind: str) -> None:
    # F55: what a form on a foreign page can send is not understood here
    refused = await quick.post("/v1/jobs", content=b'{"type":"t"}', headers={"content-type": kind})
    assert refused.status_code == 415
    assert sum((await memory.count_jobs()).values()) == 0


def test_every_error_there_is_has_its_row_in_the_table() -> None:
    never_raised_here = {errors.Fatal, errors.Snooze, errors.JobFailed, errors.JobCancelled, errors.MissingExtra}
    declared = {
        value
        for module in (errors, http_errors, replays)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, LongshoreError)
    }
    assert declared - never_raised_here == set(problems.TABLE)
    names = [(kind.status, kind.name) for kind in problems.TABLE.values()]
    assert len({name for _, name in names}) == len(set(names)), "one name, one meaning"


def test_a_problem_has_the_fields_that_programs_need() -> None:
    told = json.loads(bytes(problems.problem(errors.InvalidTransition("j", JobStatus.DEAD, "gone"), "r").body))
    assert (told["status"], told["status_of_job"], told["job_id"], told["request_id"]) == (409, "DEAD", "j", "r")
    assert problems.problem(errors.LeaseLost("j", "expired")).status_code == 409
    assert b"secret" not in bytes(problems.problem(LongshoreError("postgresql://u:secret@h")).body)
    assert problems.field_at(("body", "jobs", 3, "tags", 0)) == "jobs[3].tags[0]"


async def test_an_unknown_path_and_method_are_problems(quick: httpx.AsyncClient) -> None:
    assert (await quick.get("/v2")).json()["type"] == "urn:longshore:not-found"
    wrong = await quick.put("/v1/jobs")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "urn:longshore:method-not-allowed")
    assert (await quick.get("/v1/jobs/")).status_code == 404
    assert (await quick.get("/v1/jobs/%C3%28")).status_code == 422


async def test_head_is_answered_as_get_without_a_body(quick: httpx.AsyncClient) -> None:
    for address in ("/healthz", "/readyz", "/", "/metrics", "/v1/jobs", "/v1/jobs/none", "/v1/openapi.json"):
        whole, head = await quick.get(address), await quick.head(address)
        assert (head.status_code, head.content) == (whole.status_code, b""), address
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert head.headers["x-content-type-options"] == "nosniff"
    assert (await quick.head("/v1/jobs/batch?wait=0")).status_code == 404
    assert (await quick.head("/v1/work/claim")).headers["allow"] == "POST"


async def test_head_of_a_stream_ends_and_holds_no_place(quick: httpx.AsyncClient) -> None:
    head = await quick.head("/v1/events/stream")
    assert (head.status_code, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert platform_of(quick).streams == 0


async def test_an_unknown_method_gets_the_list_of_allowed_methods(quick: httpx.AsyncClient) -> None:
    for method, address, allowed in [
        ("PUT", "/v1/jobs", "GET, HEAD, POST"),
        ("POST", "/v1/jobs/j", "DELETE, GET, HEAD"),
        ("PATCH", "/v1/schedules/s", "DELETE, GET, HEAD, PUT"),
        ("GET", "/v1/jobs/bulk/cancel", "POST"),
        ("OPTIONS", "/healthz", "GET, HEAD"),
    ]:
        refused = await quick.request(method, address)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed), f"{method} {address}"


async def test_a_head_request_is_counted_as_head(quick: httpx.AsyncClient) -> None:
    await quick.head("/healthz")
    assert 'method="HEAD",route="/healthz",status="200"' in (await quick.get("/metrics")).text
