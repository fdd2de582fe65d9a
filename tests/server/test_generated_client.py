"""A client made from nothing but the OpenAPI document does a whole day's work."""

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from longshore.backends.base import Backend


class FromDocument:
    """Every operation as a method of its id; arguments go where the document says they belong."""

    def __init__(self, http: httpx.AsyncClient, document: dict[str, Any]) -> None:
        self._http = http
        self._operations = {
            operation["operationId"]: (method, path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        }

    async def call(self, operation_id: str, *, body: Any = None, **arguments: Any) -> Any:
        """What the server answers, decoded as the document declares it."""
        method, path, operation = self._operations[operation_id]
        query: dict[str, Any] = {}
        headers: dict[str, Any] = {}
        for parameter in operation.get("parameters", []):
            name = parameter["name"]
            value = arguments.pop(name.lower().replace("-", "_"), None)
            if value is None:
                assert not parameter.get("required"), f"{operation_id} needs {name}"
            elif parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(value, safe=""))
            else:
                (query if parameter["in"] == "query" else headers)[name] = value
        assert not arguments, f"{operation_id} takes no {', '.join(arguments)}"
        assert body is None or "requestBody" in operation
        answer = await self._http.request(method, path, params=query, headers=headers, json=body)
        declared = operation["responses"][str(answer.status_code)]
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in declared.get("content", {"": {}}), f"{operation_id}: {answer.status_code} as {kind}"
        return answer.json() if kind.endswith("json") else answer.text


@pytest.fixture
async def made(quick: httpx.AsyncClient) -> FromDocument:
    """The client."""
    return FromDocument(quick, (await quick.get("/v1/openapi.json")).json())


async def test_a_client_made_from_the_document_works(made: FromDocument, memory: Backend) -> None:
    sent = await made.call("submit_job", body={"type": "echo", "queue": "a/b"}, idempotency_key="k")
    again = await made.call("submit_job", body={"type": "echo", "queue": "a/b"}, idempotency_key="k")
    assert again["id"] == sent["id"]
    await made.call("submit_jobs", body={"jobs": [{"type": "echo", "tags": ["x"]}] * 3})
    shown = await made.call("get_job", job_id=sent["id"])
    assert shown["queue"] == "a/b"
    assert (await made.call("get_job", job_id="nobody"))["type"] == "urn:longshore:job-not-found"
    assert len((await made.call("list_jobs", tag=["x"], limit=2))["items"]) == 2
    assert (await made.call("pause_queue", queue="a/b"))["paused"] is True
    assert (await made.call("set_limits", queue="a/b", body={"running": 3}))["limits"]["running"] == 3
    assert (await made.call("explain_job", job_id=sent["id"]))["reasons"][0]["kind"] == "queue_paused"
    acted = await made.call("act_on_jobs", body={"action": "cancel", "filter": {"tags": ["x"]}})
    assert acted["changed"] == 3
    assert (await made.call("cancel_job", job_id=sent["id"]))["state"] == "CANCELLED"
    await made.call("delete_job", job_id=sent["id"])
    put = await made.call("put_schedule", schedule_id="s", body={"job": {"type": "echo"}, "repeat": {"every": 60}})
    assert put["id"] == "s"
    assert len((await made.call("preview_schedule", schedule_id="s", count=4))["items"]) == 4
    assert (await made.call("read_events", limit=1))["items"][0]["event"] == "job.added"
    assert "longshore_jobs" in await made.call("metrics")
    assert (await made.call("health"))["status"] == "ok"
