"""Where a browser's request comes from: a page of another origin changes nothing here, and reads nothing."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request

from longshore.core.errors import Forbidden
from longshore.server.refusals import WrongMediaType

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
