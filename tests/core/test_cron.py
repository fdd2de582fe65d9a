"""Repeating work: planned times across the calendar's oddities, and which missed ones are made up for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import chain, islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.cron import (
    MOST_MADE_UP,
    ON_TIME,
    CatchUp,
    Repeat,
    Schedule,
    check_schedule,
    due_now,
    next_times,
    planned_times,
    skip_missed,
)
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.moments import SECOND, from_micros, to_micros
from tests.core.staging import NOON, NOW

HOUR = 3600 * SECOND
MINUTE = 60 * SECOND
# both hemispheres, half-hour changes, midnight changes, offsets of 45 minutes, both sides of the date line, none at all
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Lisbon",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Beirut",
    "Asia/Jerusalem",
    "Asia/Tehran",
    "Asia/Kathmandu",
    "Asia/Tokyo",
    "Australia/Lord_Howe",
    "Australia/Adelaide",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "America/Nuuk",
    "Atlantic/Azores",
)
TIMES_OF_DAY = [time(hour, minute) for hour in (0, 1, 2, 3) for minute in (0, 15, 30)] + [time(12, 0), time(23, 30)]


@cache
def changes_in_2026(zone: str) -> tuple[datetime, ...]:
    """The hours in whose course the zone's offset changes, found by looking at every one."""
    hours = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number) for number in range(365 * 24)]
    local = ZoneInfo(zone)
    return tuple(b for a, b in pairwise(hours) if a.astimezone(local).utcoffset() != b.astimezone(local).utcoffset())


def when_it_comes(day: date, at: time, zone: ZoneInfo) -> datetime:
    """The reference: the first instant at which the clock on the wall shows this time of this day, or is past it."""
    wall = datetime.combine(day, at)
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    minute = instant - timedelta(hours=3)
    while minute.astimezone(zone).replace(tzinfo=None) < wall:
        minute += timedelta(minutes=1)
    return minute


def between(repeat: Repeat, begin: datetime, end: datetime) -> list[datetime]:
    times = planned_times(repeat, to_micros(begin), to_micros(begin))
    return [from_micros(planned) for planned in takewhile(lambda planned: planned < to_micros(end), times)]


def test_the_sample_of_zones_has_changes_of_every_kind() -> None:
    assert len(ZONES) >= 20
    assert sum(bool(changes_in_2026(zone)) for zone in ZONES) >= 15


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_job_at_a_fixed_time_runs_exactly_once_on_every_local_day_whatever_the_clocks_do(zone: str) -> None:
    # M-OPT-10 M-OPT-14 X-93
    local = ZoneInfo(zone)
    for change in changes_in_2026(zone) or (NOON,):
        first = (change - timedelta(days=3)).astimezone(local).date()
        days = [first + timedelta(days=number) for number in range(6)]
        begin = datetime.combine(first, time(0), local) - timedelta(microseconds=1)
        end = datetime.combine(days[-1] + timedelta(days=1), time(0), local)
        for at in TIMES_OF_DAY:
            repeat = Repeat(cron=f"{at.minute} {at.hour} * * *", tz=zone)
            runs = between(repeat, begin, end)
            assert len(runs) == len(days), (zone, change, at)
            assert runs == [when_it_comes(day, at, local) for day in days], (zone, change, at)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("minutes", [10, 30])
def test_a_job_every_few_minutes_keeps_its_interval_across_a_change(zone: str, minutes: int) -> None:
    # M-OPT-10 M-OPT-14
    for change in changes_in_2026(zone) or (NOON,):
        runs = between(
            Repeat(cron=f"*/{minutes} * * * *", tz=zone), change - timedelta(hours=5), change + timedelta(hours=5)
        )
        assert {later - earlier for earlier, later in pairwise(runs)} == {timedelta(minutes=minutes)}


CRONS = ("*/10 * * * *", "0 * * * *", "30 2 * * *", "0 0 * * *", "15 1,2,3 * * *", "30 1 * * 0", "0 0 L * *")
CHANGING = tuple(zone for zone in ZONES if changes_in_2026(zone))


