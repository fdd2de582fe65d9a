"""Every change over HTTP is in the event log with its actor."""

import asyncio
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.actor import acting, actor
from longshore.core.job import Job
from longshore.runtime.queue import Queue
from longshore.server.auth import TokenGate
from tests.server.conftest import Serve
from tests.server.test_tokens import bearer, keeper


async def signed(backend: Backend) -> list[tuple[str, str, str | None]]:
    """What the log says: who, what, to which job."""
    events = await backend.read_events(limit=1000)
    return [(event.actor, event.event, event.job_id) for event in events]


async def dead(backend: Backend, job_id: str) -> None:
    await backend.enqueue_job(Job(id=job_id, type="t", queue="dead"))
    (job,) = await backend.dequeue_jobs("w", queues=["dead"])
    await backend.bury_job(job.id, "no", lease=job.lease)


async def test_every_change_over_http_records_its_actor(backend: Backend, serve: Serve) -> None:
    await dead(backend, "d1")
    await dead(backend, "d2")
    await backend.enqueue_job(Job(id="late", type="t", delay=3600))
    _, ada = await keeper(backend).issue_token("ada", ["admin"])
    end = await backend.end_of_events()
    client: httpx.AsyncClient = await serve(backend, gate=TokenGate(backend))
    client.headers.update(bearer(ada))
    repeat = {"job": {"type": "t", "queue": "mail"}, "repeat": {"every": 3600}}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"type": "t", "id": "a"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"type": "t", "id": "b"}, {"type": "t", "id": "c"}]}),
        ("POST", "/v1/jobs/a/cancel", None),
        ("DELETE", "/v1/jobs/a", None),
        ("POST", "/v1/jobs/late/promote", None),
        ("POST", "/v1/jobs/d1/retry", None),
        ("POST", "/v1/dead-letters/retry", {"all": True}),
        ("POST", "/v1/jobs/bulk", {"action": "cancel", "filter": {"ids": ["b"]}}),
        ("POST", "/v1/queues/mail/pause", None),
        ("POST", "/v1/queues/mail/resume", None),
        ("PATCH", "/v1/queues/mail/limits", {"running": 3, "rate": {"count": 2, "per": 1.5}}),
        ("PUT", "/v1/schedules/s", repeat),
        ("POST", "/v1/schedules/s/pause", None),
        ("POST", "/v1/schedules/s/resume", None),
        ("POST", "/v1/schedules/s/run", None),
        ("DELETE", "/v1/schedules/s", None),
        ("POST", "/v1/tokens", {"name": "bob", "scopes": ["read"]}),
    ]
    before = end
    for method, address, body in asked:
        answered = await client.request(method, address, json=body)
        assert answered.status_code < 300, answered.text
        events = [event for event in await backend.read_events(before) if event.event != "job.active"]
        assert events, f"{method} {address} left no trace"
        assert {event.actor for event in events} == {"ada"}, f"{method} {address}: {events}"
        before = events[-1].cursor
    told = [event.event for event in await backend.read_events(end, limit=1000)]
    for event in (
        "queue.changed",
        "schedule.changed",
        "schedule.removed",
        "token.created",
        "job.removed",
        "job.retried",
    ):
        assert event in told
    (limited,) = [event for event in await backend.read_events(end, limit=1000) if event.event == "queue.changed"]
    assert (limited.queue, limited.detail) == ("mail", {"running": 3, "rate": {"count": 2, "per": 1.5}})


