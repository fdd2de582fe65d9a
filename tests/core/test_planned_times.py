"""Planned times: across clock changes and calendar rules, from a start to an end."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise, takewhile
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.repeat import OnGap, OnOverlap, Repeat, first_time, next_times, planned_times
from longshore.core.times import LATEST, SECOND, from_micros, to_micros
from tests.core.clock_changes import CHANGING, SAMPLE, changes
from tests.core.staging import NOON, NOW

HOUR = 3600 * SECOND
MINUTE = 60 * SECOND
TIMES_OF_DAY = [time(hour, minute) for hour in (0, 1, 2, 3) for minute in (0, 15, 30)] + [time(12, 0), time(23, 30)]


def when_it_comes(day: date, at: time, zone: ZoneInfo) -> datetime:
    """The reference: the first instant at which the local time is this time of this day, or later."""
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
    assert len(SAMPLE) >= 20
    assert sum(bool(changes(zone)) for zone in SAMPLE) >= 15


@pytest.mark.parametrize("zone", SAMPLE)
def test_a_daily_job_at_a_fixed_time_runs_exactly_once_on_every_local_day_whatever_the_clocks_do(zone: str) -> None:
    # M-OPT-10 M-OPT-14 X-93
    local = ZoneInfo(zone)
    for change in changes(zone) or (NOON,):
        first = (change - timedelta(days=3)).astimezone(local).date()
        days = [first + timedelta(days=number) for number in range(6)]
        begin = datetime.combine(first, time(0), local) - timedelta(microseconds=1)
        end = datetime.combine(days[-1] + timedelta(days=1), time(0), local)
        for at in TIMES_OF_DAY:
            repeat = Repeat(cron=f"{at.minute} {at.hour} * * *", tz=zone)
            runs = between(repeat, begin, end)
            assert len(runs) == len(days), (zone, change, at)
            assert runs == [when_it_comes(day, at, local) for day in days], (zone, change, at)


@pytest.mark.parametrize("zone", SAMPLE)
@pytest.mark.parametrize("minutes", [10, 30])
def test_a_job_every_few_minutes_keeps_its_interval_across_a_change(zone: str, minutes: int) -> None:
    # M-OPT-10 M-OPT-14
    for change in changes(zone) or (NOON,):
        runs = between(
            Repeat(cron=f"*/{minutes} * * * *", tz=zone), change - timedelta(hours=5), change + timedelta(hours=5)
        )
        assert {later - earlier for earlier, later in pairwise(runs)} == {timedelta(minutes=minutes)}


CRONS = (
    "*/10 * * * *",
    "0 * * * *",
    "30 * * * *",
    "30 2 * * *",
    "*/20 1,2 * * *",
    "0 0 * * *",
    "15 1,2,3 * * *",
    "30 1 * * 0",
    "0 0 L * *",
)
REPEATS = st.builds(
    Repeat,
    cron=st.sampled_from(CRONS),
    tz=st.sampled_from(CHANGING),
    on_gap=st.sampled_from(get_args(OnGap)),
    on_overlap=st.sampled_from(get_args(OnOverlap)),
)


@given(REPEATS, st.data())
def test_planned_times_grow_strictly_and_continuing_from_any_of_them_gives_the_same_rest(
    repeat: Repeat, data: st.DataObject
) -> None:
    change = data.draw(st.sampled_from(changes(repeat.tz)))
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
    second_pass = datetime(2026, 10, 25, 1, minute, tzinfo=UTC)  # the second 02:xx in Berlin
    repeat = Repeat(cron="30 2 * * *", tz="Europe/Berlin")
    first = next(planned_times(repeat, to_micros(second_pass), to_micros(second_pass)))
    assert from_micros(first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@given(REPEATS, st.data())
def test_where_one_begins_to_count_does_not_change_when_a_job_runs(repeat: Repeat, data: st.DataObject) -> None:
    change = to_micros(data.draw(st.sampled_from(changes(repeat.tz))))
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


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("left", [1, 3600, 86_400])
def test_in_the_last_hours_of_the_calendar_the_times_end_without_an_error(zone: str, left: int) -> None:
    since = LATEST - left * SECOND
    assert all(since < planned <= LATEST for planned in planned_times(Repeat(cron="0 * * * *", tz=zone), since, since))


def test_intervals_end_with_the_year_9999_too() -> None:
    since = to_micros(datetime(9999, 12, 31, tzinfo=UTC))
    assert len(list(planned_times(Repeat(every=timedelta(hours=10)), since, since))) == 2


# -- intervals, start and end


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
def test_the_next_times_of_an_old_schedule_are_computed_at_once() -> None:
    repeat = Repeat(every=0.001, start=NOON - timedelta(days=3650))
    assert next_times(repeat, 2, after=NOON) == [NOON + timedelta(milliseconds=1), NOON + timedelta(milliseconds=2)]


def test_the_next_times_are_strictly_after_the_moment_asked_about() -> None:
    assert next_times(Repeat(cron="0 * * * *"), 2, after=NOON) == [NOON + timedelta(hours=1), NOON + timedelta(hours=2)]
    assert next_times(Repeat(every=60), 1, after=NOON) == [NOON + timedelta(minutes=1)]
    ended = Repeat(cron="0 * * * *", end=NOON + timedelta(hours=1))
    assert next_times(ended, 5, after=NOON) == [NOON + timedelta(hours=1)]


# -- a plan from now on


@pytest.mark.parametrize(
    ("repeat", "anchor", "expected"),
    [
        (Repeat(every=60), None, NOW + MINUTE),
        (Repeat(every=60, start=NOON), None, NOW),
        (Repeat(every=60, start=NOON + timedelta(hours=1)), None, NOW + HOUR),
        (Repeat(every=60, start=NOON - timedelta(seconds=90)), None, NOW + MINUTE // 2),
        (Repeat(every=60), NOW - 45 * SECOND, NOW + 15 * SECOND),
        (Repeat(every=60), NOW - 60 * SECOND, NOW + 60 * SECOND),
        (Repeat(every=60), NOW - 1000 * HOUR - SECOND, NOW + 59 * SECOND),
        (Repeat(every=60), NOW + 90 * SECOND, NOW + 30 * SECOND),  # the clock was set back meanwhile
        (Repeat(every=60, start=NOON + timedelta(hours=1)), NOW - 45 * SECOND, NOW + HOUR),
        (Repeat(every=60, end=NOON + timedelta(seconds=59)), None, None),
        (Repeat(cron="0 * * * *"), None, NOW + HOUR),
        (Repeat(cron="0 * * * *", start=NOON - timedelta(days=9)), NOW - HOUR, NOW + HOUR),
        (Repeat(cron="0 * * * *", end=NOON), None, None),
    ],
)
def test_a_plan_made_now_begins_from_now_on_and_keeps_to_what_anchors_it(
    repeat: Repeat, anchor: int | None, expected: int | None
) -> None:
    # M-OPT-11 M-OPT-13 X-93
    assert first_time(repeat, NOW, anchor) == expected


def test_the_next_times_of_an_interval_go_on_from_what_anchors_it() -> None:
    anchored = next_times(Repeat(every=60), 2, after=NOON, anchor=NOON - timedelta(seconds=20))
    assert anchored == [NOON + timedelta(seconds=40), NOON + timedelta(seconds=100)]
    assert next_times(Repeat(every=60, start=NOON), 1, after=NOON) == [NOON + timedelta(minutes=1)]
    assert next_times(Repeat(every=60), 0, after=NOON) == []


# -- different ways to write one expression


@pytest.mark.parametrize(
    "same", ["*/30 * * * *", "0,30 * * * *", "*/30 0-23 * * *", "0/30 */1 * * *", "0 */30 * * * *"]
)
def test_every_hour_of_the_day_is_no_certain_hour_however_it_is_written(same: str) -> None:
    autumn = datetime(2026, 10, 25, 0, 0, tzinfo=UTC), datetime(2026, 10, 25, 2, 1, tzinfo=UTC)
    assert len(between(Repeat(cron=same, tz="Europe/Berlin"), *autumn)) == 4
