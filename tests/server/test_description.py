"""The OpenAPI document: complete, and true of every answer to whatever schemathesis makes up from it."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.token_store import SupportsTokens
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.vocabulary import word_for
from longshore.server.app import create_app
from longshore.server.auth import TokenGate
from longshore.server.options import ServerOptions
from longshore.server.uvicorn_server import ApiServer
from tests.conftest import PROVING
from tests.server.conftest import Serve
from tests.server.test_tokens import bearer

METHODS = ("get", "put", "post", "patch", "delete")
ENDLESS = r".*/stream$"
DOCUMENT = create_app(connect("memory://")).openapi()

described = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex=ENDLESS)
# what is behind the gate is the same with and without it; the long form asks for all of it once more
guarded = described if PROVING else described.include(path_regex=r"^/v1/(tokens|audit|stats|queues)")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield method, path, operation


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server on a real socket, in its own event loop, with some data."""
    with serving(asks=False) as (served, _):
        yield served


@pytest.fixture(scope="module")
def asking() -> Iterator[tuple[str, str]]:
    """The same where tokens are asked for; and one that may do everything."""
    with serving(asks=True) as (served, secret):
        yield served, secret


@contextmanager
def serving(*, asks: bool) -> Iterator[tuple[str, str]]:
    told: list[Any] = []
    started = threading.Event()

    async def run() -> None:
        backend = connect("memory://")
        await backend.enqueue_jobs([Job(id=job_id, type="echo", queue="mail") for job_id in ("0", "welcome-ada")])
        assert isinstance(backend, SupportsTokens)
        told.append((await backend.issue_token("root", ["admin"])).secret)
        gate = TokenGate(backend) if asks else None
        server = ApiServer(create_app(backend, options=ServerOptions(longest_wait=0.02), gate=gate))
        running = asyncio.create_task(server.run())
        await server.ready()
        told.extend([server, asyncio.get_running_loop()])
        started.set()
        await running

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(20)
    secret, server, loop = told
    yield server.address, secret
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(20)
    thread.join(20)


@pytest.mark.prove
@described.parametrize()
@settings(
    max_examples=300 if PROVING else 6,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_no_response_is_a_5xx_or_differs_from_the_openapi_document(case: Case[Any], address: str) -> None:
    # F52
    case.call_and_validate(base_url=address, checks=CHECKS)


@pytest.mark.prove
@guarded.parametrize()
@settings(
    max_examples=100 if PROVING else 3,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_the_openapi_document_is_correct_with_tokens_required(case: Case[Any], asking: tuple[str, str]) -> None:
    # F52, F53
    address, secret = asking
    case.call_and_validate(base_url=address, checks=CHECKS, headers={"Authorization": f"Bearer {secret}"})
    stranger = case.call(base_url=address)
    if case.path not in ("/healthz", "/readyz"):
        assert 400 <= stranger.status_code < 500, "a caller without a token gets no data"


def test_every_operation_has_a_summary_and_a_description() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names) > 30
    for method, path, operation in operations():
        where = f"{method} {path}"
        assert re.fullmatch("[a-z_]+", operation["operationId"]), where
        assert operation["summary"], where
        assert operation["description"], where
        assert operation["tags"], where
        refused = operation["responses"]["422"]["content"]
        assert refused == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}, where
        if path not in ("/healthz", "/readyz"):
            assert operation["security"] == [{"token": []}, {}], f"{where}: no token is required here"
            assert operation["x-longshore-scope"] in ("read", "submit", "work", "admin"), where


def test_with_tokens_the_document_requires_one_everywhere() -> None:
    backend = connect("memory://")
    assert isinstance(backend, SupportsTokens)
    document = create_app(backend, gate=TokenGate(backend)).openapi()
    asked = [one["security"] for path in document["paths"].values() for one in path.values() if "security" in one]
    assert len(asked) > 30
    assert all(security == [{"token": []}] for security in asked)


