"""Missed runs: caught up by policy, within bounds, and without visiting every run of a year."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core import schedule
from longshore.core.repeat import CatchUp, Repeat, planned_times
from longshore.core.schedule import MOST_CAUGHT_UP, MOST_MISSED, ON_TIME, due_now, due_runs
from longshore.core.times import SECOND, to_micros
from tests.core.clock_changes import CHANGING, changes
from tests.core.staging import NOON, NOW

HOUR = 3600 * SECOND
MINUTE = 60 * SECOND
CRONS = ("*/10 * * * *", "0 * * * *", "30 2 * * *", "0 0 * * *", "15 1,2,3 * * *", "30 1 * * 0", "0 0 L * *")
THREE_DAYS = 3 * 24 * HOUR


def catching(repeat: Repeat, first: int, now: int, left: int | None = None) -> tuple[list[int], int | None]:
    """One pass of a scheduler."""
    return due_runs(repeat, first, now, left)


MINUTELY = [{"every": 60}, {"cron": "* * * * *"}]


@pytest.mark.parametrize("minutely", MINUTELY, ids=["every", "cron"])
def test_three_days_asleep_collapse_into_the_last_missed_run(minutely: dict[str, Any]) -> None:
    #
    repeat = Repeat(**minutely, catch_up="last")
    now = NOW + THREE_DAYS + 30 * SECOND
    assert catching(repeat, NOW, now) == ([NOW + THREE_DAYS], NOW + THREE_DAYS + MINUTE)


def test_the_last_of_many_missed_seconds_is_found_without_walking_through_them(monkeypatch: pytest.MonkeyPatch) -> None:
    #
    walked = 0

    def counted(*given: Any) -> Iterator[int]:
        nonlocal walked
        for planned in planned_times(*given):
            walked += 1
            yield planned

    monkeypatch.setattr(schedule, "planned_times", counted)
    now = NOW + THREE_DAYS
    for catch_up in ("last", "none"):
        assert catching(Repeat(cron="* * * * * *", tz="Asia/Kathmandu", catch_up=catch_up), NOW, now)[0] == [now]
    assert walked < 20


@pytest.mark.parametrize("minutely", MINUTELY, ids=["every", "cron"])
def test_three_days_asleep_are_made_up_for_in_order_and_in_bounded_passes(minutely: dict[str, Any]) -> None:
    repeat = Repeat(**minutely, catch_up="all")
    now = NOW + THREE_DAYS
    wanted = [NOW + number * MINUTE for number in range(3 * 24 * 60 + 1)]
    made: list[int] = []
    upcoming: int | None = NOW
    while upcoming is not None and upcoming <= now:
        due, upcoming = catching(repeat, upcoming, now)
        assert 1 <= len(due) <= MOST_CAUGHT_UP
        made += due
    assert made == wanted
    assert upcoming == now + MINUTE


LONG = 400 * 24 * HOUR


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("often", "step"),
    [
        ({"every": 1}, SECOND),
        ({"every": 60}, MINUTE),
        ({"cron": "* * * * *"}, MINUTE),
        ({"cron": "*/10 * * * * *"}, 10 * SECOND),
        ({"cron": "*/30 * * * *"}, 30 * MINUTE),
    ],
    ids=str,
)
def test_of_a_year_asleep_only_the_last_runs_are_made_up_for(often: dict[str, Any], step: int) -> None:
    #
    now = NOW + LONG
    due, upcoming = catching(Repeat(**often, catch_up="all"), NOW, now)
    assert due[0] == now - (MOST_MISSED - 1) * step
    assert (len(due), upcoming) == (MOST_CAUGHT_UP, due[-1] + step)
    assert catching(Repeat(**often, catch_up="all"), due[-1] + step, now)[0][0] == due[-1] + step


@pytest.mark.timeout(20)
def test_of_a_year_asleep_all_runs_are_made_up_for_where_they_are_few() -> None:
    #
    daily = Repeat(cron="0 12 * * *", catch_up="all")
    assert catching(daily, NOW, NOW + LONG)[0] == [NOW + number * 24 * HOUR for number in range(MOST_CAUGHT_UP)]


@pytest.mark.parametrize("rare", [{"every": 3600}, {"cron": "0 * * * *"}], ids=["every", "cron"])
def test_a_schedule_that_makes_up_for_nothing_runs_only_what_is_on_time(rare: dict[str, Any]) -> None:
    repeat = Repeat(**rare, catch_up="none")
    last, following = NOW + THREE_DAYS, NOW + THREE_DAYS + HOUR
    assert catching(repeat, NOW, last) == ([last], following)
    assert catching(repeat, NOW, last + ON_TIME) == ([last], following)
    assert catching(repeat, NOW, last + ON_TIME + 1) == ([], following)


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_a_run_on_time_is_made_whatever_the_policy(catch_up: CatchUp) -> None:
    assert catching(Repeat(every=60, catch_up=catch_up), NOW, NOW) == ([NOW], NOW + MINUTE)


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_a_run_is_not_made_a_microsecond_before_its_time(catch_up: CatchUp) -> None:
    assert catching(Repeat(every=60, catch_up=catch_up), NOW, NOW - 1) == ([], NOW)


def test_what_is_left_of_a_limit_bounds_what_is_made_up_for() -> None:
    # M-OPT-12 X-93
    repeat = Repeat(every=60, limit=5, catch_up="all")
    due, upcoming = catching(repeat, NOW, NOW + THREE_DAYS, left=3)
    assert due == [NOW, NOW + MINUTE, NOW + 2 * MINUTE]
    assert upcoming == NOW + 3 * MINUTE


@pytest.mark.parametrize("catch_up", ["last", "all"])
def test_after_the_end_what_was_missed_before_it_is_still_made_and_nothing_follows(catch_up: CatchUp) -> None:
    # M-OPT-13 X-93
    repeat = Repeat(every=60, end=NOON + timedelta(seconds=150), catch_up=catch_up)
    due, upcoming = catching(repeat, NOW, NOW + THREE_DAYS)
    assert due == ([NOW + 2 * MINUTE] if catch_up == "last" else [NOW, NOW + MINUTE, NOW + 2 * MINUTE])
    assert upcoming is None


def walking(repeat: Repeat, first: int) -> Iterator[int]:
    return chain([first], planned_times(repeat, first, first))


@given(
    st.integers(1, 400),
    st.integers(-5, 300_000),
    st.none() | st.integers(0, 300_000),
    st.sampled_from(["none", "last", "all"]),
)
def test_skipping_what_was_missed_of_an_interval_equals_walking_through_it(
    step: int, passed: int, end: int | None, catch_up: CatchUp
) -> None:
    #
    # in milliseconds; at most 300 times the step, so that walking stays quick
    passed = min(passed, step * 300)
    until = None if end is None else NOON + timedelta(milliseconds=min(end, step * 400))
    repeat = Repeat(every=timedelta(milliseconds=step), end=until, catch_up=catch_up)
    now = NOW + passed * 1000
    assert catching(repeat, NOW, now) == due_now(repeat, walking(repeat, NOW), now)


@given(
    st.sampled_from([*CRONS, "0 5 * * 1", "0 0 1 * *", "0 0 1 1 *"]),
    st.sampled_from(CHANGING),
    st.sampled_from(["none", "last"]),
    st.data(),
)
def test_skipping_what_was_missed_of_a_cron_equals_walking_through_it(
    cron: str, zone: str, catch_up: CatchUp, data: st.DataObject
) -> None:
    #
    change = to_micros(data.draw(st.sampled_from(changes(zone))))
    # the hour and the two days before `now` begin near a change of the clocks
    back = data.draw(st.sampled_from([0, HOUR, 48 * HOUR]))
    now = change + back + data.draw(st.integers(-180, 180)) * MINUTE
    repeat = Repeat(cron=cron, tz=zone, catch_up=catch_up)
    first = next(planned_times(repeat, now - data.draw(st.integers(0, 10 * 24)) * HOUR, 0))
    assert catching(repeat, first, now) == due_now(repeat, walking(repeat, first), now)
