"""The application mounted in another one, over a real connection: it needs no lifespan, and its links stay inside."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from longshore.app.harbor import Harbor
from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.token_store import SupportsTokens
from longshore.core.errors import QueueClosed
from longshore.server.app import create_app
from longshore.server.auth import TokenGate
from tests.server.conftest import Serve

PLACE = "/admin/jobs"


def in_fastapi(mounted: ASGIApp, place: str) -> ASGIApp:
    """As in a FastAPI application."""
    app = FastAPI()
    app.mount(place, mounted)
    return app


def in_starlette(mounted: ASGIApp, place: str) -> ASGIApp:
    """As in a Starlette application, in a mount within a mount."""
    first, _, rest = place[1:].partition("/")
    inner = [Mount(f"/{rest}", app=mounted)] if rest else []
    return Starlette(routes=[Mount(f"/{first}", routes=inner) if inner else Mount(place, app=mounted)])


def by_hand(mounted: ASGIApp, place: str) -> ASGIApp:
    """As in the `asgi.py` of a Django project, which forwards a prefix by hand."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{place}/"):
            await mounted({**scope, "root_path": scope.get("root_path", "") + place}, receive, send)

    return application


HOSTS = [in_fastapi, in_starlette, by_hand]


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """The address of a plain uvicorn that serves the app on loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="auto", timeout_graceful_shutdown=5))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # the test has its own
    running = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, 10)
        listening.close()


@pytest.fixture(params=HOSTS, ids=lambda host: host.__name__)
async def mounted(request: pytest.FixtureRequest, memory: Backend) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a host application that has the memory store mounted at /admin/jobs."""
    app = request.param(create_app(memory), PLACE)
    async with served(app) as address, httpx.AsyncClient(base_url=f"{address}{PLACE}", timeout=10) as client:
        yield client


async def test_a_mounted_application_is_ready_without_a_lifespan(mounted: httpx.AsyncClient) -> None:  # S2
    for probe in ("/healthz", "/readyz", "/metrics", "/v1/queues"):
        answer = await mounted.get(probe)
        assert answer.status_code == 200, (probe, answer.text)


async def test_the_location_of_a_job_leads_to_it_inside_the_mount(mounted: httpx.AsyncClient) -> None:  # S2
    made = await mounted.post("/v1/jobs", json={"type": "t", "id": "a/b é", "queue": "mail"})
    assert made.status_code == 202, made.text
    assert made.headers["location"] == f"{PLACE}/v1/jobs/a%2Fb%20%C3%A9"
    found = await mounted.get(str(mounted.base_url.join(made.headers["location"])))
    assert found.json()["id"] == "a/b é"
    waited = await mounted.get("/v1/jobs/a%2Fb%20%C3%A9?wait=0.01")
    assert waited.json()["status"] == "INITIAL_PENDING"


async def test_the_links_of_the_status_page_stay_inside_the_mount(mounted: httpx.AsyncClient) -> None:  # S2
    await mounted.post("/v1/jobs", json={"type": "t", "id": "j"})
    page = (await mounted.get("/")).text
    for place in ("/v1/jobs/j", "/v1/openapi.json"):
        assert f'href="{PLACE}{place}"' in page
        assert (await mounted.get(place)).status_code == 200
    assert 'href="/v1' not in page


async def test_the_description_names_the_mount_as_its_server(mounted: httpx.AsyncClient) -> None:  # S2
    for address in ("/v1/openapi.json", "/openapi.json"):
        assert (await mounted.get(address)).json()["servers"] == [{"url": PLACE}]
    missing = await mounted.get("/v1/nothing")
    assert (missing.status_code, f"{PLACE}/v1/openapi.json" in missing.json()["detail"]) == (404, True)


async def test_without_a_mount_the_description_names_no_server(quick: httpx.AsyncClient) -> None:  # S2
    assert "servers" not in (await quick.get("/v1/openapi.json")).json()


