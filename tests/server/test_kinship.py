"""Flows and schedules of one queue, and jobs of another that claim to be part of them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from longshore.app.harbor import Harbor
from longshore.backends.base import Backend
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.server.auth import Caller
from tests.server.conftest import Serve
from tests.server.test_access import NameGate, as_caller

EVERYTHING = frozenset({Scope.READ, Scope.SUBMIT, Scope.WORK, Scope.ADMIN})
MAILER = Caller("mailer", EVERYTHING, frozenset({"mail"}))
BILLER = Caller("biller", EVERYTHING, frozenset({"bills"}))


@pytest.fixture
async def client(memory: Backend, serve: Serve) -> httpx.AsyncClient:
    """A server on a store that has a flow and a schedule of the queue `bills`."""
    harbor = Harbor(memory)

    @harbor.task(queue="bills")
    async def sum_up(n: int) -> int:
        return n

    flow = harbor.flow("month", id="month")
    flow.add(sum_up.call(1), name="first")
    await flow.enqueue()
    await memory.put_schedule(Schedule(id="nightly", job=Job(type="x", queue="bills"), repeat=Repeat(every=3600)))
    opened: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER, BILLER))
    return opened


def planted(**kin: str) -> dict[str, Any]:
    return {"id": "planted", "type": "x", "queue": "mail", **kin}


async def test_a_job_cannot_join_a_flow_or_schedule_of_another_queue(
    client: httpx.AsyncClient, memory: Backend
) -> None:
    # F60
    into, of = planted(parent_id="month"), planted(schedule_id="nightly")
    repeated = {"job": {"type": "x", "queue": "mail", "parent_id": "month"}, "repeat": {"every": 60}}
    stored = {"id": "mine", "job": into, "repeat": {"every": 60}}
    for method, path, body, field in (
        ("POST", "jobs", into, "parent_id"),
        ("POST", "jobs/batch", {"jobs": [planted(id="other"), into]}, "parent_id"),
        ("POST", "store/enqueue_job", {"job": into}, "parent_id"),
        ("POST", "store/enqueue_jobs", {"jobs": [into]}, "parent_id"),
        ("POST", "store/add_jobs", {"jobs": [into]}, "parent_id"),
        ("POST", "store/enqueue_job", {"job": of}, "schedule_id"),
        ("PUT", "schedules/mine", repeated, "parent_id"),
        ("POST", "store/put_schedule", {"schedule": stored}, "parent_id"),
    ):
        refused = await client.request(method, f"/v1/{path}", json=body, headers=as_caller(MAILER))
        assert (refused.status_code, refused.json().get("field")) == (422, field), f"{path}: {refused.text}"
        assert "is not available; choose another" in refused.text
        assert "bills" not in refused.text
    assert (await memory.list_jobs(JobFilter(queues=["mail"]))).items == []
    for path, body in (("jobs", planted(parent_id="spring")), ("store/enqueue_job", {"job": planted(id="2")})):
        assert (await client.post(f"/v1/{path}", json=body, headers=as_caller(MAILER))).status_code < 300
    more = planted(id="3", parent_id="spring")  # what is theirs may grow
    assert (await client.post("/v1/jobs", json=more, headers=as_caller(MAILER))).status_code == 202
    own = {"id": "4", "type": "x", "queue": "bills", "parent_id": "month"}
    assert (await client.post("/v1/jobs", json=own, headers=as_caller(BILLER))).status_code == 202


async def test_a_job_with_a_flow_as_parent_is_not_a_step_of_it(client: httpx.AsyncClient, memory: Backend) -> None:
    # F60
    await memory.enqueue_job(Job(id="planted", type="x", queue="mail", parent_id="month"))
    biller = as_caller(BILLER)
    shown = (await client.get("/v1/flows/month", headers=biller)).json()
    assert [step["name"] for step in shown["steps"]] == ["first"]
    assert "planted" not in (await client.get("/v1/flows/month/drawing", headers=biller)).text
    cancelled = await client.post("/v1/flows/month/cancel", headers=biller)
    assert cancelled.json() == {"job_ids": ["month.0"]}
    assert (await memory.get_job("planted")).status is JobStatus.INITIAL_PENDING
    assert (await client.get("/v1/flows/month", headers=biller)).json()["state"] == "failed"


async def test_a_flow_of_another_queue_looks_like_an_unknown_flow(client: httpx.AsyncClient) -> None:
    # F60
    for method, rest in (("GET", ""), ("GET", "/drawing"), ("POST", "/cancel"), ("POST", "/retry"), ("POST", "/rerun")):
        foreign = await client.request(method, f"/v1/flows/month{rest}", headers=as_caller(MAILER))
        unknown = await client.request(method, f"/v1/flows/spring{rest}", headers=as_caller(MAILER))
        assert foreign.status_code == unknown.status_code == 404
        told = [
            {name: value for name, value in answered.json().items() if name != "request_id"}
            for answered in (foreign, unknown)
        ]
        assert str(told[0]).replace("month", "spring") == str(told[1])


async def test_an_id_that_a_job_of_another_queue_has_is_taken_on_every_way_in(client: httpx.AsyncClient) -> None:
    # F60
    job = planted(id="month.0")
    for path, body in (
        ("jobs", job),
        ("jobs/batch", {"jobs": [job]}),
        ("store/enqueue_job", {"job": job}),
        ("store/enqueue_jobs", {"jobs": [job]}),
        ("store/add_jobs", {"jobs": [job]}),
    ):
        refused = await client.post(f"/v1/{path}", json=body, headers=as_caller(MAILER))
        assert (refused.status_code, refused.json()["job_ids"]) == (409, ["month.0"]), f"{path}: {refused.text}"
        assert "bills" not in refused.text
        assert "sum_up" not in refused.text
