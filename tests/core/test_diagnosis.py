"""The findings of `doctor`, from plain facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from longshore import Job, Repeat
from longshore.core.health import (
    Condition,
    Finding,
    Rows,
    Silent,
    judge_clock,
    judge_schedules,
    judge_store,
    judge_workers,
)
from longshore.core.schedule import Schedule

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
GIB = 1024**3
FILE = Condition(
    engine="SQLite",
    version=(3, 54, 1),
    schema_version=5,
    settings={"journal_mode": "wal", "synchronous": "full"},
    size=GIB,
    log_size=1024,
    disk_free=100 * GIB,
)
SERVER = Condition(
    engine="PostgreSQL",
    version=(17, 2),
    schema_version=5,
    settings={"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"},
    size=GIB,
    tables={"jobs": Rows(1_000_000, 50_000)},
    held_for=timedelta(seconds=3),
    held_by="session 1",
)


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    assert all(bool(one.fix) == (one.level != "ok") for one in findings), (
        "what is wrong has a way out, and nothing else"
    )
    return [(one.check, one.level) for one in findings if one.level != "ok"]


@pytest.mark.parametrize("sound", [FILE, SERVER])
def test_a_store_in_order_has_nothing_wrong(sound: Condition) -> None:
    assert bad(list(judge_store(sound))) == []


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (replace(FILE, version=(3, 51, 2)), ("version", "problem")),
        (replace(FILE, settings={"synchronous": "normal"}), ("synchronous", "problem")),
        (replace(FILE, settings={"journal_mode": "delete"}), ("journal_mode", "problem")),
        (replace(FILE, log_size=GIB), ("log", "warning")),
        (replace(FILE, unused=GIB * 3 // 4), ("bloat", "warning")),
        (replace(FILE, disk_free=1024), ("disk", "problem")),
        (replace(SERVER, settings={"fsync": "off"}), ("fsync", "problem")),
        (replace(SERVER, settings={"synchronous_commit": "off"}), ("synchronous_commit", "problem")),
        (replace(SERVER, held_for=timedelta(hours=1)), ("snapshots", "problem")),
        (replace(SERVER, tables={"jobs": Rows(1_000, 200_000)}), ("bloat", "warning")),
    ],
)
def test_each_thing_that_is_wrong_with_a_store_is_found_alone(condition: Condition, found: tuple[str, str]) -> None:
    assert bad(list(judge_store(condition))) == [found]


@pytest.mark.parametrize(("skew", "level"), [(0, "ok"), (1.5, "ok"), (-1.5, "ok"), (90, "problem"), (-7200, "problem")])
def test_clocks_may_differ_by_as_much_as_a_time_server_leaves(skew: float, level: str) -> None:
    assert judge_clock(NOW + timedelta(seconds=skew), NOW).level == level


def test_a_silent_worker_is_worse_with_jobs_in_its_hands_and_none_at_all_is_bad_if_jobs_wait() -> None:
    silent = [Silent("idle", NOW - timedelta(minutes=5), 0), Silent("busy", NOW - timedelta(hours=5), 3)]
    assert bad(list(judge_workers(silent, 1, 10, NOW))) == [("workers", "warning"), ("workers", "problem")]
    assert bad(list(judge_workers([], 0, 0, NOW))) == []
    assert bad(list(judge_workers([], 0, 1, NOW))) == [("workers", "problem")]


def test_an_overdue_or_self_paused_schedule_is_a_finding() -> None:
    sound = Schedule(id="s", job=Job(type="t"), repeat=Repeat(every=60), next_run_at=NOW + timedelta(seconds=1))
    assert bad(list(judge_schedules([sound, replace(sound, paused=True)], NOW))) == []
    late = replace(sound, next_run_at=NOW - timedelta(minutes=5))
    assert bad(list(judge_schedules([late], NOW))) == [("schedules", "problem")]
    gave_up = replace(sound, paused=True, error="its jobs cannot be made")
    assert bad(list(judge_schedules([gave_up], NOW))) == [("schedules", "problem")]
