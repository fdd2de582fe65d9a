"""Findings: a figure with its reference and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.measuring import Sample, Spread, block_ratios, paired_ratios


@dataclass(frozen=True, slots=True)
class Target:
    """The bound of a ratio, or of a figure if a unit is given."""

    bound: Literal["≥", "≤", "<"]
    value: float
    unit: str = "×"

    def met_by(self, figure: float) -> bool:
        """Whether the figure meets the target."""
        if self.bound == "≥":
            return figure >= self.value
        return figure <= self.value if self.bound == "≤" else figure < self.value

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table: the product, bare SQL on the same rows, and the reference of the target."""

    name: str
    unit: str
    product: Spread
    bare: Spread | None = None
    compared_with: str = ""
    reference: Spread | None = None
    ratio: Spread | None = None
    target: Target | None = None
    cpu_micros: float | None = None
    """CPU time per job, of all threads of the product."""
    caller_cpu_micros: float | None = None
    """The part of it in the caller's event loop."""
    bare_cpu_micros: float | None = None

    @property
    def judged(self) -> float:
        """The figure that the target bounds."""
        ratio_counts = self.ratio is not None and (self.target is None or self.target.unit == "×")
        return self.ratio.median if ratio_counts and self.ratio is not None else self.product.median

    @property
    def verdict(self) -> str:
        """`ok`, `short`, or empty without a target."""
        if self.target is None:
            return ""
        return "ok" if self.target.met_by(self.judged) else "short"


def rates(
    name: str,
    product: Sequence[Sample],
    bare: Sequence[Sample] = (),
    *,
    reference: Sequence[Sample] | None = None,
    compared_with: str = "bare SQL",
    target: Target | None = None,
) -> Finding:
    """One alternating run in jobs per second, compared with bare SQL by default."""
    other = bare if reference is None else reference
    return Finding(
        name,
        "jobs/s",
        Spread.of(sample.rate for sample in product),
        Spread.of(sample.rate for sample in bare) if bare else None,
        compared_with,
        Spread.of(sample.rate for sample in other),
        paired_ratios(product, other),
        target,
        *_cpu(product),
        _cpu(bare)[0] if bare else None,
    )


def durations(
    name: str,
    product: Sequence[Sample],
    bare: Sequence[Sample] = (),
    *,
    reference: Sequence[Sample] = (),
    compared_with: str = "",
    target: Target | None = None,
) -> Finding:
    """One alternating run in milliseconds per call, compared with a reference if given."""
    return Finding(
        name,
        "ms",
        _milliseconds(product),
        _milliseconds(bare) if bare else None,
        compared_with,
        _milliseconds(reference) if reference else None,
        block_ratios(product, reference) if reference else None,
        target,
        *_cpu(product),
        _cpu(bare)[0] if bare else None,
    )


def _milliseconds(samples: Sequence[Sample]) -> Spread:
    return Spread.of(sample.seconds / sample.calls * 1e3 for sample in samples)


def _cpu(samples: Sequence[Sample]) -> tuple[float, float]:
    return median(sample.cpu_micros for sample in samples), median(sample.caller_cpu_micros for sample in samples)
