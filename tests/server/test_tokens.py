"""Tokens: kept as hashes in every store, judged by its clock, and worth nothing within a second of their end."""

import asyncio
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.sqlite import connection as sqlite_connection
from longshore.backends.token_store import SupportsTokens
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, TokenNotFound
from longshore.core.tokens import Scope, hash_of, id_in, without_secrets
from longshore.runtime.logs import JsonLines, TextLines
from longshore.runtime.queue import Queue
from longshore.server import auth
from longshore.server.auth import Failures, TokenGate, network_of
from longshore.server.http_errors import TooMany
from tests.processes.store_process import SQLITE_MIGRATIONS
from tests.runtime.working import until
from tests.server.conftest import Serve


def keeper(backend: Backend) -> SupportsTokens:
    assert isinstance(backend, SupportsTokens)
    return backend


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


class Dial:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


# -- in the store


async def test_a_token_is_kept_without_its_secret_and_found_by_its_id(
    backend: Backend, clock: HeldClock, store_url: str
) -> None:
    made, secret = await keeper(backend).issue_token("shop", ["submit", "read"], queues=["mail"], expires_in=60)
    assert re.fullmatch(r"lsk_[0-9a-f]{12}_[0-9a-f]{64}", secret)
    assert id_in(secret) == made.id
    assert made.scopes == {Scope.SUBMIT, Scope.READ}
    assert made.queues == frozenset({"mail"})
    assert made.expires_at == made.created_at + timedelta(seconds=60)
    found = await keeper(backend).find_token(made.id)
    assert found.token == made
    assert made.has_secret(secret)
    assert not made.has_secret(secret[:-1] + ("0" if secret[-1] != "0" else "1"))
    assert secret not in repr(made)
    assert made.hash not in repr(made)
    stored = _everything_stored(store_url)
    assert secret.rpartition("_")[2] not in stored
    assert not stored or hash_of(secret) in stored
    assert (await keeper(backend).find_token("0" * 12)).token is None


def _everything_stored(url: str) -> str:
    """What a thief of the database would have."""
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:///"))
        return "".join(file.read_bytes().decode("latin-1") for file in path.parent.glob(f"{path.name}*"))
    if url.startswith("postgresql:"):
        with psycopg.connect(url) as connection:
            return str(connection.execute("SELECT * FROM longshore.api_tokens").fetchall())
    return ""


async def test_the_stores_clock_ends_a_token_and_a_revocation_does_so_for_good(
    backend: Backend, clock: HeldClock
) -> None:
    tokens = keeper(backend)
    short, _ = await tokens.issue_token("short", ["read"], expires_in=10)
    long, _ = await tokens.issue_token("long", ["read"])
    assert short.standing(await backend.now()) == "live"
    clock.advance(10)
    assert short.standing((await tokens.find_token(short.id)).now) == "expired"
    revoked = await tokens.revoke_token(long.id)
    assert revoked.revoked_at == await backend.now()
    clock.advance(5)
    assert (await tokens.revoke_token(long.id)).revoked_at == revoked.revoked_at, "a second time changes nothing"
    assert revoked.standing(revoked.created_at) == "revoked"
    with pytest.raises(TokenNotFound):
        await tokens.revoke_token("0" * 12)
    await tokens.note_token_use([short.id, "0" * 12])
    listed = await tokens.list_tokens()
    assert [(one.name, one.last_used_at) for one in listed] == [("long", None), ("short", await backend.now())]


async def test_a_name_belongs_to_one_token_at_a_time_so_that_the_log_names_one(
    backend: Backend, clock: HeldClock
) -> None:
    tokens = keeper(backend)
    first, _ = await tokens.issue_token("shop", ["read"])
    with pytest.raises(InvalidArgument, match="the name of a valid token; revoke it, or choose another") as told:
        await tokens.issue_token("shop", ["admin"])
    assert first.id not in str(told.value), "a caller limited to queues may not list it"
    await tokens.revoke_token(first.id)
    await tokens.issue_token("shop", ["read"], expires_in=1)
    clock.advance(1)
    await tokens.issue_token("shop", ["read"])
    assert len(await tokens.list_tokens()) == 3


