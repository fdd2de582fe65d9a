"""Values in requests are taken for what they are, and refused in plain words that name them."""

from datetime import date
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from longshore.backends.base import Backend
from longshore.core.tokens import Scope
from longshore.server.auth import GuardedRoute, needs
from tests.server.conftest import Serve

PAST = "2026-05-01T12:00:00"


def job(**fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/jobs", {"type": "t", **fields}


def schedule(**repeat: Any) -> tuple[str, str, dict[str, Any]]:
    return "PUT", "/v1/schedules/s", {"job": {"type": "t"}, "repeat": {"cron": "0 0 * * *", **repeat}}


def bulk(**fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/jobs/bulk", {"action": "delete", "filter": {"types": ["t"]}, **fields}


NO_TIMES: list[tuple[tuple[str, str, Any], str]] = [
    (job(run_at=60), "run_at"),
    (job(run_at="3600"), "run_at"),
    (job(run_at=PAST), "run_at"),
    (job(run_at="-1.5"), "run_at"),
    (job(run_at="soon"), "run_at"),
    (job(run_at=True), "run_at"),
    (job(expires_at=60.5), "expires_at"),
    (job(expires_at="2026-05-01"), "expires_at"),
    (schedule(start=0), "repeat.start"),
    (schedule(end="1777000000"), "repeat.end"),
    (("GET", "/v1/jobs?created_after=3600", None), "created_after"),
    (("GET", f"/v1/dead-letters?created_before={PAST}", None), "created_before"),
    (bulk(filter={"created_before": 1777000000}), "filter.created_before"),
    (("POST", "/v1/schedules/preview", {"every": 60, "start": 5}), "start"),
]


@pytest.mark.parametrize(("request_", "field"), NO_TIMES, ids=[f"{one[1]} {field}" for one, field in NO_TIMES])
async def test_a_number_is_no_time_and_a_time_has_its_zone(
    quick: httpx.AsyncClient, memory: Backend, request_: tuple[str, str, Any], field: str
) -> None:
    method, address, body = request_
    refused = await quick.request(method, address, json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    assert "a time with a zone, such as 2026-05-01T12:00:00Z" in refused.json()["detail"]
    assert ("for a duration use delay" in refused.json()["detail"]) is (field == "run_at")
    assert sum((await memory.count_jobs()).values()) == 0


@pytest.mark.parametrize("moment", [f"{PAST}Z", f"{PAST}.5+05:30", "2026-05-01 12:00:00-01:00", f"{PAST.lower()}z"])
async def test_a_time_with_its_zone_is_taken(quick: httpx.AsyncClient, moment: str) -> None:
    taken = await quick.post("/v1/jobs", json={"type": "t", "run_at": moment})
    assert taken.status_code == 202, taken.text
    assert (await quick.get("/v1/jobs", params={"created_after": moment})).status_code == 200


LOOSE: list[tuple[tuple[str, str, Any], str, str]] = [
    (job(delay="5"), "delay", "seconds, such as 300"),
    (job(delay=True), "delay", "seconds, such as 300"),
    (job(timeout="60"), "timeout", "seconds, such as 300"),
    (job(backoff={"type": "fixed", "delay": "1"}), "backoff.delay", "seconds, such as 300"),
    (job(backoff={"type": "fixed", "delay": 1, "jitter": "0.5"}), "backoff.jitter", "must be a number"),
    (job(delay=-1), "delay", "must be at least 0"),
    (job(timeout=0), "timeout", "must be more than 0"),
    (job(priority="1"), "priority", "must be a whole number"),
    (job(lifo="no"), "lifo", "must be true or false"),
    (job(remove_on_complete="yes"), "remove_on_complete", "must be true, false, or how many to keep"),
    (job(remove_on_fail=-1), "remove_on_fail", "must be true, false, or how many to keep"),
    (schedule(every="60"), "repeat.every", "seconds, such as 300"),
    (
        ("POST", "/v1/tokens", {"name": "n", "scopes": ["read"], "expires_in": "60"}),
        "expires_in",
        "seconds, such as 300",
    ),
    (("PATCH", "/v1/queues/q/limits", {"rate": {"count": 1, "per": "60"}}), "rate.per", "seconds, such as 300"),
    (bulk(dry_run="no"), "dry_run", "must be true or false"),
    (bulk(dry_run=0), "dry_run", "must be true or false"),
    (bulk(limit="5"), "limit", "must be a whole number"),
    (bulk(limit=5.0), "limit", "must be a whole number"),
    (bulk(limit=0), "limit", "must be at least 1"),
    (("POST", "/v1/dead-letters/retry", {"reset": "no"}), "reset", "must be true or false"),
    (("POST", "/v1/jobs/j/retry", {"reset": "no"}), "reset", "must be true or false"),
    (("PUT", "/v1/schedules/s", {"job": {"type": "t"}, "repeat": {"every": 1}, "paused": "no"}), "paused", "must be"),
]


@pytest.mark.parametrize(("request_", "field", "words"), LOOSE, ids=[f"{r[1]} {r[2]}" for r, _, _ in LOOSE])
async def test_text_is_no_number_and_no_yes_or_no(
    quick: httpx.AsyncClient, memory: Backend, request_: tuple[str, str, Any], field: str, words: str
) -> None:
    method, address, body = request_
    refused = await quick.request(method, address, json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    assert words in refused.json()["detail"]
    assert sum((await memory.count_jobs()).values()) == 0


async def test_an_address_is_all_text_and_says_numbers_and_yes_in_it(quick: httpx.AsyncClient) -> None:
    assert (await quick.get("/v1/jobs?limit=5&due=true")).status_code == 200
    assert (await quick.get("/v1/jobs?limit=many")).json()["detail"] == "limit: must be a whole number"


PLAINLY: list[tuple[tuple[str, str, Any], str, str]] = [
    (job(dealy=5), "dealy", "unknown field; did you mean delay?"),
    (
        job(backoff={"type": "fixed", "delay": 1, "maximum": 3}),
        "backoff.maximum",
        "use one of type, delay, cap, jitter",
    ),
    (("POST", "/v1/jobs/batch", {"jobs": [{"type": "t"}, {"type": "t", "tag": ["a"]}]}), "jobs[1].tag", "mean tags?"),
    (("PATCH", "/v1/queues/q/limits", {"rate": {"count": 1, "per": 1, "pre": 2}}), "rate.pre", "mean per?"),
    (("POST", "/v1/jobs/j/retry", {"rest": True}), "rest", "did you mean reset?"),
    (bulk(filter={"status": ["DEAD"]}), "filter.status", "did you mean statuses?"),
    (("POST", "/v1/jobs", [1]), "body", "must be an object"),
    (bulk(filter=[]), "filter", "must be an object"),
    (bulk(filter={"data": "x"}), "filter.data", "must be an object"),
    (bulk(action="remove"), "action", "must be 'cancel', 'retry', 'promote' or 'delete'"),
    (("POST", "/v1/jobs", {}), "type", "is missing"),
    (job(tags="a"), "tags", "must be a list"),
    (job(tags=["x"] * 101), "tags", "must have at most 100 names"),
    (job(queue=""), "queue", "got empty text"),
    (job(queue=5), "queue", "must be text"),
    (("GET", "/v1/jobs?status=QUEUED", None), "status[0]", "'INITIAL_PENDING'"),
]


@pytest.mark.parametrize(("request_", "field", "words"), PLAINLY, ids=[f"{r[1]} {r[2]}" for r, _, _ in PLAINLY])
async def test_a_validation_error_names_the_field_and_suggests_a_name(
    quick: httpx.AsyncClient, request_: tuple[str, str, Any], field: str, words: str
) -> None:
    method, address, body = request_
    refused = await quick.request(method, address, json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    assert words in refused.json()["detail"]
    assert "nput" not in refused.json()["detail"], "these are pydantic's words"


async def test_a_parameter_that_no_route_knows_is_refused_with_the_one_that_was_meant(
    quick: httpx.AsyncClient, memory: Backend
) -> None:
    for method, address, field, words in [
        ("GET", "/v1/jobs?state=QUEUED", "state", "unknown parameter; did you mean status?"),
        ("GET", "/v1/jobs?status=DEAD&foo=1", "foo", "due, status, queue, type, tag"),
        ("GET", "/v1/events/stream?evnt=job.completed", "evnt", "did you mean event?"),
        ("GET", "/v1/jobs/j?wiat=3", "wiat", "did you mean wait?"),
        ("GET", "/v1/queues?x=1", "x", "none is allowed here"),
        ("POST", "/v1/jobs?queue=mail", "queue", "none is allowed here"),
        ("POST", "/v1/store/now?x=1", "x", "none is allowed here"),
        ("GET", f"/v1/stats?{'x' * 5000}=1", "x" * 100, "use one of queue, tag"),
    ]:
        refused = await quick.request(method, address, json={"type": "t"} if method == "POST" else None)
        assert (refused.status_code, refused.json()["field"]) == (422, field), address
        assert words in refused.json()["detail"], address
    assert sum((await memory.count_jobs()).values()) == 0
    assert (await quick.get("/v1/jobs?token=x")).json()["detail"].startswith("token: must not be in the URL")
    assert (await quick.get("/healthz?probe=7")).status_code == 200, "a probe says what it likes"


async def test_every_parameter_that_the_document_tells_of_is_known(quick: httpx.AsyncClient) -> None:
    document = (await quick.get("/v1/openapi.json")).json()
    asked = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.endswith("/stream"):  # which does not end
                continue
            names = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
            answer = await quick.request(method, path, params=dict.fromkeys(names, "1"))
            assert "unknown parameter" not in answer.text, f"{method} {path}"
            asked += len(names)
    assert asked > 30


class Crate(BaseModel):
    """The body of an additional route."""

    model_config = ConfigDict(extra="forbid")

    weight: int
    packed: date = Field(gt=date(2026, 1, 1))


async def test_additional_routes_get_the_same_validation_errors(memory: Backend, serve: Serve) -> None:
    router = APIRouter(route_class=GuardedRoute)

    @router.post("/v1/crates")
    @needs(Scope.SUBMIT)
    async def crates(body: dict[str, Crate]) -> None:
        """By name."""

    client: httpx.AsyncClient = await serve(memory, routers=[router])
    crate = {"weight": 1, "packed": "2026-02-01"}
    for given, field, words in [
        ({**crate, "wieght": 2}, "first.wieght", "did you mean weight?"),
        ({**crate, "packed": "2025-01-01"}, "first.packed", "must be more than 2026-01-01"),
    ]:
        refused = await client.post("/v1/crates", json={"first": given})
        assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert words in refused.json()["detail"]