@given(st.sampled_from(CRONS), st.sampled_from(CHANGING), st.data())
def test_planned_times_grow_strictly_and_going_on_from_any_of_them_gives_the_same_rest(
    cron: str, zone: str, data: st.DataObject
) -> None:
    repeat = Repeat(cron=cron, tz=zone)
    change = data.draw(st.sampled_from(changes_in_2026(zone)))
    begin = to_micros(change) - data.draw(st.integers(0, 3 * 24 * 60)) * MINUTE
    runs = list(islice(planned_times(repeat, begin, begin), 20))
    assert all(earlier < later for earlier, later in pairwise([begin, *runs]))
    chosen = data.draw(st.integers(0, len(runs) - 1))
    assert list(islice(planned_times(repeat, runs[chosen], runs[chosen]), 19 - chosen)) == runs[chosen + 1 :]


@pytest.mark.parametrize("minute", [0, 10, 29, 30, 31, 59])
def test_counting_from_within_the_second_pass_of_a_doubled_hour_goes_forward_and_runs_nothing_again(
    minute: int,
) -> None:
    #
    second_pass = datetime(2026, 10, 25, 1, minute, tzinfo=UTC)  # between two and three in Berlin, for the second time
    repeat = Repeat(cron="30 2 * * *", tz="Europe/Berlin")
    first = next(planned_times(repeat, to_micros(second_pass), to_micros(second_pass)))
    assert from_micros(first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@given(st.sampled_from(CRONS), st.sampled_from(CHANGING), st.data())
def test_where_one_begins_to_count_does_not_change_when_a_job_runs(cron: str, zone: str, data: st.DataObject) -> None:
    repeat = Repeat(cron=cron, tz=zone)
    change = to_micros(data.draw(st.sampled_from(changes_in_2026(zone))))
    since = change + data.draw(st.integers(-300, 300)) * MINUTE
    until = change + 30 * HOUR
    walked = takewhile(lambda planned: planned <= until, planned_times(repeat, change - 40 * HOUR, 0))
    begun = takewhile(lambda planned: planned <= until, planned_times(repeat, since, 0))
    assert list(begun) == [planned for planned in walked if planned > since]


# -- the calendar


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 L * *", "2026-01-31T00:00", ["2026-02-28T00:00", "2026-03-31T00:00"]),
        ("14 3 19 1 *", "2037-06-01T00:00", ["2038-01-19T03:14", "2039-01-19T03:14"]),
        ("0 0 1 1 *", "2099-06-01T00:00", ["2100-01-01T00:00", "2101-01-01T00:00"]),
        ("0 0 29 2 *", "2096-03-01T00:00", ["2104-02-29T00:00"]),
        ("30 9 * * 1-5", "2026-01-02T12:00", ["2026-01-05T09:30", "2026-01-06T09:30"]),
        ("@hourly", "2026-01-01T00:30", ["2026-01-01T01:00", "2026-01-01T02:00"]),
        ("@daily", "2026-01-01T00:30", ["2026-01-02T00:00"]),
        ("@midnight", "2026-01-01T00:30", ["2026-01-02T00:00"]),
        ("@weekly", "2026-01-01T00:30", ["2026-01-04T00:00"]),
        ("@monthly", "2026-01-01T00:30", ["2026-02-01T00:00"]),
        ("@yearly", "2026-01-01T00:30", ["2027-01-01T00:00"]),
        ("@annually", "2026-01-01T00:30", ["2027-01-01T00:00"]),
    ],
)
def test_the_calendar_is_kept_over_leap_years_month_ends_and_2038(cron: str, after: str, expected: list[str]) -> None:
    # M-OPT-10
    since = to_micros(datetime.fromisoformat(after).replace(tzinfo=UTC))
    times = islice(planned_times(Repeat(cron=cron), since, since), len(expected))
    assert [from_micros(planned).strftime("%Y-%m-%dT%H:%M") for planned in times] == expected


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles", "Pacific/Kiritimati"])
@pytest.mark.parametrize("cron", ["0 0 * * *", "0 0 29 2 *"])
def test_at_the_end_of_the_year_9999_the_times_end_without_an_error(cron: str, zone: str) -> None:
    since = to_micros(datetime(9999, 12, 28, tzinfo=UTC))
    assert len(list(planned_times(Repeat(cron=cron, tz=zone), since, since))) <= 4