async def test_ended_tokens_do_not_count_and_are_removed_later(
    backend: Backend, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.backends.token_store.MOST_TOKENS", 2)
    tokens = keeper(backend)

    async def listed() -> list[str]:
        return [one.name for one in await tokens.list_tokens()]

    ends, _ = await tokens.issue_token("ends", ["read"], expires_in=10)
    gone, _ = await tokens.issue_token("gone", ["read"])
    with pytest.raises(InvalidArgument, match="2 tokens are valid, which is the maximum; revoke"):
        await tokens.issue_token("stays", ["read"])
    clock.advance(10)
    await tokens.issue_token("stays", ["read"])
    await tokens.revoke_token(gone.id)
    clock.advance(timedelta(days=30).total_seconds() - 1)
    last, _ = await tokens.issue_token("last", ["read"])
    assert await listed() == ["ends", "gone", "last", "stays"]
    clock.advance(1)
    await tokens.revoke_token(last.id)
    await tokens.issue_token("new", ["read"], expires_in=5)
    assert await listed() == ["last", "new", "stays"], "30 days after their end"
    clock.advance(5)
    third, _ = await tokens.issue_token("third", ["read"])
    await tokens.revoke_token(third.id)
    await tokens.issue_token("fourth", ["read"])
    assert await listed() == ["fourth", "new", "stays", "third"], "as many ended tokens are listed as may be valid"
    assert (await tokens.find_token(ends.id)).token is None
    with pytest.raises(TokenNotFound):
        await tokens.revoke_token(gone.id)


async def test_concurrent_creations_of_one_name_yield_one_token(backend: Backend) -> None:
    made = await asyncio.gather(
        *(keeper(backend).issue_token("shop", ["read"]) for _ in range(20)), return_exceptions=True
    )
    assert len([one for one in made if not isinstance(one, BaseException)]) == 1
    assert {type(one) for one in made if isinstance(one, BaseException)} == {InvalidArgument}
    assert len(await keeper(backend).list_tokens()) == 1
    assert await backend.list_queues() == [], "that tokens take turns leaves no queue behind"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "local"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": ["public"]}, "scopes"),
        ({"scopes": "read"}, "scopes"),
        ({"queues": []}, "queues"),
        ({"queues": "mail"}, "queues"),
        ({"expires_in": 0}, "expires_in"),
        ({"expires_in": -5}, "expires_in"),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(memory: Backend, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await keeper(memory).issue_token(**{"name": "shop", "scopes": ["read"], **given})
    assert refused.value.field == field
    assert await keeper(memory).list_tokens() == []


async def test_a_file_of_the_version_before_opens_and_has_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.db"
    sqlite_connection.prepare(path, busy_seconds=1)
    monkeypatch.setattr(sqlite_connection, "MIGRATIONS", SQLITE_MIGRATIONS)
    async with connect(f"sqlite:///{path}") as backend:
        assert await keeper(backend).list_tokens() == []
        made, _ = await keeper(backend).issue_token("shop", ["read"])
        assert [token.id for token in await keeper(backend).list_tokens()] == [made.id]


# -- at the gate


async def test_a_valid_token_is_accepted_and_anything_else_is_not(backend: Backend, serve: Serve) -> None:
    # F53, F59
    made, secret = await keeper(backend).issue_token("shop", ["read", "submit"])
    client: httpx.AsyncClient = await serve(backend, gate=TokenGate(backend))
    assert (await client.get("/v1/jobs", headers=bearer(secret))).status_code == 200
    assert (await client.get("/v1/jobs", headers={"authorization": f"bearer  {secret}"})).status_code == 200
    for given in (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": secret},
        {"Authorization": f"Basic {secret}"},
        bearer(made.id),
        bearer(secret.upper()),
        bearer(secret[:-1]),
        bearer(f"lsk_{made.id}_{'0' * 64}"),
        bearer(f"lsk_{'0' * 12}_{secret.rpartition('_')[2]}"),
        [("Authorization", f"Bearer {secret}"), ("Authorization", f"Bearer {secret}")],
    ):
        refused = await client.get("/v1/jobs", headers=given)
        assert refused.status_code == 401, given
        assert refused.headers["www-authenticate"] == 'Bearer realm="longshore"'
        assert secret not in refused.text
    await until(lambda: _was_used(backend, made.id))


async def _was_used(backend: Backend, token_id: str) -> bool:
    found = (await keeper(backend).find_token(token_id)).token
    return found is not None and found.last_used_at is not None


async def test_a_token_revoked_in_another_process_is_refused_within_a_second(backend: Backend, serve: Serve) -> None:
    made, secret = await keeper(backend).issue_token("shop", ["read"])
    dial = Dial()
    client: httpx.AsyncClient = await serve(backend, gate=TokenGate(backend, clock=dial))
    assert (await client.get("/v1/jobs", headers=bearer(secret))).status_code == 200
    await keeper(backend).revoke_token(made.id)
    dial.seconds += auth.FRESH
    assert auth.FRESH < 1
    refused = await client.get("/v1/jobs", headers=bearer(secret))
    assert (refused.status_code, "the token 'shop' was revoked at 20" in refused.json()["detail"]) == (401, True)
    guessed = await client.get("/v1/jobs", headers=bearer(secret[:-1] + ("0" if secret[-1] != "0" else "1")))
    assert "the token is unknown, expired or revoked" in guessed.json()["detail"], "only its owner learns more"


async def test_a_token_ends_by_the_stores_clock_even_while_it_is_remembered(memory: Backend, serve: Serve) -> None:
    _, secret = await keeper(memory).issue_token("shop", ["read"], expires_in=0.2)
    dial = Dial()
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory, clock=dial))
    assert (await client.get("/v1/jobs", headers=bearer(secret))).status_code == 200
    dial.seconds += 0.3
    refused = await client.get("/v1/jobs", headers=bearer(secret))
    assert (refused.status_code, "the token 'shop' expired at 20" in refused.json()["detail"]) == (401, True)


