"""Wrong credentials, counted for each address: whoever guesses is told to wait, and nobody else is."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from math import ceil
from time import monotonic

from longshore.server.newest import Newest
from longshore.server.refusals import TooMany

ALLOWED = 10
"""Wrong ones in a window: enough for a slip of the hand, and for a program that was not told of a new token yet."""
WINDOW = 60.0
_MOST_REMEMBERED = 10_000
"""Addresses; the one not heard of for the longest is forgotten first."""
_NO_ADDRESS = "no address"
"""Callers whose proxy sent something else than an address count as one."""


class Failures:
    """Those of one server. Only failures are held up: a good credential is let in, whoever else fails beside it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._counts: Newest[str, tuple[float, int]] = Newest(_MOST_REMEMBERED)

    def note(self, address: str) -> None:
        """One more from there; TooMany when they are too many."""
        place, now = neighbourhood(address), self._clock()
        began, count = self._counts.get(place, (now, 0))
        if now - began >= WINDOW:
            began, count = now, 0
        self._counts.put(place, (began, count + 1))
        if count >= ALLOWED:
            seconds = max(1, ceil(began + WINDOW - now))
            raise TooMany(f"too many wrong tokens came from your address; wait {seconds} seconds", seconds)


def neighbourhood(address: str) -> str:
    """Whoever has one IPv6 address has billions beside it: they count as one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _NO_ADDRESS
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
