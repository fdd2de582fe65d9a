"""Clocks: the manual one for tests, and the machine's without small backward steps."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core import clock as clocks
from longshore.core.clock import HeldClock, Machine, SteadyClock, micros_of, read_machine
from longshore.core.errors import InvalidArgument
from longshore.core.times import SECOND, to_micros
from tests.core.staging import NOON, NOW


def reading(*micros: int) -> Callable[[], int]:
    return iter(micros).__next__


def test_a_held_clock_moves_only_when_it_is_advanced() -> None:
    clock = HeldClock(NOON)
    assert clock.now() == clock.now() == NOON
    assert clock.advance(0) == NOON
    assert clock.advance(1.5) == NOON + timedelta(seconds=1.5)
    assert clock.advance(timedelta(days=1)) == clock.now() == NOON + timedelta(days=1, seconds=1.5)


def test_a_held_clock_begins_at_an_aware_time_and_may_be_set_back() -> None:
    clock = HeldClock()
    assert clock.now().utcoffset() == timedelta(0)
    clock.set(NOON - timedelta(days=400))
    assert clock.now() == NOON - timedelta(days=400)


def test_a_held_clock_advances_forward_only() -> None:
    with pytest.raises(InvalidArgument):
        HeldClock().advance(-1)


def test_a_steady_clock_follows_the_machine_forward() -> None:
    clock = SteadyClock(reading(NOW, NOW, NOW + 1, NOW + 10**12))
    assert [clock.micros() for _ in range(4)] == [NOW, NOW, NOW + 1, NOW + 10**12]


@pytest.mark.parametrize("step", [1, SECOND, 2 * SECOND])
def test_a_small_step_back_is_waited_out_and_not_reported(step: int) -> None:
    #
    reported: list[int] = []
    clock = SteadyClock(reading(NOW, NOW - step, NOW - 1, NOW + 1), reported.append)
    assert [clock.micros() for _ in range(4)] == [NOW, NOW, NOW, NOW + 1]
    assert reported == []


@pytest.mark.parametrize("step", [2 * SECOND + 1, 3600 * SECOND, NOW])
def test_a_larger_step_back_is_adopted_and_reported_once(step: int) -> None:
    reported: list[int] = []
    clock = SteadyClock(reading(NOW, NOW - step, NOW - step, NOW - step + 1), reported.append)
    assert [clock.micros() for _ in range(4)] == [NOW, NOW - step, NOW - step, NOW - step + 1]
    assert reported == [step]


def test_small_steps_back_that_add_up_are_measured_from_the_latest_time_shown() -> None:
    reported: list[int] = []
    clock = SteadyClock(reading(NOW, NOW - 2 * SECOND, NOW - 3 * SECOND), reported.append)
    assert [clock.micros() for _ in range(3)] == [NOW, NOW, NOW - 3 * SECOND]
    assert reported == [3 * SECOND]


def test_a_steady_clock_works_without_a_callback() -> None:
    clock = SteadyClock(reading(NOW, NOW - 9 * SECOND))
    assert [clock.micros(), clock.micros()] == [NOW, NOW - 9 * SECOND]


@given(st.lists(st.integers(0, 8 * SECOND), min_size=1, max_size=30))
def test_a_steady_clock_goes_back_only_with_a_report_and_is_never_ahead_of_its_readings(
    readings: Sequence[int],
) -> None:
    reported: list[int] = []
    clock = SteadyClock(reading(*readings), reported.append)
    shown: list[int] = []
    for number, read in enumerate(readings, start=1):
        before = len(reported)
        shown.append(clock.micros())
        went_back = len(shown) > 1 and shown[-1] < shown[-2]
        assert went_back == (len(reported) > before)
        assert read <= shown[-1] <= max(readings[:number])
        assert shown[-1] - read <= SteadyClock.TOLERANCE


def test_a_given_clock_replaces_the_machines_and_is_not_held_steady() -> None:
    clock = HeldClock(datetime(2026, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin")))
    ask = micros_of(clock)
    assert ask() == to_micros(datetime(2026, 7, 1, 12, tzinfo=UTC))
    clock.set(NOON)
    assert ask() == NOW


def test_without_a_clock_the_machines_is_read() -> None:
    ask = micros_of(None)
    first, second = ask(), ask()
    assert to_micros(datetime(2025, 1, 1, tzinfo=UTC)) < first <= second


def test_without_clock_boottime_the_monotonic_clock_and_the_boot_session_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # R2: macOS
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert Machine().boot_id() is None  # only macOS has a boot session
    monkeypatch.setattr(clocks, "_boot_session", lambda: "9F0C")
    assert Machine().boot_id() == "9F0C"
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
    found = read_machine("9F0C").since_boot
    assert before <= found <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000


def test_the_boot_session_is_asked_of_the_system_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # R2: macOS
    class System:
        def __init__(self, _name: None) -> None: ...

        def sysctlbyname(self, name: bytes, found: ctypes.Array[ctypes.c_char], *_: object) -> int:
            assert name == b"kern.bootsessionuuid"
            found.value = answer
            return 0 if answer else -1

    monkeypatch.setattr(ctypes, "CDLL", System)
    answer = b"9F0C"
    assert clocks._boot_session() == "9F0C"
    answer = b""
    assert clocks._boot_session() is None
