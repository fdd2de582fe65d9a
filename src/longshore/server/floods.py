"""How often one job may be written about: a worker that floods its progress or log is slowed down, and nobody else."""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic

from longshore.server.refusals import TooMany

_PER_SECOND = 200.0
_AT_ONCE = 1_000.0
"""Notes a job may write in a burst: a chatty job is not held up, a loop that has run wild is."""
_JOBS_KNOWN = 10_000


class Notes:
    """Counts what is written about each job; jobs that were quiet for long are forgotten."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def count(self, caller: str, job_id: str) -> None:
        """One more, or TooMany; whoever else writes about a job that is not theirs uses up nothing of its worker's."""
        now, name = monotonic(), (caller, job_id)
        left, at = self._left.pop(name, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - at) * _PER_SECOND)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _JOBS_KNOWN:
            self._left.popitem(last=False)
        if left < 1:
            raise TooMany(f"job {job_id!r} writes more than {_PER_SECOND:.0f} notes a second; write fewer", 1)
