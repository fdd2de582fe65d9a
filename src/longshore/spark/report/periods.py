"""Stretches of time of one length that follow one another: the columns of every plot over time."""

from __future__ import annotations

from dataclasses import dataclass

from longshore.spark.report.scales import bucket_size, exact


@dataclass(frozen=True)
class Periods:
    """When the first begins, how long each is, and how many there are; times in seconds since 1970."""

    first: int
    step: int
    count: int

    @property
    def starts(self) -> range:
        """When each begins."""
        return range(self.first, self.end, self.step)

    @property
    def end(self) -> int:
        """When the last one ends."""
        return self.first + self.step * self.count

    def number(self, at: int) -> int:
        """Which one a time lies in."""
        return (at - self.first) // self.step

    def told(self, number: int) -> str:
        """One of them, in words."""
        start = self.first + number * self.step
        return f"{exact(start)}, {_LENGTHS.get(self.step) or f'{self.step // 60} min'}"


_LENGTHS = {60: "1 min", 3_600: "1 h", 86_400: "1 day", 7 * 86_400: "1 week"}


def periods_between(first: int, last: int, finest: int, fewest: int = 12, most: int = 120) -> Periods:
    """So many at most that both times lie within, none finer than what is known.

    At least a few, with room on both sides: what happened within a minute is not drawn as wide as the page.
    """
    step = bucket_size(last - first + finest, finest, most)
    begin = first // step * step
    count = (last - begin) // step + 1
    missing = max(0, fewest - count)
    return Periods(begin - missing // 2 * step, step, count + missing)