def test_intervals_end_with_the_year_9999_too() -> None:
    since = to_micros(datetime(9999, 12, 31, tzinfo=UTC))
    assert len(list(planned_times(Repeat(every=timedelta(hours=10)), since, since))) == 2


# -- intervals, beginning and end


def first_of(repeat: Repeat, count: int, after: int | None = None, created_at: int = NOW) -> list[int]:
    return list(islice(planned_times(repeat, after, created_at), count))


def test_an_interval_begins_one_interval_after_the_schedule_was_made_and_is_anchored_to_the_planned_time() -> None:
    # M-OPT-11 X-93
    repeat = Repeat(every=60)
    assert first_of(repeat, 3) == [NOW + MINUTE, NOW + 2 * MINUTE, NOW + 3 * MINUTE]
    assert first_of(repeat, 2, after=NOW + MINUTE) == [NOW + 2 * MINUTE, NOW + 3 * MINUTE]


def test_an_interval_with_a_beginning_runs_at_it_first() -> None:
    # M-OPT-13
    start = NOON + timedelta(days=1)
    repeat = Repeat(every=60, start=start)
    assert first_of(repeat, 2) == [to_micros(start), to_micros(start) + MINUTE]


@pytest.mark.parametrize("repeat", [Repeat(every=60), Repeat(cron="* * * * *")])
@given(st.integers(-3 * 24 * 60, 3 * 24 * 60), st.integers(1, 5000))
def test_nothing_is_planned_before_the_beginning_nor_after_the_end(repeat: Repeat, offset: int, length: int) -> None:
    # M-OPT-13
    start = NOON
    end = start + timedelta(seconds=length)
    bounded = Repeat(cron=repeat.cron, every=repeat.every, start=start, end=end)
    after = NOW + offset * MINUTE
    for planned in planned_times(bounded, after, NOW - HOUR):
        assert planned > after
        assert to_micros(start) <= planned <= to_micros(end)


def test_beginning_and_end_are_themselves_planned_if_they_are_times() -> None:
    # M-OPT-13
    repeat = Repeat(cron="0 12 * * *", start=NOON, end=NOON + timedelta(days=2))
    assert first_of(repeat, 9, created_at=NOW - HOUR) == [NOW, NOW + 24 * HOUR, NOW + 48 * HOUR]


def test_an_end_before_the_beginning_is_refused() -> None:
    # M-OPT-13
    with pytest.raises(InvalidArgument) as refusal:
        Repeat(every=60, start=NOON, end=NOON - timedelta(seconds=1))
    assert refusal.value.field == "repeat.end"


@pytest.mark.timeout(5)
def test_the_next_times_of_a_long_running_schedule_are_told_at_once() -> None:
    repeat = Repeat(every=0.001, start=NOON - timedelta(days=3650))
    assert next_times(repeat, 2, after=NOON) == [NOON + timedelta(milliseconds=1), NOON + timedelta(milliseconds=2)]


def test_the_next_times_are_strictly_after_the_moment_asked_about() -> None:
    assert next_times(Repeat(cron="0 * * * *"), 2, after=NOON) == [NOON + timedelta(hours=1), NOON + timedelta(hours=2)]
    assert next_times(Repeat(every=60), 1, after=NOON) == [NOON + timedelta(minutes=1)]
    ended = Repeat(cron="0 * * * *", end=NOON + timedelta(hours=1))
    assert next_times(ended, 5, after=NOON) == [NOON + timedelta(hours=1)]


def test_an_interval_is_the_same_however_it_is_written() -> None:
    #
    assert Repeat(every=60) == Repeat(every=60.0) == Repeat(every=timedelta(minutes=1))