async def test_many_requests_at_once_look_a_token_up_once(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    made, secret = await keeper(memory).issue_token("shop", ["read"])
    looks: list[str] = []
    find = type(memory).find_token  # type: ignore[attr-defined]  # a store that keeps tokens

    async def counted(self: Any, token_id: str) -> Any:
        looks.append(token_id)
        await asyncio.sleep(0)
        return await find(self, token_id)

    monkeypatch.setattr(type(memory), "find_token", counted)
    gate = TokenGate(memory, clock=Dial())
    found = await asyncio.gather(*(gate.token(secret, "a") for _ in range(50)))
    assert {token.id for token in found} == {made.id}
    assert looks == [made.id]


async def test_only_the_address_of_a_guesser_is_throttled(memory: Backend, serve: Serve) -> None:
    # F59: 1,000 wrong ones
    made, secret = await keeper(memory).issue_token("shop", ["read"])
    dial = Dial()
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory, clock=dial))
    answers = []
    for number in range(1_000):
        wrong = await client.get("/v1/queues", headers=bearer(f"lsk_{made.id}_{number:064x}"))
        answers.append(wrong.status_code)
    assert answers == [401] * auth.ALLOWED + [429] * (1_000 - auth.ALLOWED)
    assert int(wrong.headers["retry-after"]) <= auth.WINDOW
    assert (await client.get("/v1/queues", headers=bearer(secret))).status_code == 200, "a good one is let in"
    assert (await client.get("/v1/queues")).status_code == 401, "a missing token does not count as a guess"
    dial.seconds += auth.WINDOW
    assert (await client.get("/v1/queues", headers=bearer("wrong"))).status_code == 401


def test_the_memory_of_failures_is_limited_and_per_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_MOST_REMEMBERED", 3)
    kept = Failures(Dial())
    for number in range(10):
        kept.note(f"10.0.0.{number}")
    assert len(kept._counts) == 3
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("a" * 60_000) == network_of("junk")  # X5: a trusted proxy may forward anything
    for number in range(auth.ALLOWED):
        kept.note(f"2001:db8::{number:x}")
    with pytest.raises(TooMany):
        kept.note("2001:db8::ffff")


# -- over HTTP


