"""Timing and statistics of rounds."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time, thread_time
from types import TracebackType
from typing import Self, TypeVar

Work = Callable[[], "Sample"]
S = TypeVar("S", bound="Sample")


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed block of work."""

    seconds: float
    cpu_seconds: float
    """CPU time of all threads of the process."""
    caller_cpu_seconds: float
    """CPU time of the calling thread; the rest is the writer's and the readers'."""
    jobs: int
    calls: int = 1

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds

    @property
    def cpu_micros(self) -> float:
        """Microseconds of CPU time per job."""
        return self.cpu_seconds / self.jobs * 1e6

    @property
    def caller_cpu_micros(self) -> float:
        """The part of `cpu_micros` spent by the calling thread."""
        return self.caller_cpu_seconds / self.jobs * 1e6


class Stopwatch:
    """Times its `with` block. Objects created before are excluded from garbage collection, so inputs cost nothing."""

    def __init__(self, jobs: int, *, calls: int = 1) -> None:
        self.sample = Sample(0, 0, 0, jobs, calls)

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._began = (perf_counter(), process_time(), thread_time())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = (perf_counter(), process_time(), thread_time())
        gc.unfreeze()
        wall, cpu, caller = (end - start for start, end in zip(self._began, ended, strict=True))
        self.sample = Sample(wall, cpu, caller, self.sample.jobs, self.sample.calls)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, extremes and 95th percentile of many measurements."""

    median: float
    least: float
    most: float
    p95: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise at least one measurement."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(statistics.median(ordered), ordered[0], ordered[-1], ordered[round(0.95 * last)], len(ordered))


def alternate(rounds: int, *sides: Callable[[], S]) -> list[list[S]]:
    """Run every side once per round, each round starting with another side, so that noise affects all sides alike.

    One extra round runs first and is discarded. Returns one list per side, paired by position.
    """
    samples: list[list[S]] = [[] for _ in sides]
    for number in range(-1, rounds):
        for offset in range(len(sides)):
            side = (number + offset) % len(sides)
            sample = sides[side]()
            if number >= 0:
                samples[side].append(sample)
    return samples


def paired_ratios(measured: Sequence[Sample], reference: Sequence[Sample]) -> Spread:
    """The ratio of rates per round, so that a noisy round is compared with its own counterpart."""
    return Spread.of(mine.rate / other.rate for mine, other in zip(measured, reference, strict=True))


_BLOCKS = 5


def block_ratios(measured: Sequence[Sample], reference: Sequence[Sample]) -> Spread:
    """The ratio of median times in each fifth of the run: single calls are too short to compare one by one."""
    length = max(1, len(measured) // _BLOCKS)
    ratios = []
    for start in range(0, len(measured) - length + 1, length):
        mine, other = measured[start : start + length], reference[start : start + length]
        ratios.append(_median_seconds(mine) / _median_seconds(other))
    return Spread.of(ratios)


def _median_seconds(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.seconds / sample.calls for sample in samples)