ODD_REPEATS: list[tuple[dict[str, Any], str]] = [
    ({}, "repeat"),
    ({"cron": "* * * * *", "every": 60}, "repeat"),
    ({"cron": ""}, "repeat.cron"),
    ({"cron": "* * * *"}, "repeat.cron"),
    ({"cron": "60 * * * *"}, "repeat.cron"),
    ({"cron": "* 24 * * *"}, "repeat.cron"),
    ({"cron": "0 0 30 2 *"}, "repeat.cron"),
    ({"cron": "0 0 31 2,4,6,9,11 *"}, "repeat.cron"),
    ({"cron": "* * * 13 *"}, "repeat.cron"),
    ({"cron": "@reboot"}, "repeat.cron"),
    ({"cron": 5}, "repeat.cron"),
    ({"every": 0}, "repeat.every"),
    ({"every": -1}, "repeat.every"),
    ({"every": 0.0001}, "repeat.every"),
    ({"every": "1h"}, "repeat.every"),
    ({"every": float("nan")}, "repeat.every"),
    ({"every": 60, "limit": 0}, "repeat.limit"),
    ({"every": 60, "limit": -1}, "repeat.limit"),
    ({"every": 60, "limit": 1.5}, "repeat.limit"),
    ({"every": 60, "start": "now"}, "repeat.start"),
    ({"every": 60, "end": datetime(2026, 1, 1)}, "repeat.end"),  # noqa: DTZ001  # naive on purpose: it must be refused
    ({"every": 60, "catch_up": "some"}, "repeat.catch_up"),
    ({"every": 60, "catch_up": None}, "repeat.catch_up"),
    ({"every": 60, "on_gap": "skip"}, "repeat"),
    ({"every": 60, "on_overlap": "both"}, "repeat"),
    ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "repeat.tz"),
    ({"cron": "* * * * *", "tz": ""}, "repeat.tz"),
    ({"cron": "* * * * *", "tz": "Europe"}, "repeat.tz"),
    ({"cron": "* * * * *", "tz": "../zone"}, "repeat.tz"),
    ({"cron": "* * * * *", "tz": "a\0b"}, "repeat.tz"),
    ({"cron": "* * * * *", "tz": "\ud800"}, "repeat.tz"),
    ({"cron": "* * * * *", "tz": None}, "repeat.tz"),
]


@pytest.mark.parametrize(("odd", "field"), ODD_REPEATS)
def test_an_odd_repeat_is_refused_by_name_when_it_is_written(odd: dict[str, Any], field: str) -> None:
    # M-OPT-10 M-OPT-11 M-OPT-12 X-93
    with pytest.raises(InvalidArgument) as refusal:
        Repeat(**odd)
    assert refusal.value.field == field


# -- what was missed

THREE_DAYS = 3 * 24 * HOUR


def catching(repeat: Repeat, first: int, now: int, left: int | None = None) -> tuple[list[int], int | None]:
    """One pass, as a store makes it."""
    begin = skip_missed(repeat, first, now)
    return due_now(repeat, chain([begin], planned_times(repeat, begin, begin)), now, left)


MINUTELY = [{"every": 60}, {"cron": "* * * * *"}]


@pytest.mark.parametrize("minutely", MINUTELY, ids=["every", "cron"])
def test_three_days_asleep_collapse_into_the_last_missed_run(minutely: dict[str, Any]) -> None:
    #
    repeat = Repeat(**minutely, catch_up="last")
    now = NOW + THREE_DAYS + 30 * SECOND
    assert catching(repeat, NOW, now) == ([NOW + THREE_DAYS], NOW + THREE_DAYS + MINUTE)


