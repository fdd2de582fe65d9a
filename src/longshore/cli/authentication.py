"""Whether a server asks who is calling: never a matter of chance, and never off where others can reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longshore.core.errors import InvalidArgument

Auth = Annotated[
    str | None,
    typer.Option(
        "--auth",
        envvar="LONGSHORE_AUTH",
        metavar="on|off",
        help="Ask for tokens. Left out: not on a loopback address, always on any other.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="A name this server is called by, like jobs.example.org; may be repeated."),
]

TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        envvar="LONGSHORE_TRUSTED_PROXIES",
        metavar="ADDRESS",
        help="A proxy whose X-Forwarded-For and X-Forwarded-Proto are trusted: an address, or a network like "
        "10.0.0.0/24; may be repeated. In the variable, spaces separate several. None by default.",
    ),
]
ConnectionsPerAddress = Annotated[
    int,
    typer.Option(
        "--connections-per-address",
        envvar="LONGSHORE_CONNECTIONS_PER_ADDRESS",
        min=1,
        help="Maximum open connections per address; trusted proxies are not limited.",
    ),
]

SessionKey = Annotated[
    Path | None,
    typer.Option(
        "--session-key-file",
        envvar="LONGSHORE_SESSION_KEY_FILE",
        help="A file with 32 or more random bytes that several servers share, so that a browser signs in to all.",
    ),
]

_SHORTEST_KEY = 32
_WORDS = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


def switch(field: str, said: str) -> bool:
    """On or off, in one of the usual words; anything else is refused rather than guessed."""
    found = _WORDS.get(said.strip().lower())
    if found is None:
        raise InvalidArgument(field, f"must be one of {', '.join(_WORDS)}; got {said!r}")
    return found


def asks_for_tokens(host: str, said: str | None, *, loopback: bool) -> bool:
    """As it was said; and if nothing was, on wherever other machines reach. There it cannot be turned off."""
    wanted = None if said is None else switch("auth", said)
    if wanted is False and not loopback:
        raise InvalidArgument(
            "host",
            f"{host} is reached from other machines, and LONGSHORE_AUTH or --auth has this server ask nobody who they "
            "are; serve on 127.0.0.1, or leave it on",
        )
    return not loopback if wanted is None else wanted


def session_key(path: Path | None) -> bytes | None:
    """The bytes in the file."""
    if path is None:
        return None
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise InvalidArgument("session_key_file", f"{path} cannot be read: {error.strerror}") from None
    if len(key) < _SHORTEST_KEY:
        raise InvalidArgument(
            "session_key_file", f"{path} has {len(key)} bytes; write {_SHORTEST_KEY} or more that are random into it"
        )
    return key


def no_token_yet(address: str) -> str:
    """What a server that asks for tokens says when there is none; its store may have no address that can be shown."""
    where = address or "<the address of your harbor's store>"
    return (
        "nobody has a token for this store yet, so that nobody can use the API; make one with: "
        f"longshore token create --url {where} --scope admin you"
    )
