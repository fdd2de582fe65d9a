"""The part of a store's address that is safe to show: never a user name, a password or an option."""

from __future__ import annotations

import re

HIDDEN = "…"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^/:@\[\]]*)(?::[0-9]+)?"
_PLACE = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^@]*)?")


def shown_address(url: str) -> str:
    """The scheme, the host and the path, without anything that may belong to a user name or password.

    A password with an unescaped `/`, `@` or `?` moves the boundaries of the address. Only the text after the last `@`
    is certain not to belong to it.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return HIDDEN
    if scheme == "sqlite":
        return url if rest.startswith("/") else f"sqlite://{HIDDEN}"
    before, _, query = rest.partition("?")
    place = before.rpartition("@")[2]
    certain = "@" not in query and _PLACE.fullmatch(place)
    return f"{scheme}://{place if certain else HIDDEN}"
