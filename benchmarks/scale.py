"""How much is measured: the full sizes, and small ones for a quick look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of one run."""

    rounds: int = 21
    """Many short rounds rather than few long ones: the two sides of a round should see the same machine."""
    enqueue_calls: int = 10
    life_batches: int = 20
    concurrent_jobs: int = 2_560
    lone_jobs: int = 300
    scans: int = 7
    """How often a look that reads a million rows is repeated."""
    claims: int = 100
    key_fillings: int = 15
    many: int = 1_000_000
    few: int = 1_000


FULL = Scale()
QUICK = Scale(
    rounds=5,
    concurrent_jobs=1_280,
    lone_jobs=200,
    scans=3,
    claims=20,
    key_fillings=3,
    many=50_000,
)
