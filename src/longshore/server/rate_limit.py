"""Rate limits of job updates and of repeated log lines, and the LRU dict they use."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from longshore.server.http_errors import TooMany

K = TypeVar("K")
V = TypeVar("V")


class LRU(OrderedDict[K, V]):
    """A dict with a maximum size; `put` drops the oldest entry."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Set a value and make it the newest."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


_PER_SECOND = 200.0
_AT_ONCE = 1_000.0
"""Updates in a burst: enough for a job that logs much, too few for a runaway loop."""
_MOST_KNOWN = 10_000


class Notes:
    """Counts updates per caller and job or worker; forgets those without recent updates."""

    def __init__(self) -> None:
        self._left: LRU[tuple[str, str], tuple[float, float]] = LRU(_MOST_KNOWN)

    def count(self, caller: str, about: str) -> None:
        """Count one more, or raise TooMany. Buckets are per caller, so one caller cannot drain another's quota."""
        now, name = monotonic(), (caller, about)
        left, at = self._left.get(name, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - at) * _PER_SECOND)
        self._left.put(name, (left - 1 if left >= 1 else left, now))
        if left < 1:
            raise TooMany(f"more than {_PER_SECOND:.0f} updates per second for {about!r}; send fewer", 1)


INTERVAL = 60.0
"""Seconds during which a message is logged once."""
_MOST_LINES = 100
"""The most tracked messages; a preformatted message differs each time."""
_SUMMARY = "summary_of_repeated_lines"


def _on_the_loop(seconds: float, call: Callable[[], None]) -> None:
    try:
        asyncio.get_running_loop().call_later(seconds, call)
    except RuntimeError:  # no loop runs in this thread: the next line after the interval is logged
        return


class RepeatedLines(logging.Filter):
    """Logs a warning once per interval, and counts the rest."""

    def __init__(
        self,
        logger: logging.Logger,
        only: Collection[str] | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        later: Callable[[float, Callable[[], None]], None] = _on_the_loop,
    ) -> None:
        """`only` are the messages to limit, before formatting; None limits every warning."""
        super().__init__()
        self._logger = logger
        self._only = only
        self._clock = clock
        self._later = later
        self._written: dict[str, float] = {}
        self._left_out: dict[str, tuple[int, str]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged."""
        message = str(record.msg)
        if record.levelno != logging.WARNING or hasattr(record, _SUMMARY):
            return True
        if self._only is not None and message not in self._only:
            return True
        written = self._written.get(message)
        if written is not None and self._clock() - written < 2 * INTERVAL:
            number, _ = self._left_out.get(message, (0, ""))
            self._left_out[message] = number + 1, record.getMessage()
            return False
        if written is None and len(self._written) >= _MOST_LINES:
            return True
        self._begin_interval(message)
        return True

    def _begin_interval(self, message: str) -> None:
        self._left_out.pop(message, None)
        self._written[message] = self._clock()
        self._later(INTERVAL, lambda: self._sum_up(message))

    def _sum_up(self, message: str) -> None:
        number, last = self._left_out.pop(message, (0, ""))
        if not number:
            self._written.pop(message, None)
            return
        self._begin_interval(message)
        text = "repeated %s more times in %.0f seconds: %s"
        self._logger.warning(text, f"{number:,}", INTERVAL, last, extra={_SUMMARY: True})


@contextmanager
def without_repetition(name: str, only: Collection[str] | None = None) -> Iterator[None]:
    """Rate-limits the warnings of this logger inside the context."""
    logger = logging.getLogger(name)
    found = RepeatedLines(logger, only)
    logger.addFilter(found)
    try:
        yield
    finally:
        logger.removeFilter(found)
