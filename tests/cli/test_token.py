"""`longshore token`, and the values that turn tokens on and off."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from longshore import connect
from longshore.cli.exit_codes import Exit
from longshore.cli.serve import auth_enabled, parse_switch, session_key
from longshore.core.errors import InvalidArgument
from tests.cli.terminal import longshore

ON = ("on", "ON", "true", "True", "TRUE", "1", "yes", "Yes")
OFF = ("off", "Off", "false", "False", "FALSE", "0", "no", "NO")
NEITHER = (
    "",
    " ",
    "maybe",
    "2",
    "-1",
    "t",
    "f",
    "y",
    "n",
    "none",
    "null",
    "disabled",
    "truee",
    "0x0",
    "falsch",
    "'false'",
)


@pytest.mark.parametrize("said", [None, *ON, *OFF, *NEITHER])
def test_a_public_address_always_requires_tokens(said: str | None) -> None:
    # F54
    if said in OFF:
        with pytest.raises(InvalidArgument, match="is reachable from other machines"):
            auth_enabled("0.0.0.0", said, loopback=False)
        assert auth_enabled("127.0.0.1", said, loopback=True) is False
    elif said in NEITHER:
        for loopback in (False, True):
            with pytest.raises(InvalidArgument, match="must be one of on, true, yes, 1, off, false, no, 0"):
                auth_enabled("x", said, loopback=loopback)
    else:
        assert auth_enabled("0.0.0.0", said, loopback=False) is True
        assert auth_enabled("127.0.0.1", said, loopback=True) is (said is not None)


def test_a_switch_may_have_spaces_around_it() -> None:
    assert parse_switch("auth", " off\n") is False


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty store."""
    address = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def make() -> None:
        async with connect(address) as backend:
            await backend.count_jobs()

    asyncio.run(make())
    return address


def test_a_token_is_created_shown_once_listed_and_revoked(url: str) -> None:
    made = longshore(
        "token",
        "create",
        "shop",
        "--url",
        url,
        "--scope",
        "submit",
        "--scope",
        "read",
        "--queue",
        "mail",
        "--expires-in",
        "90d",
    )
    assert made.code == 0, made.err
    (secret,) = made.out.split()
    assert secret.startswith("lsk_")
    assert "not shown again" in made.err
    assert secret not in made.err
    (listed,) = json.loads(longshore("token", "list", "--url", url, "--json").out)["items"]
    assert listed["name"] == "shop"
    assert listed["scopes"] == ["read", "submit"]
    assert listed["queues"] == ["mail"]
    assert listed["standing"] == "live"
    table = longshore("token", "list", "--url", url).out
    assert "read, submit in mail" in table
    assert secret not in table
    assert "revoked" in longshore("token", "revoke", listed["id"], "--url", url).out
    (after,) = json.loads(longshore("token", "list", "--url", url, "--json").out)["items"]
    assert after["standing"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "shop", "--scope", "root"), "scopes: 'root' is not a scope; choose from admin, read, submit, work"),
        (("create", "local", "--scope", "read"), "name: 'local' is reserved for callers"),
        (
            ("create", "shop", "--scope", "read", "--expires-in", "soon"),
            "expires-in: must be a duration such as 90s, 5m, 2h or 1d; got 'soon'",
        ),
        (("revoke", "nobody"), "no token has the id 'nobody'"),
    ],
)
def test_an_invalid_token_command_is_one_line(url: str, arguments: tuple[str, ...], words: str) -> None:
    refused = longshore("token", *arguments, "--url", url)
    assert refused.code != 0
    assert refused.err.startswith(f"longshore: {words}")
    assert json.loads(longshore("token", "list", "--url", url, "--json").out) == {"items": []}


def test_a_mistyped_address_creates_no_file(tmp_path: Path) -> None:
    refused = longshore("token", "list", "--url", f"sqlite:///{tmp_path / 'typo.db'}")
    assert refused.code == 3
    assert list(tmp_path.iterdir()) == []


def test_the_lifetime_of_a_token_is_a_duration(url: str) -> None:
    for written, lasts in (("1w", timedelta(weeks=1)), ("1.5h", timedelta(minutes=90)), ("45s", timedelta(seconds=45))):
        told = longshore("token", "create", written, "--scope", "read", "--expires-in", written, "--url", url, "--json")
        assert told.code == 0, told.err
        made = json.loads(told.out)
        assert datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"]) == lasts
    refused = longshore("token", "create", "me", "--scope", "read", "--expires-in", "0s", "--url", url)
    assert (refused.code, "must be more than 0 seconds" in refused.err) == (Exit.USAGE, True)


def test_a_short_or_unreadable_session_key_is_refused(tmp_path: Path) -> None:
    assert session_key(None) is None
    with pytest.raises(InvalidArgument, match="cannot read"):
        session_key(tmp_path / "none")
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(InvalidArgument, match="has 5 bytes"):
        session_key(tmp_path / "key")
    (tmp_path / "key").write_bytes(b"k" * 32 + b"\n")
    assert session_key(tmp_path / "key") == b"k" * 32


def test_token_commands_refuse_a_server_and_name_its_endpoint() -> None:
    refused = longshore("token", "list", "--url", "http://127.0.0.1:9")
    assert (refused.code, "/v1/tokens" in refused.err) == (Exit.USAGE, True)
    assert "or a server" not in longshore("token", "create", "--help").out
