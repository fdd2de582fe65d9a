"""Where a browser's request comes from, sessions and their cookies: judged without a browser, case by case."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.server.auth import SESSION_LIFETIME, Sessions, TokenGate
from tests.server.conftest import Serve
from tests.server.test_tokens import Dial, bearer, keeper

OWN = {"origin": "http://127.0.0.1"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        (OWN, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, True),  # a page without a referrer
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", **OWN}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, False),
        ({"sec-fetch-site": "made up"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://127.0.0.1:8471"}, False),
        ({"origin": "http://127.0.0.1.evil.example"}, False),
        ({"origin": "http://evil.example@127.0.0.1"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://[x"}, False),
    ],
)
async def test_changes_are_accepted_from_the_servers_pages_and_from_programs(
    quick: httpx.AsyncClient, memory: Backend, headers: dict[str, str], allowed: bool
) -> None:
    # F55
    answered = await quick.post("/v1/jobs", json={"type": "t"}, headers=headers)
    assert answered.status_code == (202 if allowed else 403)
    paused = await quick.post("/v1/queues/mail/pause", headers=headers)
    assert paused.status_code == (200 if allowed else 403)
    assert sum((await memory.count_jobs()).values()) == allowed
    assert [queue.paused for queue in await memory.list_queues() if queue.name == "mail"] == [True] * allowed


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
        ({"origin": "http://evil.example"}, 200),  # without CORS headers no script can read it
    ],
)
async def test_other_sites_may_link_here_but_not_read(
    quick: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    answered = await quick.get("/", headers=headers)
    assert answered.status_code == status
    assert not [name for name in answered.headers if name.startswith("access-control-")]


async def test_a_preflight_is_granted_nothing(quick: httpx.AsyncClient) -> None:
    # F55: no CORS
    asking = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answered = await quick.options("/v1/jobs", headers=asking)
    assert answered.status_code == 405
    assert not [name for name in answered.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_a_plain_form_reaches_no_verb_even_where_none_has_a_body(
    quick: httpx.AsyncClient, memory: Backend, kind: str
) -> None:
    # F55
    for body in (b"", b"a=b"):
        refused = await quick.post("/v1/queues/mail/pause", content=body, headers={"content-type": kind})
        assert refused.status_code == 415
    assert (await quick.post("/v1/queues/mail/pause", content=b"{}")).status_code == 415, "a body of no kind"
    assert await memory.list_queues() == []
    good = await quick.post("/v1/queues/mail/pause", headers={"content-type": "Application/JSON; charset=utf-8"})
    assert good.status_code == 200


# -- sessions


async def signed_in(client: httpx.AsyncClient, secret: str, **headers: str) -> httpx.Response:
    return await client.post("/sign-in", data={"token": secret}, headers=headers or OWN)


async def test_a_session_is_a_cookie_that_no_script_reads_and_no_other_site_sends(
    memory: Backend, serve: Serve
) -> None:
    _, secret = await keeper(memory).issue_token("ada", ["admin"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    stranger = await client.get("/", headers={"accept": "text/html"})
    assert (stranger.status_code, stranger.headers["www-authenticate"]) == (401, 'Bearer realm="longshore"')
    assert '<form method="post" action="/sign-in">' in stranger.text
    begun = await signed_in(client, secret)
    assert (begun.status_code, begun.headers["location"]) == (303, "/")
    cookie = begun.headers["set-cookie"]
    assert cookie.startswith("longshore_session=")
    assert {"HttpOnly", "Path=/", "SameSite=strict", f"Max-Age={SESSION_LIFETIME.total_seconds():.0f}"} <= set(
        cookie.split("; ")
    )
    assert secret.rpartition("_")[2] not in cookie
    page = await client.get("/")
    assert "Signed in as ada" in page.text
    assert page.headers["referrer-policy"] == "same-origin"
    for headers, status in [({}, 403), ({"origin": "http://evil.example"}, 403), (OWN, 200)]:
        paused = await client.post("/v1/queues/mail/pause", headers=headers)
        assert paused.status_code == status, "a cookie changes something only from our own page"
    kept = dict(client.cookies)
    out = await client.post("/sign-out", headers=OWN)
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert not client.cookies
    client.cookies.update(kept)
    assert (await client.get("/v1/jobs")).status_code == 401, "a copy of the cookie is worth nothing either"


async def test_over_tls_the_cookie_is_sent_over_tls_only(memory: Backend, serve: Serve) -> None:
    _, secret = await keeper(memory).issue_token("ada", ["read"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    client.base_url = httpx.URL("https://127.0.0.1")
    cookie = (await signed_in(client, secret, origin="https://127.0.0.1")).headers["set-cookie"]
    assert cookie.startswith("__Host-longshore_session=")
    assert "Secure" in cookie.split("; ")
    assert (await client.get("/v1/jobs")).status_code == 200


async def test_signing_in_needs_the_scope_read(memory: Backend, serve: Serve) -> None:
    _, secret = await keeper(memory).issue_token("ada", ["submit", "work"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    refused = await signed_in(client, secret)
    assert (refused.status_code, dict(client.cookies)) == (403, {})
    assert '<form method="post" action="/sign-in">' in refused.text
    assert "this needs the scope read; the token ada has submit, work" in refused.text


async def test_other_pages_and_wrong_tokens_cannot_sign_in(memory: Backend, serve: Serve) -> None:
    # F55, F59
    _, secret = await keeper(memory).issue_token("ada", ["read"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory, clock=Dial()))
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"x": "no origin at all"}):
        assert (await signed_in(client, secret, **headers)).status_code == 403
    assert not client.cookies
    answers = [(await signed_in(client, f"guess {number}")).status_code for number in range(12)]
    assert answers == [401] * 10 + [429] * 2
    assert (await client.post("/sign-in", content=b"token=" + b"x" * 5000, headers=OWN)).status_code == 413
    assert (await client.post("/sign-in", content=b"\xff=\xff", headers=OWN)).status_code == 429
    assert (await signed_in(client, secret)).status_code == 303


async def test_a_form_with_more_fields_than_ours_is_refused(memory: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    refused = await client.post("/sign-in", content=b"a=1&" * 20, headers=OWN)
    assert (refused.status_code, refused.json()["field"]) == (422, "form")


async def test_a_session_ends_with_its_token_and_after_its_time(
    memory: Backend, serve: Serve, clock: HeldClock
) -> None:
    dial = Dial()
    made, secret = await keeper(memory).issue_token("ada", ["read"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory, clock=dial))
    await signed_in(client, secret)
    assert (await client.get("/v1/jobs")).status_code == 200
    await keeper(memory).revoke_token(made.id)
    dial.seconds += 1
    assert (await client.get("/v1/jobs")).status_code == 401


def test_a_cookie_is_believed_only_as_it_was_signed() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    sessions = Sessions(b"k" * 32)
    value = sessions.begin("0123456789ab", now)
    read = sessions.read(value)
    assert read is not None
    assert (read.token_id, read.ends) == ("0123456789ab", now + SESSION_LIFETIME)
    assert Sessions(b"k" * 32).read(value) == read, "another process with the same key"
    assert Sessions().read(value) is None
    token_id, number, ends, signature = value.split(".")
    forged: list[Any] = [
        "",
        ".",
        "...",
        "é.é.é.é",
        f"{token_id}.{number}.{int(ends) + 1}.{signature}",
        f"ffffffffffff.{number}.{ends}.{signature}",
        f"{token_id}.{number}.{ends}.{signature[:-1]}",
        f"{token_id}.{number}.{ends}",
    ]
    assert [sessions.read(one) for one in forged] == [None] * len(forged)


async def test_without_tokens_there_is_no_sign_in(quick: httpx.AsyncClient) -> None:
    assert (await quick.get("/sign-in")).headers["location"] == "/"
    assert (await quick.post("/sign-in", data={"token": "x"}, headers=OWN)).headers["location"] == "/"
    assert "Signed in" not in (await quick.get("/")).text
    assert (await quick.get("/v1/jobs", headers=bearer("whatever"))).status_code == 200
