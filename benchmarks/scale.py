"""The sizes of a benchmark run, full and quick."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of one run."""

    rounds: int = 21
    """Many short rounds rather than few long ones, so that both sides of a round see the same load."""
    enqueue_calls: int = 10
    life_batches: int = 20
    concurrent_jobs: int = 2_560
    lone_jobs: int = 300
    scans: int = 7
    """Repetitions of a read over a million rows."""
    claims: int = 100
    key_fillings: int = 15
    claimer_jobs: int = 10_000
    wakeups: int = 500
    drains: int = 7
    """Rounds of drains, each with new processes; start-up is not measured."""
    drained_jobs: int = 20_000
    starts: int = 500
    late_starts: int = 20
    idle_seconds: int = 5
    single_jobs: int = 500
    sleepers: int = 10_000
    slept_seconds: int = 40
    passed: int = 300_000
    """Jobs that pass while another session holds a snapshot."""
    schedules: int = 10_000
    due: int = 100_000
    """Jobs that become due at the same time."""
    watched_seconds: int = 8
    lake_events: int = 10_000_000
    written_rows: int = 300_000
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
    claimer_jobs=5_000,
    wakeups=200,
    drains=3,
    drained_jobs=5_000,
    starts=100,
    late_starts=3,
    idle_seconds=2,
    single_jobs=200,
    sleepers=1_000,
    slept_seconds=12,
    passed=50_000,
    schedules=1_000,
    due=20_000,
    watched_seconds=3,
    lake_events=200_000,
    written_rows=30_000,
    many=50_000,
)
