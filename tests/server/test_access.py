"""Every route declares a scope, and it is checked before the body is read."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request

from longshore.backends.base import Backend, WorkerInfo
from longshore.backends.remote.protocol import CHANGES, OPERATIONS
from longshore.core.errors import Forbidden, InvalidArgument, Unauthenticated
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.tokens import Scope
from longshore.server.app import create_app
from longshore.server.auth import Caller, GuardedRoute, needs
from tests.runtime.working import until
from tests.server.conftest import Serve, platform_of


class NameGate:
    """Callers by their bearer token, which is simply their name."""

    authenticates = True

    def __init__(self, *callers: Caller) -> None:
        self._callers = {caller.name: caller for caller in callers}

    async def admit(self, request: Request) -> Caller:
        """Admit every caller."""
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        if name not in self._callers:
            raise Unauthenticated("send a token that is known here: Authorization: Bearer …")
        return self._callers[name]


READER = Caller("reader", frozenset({Scope.READ}))
SUBMITTER = Caller("submitter", frozenset({Scope.SUBMIT}))
WORKER = Caller("worker", frozenset({Scope.WORK}))
ADMIN = Caller("admin", frozenset({Scope.ADMIN}))
MAILER = Caller("mailer", frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}), frozenset({"mail"}))
ROLES = (READER, SUBMITTER, WORKER, ADMIN)
PUBLIC_ANSWERS = {
    ("GET", "/healthz"): 200,
    ("GET", "/readyz"): 200,
    ("GET", "/sign-in"): 303,  # where a gate of another kind stands, there is nothing to sign in to
    ("POST", "/sign-in"): 403,  # not sent by one of our pages
    ("POST", "/sign-out"): 403,
}
PUBLIC = {path for _, path in PUBLIC_ANSWERS}


def as_caller(caller: Caller) -> dict[str, str]:
    return {"Authorization": f"Bearer {caller.name}"}


def routes_of(app: FastAPI) -> Iterator[tuple[str, str, Scope]]:
    """Every route with each of its methods, and what it asks for."""
    for route in app.routes:
        assert isinstance(route, GuardedRoute), f"{route} is not behind the gate"
        for method in sorted(route.methods or ()):
            yield method, route.path_format, route.scope


async def test_every_route_and_method_refuses_a_caller_without_its_scope(memory: Backend, serve: Serve) -> None:
    # F53
    app = create_app(memory, gate=NameGate(*ROLES))
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(*ROLES))
    table = list(routes_of(app))
    assert len(table) > 30
    assert {path for _, path, scope in table if scope is Scope.PUBLIC} == PUBLIC
    for method, path, scope in table:
        address = path.replace("{", "").replace("}", "")
        if scope is Scope.PUBLIC:
            assert (await client.request(method, address)).status_code == PUBLIC_ANSWERS[method, path]
            continue
        unknown = await client.request(method, address, content=b"{not json")
        assert unknown.status_code == 401, f"{method} {path} answered {unknown.status_code} to an unknown caller"
        assert unknown.headers["www-authenticate"].startswith("Bearer")
        for role in ROLES:
            if scope not in role.scopes and Scope.ADMIN not in role.scopes:
                refused = await client.request(method, address, content=b"{not json", headers=as_caller(role))
                assert refused.status_code == 403, f"{method} {path} answered {refused.status_code} to {role.name}"
                assert str(scope) in refused.json()["detail"]


async def test_a_caller_with_read_only_cannot_change_anything(memory: Backend) -> None:
    changing = {"POST", "PUT", "PATCH", "DELETE"}
    # these take what they ask for in their body, and store nothing; a session begins and ends
    looking = {"/v1/schedules/preview", "/sign-in", "/sign-out", CHANGES}
    looking |= {operation.path for operation in OPERATIONS.values() if operation.reads}
    for method, path, scope in routes_of(create_app(memory)):
        if method in changing and path not in looking:
            assert scope in (Scope.SUBMIT, Scope.WORK, Scope.ADMIN), f"{method} {path} changes something for {scope}"


def test_a_route_that_declares_no_scope_is_refused_when_it_is_made() -> None:
    router = APIRouter(route_class=GuardedRoute)
    with pytest.raises(InvalidArgument, match="declares no scope"):

        @router.get("/open")
        async def open_to_all() -> None:
            """A route without a scope."""


def test_a_route_without_the_guard_is_not_taken_in(memory: Backend) -> None:
    stranger = APIRouter()

    @stranger.get("/unguarded")
    async def unguarded() -> None:
        """Behind no gate."""

    with pytest.raises(InvalidArgument, match="unguarded"):
        create_app(memory, routers=[stranger])


async def test_more_routes_can_be_hung_behind_the_same_gate(memory: Backend, serve: Serve) -> None:
    router = APIRouter(route_class=GuardedRoute)

    @router.post("/v1/more/claim")
    @needs(Scope.WORK)
    async def claim() -> dict[str, str]:
        return {"claimed": "nothing"}

    client: httpx.AsyncClient = await serve(memory, gate=NameGate(*ROLES), routers=[router])
    assert (await client.post("/v1/more/claim", headers=as_caller(WORKER))).json() == {"claimed": "nothing"}
    assert (await client.post("/v1/more/claim", headers=as_caller(SUBMITTER))).status_code == 403


async def test_a_caller_bound_to_a_queue_sees_and_touches_no_other(memory: Backend, serve: Serve) -> None:
    await memory.enqueue_jobs([Job(id="m", type="t", queue="mail"), Job(id="s", type="t", queue="secret")])
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER))
    client.headers.update(as_caller(MAILER))
    assert (await client.get("/v1/jobs/m")).status_code == 200
    for method, address in [
        ("GET", "/v1/jobs/s"),
        ("POST", "/v1/jobs/s/cancel"),
        ("POST", "/v1/jobs/s/promote"),
        ("POST", "/v1/jobs/s/retry"),
        ("DELETE", "/v1/jobs/s"),
        ("GET", "/v1/jobs/s/logs"),
        ("GET", "/v1/jobs/s/progress"),
        ("GET", "/v1/jobs/s/explain"),
        ("GET", "/v1/jobs/s/events"),
        ("GET", "/v1/jobs/s/events/stream"),
    ]:
        refused = await client.request(method, address)
        assert refused.status_code == 404, f"{method} {address}"
        assert refused.json()["detail"] == "no job has the id 's'; it was never enqueued here, or it has been removed"
    for method, address, body in [
        ("GET", "/v1/jobs?queue=secret", None),
        ("GET", "/v1/queues/secret", None),
        ("POST", "/v1/queues/secret/pause", None),
        ("PATCH", "/v1/queues/secret/limits", {"running": 1}),
        ("POST", "/v1/jobs", {"type": "t", "queue": "secret"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"type": "t", "queue": "secret"}]}),
        ("PUT", "/v1/schedules/x", {"job": {"type": "t", "queue": "secret"}, "repeat": {"every": 1}}),
        ("GET", "/v1/stats", None),
        ("GET", "/v1/events?queue=secret", None),
        ("GET", "/metrics", None),
    ]:
        refused = await client.request(method, address, json=body)
        assert refused.status_code == 403, f"{method} {address} answered {refused.status_code}"
    assert [job["id"] for job in (await client.get("/v1/jobs")).json()["items"]] == ["m"]
    assert [queue["name"] for queue in (await client.get("/v1/queues")).json()["items"]] == ["mail"]
    assert {event["job_id"] for event in (await client.get("/v1/events")).json()["items"]} == {"m"}
    cancelled = await client.post("/v1/jobs/bulk", json={"action": "cancel", "filter": {"types": ["t"]}})
    assert cancelled.json()["changed"] == 1
    assert (await memory.get_job("s")).status.eligible


async def test_a_waiting_caller_does_not_see_a_job_of_another_queue_with_the_same_id(
    memory: Backend, serve: Serve
) -> None:
    # F60
    await memory.enqueue_job(Job(id="j", type="t", queue="mail"))
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER))
    client.headers.update(as_caller(MAILER))
    waiting = asyncio.create_task(client.get("/v1/jobs/j?wait=30"))
    await until(lambda: platform_of(client).streams == 1)
    await memory.cancel_jobs(job_ids=["j"])
    await memory.delete_jobs(job_ids=["j"])
    await memory.enqueue_job(Job(id="j", type="t", queue="secret", payload=b'"card 4111"'))
    [job] = await memory.dequeue_jobs("w")
    await memory.complete_job("j", b'"card 4111"', lease=job.lease)
    answered = await waiting
    assert (answered.status_code, "4111" in answered.text) == (404, False)


async def test_the_id_of_a_schedule_for_another_queue_is_refused_without_a_word_of_that_queue(
    memory: Backend, serve: Serve
) -> None:
    # F60
    await memory.put_schedule(Schedule(id="s", job=Job(type="t", queue="secret"), repeat=Repeat(every=60)))
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER))
    client.headers.update(as_caller(MAILER))
    job, repeat = {"type": "t", "queue": "mail"}, {"every": 60}
    wire = {"schedule": {"id": "s", "job": {**job, "id": "made"}, "repeat": repeat}}
    for refused in (
        await client.put("/v1/schedules/s", json={"job": job, "repeat": repeat}),
        await client.post("/v1/store/put_schedule", json=wire),
    ):
        assert (refused.status_code, refused.json()["field"], "secret" in refused.text) == (422, "schedule_id", False)
    assert (await memory.get_schedule("s")).job.queue == "secret"


async def test_a_page_of_the_log_skips_many_events_of_other_queues(memory: Backend, serve: Serve) -> None:
    await memory.enqueue_jobs([Job(type="t", queue="secret") for _ in range(150)])
    await memory.enqueue_jobs([Job(id=queue, type="t", queue=queue) for queue in ("mail", "bills")])
    bound = Caller("both", frozenset({Scope.READ}), frozenset({"mail", "bills"}))
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(bound))
    client.headers.update(as_caller(bound))
    first = (await client.get("/v1/events?limit=1")).json()
    second = (await client.get("/v1/events", params={"limit": 1, "after": first["next_cursor"]})).json()
    assert [event["job_id"] for event in first["items"] + second["items"]] == ["mail", "bills"]
    end = (await client.get("/v1/events", params={"after": second["next_cursor"]})).json()
    assert end == {"items": [], "next_cursor": second["next_cursor"]}


async def test_events_of_several_queues_are_found_in_few_looks_however_much_lies_between(
    memory: Backend, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.enqueue_jobs([Job(id="first", type="t", queue="bills")])
    await memory.enqueue_jobs([Job(type="t", queue="secret") for _ in range(2_500)])
    await memory.enqueue_jobs([Job(id=f"m{number}", type="t", queue="mail") for number in range(3)])
    bound = Caller("both", frozenset({Scope.READ}), frozenset({"mail", "bills"}))
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(bound))
    client.headers.update(as_caller(bound))
    real, looks = memory.read_events, 0

    async def read_events(*arguments: Any, **named: Any) -> Any:
        nonlocal looks
        looks += 1
        return await real(*arguments, **named)

    found, after = [], None
    for most in (1, 2, 2, 2):
        looks = 0
        with monkeypatch.context() as counted:
            counted.setattr(memory, "read_events", read_events)
            told = await client.post("/v1/store/read_events", json={"after": after, "limit": most})
        events = told.json()["events"]
        found.append([event["job_id"] for event in events])
        after = events[-1]["cursor"] if events else after
        assert looks <= 6
    assert found == [["first"], ["m0", "m1"], ["m2"], []]


async def test_the_status_page_shows_only_workers_of_the_callers_queues(memory: Backend, serve: Serve) -> None:
    for name, queues in (("mine", ("mail",)), ("both", ("mail", "secret")), ("any", ()), ("theirs", ("secret",))):
        await memory.heartbeat_worker(WorkerInfo(id=f"worker-{name}", queues=queues))
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER, READER))
    page = (await client.get("/", headers=as_caller(MAILER))).text
    assert [name for name in ("mine", "both", "any", "theirs") if f"worker-{name}" in page] == ["mine"]
    listed = (await client.get("/v1/workers", headers=as_caller(MAILER))).json()["items"]
    assert [worker["id"] for worker in listed] == ["worker-mine"]
    assert (await client.get("/", headers=as_caller(READER))).text.count("worker-") == 4


def test_a_caller_checks_scopes_and_queues() -> None:
    assert MAILER.owns(["mail"])
    assert not MAILER.owns(["mail", "secret"])
    assert not MAILER.owns([])  # which is for all queues
    assert READER.owns([])
    ADMIN.check_scope(Scope.READ)
    with pytest.raises(Forbidden, match="needs the scope admin"):
        READER.check_scope(Scope.ADMIN)
    assert MAILER.queues_among([]) == ["mail"]
    assert READER.queues_among([]) == []
    with pytest.raises(Forbidden, match="secret"):
        MAILER.queues_among(["mail", "secret"])
    with pytest.raises(InvalidArgument, match="at least one queue"):
        Caller("nobody", frozenset({Scope.READ}), frozenset())
