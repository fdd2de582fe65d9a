"""The API viewer: behind the gate, with a strict policy, from this server alone."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.tokens import Scope
from longshore.server.auth import Caller
from tests.chromium import Browser, browser
from tests.server.conftest import Serve
from tests.server.test_access import NameGate, as_caller
from tests.server.test_browser import serving

READER = Caller("reader", frozenset({Scope.READ}))
FILES = {
    "/docs": "text/html",
    "/docs/viewer.js": "text/javascript",
    "/docs/swagger-ui-bundle.js": "text/javascript",
    "/docs/swagger-ui.css": "text/css",
}
SETTLED = """new Promise(done => { const look = () =>
    document.querySelector('%s') ? done(true) : setTimeout(look, 50); look(); })"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


async def test_the_viewer_and_its_files_need_the_scope_read(memory: Backend, serve: Serve) -> None:
    # F53
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(READER))
    for address, kind in FILES.items():
        assert (await client.get(address)).status_code == 401
        shown = await client.get(address, headers=as_caller(READER))
        assert (shown.status_code, shown.headers["content-type"].partition(";")[0]) == (200, kind)
        assert shown.headers["x-content-type-options"] == "nosniff"


async def test_the_viewer_runs_no_inline_script_and_asks_no_other_host(quick: httpx.AsyncClient) -> None:
    # F55
    shown = await quick.get("/docs")
    policy = shown.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src data:;")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "//" not in shown.text.replace("<!doctype html>", "")
    assert "<script>" not in shown.text
    assert "<style" not in shown.text


def test_a_browser_shows_every_operation_and_tries_one(chromium: Browser) -> None:
    with serving(asks=False) as ours:
        document = ours.ask(_document(ours.address))
        operations = sum(len(methods) for methods in document["paths"].values())
        page = chromium.page()
        page.record()
        page.go(f"{ours.address}/docs")
        page.run(SETTLED % ".opblock")
        assert page.run("document.querySelectorAll('.opblock').length") == operations
        page.run("document.querySelector('#operations-jobs-submit_job .opblock-summary-control').click()")
        page.run(SETTLED % ".try-out__btn")
        page.run("document.querySelector('.try-out__btn').click()")
        page.run(SETTLED % ".execute")
        page.run("document.querySelector('.execute').click()")
        page.run(SETTLED % ".live-responses-table")
        assert "INITIAL_PENDING" in page.run("document.querySelector('.live-responses-table').innerText")
        assert page.complaints() == []
        elsewhere = [one for one in page.requested() if not one.startswith((f"{ours.address}/", "data:"))]
        assert elsewhere == []


async def _document(address: str) -> dict[str, dict[str, dict[str, object]]]:
    async with httpx.AsyncClient(base_url=address) as client:
        read: dict[str, dict[str, dict[str, object]]] = (await client.get("/v1/openapi.json")).json()
        return read