async def test_tokens_are_created_listed_and_revoked_over_http(backend: Backend, serve: Serve) -> None:
    _, secret = await keeper(backend).issue_token("root", ["admin"])
    client: httpx.AsyncClient = await serve(backend, gate=TokenGate(backend))
    client.headers.update(bearer(secret))
    made = await client.post("/v1/tokens", json={"name": "shop", "scopes": ["submit"], "expires_in": 3600})
    assert made.status_code == 201
    shown = made.json()
    new = shown.pop("token")
    assert shown["standing"] == "live"
    assert (await client.post("/v1/jobs", json={"type": "t"}, headers=bearer(new))).status_code == 202
    assert (await client.get("/v1/jobs", headers=bearer(new))).status_code == 403
    assert (await client.get("/v1/tokens", headers=bearer(new))).status_code == 403
    listed = await client.get("/v1/tokens")
    assert [one["name"] for one in listed.json()["items"]] == ["root", "shop"]
    assert new not in listed.text
    assert hash_of(new) not in listed.text
    revoked = await client.delete(f"/v1/tokens/{shown['id']}")
    assert (revoked.status_code, revoked.json()["standing"]) == (200, "revoked")
    assert (await client.delete("/v1/tokens/000000000000")).json()["type"] == "urn:longshore:token-not-found"

    async def refused() -> bool:
        return (await client.post("/v1/jobs", json={"type": "t"}, headers=bearer(new))).status_code == 401

    async with asyncio.timeout(5):
        await until(refused)


async def test_a_new_token_has_no_more_rights_or_lifetime_than_its_creator(memory: Backend, serve: Serve) -> None:
    # F60
    tokens = keeper(memory)
    _, mailer = await tokens.issue_token("mailer", ["admin"], queues=["mail", "post"])
    _, guest = await tokens.issue_token("guest", ["admin"], expires_in=3600)
    other, _ = await tokens.issue_token("other", ["read"], queues=["secret"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    asked: list[tuple[str, dict[str, Any], int]] = [
        (mailer, {"scopes": ["admin"]}, 403),
        (mailer, {"scopes": ["read"], "queues": ["mail", "secret"]}, 403),
        (mailer, {"scopes": ["read"], "queues": ["mail"]}, 201),
        (guest, {"scopes": ["read"]}, 422),
        (guest, {"scopes": ["read"], "expires_in": 7200}, 422),
        (guest, {"scopes": ["read"], "expires_in": 60}, 201),
    ]
    for who, body, status in asked:
        name = f"n{len(await tokens.list_tokens())}"
        answered = await client.post("/v1/tokens", json={"name": name, **body}, headers=bearer(who))
        assert answered.status_code == status, (body, answered.text)
    assert len(await tokens.list_tokens()) == 5
    seen = (await client.get("/v1/tokens", headers=bearer(mailer))).json()["items"]
    assert {one["name"] for one in seen} == {"mailer", "n3"}
    assert (await client.delete(f"/v1/tokens/{other.id}", headers=bearer(mailer))).status_code == 404


# -- secrets stay secret


@pytest.mark.parametrize(
    "address",
    ["/v1/jobs?token={}", "/v1/jobs?access_token=x", "/v1/jobs?api_key=x", "/v1/jobs?text={}", "/v1/jobs/{}", "/{}"],
)
async def test_a_token_in_an_address_is_refused_and_not_repeated(memory: Backend, serve: Serve, address: str) -> None:
    # F59
    _, secret = await keeper(memory).issue_token("shop", ["read"])
    client: httpx.AsyncClient = await serve(memory, gate=TokenGate(memory))
    refused = await client.get(address.format(secret), headers=bearer(secret))
    assert refused.status_code == 422
    assert "must not be in the URL" in refused.json()["detail"]
    assert secret not in refused.text


async def test_log_lines_never_contain_tokens() -> None:
    # F59
    async with connect("memory://") as memory:
        Queue(memory)
        _, secret = await keeper(memory).issue_token("shop", ["read"])
    try:
        raise RuntimeError(f"cannot use {secret}")
    except RuntimeError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "sent %s", (secret,), (RuntimeError, error, None))
    for form in (JsonLines(), TextLines()):
        line = form.format(record)
        assert secret.rpartition("_")[2] not in line
        assert "lsk_…" in line or "lsk_\\u2026" in line
    assert without_secrets("no secret here") == "no secret here"
