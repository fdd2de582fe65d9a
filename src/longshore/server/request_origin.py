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
    """The host names of one server. `strict` is for loopback addresses and servers without authentication."""

    def __init__(self, allowed: Iterable[str], *, strict: bool) -> None:
        self._allowed = frozenset(_checked(name) for name in allowed)
        self.strict = strict

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise WrongHost unless the Host header is allowed."""
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1:
            raise InvalidArgument("host", "a request must have exactly one Host header")
        found = _HOST.fullmatch(given[0].decode("latin-1"))
        if found is None:
            raise InvalidArgument("host", "the Host header must be a host name or an address")
        name = found[1].strip("[]").lower().rstrip(".")
        if not self._answers_to(name):
            mounted = "mounted: ServerOptions(allowed_hosts=…)"
            raise WrongHost(f"host not allowed: {name!r}; start the server with --allowed-host {name} ({mounted})")

    def _answers_to(self, name: str) -> bool:
        if name in self._allowed or name == LOOPBACK_NAME:
            return True
        if not self.strict and not self._allowed:  # callers need a token, so any host name is safe
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self.strict or address.is_loopback  # unlike a name, an address cannot be pointed here by DNS


def _checked(name: str) -> str:
    lowered = name.strip().strip("[]").lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(lowered))
    except ValueError:
        if not _NAME.fullmatch(lowered):
            raise InvalidArgument(
                "allowed_host", f"must be a name without port or path, such as jobs.example.org; got {name!r}"
            ) from None
        return lowered


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_OWN = frozenset({"same-origin", "none"})
"""The values of Sec-Fetch-Site for this server's pages and for typed addresses."""
_REFUSED = "cross-origin request refused; only pages of this server may send it"


def check_origin(request: Request, *, proof: bool = False) -> None:
    """Raise Forbidden for a request from another origin; with `proof`, also from an unknown origin.

    Programs that are not browsers send no origin. Links from other sites to pages of this server are allowed.
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
            raise Forbidden("missing Origin header; use a browser that sends it, or an API token")
    elif origin == "null" or _host_of(origin) != request.headers.get("host", "").lower():
        raise Forbidden(_REFUSED)


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # not a URL, so not this server's origin
        return None


def _is_followed_link(request: Request) -> bool:
    return (
        request.method in SAFE
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest") == "document"
    )


def check_media_type(request: Request) -> None:
    """Raise WrongMediaType for the types an HTML form can send; for JSON a browser asks permission first (CORS)."""
    given = request.headers.get("content-type")
    if given is None:
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise WrongMediaType("content-type: is missing; send the body as application/json")
        return
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise WrongMediaType(f"content-type: must be application/json; got {kind[:100]!r}")
