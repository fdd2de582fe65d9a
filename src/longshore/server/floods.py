"""How often a job or worker may be written about: one that floods its progress or log is slowed down, no other is."""

from __future__ import annotations

from time import monotonic

from longshore.server.newest import Newest
from longshore.server.refusals import TooMany

_PER_SECOND = 200.0
_AT_ONCE = 1_000.0
"""Notes in a burst: a chatty job is not held up, a loop that has run wild is."""
_MOST_KNOWN = 10_000


class Notes:
    """Counts what is written about each; what was quiet for long is forgotten."""

    def __init__(self) -> None:
        self._left: Newest[tuple[str, str], tuple[float, float]] = Newest(_MOST_KNOWN)

    def count(self, caller: str, about: str) -> None:
        """One more, or TooMany; whoever writes about what is not theirs uses up nothing of whose it is."""
        now, name = monotonic(), (caller, about)
        left, at = self._left.get(name, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - at) * _PER_SECOND)
        self._left.put(name, (left - 1 if left >= 1 else left, now))
        if left < 1:
            raise TooMany(f"more than {_PER_SECOND:.0f} notes a second come about {about!r}; write fewer", 1)