@pytest.mark.parametrize("minutely", MINUTELY, ids=["every", "cron"])
def test_three_days_asleep_are_made_up_for_in_order_and_in_bounded_passes(minutely: dict[str, Any]) -> None:
    repeat = Repeat(**minutely, catch_up="all")
    now = NOW + THREE_DAYS
    wanted = [NOW + number * MINUTE for number in range(3 * 24 * 60 + 1)]
    made: list[int] = []
    upcoming: int | None = NOW
    while upcoming is not None and upcoming <= now:
        due, upcoming = catching(repeat, upcoming, now)
        assert 1 <= len(due) <= MOST_MADE_UP
        made += due
    assert made == wanted
    assert upcoming == now + MINUTE


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
    assert catching(repeat, NOW, now) == due_now(repeat, walking(repeat, NOW), now, None)


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
    change = to_micros(data.draw(st.sampled_from(changes_in_2026(zone))))
    # the hour and the two days that are looked back from `now` are made to begin near a change of the clocks
    back = data.draw(st.sampled_from([0, HOUR, 48 * HOUR]))
    now = change + back + data.draw(st.integers(-180, 180)) * MINUTE
    repeat = Repeat(cron=cron, tz=zone, catch_up=catch_up)
    first = next(planned_times(repeat, now - data.draw(st.integers(0, 10 * 24)) * HOUR, 0))
    assert catching(repeat, first, now) == due_now(repeat, walking(repeat, first), now, None)


# -- schedules


def schedule(**fields: Any) -> Schedule:
    usual: dict[str, Any] = {"id": "nightly", "job": Job(type="report"), "repeat": Repeat(every=60)}
    return Schedule(**(usual | fields))


def test_the_pattern_of_a_schedule_keeps_what_every_run_shares_and_nothing_else() -> None:
    # M-SCHED-07
    job = Job(
        type="report",
        payload=b"[1]",
        queue="slow",
        tags=("a", "b", "a"),
        priority=3,
        lifo=True,
        delay=5,
        expires_at=timedelta(hours=1),
        timeout=2.5,
        max_attempts=4,
        max_crashes=2,
        concurrency_key="k",
        parent_id="p",
        options={"note": 1},
        executions=9,
        retry_count=9,
        assignee_id="somebody",
        result=b"old",
        error_message="old",
        schedule_id="other",
    )
    pattern = check_schedule(schedule(job=job), NOW).job
    assert pattern == Job(
        id="nightly",
        type="report",
        payload=b"[1]",
        queue="slow",
        tags=("a", "b"),
        priority=3,
        lifo=True,
        delay=timedelta(seconds=5),
        expires_at=timedelta(hours=1),
        timeout=timedelta(seconds=2.5),
        max_attempts=4,
        max_crashes=2,
        concurrency_key="k",
        parent_id="p",
        options={"note": 1},
    )


def test_a_schedule_put_twice_with_its_durations_written_differently_is_the_same_schedule() -> None:
    #
    in_seconds = schedule(job=Job(type="t", delay=5, timeout=60), repeat=Repeat(every=3600))
    in_words = schedule(
        job=Job(type="t", delay=timedelta(seconds=5), timeout=timedelta(minutes=1)),
        repeat=Repeat(every=timedelta(hours=1)),
    )
    assert check_schedule(in_seconds, NOW) == check_schedule(in_words, NOW)


ODD_SCHEDULES: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "schedule.id"),
    ({"id": "x" * 201}, "schedule.id"),
    ({"repeat": None}, "schedule.repeat"),
    ({"repeat": {"every": 60}}, "schedule.repeat"),
    ({"job": Job(type="t", depends_on=("a",))}, "schedule.job.depends_on"),
    ({"job": Job(type="t", idempotency_key="k")}, "schedule.job.idempotency_key"),
    ({"job": Job(type="t", run_at=NOON)}, "schedule.job.run_at"),
    ({"job": Job(type="t", expires_at=NOON)}, "schedule.job.expires_at"),
    ({"job": Job(type="")}, "schedule.job.type"),
    ({"job": None}, "schedule.job"),
]


@pytest.mark.parametrize(("odd", "field"), ODD_SCHEDULES)
def test_an_odd_schedule_is_refused_by_name(odd: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_schedule(schedule(**odd), NOW)
    assert refusal.value.field == field


@pytest.mark.parametrize("thing", [None, "nightly", Repeat(every=60)])
def test_what_is_no_schedule_is_refused(thing: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_schedule(thing, NOW)
    assert refusal.value.field == "schedule"


def test_the_longest_schedule_id_still_leaves_room_for_the_time_in_a_runs_id() -> None:
    longest = "x" * 200
    assert check_schedule(schedule(id=longest), NOW).id == longest
    assert len(f"{longest}@{NOON.isoformat(timespec='microseconds')}") <= 255
