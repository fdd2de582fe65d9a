"""The one gate: every route declares a scope, and nobody passes without it, before a byte of the body is read."""

from collections.abc import Iterator

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute

from longshore.backends.contract import Backend
from longshore.backends.remote.protocol import CHANGES, VERBS
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.server.access import Caller, GuardedRoute, Scope, needs
from longshore.server.app import create_app
from longshore.server.refusals import Forbidden, Unauthenticated
from tests.server.conftest import Serve


class NameGate:
    """Callers by their bearer token, which is simply their name."""

    authenticates = True

    def __init__(self, *callers: Caller) -> None:
        self._callers = {caller.name: caller for caller in callers}

    async def admit(self, request: Request) -> Caller:
        """Whoever it is."""
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


async def test_every_route_and_method_refuses_whoever_lacks_its_scope(memory: Backend, serve: Serve) -> None:
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
        assert unknown.status_code == 401, f"{method} {path} answered {unknown.status_code} to a stranger"
        assert unknown.headers["www-authenticate"].startswith("Bearer")
        for role in ROLES:
            if scope not in role.scopes and Scope.ADMIN not in role.scopes:
                refused = await client.request(method, address, content=b"{not json", headers=as_caller(role))
                assert refused.status_code == 403, f"{method} {path} answered {refused.status_code} to {role.name}"
                assert str(scope) in refused.json()["detail"]


async def test_whoever_may_only_read_can_change_nothing(memory: Backend) -> None:
    changing = {"POST", "PUT", "PATCH", "DELETE"}
    # these take what they ask for in their body, and store nothing; a session begins and ends
    looking = {"/v1/schedules/preview", "/sign-in", "/sign-out", CHANGES}
    looking |= {verb.path for verb in VERBS.values() if verb.looks}
    for method, path, scope in routes_of(create_app(memory)):
        if method in changing and path not in looking:
            assert scope in (Scope.SUBMIT, Scope.WORK, Scope.ADMIN), f"{method} {path} changes something for {scope}"


def test_a_route_that_declares_no_scope_is_refused_when_it_is_made() -> None:
    router = APIRouter(route_class=GuardedRoute)
    with pytest.raises(InvalidArgument, match="declares none"):

        @router.get("/open")
        async def open_to_all() -> None:
            """Nobody said for whom."""


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


def test_a_caller_knows_what_it_may(memory: Backend) -> None:
    ADMIN.check_scope(Scope.READ)
    with pytest.raises(Forbidden, match="needs the scope admin"):
        READER.check_scope(Scope.ADMIN)
    assert MAILER.queues_among([]) == ["mail"]
    assert READER.queues_among([]) == []
    with pytest.raises(Forbidden, match="secret"):
        MAILER.queues_among(["mail", "secret"])
    with pytest.raises(InvalidArgument, match="at least one queue"):
        Caller("nobody", frozenset({Scope.READ}), frozenset())


def test_no_route_is_served_by_a_plain_class(memory: Backend) -> None:
    plain = [route for route in create_app(memory).routes if type(route) is APIRoute]
    assert plain == []