async def test_a_stream_of_events_works_inside_a_mount(mounted: httpx.AsyncClient) -> None:  # S2
    await mounted.post("/v1/jobs", json={"type": "t", "id": "j"})
    async with mounted.stream("GET", "/v1/jobs/j/events/stream") as stream:
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        async for line in lines:
            if line.startswith("data: "):
                assert json.loads(line[6:])["job_id"] == "j"
                break
        await mounted.post("/v1/jobs/j/cancel", json={})
        async for line in lines:
            if line.startswith("data: ") and json.loads(line[6:])["to_status"] in ("STOPPED", "UNSCHEDULED"):
                break


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_session_belongs_to_the_mount_alone(
    memory: Backend, host: Callable[[ASGIApp, str], ASGIApp], scheme: str
) -> None:  # S2
    assert isinstance(memory, SupportsTokens)
    _, secret = await memory.issue_token("ada", ["read"])
    app = host(create_app(memory, gate=TokenGate(memory)), PLACE)
    async with served(app) as address, httpx.AsyncClient(base_url=address, timeout=10) as browser:
        # a plain uvicorn trusts this header on loopback: the host decides that, not the mounted application
        browser.headers.update({"x-forwarded-proto": scheme, "accept": "text/html", "origin": address})
        form = await browser.get(f"{PLACE}/")
        assert (form.status_code, f'action="{PLACE}/sign-in"' in form.text) == (401, True)
        signed_in = await browser.post(f"{PLACE}/sign-in", data={"token": secret})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, f"{PLACE}/")
        name, _, rest = signed_in.headers["set-cookie"].partition("=")
        value, *attributes = rest.split("; ")
        secure = scheme == "https"
        assert name == ("__Secure-longshore_session" if secure else "longshore_session")
        assert (f"Path={PLACE}" in attributes, "Secure" in attributes) == (True, secure)
        cookies = {"cookie": f"{name}={value}"}
        page = await browser.get(f"{PLACE}/", headers=cookies)
        assert (page.status_code, f'action="{PLACE}/sign-out"' in page.text) == (200, True)
        out = await browser.post(f"{PLACE}/sign-out", headers=cookies)
        assert (out.status_code, out.headers["location"]) == (303, f"{PLACE}/sign-in")
        assert f"Path={PLACE}" in out.headers["set-cookie"]
        assert (await browser.get(f"{PLACE}/", headers=cookies)).status_code == 401


async def test_a_mount_path_with_escapes_is_found_and_written_escaped(memory: Backend) -> None:  # S2
    app = in_fastapi(create_app(memory), "/our jobs")
    async with served(app) as address, httpx.AsyncClient(base_url=address) as client:
        made = await client.post("/our%20jobs/v1/jobs", json={"type": "t", "id": "a/b"})
        assert (made.status_code, made.headers["location"]) == (202, "/our%20jobs/v1/jobs/a%2Fb")
        assert (await client.get(made.headers["location"])).status_code == 200


async def test_links_use_the_prefix_that_a_proxy_removed(memory: Backend, serve: Serve) -> None:  # S2
    app = create_app(memory)

    async def behind_a_proxy(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "root_path": "/jobs"}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(behind_a_proxy), base_url="http://127.0.0.1") as client:
        made = await client.post("/v1/jobs", json={"type": "t", "id": "j"})
        assert (made.status_code, made.headers["location"]) == (202, "/jobs/v1/jobs/j")


async def test_a_mounted_application_does_not_close_the_store_of_its_host(tmp_path: Path) -> None:  # S2
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with harbor:
            yield

    app = FastAPI(lifespan=lifespan)
    jobs = create_app(harbor.backend)
    app.mount(PLACE, jobs)
    async with served(app) as address, httpx.AsyncClient(base_url=f"{address}{PLACE}") as client:
        assert (await client.post("/v1/jobs", json={"type": "t"})).status_code == 202
    with pytest.raises(QueueClosed):  # the host closed it: the mounted application did not keep it open
        await harbor.backend.list_queues()
    assert not [task for task in asyncio.all_tasks() if "_follow" in repr(task)]


def test_a_mounted_application_follows_a_harbor_that_is_entered_again(tmp_path: Path) -> None:  # S2, S3
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with harbor:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount(PLACE, create_app(harbor))

    async def once(jobs: int) -> None:
        place = f"http://127.0.0.1{PLACE}"
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=place) as client,
        ):
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post("/v1/jobs", json={"type": "t"})).status_code == 202
            assert len((await client.get("/v1/jobs")).json()["items"]) == jobs

    for number in range(3):  # as three tests with a client each do
        asyncio.run(once(number + 1))


def test_a_mounted_application_serves_one_event_loop_after_another(tmp_path: Path) -> None:  # S2
    backend = connect(f"sqlite:///{tmp_path}/jobs.db")
    app = in_fastapi(create_app(backend), PLACE)

    async def once(jobs: int) -> None:
        place = f"http://localhost{PLACE}"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=place) as client:
            assert (await client.post("/v1/jobs", json={"type": "t"})).status_code == 202
            assert (await client.get("/readyz")).status_code == 200
            assert len((await client.get("/v1/jobs")).json()["items"]) == jobs

    for number in range(2):  # as two tests with a client each do
        asyncio.run(once(number + 1))
    asyncio.run(backend.close())


async def test_a_host_may_give_the_mounted_application_its_lifespan(memory: Backend) -> None:  # S2
    jobs = create_app(memory)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with jobs.router.lifespan_context(jobs):
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount(PLACE, jobs)
    async with served(app) as address, httpx.AsyncClient(base_url=f"{address}{PLACE}") as client:
        assert (await client.get("/readyz")).json() == {"status": "ready", "reason": ""}
    assert jobs.state.platform.closing


async def test_the_hosts_request_state_is_not_changed(memory: Backend) -> None:  # S2
    seen: list[dict[str, Any]] = []
    jobs = create_app(memory)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"caller": "the host's own", "request_id": "7"}
        await jobs({**scope, "root_path": ""}, receive, send)
        seen.append(scope["state"])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://127.0.0.1") as client:
        assert (await client.get("/v1/queues")).status_code == 200
    assert seen == [{"caller": "the host's own", "request_id": "7"}]