async def test_jobs_that_share_a_transaction_keep_their_own_actors(backend: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(backend, gate=TokenGate(backend))
    names = ["ada", "bob", "cem"]
    secrets = {name: (await keeper(backend).issue_token(name, ["submit"])).secret for name in names}
    end = await backend.end_of_events()

    async def post(name: str, number: int) -> None:
        body = {"type": "t", "id": f"{name} {number}"}
        assert (await client.post("/v1/jobs", json=body, headers=bearer(secrets[name]))).status_code == 202

    await asyncio.gather(*(post(name, number) for number in range(20) for name in names))
    events = await backend.read_events(end, limit=1000)
    assert len(events) >= 120
    for event in events:
        assert event.job_id is not None
        assert event.actor == event.job_id.split()[0], event


async def test_without_a_token_no_actor_is_recorded(backend: Backend) -> None:
    queue = Queue(backend)
    await queue.set_limits("mail", running=2)
    await queue.enqueue_job(Job(id="j", type="t"))
    await queue.cancel_jobs(job_ids=["j"])
    assert {who for who, _, _ in await signed(backend)} == {""}
    assert "queue.changed" not in {event for _, event, _ in await signed(backend)}
    with acting("ada"):
        await queue.pause_queue("mail")
        assert actor() == "ada"
    await queue.resume_queue("mail")
    assert [(who, event) for who, event, _ in (await signed(backend))[-2:]] == [
        ("ada", "queue.paused"),
        ("", "queue.resumed"),
    ]


async def test_the_audit_log_lists_events_with_an_actor(backend: Backend, serve: Serve) -> None:
    with acting("ada"):
        await backend.enqueue_jobs([Job(id=f"a{n}", type="t", queue="mail") for n in range(5)])
    await backend.enqueue_jobs([Job(type="t") for _ in range(50)])
    with acting("bob"):
        await backend.enqueue_jobs([Job(id="b", type="t", queue="other")])
    client: httpx.AsyncClient = await serve(backend)
    whole = (await client.get("/v1/audit")).json()
    assert [item["actor"] for item in whole["items"]] == ["ada"] * 5 + ["bob"]
    assert [item["job_id"] for item in (await client.get("/v1/audit?actor=bob")).json()["items"]] == ["b"]
    assert [item["actor"] for item in (await client.get("/v1/audit?queue=other")).json()["items"]] == ["bob"]
    first = (await client.get("/v1/audit?limit=2")).json()
    rest = (await client.get("/v1/audit", params={"after": first["next_cursor"]})).json()
    assert len(first["items"]) == 2
    assert [item["job_id"] for item in first["items"] + rest["items"]] == ["a0", "a1", "a2", "a3", "a4", "b"]


async def test_the_audit_log_shows_only_the_callers_queues(memory: Backend, serve: Serve) -> None:
    with acting("ada"):
        await memory.enqueue_jobs([Job(id="m", type="t", queue="mail"), Job(id="s", type="t", queue="secret")])
    _, secret = await keeper(memory).issue_token("mailer", ["read"], queues=["mail"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    client.headers.update(bearer(secret))
    assert [item["job_id"] for item in (await client.get("/v1/audit")).json()["items"]] == ["m"]
    assert (await client.get("/v1/audit?queue=secret")).status_code == 403


@pytest.mark.parametrize("looks", [1, 2])
async def test_one_call_looks_through_so_much_of_the_log_and_the_cursor_leads_on(
    memory: Backend, serve: Serve, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    monkeypatch.setattr("longshore.server.event_tail._AT_ONCE", 10)
    monkeypatch.setattr("longshore.server.event_tail._MOST_LOOKS", looks)
    await memory.enqueue_jobs([Job(type="t") for _ in range(35)])
    with acting("ada"):
        await memory.enqueue_job(Job(id="a", type="t"))
    client: httpx.AsyncClient = await serve(memory)
    cursor: str | None = None
    found: list[Any] = []
    calls = 0
    while not found:
        page = (await client.get("/v1/audit", params={"after": cursor} if cursor else {})).json()
        assert page["next_cursor"] != cursor
        found, cursor, calls = page["items"], page["next_cursor"], calls + 1
    assert calls == (4 if looks == 1 else 2)


async def test_a_store_route_uses_the_token_as_actor_or_the_named_one_without_tokens(
    memory: Backend, serve: Serve
) -> None:
    _, ada = await keeper(memory).issue_token("ada", ["admin"])
    end = await memory.end_of_events()
    said = {"Longshore-Actor": "cli%3Abj%C3%B6rn"}
    for gate, headers in ((None, {}), (None, said), (TokenGate(memory), bearer(ada) | said)):
        client: httpx.AsyncClient = await serve(memory, gate=gate)
        for verb in ("pause_queue", "resume_queue"):
            answered = await client.post(f"/v1/store/{verb}", json={"queue": "mail"}, headers=headers)
            assert answered.status_code == 204, answered.text
    who = [event.actor for event in await memory.read_events(end)]
    assert who == ["", "", "cli:björn", "cli:björn", "ada", "ada"]
    refused = await (await serve(memory)).post(
        "/v1/store/pause_queue", json={"queue": "mail"}, headers={"Longshore-Actor": "a%00b"}
    )
    assert (refused.status_code, refused.json()["field"]) == (422, "Longshore-Actor")


async def test_settling_a_job_without_its_lease_records_the_actor(backend: Backend, serve: Serve) -> None:
    _, ada = await keeper(backend).issue_token("ada", ["admin"])
    client: httpx.AsyncClient = await serve(backend, gate=TokenGate(backend))
    client.headers.update(bearer(ada))
    await backend.enqueue_jobs([Job(id=name, type="t") for name in "abcdef"])
    leases = {job.id: job.lease for job in await backend.dequeue_jobs("w", limit=5)}
    held = leases["a"]
    assert held is not None
    calls: list[tuple[str, Any]] = [
        ("work/settle", {"outcomes": [{"job_id": "a", "lease": {"token": held.token, "epoch": held.epoch}}]}),
        ("store/complete_job", {"job_id": "b"}),
        ("store/stop_job", {"job_id": "c", "error": "no"}),
        ("work/settle", {"outcomes": [{"job_id": "d"}]}),
        ("work/settle-and-claim", {"outcomes": [{"job_id": "e"}], "assignee_id": "w", "limit": 0}),
    ]
    who = []
    for path, body in calls:
        before = await backend.end_of_events()
        answered = await client.post(f"/v1/{path}", json=body)
        assert answered.status_code == 200, answered.text
        who.append({event.actor for event in await backend.read_events(before)})
    assert who == [{""}, {"ada"}, {"ada"}, {"ada"}, {"ada"}]  # a worker is known by the jobs it holds