async def test_the_document_is_also_where_tools_look_for_it_and_for_the_same_callers(
    memory: Backend, serve: Serve
) -> None:
    assert isinstance(memory, SupportsTokens)
    _, reader = await memory.issue_token("ada", ["read"])
    _, sender = await memory.issue_token("bob", ["submit"])
    client = await serve(memory, gate=TokenGate(memory))
    for headers, status in (({}, 401), (bearer(sender), 403), (bearer(reader), 200)):
        usual = await client.get("/openapi.json", headers=headers)
        ours = await client.get("/v1/openapi.json", headers=headers)
        assert (usual.status_code, ours.status_code) == (status, status)
    assert usual.json() == ours.json()
    assert "/openapi.json" not in ours.json()["paths"]


async def test_a_refusal_is_as_the_document_tells(quick: httpx.AsyncClient) -> None:
    refused = (await quick.post("/v1/jobs", json={"type": "", "delay": "soon"})).json()
    assert {one["field"] for one in refused["errors"]} == {"type", "delay"}
    schemas = DOCUMENT["components"]["schemas"]
    assert refused.keys() <= schemas["Problem"]["properties"].keys()
    assert set(refused["errors"][0]) == set(schemas["FieldProblem"]["properties"])


def test_every_schema_has_a_description() -> None:
    said = {name: schema.get("description", "") for name, schema in DOCUMENT["components"]["schemas"].items()}
    assert {name: words for name, words in said.items() if len(words.split()) < 5} == {}
    stats = DOCUMENT["components"]["schemas"]["StatsView"]["properties"]
    assert [name for name, field in stats.items() if "description" not in field] == []


def test_a_field_with_few_values_names_them() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    words = {word_for(status, "orchestrator", due=due) for status in JobStatus for due in (True, False)}
    for name in ("JobSummary", "JobView", "ProgressView"):
        assert set(schemas[name]["properties"]["state"]["enum"]) == words
    assert schemas["JobView"]["properties"]["on_dependency_failure"]["enum"] == ["wait", "stop", "ignore"]
    assert "queue_paused" in schemas["ReasonView"]["properties"]["kind"]["enum"]


def test_every_list_has_an_item_type() -> None:
    def lists(place: str, part: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(part, dict):
            if part.get("type") == "array":
                yield place, part
            for name, inner in part.items():
                yield from lists(f"{place}/{name}", inner)
        elif isinstance(part, list):
            for number, inner in enumerate(part):
                yield from lists(f"{place}/{number}", inner)

    found = dict(lists("", DOCUMENT))
    assert len(found) > 30
    assert [place for place, schema in found.items() if "items" not in schema] == []


def test_every_body_has_an_example_that_is_accepted(address: str) -> None:
    schemas = DOCUMENT["components"]["schemas"]
    tried = 0
    with httpx.Client(base_url=address) as client:
        for token in client.get("/v1/tokens").json()["items"]:  # a name belongs to one at a time
            client.delete(f"/v1/tokens/{token['id']}")
        for method, path, operation in operations():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = str(content.get("$ref", "")).rpartition("/")[2]
            for example in schemas.get(name, {}).get("examples", []):
                answered = client.request(method, path.replace("{", "").replace("}", ""), json=example)
                assert answered.status_code < 300, f"{method} {path}: {answered.text}"
                tried += 1
    assert tried >= 8


def test_operation_ids_do_not_change() -> None:
    """Clients are generated from operation ids, so a rename breaks programs of users."""
    assert set(OPERATIONS.split()) - {operation["operationId"] for _, _, operation in operations()} == set()


OPERATIONS = """
act_on_jobs cancel_flow cancel_job delete_job describe draw_flow explain_job get_flow get_history get_job get_logs
get_progress get_queue get_schedule get_stats health list_dead_letters list_jobs list_queues list_schedules list_workers
metrics pause_queue pause_schedule preview_repeat preview_schedule promote_job put_schedule read_events readiness
remove_schedule rerun_flow resume_queue resume_schedule retry_dead_letters retry_flow retry_job run_schedule set_limits
stream_events stream_job submit_job submit_jobs
create_token list_tokens read_audit revoke_token
claim_jobs renew_leases report_progress save_checkpoint settle_and_claim settle_jobs tell_of_worker wait_for_changes
write_log
"""
