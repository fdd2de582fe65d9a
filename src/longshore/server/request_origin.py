"""Checks of the Host and Origin headers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from fastapi import Request

from longshore.core.errors import Forbidden, InvalidArgument
from longshore.server.http_errors import WrongHost, WrongMediaType

LOOPBACK_NAME = "localhost"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/?#@\s]+)(?::(\d{1,5}))?")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class Hosts:
    """The names of one server. `strict` is for an address of this machine alone, and for a server that asks nobody."""

    def __init__(self, allowed: Iterable[str], *, strict: bool) -> None:
        self._allowed = frozenset(_checked(name) for name in allowed)
        self.strict = strict

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """WrongHost unless the request was meant for us."""
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1:
            raise InvalidArgument("host", "a request must have one Host header")
        found = _HOST.fullmatch(given[0].decode("latin-1"))
        if found is None:
            raise InvalidArgument("host", "the Host header is not a name or an address")
        name = found[1].strip("[]").lower().rstrip(".")
        if not self._answers_to(name):
            raise WrongHost("this server is not called so; start it with --allowed-host and the name to have it answer")

    def _answers_to(self, name: str) -> bool:
        if name in self._allowed or name == LOOPBACK_NAME:
            return True
        if not self.strict and not self._allowed:  # whoever calls must show a token, whatever name led them here
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self.strict or address.is_loopback  # an address is nobody's name, and points nowhere else


def _checked(name: str) -> str:
    lowered = name.strip().strip("[]").lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(lowered))
    except ValueError:
        if not _NAME.fullmatch(lowered):
            raise InvalidArgument(
                "allowed_host", f"must be a name without port or path, like jobs.example.org; got {name!r}"
            ) from None
        return lowered


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_OWN = frozenset({"same-origin", "none"})
"""What a browser says of a request by our own page, or by somebody who typed the address."""
_REFUSED = "a page of another origin sent this; only this server's own pages may"


def check_origin(request: Request, *, proof: bool = False) -> None:
    """Forbidden if another origin sent it; with `proof`, also if nothing tells who did.

    Programs other than browsers tell nothing, and need not. A link from elsewhere to one of our pages may be followed.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site not in _OWN and not _is_followed_link(request):
            raise Forbidden(_REFUSED)
        return
    if request.method in SAFE and not proof:
        return
    origin = request.headers.get("origin")
    if origin is None:
        if proof:
            raise Forbidden("nothing tells which page sent this; use a browser that sends Origin, or a token")
    elif origin == "null" or _host_of(origin) != request.headers.get("host", "").lower():
        raise Forbidden(_REFUSED)


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # no address at all, and so not ours
        return None


def _is_followed_link(request: Request) -> bool:
    return (
        request.method in SAFE
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest") == "document"
    )


def check_media_type(request: Request) -> None:
    """WrongMediaType for whatever a plain form could send: a body that is said to be JSON makes a browser ask first."""
    given = request.headers.get("content-type")
    if given is None:
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise WrongMediaType("content-type: is missing; send the body as application/json")
        return
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise WrongMediaType(f"content-type: must be application/json, not {kind[:100]!r}")
