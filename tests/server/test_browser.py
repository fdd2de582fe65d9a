"""In a real browser: pages of other origins change nothing and read nothing, and a person can sign in and out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.token_store import SupportsTokens
from longshore.core.job import Job
from longshore.server.app import create_app
from longshore.server.auth import TokenGate
from longshore.server.uvicorn_server import ApiServer
from tests.chromium import Browser, browser


class Ours:
    """A server in its own event loop, with its store."""

    def __init__(self, *, asks: bool) -> None:
        self.backend: Backend = connect("memory://")
        self._asks = asks
        self._started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._started.wait(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.backend.enqueue_job(Job(id="secret-job", type="hush", queue="mail"))
        gate = TokenGate(self.backend) if self._asks else None
        self._server = ApiServer(create_app(self.backend, gate=gate))
        running = asyncio.create_task(self._server.run())
        await self._server.ready()
        self._started.set()
        await running

    def ask(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    def close(self) -> None:
        self.ask(self._server.close())
        self._thread.join(20)


@contextmanager
def serving(*, asks: bool) -> Iterator[Ours]:
    ours = Ours(asks=asks)
    try:
        yield ours
    finally:
        ours.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests here."""
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@contextmanager
def hostile_page(html: str) -> Iterator[str]:
    """A page of another origin on this machine; returns its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = html.encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


ATTACKS = """
async (ours) => {
  const tried = {};
  const attempt = async (name, address, options) => {
    try {
      const answer = await fetch(ours + address, options);
      tried[name] = answer.type === 'opaque' ? 'opaque' : answer.status + ' ' + await answer.text();
    } catch (error) { tried[name] = 'refused'; }
  };
  const body = '{"type": "evil"}';
  await attempt('read', '/v1/jobs');
  await attempt('read without cors', '/v1/jobs', {mode: 'no-cors'});
  await attempt('json', '/v1/jobs', {method: 'POST', body, headers: {'content-type': 'application/json'}});
  await attempt('text', '/v1/jobs', {method: 'POST', body, mode: 'no-cors', headers: {'content-type': 'text/plain'}});
  await attempt('no body', '/v1/jobs/secret-job/cancel', {method: 'POST', mode: 'no-cors'});
  await attempt('pause', '/v1/queues/mail/pause', {method: 'POST', mode: 'no-cors'});
  await attempt('credentials', '/v1/queues/mail/pause', {method: 'POST', mode: 'no-cors', credentials: 'include'});
  await attempt('delete', '/v1/jobs/secret-job', {method: 'DELETE'});
  navigator.sendBeacon(ours + '/v1/queues/mail/pause', new Blob([body], {type: 'text/plain'}));
  await new Promise(done => {
    const stream = new EventSource(ours + '/v1/events/stream');
    stream.onopen = () => { tried['stream'] = 'open'; stream.close(); done(); };
    stream.onerror = () => { tried['stream'] = 'refused'; stream.close(); done(); };
  });
  await new Promise(done => {
    const frame = document.createElement('iframe');
    frame.onload = () => {
      tried['frame'] = frame.contentDocument ? 'blank ' + frame.contentDocument.body.innerText : 'foreign';
      done();
    };
    frame.src = ours + '/';
    document.body.append(frame);
  });
  return tried;
}
"""


def unchanged(ours: Ours) -> None:
    counts = ours.ask(ours.backend.count_jobs())
    assert sum(counts.values()) == 1
    assert ours.ask(ours.backend.get_job("secret-job")).status.eligible
    assert not any(queue.paused for queue in ours.ask(ours.backend.list_queues()))


def test_a_page_of_another_origin_changes_and_reads_nothing(chromium: Browser) -> None:
    # F55: cross-origin fetch, forms, beacons, streams, frames
    with serving(asks=False) as ours, hostile_page("<body>hello</body>") as elsewhere:
        page = chromium.page()
        page.go(elsewhere)
        tried = page.run(f"({ATTACKS})('{ours.address}')")
        assert {name: told for name, told in tried.items() if "hush" in told or "secret" in told} == {}
        assert tried["read"] == tried["json"] == tried["delete"] == tried["stream"] == "refused"
        unchanged(ours)
        for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
            page.go(elsewhere)
            page.run_and_load(
                f"""(() => {{ document.body.innerHTML = '<form method="post" enctype="{kind}" '
                + 'action="{ours.address}/v1/queues/mail/pause"><input name="a" value="b"></form>';
                document.forms[0].submit(); }})()"""
            )
            assert "cross-origin request refused" in page.text
        unchanged(ours)
        page.go(elsewhere)  # a link from elsewhere may be followed
        page.run_and_load(f"location.href = '{ours.address}/'")
        assert "Failed jobs" in page.text


def test_a_name_that_was_made_to_point_here_is_not_answered(chromium: Browser) -> None:
    # F55: DNS rebinding, where a browser takes us for the attacker's own origin
    with serving(asks=False) as ours:
        page = chromium.page()
        page.free_of_policies()
        page.go(f"http://rebound.example:{ours.port}/v1/jobs")
        assert "wrong-host" in page.text
        assert "hush" not in page.text
        told = page.run(
            "fetch('/v1/queues/mail/pause', {method: 'POST', headers: {'content-type': 'application/json'}})"
            ".then(answer => answer.status)"
        )
        assert told == 421
        unchanged(ours)


def test_pages_run_no_script_and_cannot_be_framed(chromium: Browser) -> None:
    # F55: clickjacking; F57: markup in names
    evil = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
    with serving(asks=False) as ours:
        ours.ask(ours.backend.enqueue_job(Job(type=evil, queue=evil)))
        with hostile_page(f"<iframe src='{ours.address}/'></iframe>") as elsewhere:
            page = chromium.page()
            page.go(f"{ours.address}/")
            assert page.run("document.title") == "Longshore"
            assert "<img src=x" in page.text
            page.run("document.body.insertAdjacentHTML('beforeend', '<a id=x onclick=\"document.title=1\">x</a>')")
            page.run("document.getElementById('x').click()")
            assert page.run("document.title") == "Longshore", "no inline handler runs"
            page.go(elsewhere)
            assert page.run("document.querySelector('iframe').contentDocument") is None, "Chromium's page of an error"


def sign_in(secret: str) -> str:
    return f"""(() => {{ document.getElementById('token').value = '{secret}';
        document.querySelector('button').click(); }})()"""


def test_a_person_signs_in_with_a_token_and_out_again(chromium: Browser) -> None:
    with serving(asks=True) as ours, hostile_page("<body>hello</body>") as elsewhere:
        assert isinstance(ours.backend, SupportsTokens)
        made, secret = ours.ask(ours.backend.issue_token("ada", ["read"]))
        # another name than the hostile page's: cookies do not tell ports apart
        mine = f"http://localhost:{ours.port}"
        page = chromium.page()
        page.go(f"{mine}/")
        assert "API token with the scope" in page.text
        page.run_and_load(sign_in("lsk_wrong"))
        assert "the token is unknown, expired or revoked" in page.text
        page.run_and_load(sign_in(secret))
        assert "Signed in as ada" in page.text
        assert page.run("document.cookie") == "", "no script can read it"
        assert secret not in str(page.run("document.documentElement.outerHTML + location.href"))
        page.free_of_policies()
        page.go(f"{mine}/")
        assert page.run("fetch('/v1/jobs').then(answer => answer.status)") == 200
        pausing = "fetch('/v1/queues/mail/pause', {method: 'POST', headers: {'content-type': 'application/json'}})"
        assert page.run(f"{pausing}.then(answer => answer.text())").find("needs the scope admin") > 0
        page.go(elsewhere)
        tried = page.run(f"({ATTACKS})('{mine}')")
        assert {name: told for name, told in tried.items() if "hush" in told or "secret" in told} == {}
        unchanged(ours)
        page.go(f"{mine}/")
        page.run_and_load("document.querySelector('form[action=\"/sign-out\"] button').click()")
        page.go(f"{mine}/")
        assert "API token with the scope" in page.text
        page.run_and_load(sign_in(secret))
        ours.ask(ours.backend.revoke_token(made.id))
        for _ in range(50):  # it is remembered for half a second
            page.go(f"{mine}/")
            if "API token with the scope" in page.text:
                break
        else:
            raise AssertionError("the session outlives its token")
