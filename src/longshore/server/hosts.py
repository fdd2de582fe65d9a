"""By which names a server may be called: a page that has its own name point here is answered nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from longshore.core.errors import InvalidArgument
from longshore.server.refusals import WrongHost

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
