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
    """The host names of one server. `strict` is for a loopback address, and for a server without authentication."""

    def __init__(self, allowed: Iterable[str], *, strict: bool) -> None:
        self._allowed = frozenset(_checked(name) for name in allowed)
        self.strict = strict

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises WrongHost unless the request names this server."""
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1:
            raise InvalidArgument("host", "a request must have one Host header")
        found = _HOST.fullmatch(given[0].decode("latin-1"))
        if found is None:
            raise InvalidArgument("host", "the Host header is not a name or an address")
        name = found[1].strip("[]").lower().rstrip(".")
        if not self._answers_to(name):
            raise WrongHost(f"host not allowed: {name!r}; add it with --allowed-host")

    def _answers_to(self, name: str) -> bool:
        if name in self._allowed or name == LOOPBACK_NAME:
            return True
        if not self.strict and not self._allowed:  # callers need a token, under any host name
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self.strict or address.is_loopback  # an address is not a name that others could point here


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
"""What a browser sends for a request of our own page, or of a typed address."""
_REFUSED = "a page of another origin sent this; only this server's own pages may"


def check_origin(request: Request, *, proof: bool = False) -> None:
    """Raises Forbidden if another origin sent it; with `proof`, also if the origin is unknown.

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
    except ValueError:  # not an address, so not our origin
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
