"""How much is measured: the full sizes, and small ones for a quick look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of one run."""

    rounds: int = 9
    enqueue_calls: int = 30
    life_batches: int = 60
    concurrent_jobs: int = 6_400
    lone_jobs: int = 800
    claims: int = 100
    key_fillings: int = 15
    many: int = 1_000_000
    few: int = 1_000


FULL = Scale()
QUICK = Scale(
    rounds=3,
    enqueue_calls=10,
    life_batches=20,
    concurrent_jobs=1_280,
    lone_jobs=200,
    claims=20,
    key_fillings=3,
    many=50_000,
)
