"""Limits: rates in windows, and free slots."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.limits import (
    UNLIMITED,
    Rate,
    Window,
    check_limit,
    check_rate,
    free_slots_in,
    free_slots_under,
    rate_of,
)
from longshore.core.times import SECOND
from tests.core.staging import NOW

MINUTE = 60 * SECOND


@pytest.mark.parametrize(
    ("limit", "running", "free_slots"),
    [(None, 10**6, UNLIMITED), (3, 0, 3), (3, 2, 1), (3, 3, 0), (3, 5, 0), (1, 0, 1)],
)
def test_room_under_a_limit_is_what_is_left_of_it_and_never_negative(
    limit: int | None, running: int, free_slots: int
) -> None:
    # M-FUT-07
    assert free_slots_under(limit, running) == free_slots


def test_without_a_rate_free_slots_are_unlimited() -> None:
    assert free_slots_in(None, Window(NOW, 10**9), NOW) == UNLIMITED


@given(
    st.integers(1, 5),
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=40),
)
def test_no_window_since_1970_ever_sees_more_starts_than_the_rate_allows_nor_fewer_than_were_asked(
    count: int, per: int, asks: list[tuple[int, int]]
) -> None:
    # M-FUT-08
    rate = Rate(count, timedelta(microseconds=per))
    window = Window()
    now = NOW
    started: Counter[int] = Counter()
    for passed, wanted in asks:
        now += passed
        granted = min(wanted, free_slots_in(rate, window, now))
        assert granted == min(wanted, count - started[now // per])
        window = window.at(rate, now).after(granted)
        started[now // per] += granted
    assert all(starts <= count for starts in started.values())


@given(st.integers(1, 10**9), st.integers(0, 2**53))
def test_a_window_holds_its_moment_and_ends_where_the_next_begins(per: int, now: int) -> None:
    rate = Rate(1, timedelta(microseconds=per))
    window = Window().at(rate, now)
    assert window.start <= now < window.end(rate)
    assert window.start % per == 0
    assert window.end(rate) == window.start + per
    later = window.after(1).at(rate, window.end(rate))
    assert (later.start, later.count) == (window.end(rate), 0)


def test_a_small_step_back_of_the_clock_opens_no_new_window() -> None:
    rate = Rate(2, 60)
    start = NOW - NOW % MINUTE
    full = Window(start, 2)
    assert free_slots_in(rate, full, start - SECOND) == 0


@pytest.mark.parametrize("step", [timedelta(minutes=5), timedelta(days=365)])
def test_a_clock_that_was_far_ahead_and_is_corrected_blocks_no_start(step: timedelta) -> None:
    rate = Rate(2, 60)
    ahead = NOW + step // timedelta(microseconds=1)
    full = Window().at(rate, ahead).after(2)
    assert free_slots_in(rate, full, NOW) == 2
    assert full.at(rate, NOW).end(rate) <= NOW + MINUTE


@pytest.mark.parametrize(
    ("before", "after"), [(Rate(1, 60), Rate(1, 86_400)), (Rate(1, 86_400), Rate(1, 60)), (Rate(1, 7), Rate(1, 13))]
)
def test_a_rate_that_is_changed_wakes_its_jobs_when_its_own_next_window_begins(before: Rate, after: Rate) -> None:
    window = Window().at(before, NOW).after(1).at(after, NOW)
    now = NOW
    if free_slots_in(after, window, now) == 0:
        now = window.end(after)
        assert now <= NOW + after.per_micros
        assert free_slots_in(after, window, now - 1) == 0
    assert free_slots_in(after, window, now) > 0


def test_a_rate_is_the_same_however_its_window_is_written() -> None:
    assert Rate(5, 60) == Rate(5, 60.0) == Rate(5, timedelta(minutes=1))
    assert Rate(5, timedelta(minutes=1)).per_micros == MINUTE


@given(st.integers(1, 2**31 - 1), st.integers(1, 10**15))
def test_a_rate_comes_back_from_its_two_stored_numbers(count: int, per: int) -> None:
    rate = Rate(count, timedelta(microseconds=per))
    assert rate_of(rate.count, rate.per_micros) == rate


def test_no_rate_comes_back_from_no_numbers() -> None:
    assert rate_of(None, None) is None
    assert rate_of(5, None) is None
    assert rate_of(None, 60) is None


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None, "5", 2**70])
def test_a_rate_counts_in_whole_numbers_from_one_that_every_store_can_hold(count: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Rate(cast(Any, count), 60)
    assert refusal.value.field == "rate.count"


@pytest.mark.parametrize("per", [0, -1, None, "60", float("nan"), timedelta(0)])
def test_a_window_has_a_length(per: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Rate(1, cast(Any, per))
    assert refusal.value.field == "rate.per"


@pytest.mark.parametrize("value", [None, 1, 2**31 - 1])
def test_a_limit_is_none_or_at_least_one(value: int | None) -> None:
    assert check_limit("running", value) == value


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", 2**70])
def test_a_limit_that_no_store_could_hold_or_that_would_stop_the_queue_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_limit("running", value)
    assert refusal.value.field == "running"


def test_a_rate_is_a_rate_or_none() -> None:
    rate = Rate(1, 1)
    assert check_rate("rate", rate) is rate
    assert check_rate("rate", None) is None
    for odd in (5, (1, 60), "1/60"):
        with pytest.raises(InvalidArgument) as refusal:
            check_rate("rate", odd)
        assert refusal.value.field == "rate"
