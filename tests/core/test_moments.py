"""Times in microseconds, and the checks of times from callers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.times import (
    LATEST,
    SECOND,
    check_datetime,
    check_duration,
    check_moment,
    from_micros,
    optional_moment,
    optional_span,
    span,
    to_micros,
)
from tests.core.staging import NOON, NOW

ZONES = st.sampled_from(
    [
        UTC,
        ZoneInfo("Europe/Berlin"),
        ZoneInfo("Pacific/Apia"),
        ZoneInfo("Asia/Kathmandu"),
        timezone(timedelta(hours=-12)),
    ]
)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES))  # noqa: DTZ001  # bounds are naive there
def test_a_moment_comes_back_the_same_instant_in_utc(moment: datetime) -> None:
    #
    back = from_micros(to_micros(moment))
    assert back.tzinfo is UTC
    assert back == moment.astimezone(UTC)


@given(st.integers(to_micros(datetime.min.replace(tzinfo=UTC)), LATEST))
def test_microseconds_come_back_the_same(micros: int) -> None:
    #
    assert to_micros(from_micros(micros)) == micros


@given(st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES), min_size=2))  # noqa: DTZ001  # bounds are naive there
def test_microseconds_are_ordered_as_the_instants_are(moments: list[datetime]) -> None:
    assert [m.astimezone(UTC) for m in sorted(moments, key=to_micros)] == sorted(m.astimezone(UTC) for m in moments)


def test_the_count_begins_in_1970_and_knows_times_before_it() -> None:
    assert to_micros(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    assert to_micros(datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)) == 2**31 * SECOND


def test_what_is_not_there_stays_not_there() -> None:
    assert optional_moment(None) is None
    assert optional_span(None) is None
    assert optional_moment(NOW) == NOON
    assert optional_span(1_500_000) == timedelta(seconds=1.5)


# -- points in time


def test_an_aware_datetime_of_any_zone_is_taken() -> None:
    berlin = datetime(2026, 7, 1, 14, 0, tzinfo=ZoneInfo("Europe/Berlin"))
    assert check_datetime("run_at", berlin) == to_micros(datetime(2026, 7, 1, 12, 0, tzinfo=UTC))


@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)], ids=str)
def test_the_first_and_the_last_moment_there_is_are_taken_in_utc(moment: datetime) -> None:
    assert from_micros(check_datetime("run_at", moment)) == moment


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.min.replace(tzinfo=timezone(timedelta(minutes=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime.max.replace(tzinfo=timezone(timedelta(minutes=-1))),
    ],
    ids=str,
)
def test_a_time_outside_the_years_1_to_9999_in_utc_is_rejected(moment: datetime) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_datetime("run_at", moment)
    assert refusal.value.field == "run_at"


@pytest.mark.parametrize("value", [None, 5, "2026-01-01T00:00:00Z", date(2026, 1, 1), timedelta(1)])
def test_what_is_no_datetime_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_datetime("start", value)
    assert refusal.value.field == "start"


def test_a_naive_datetime_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        check_datetime("run_at", datetime(2026, 1, 1))  # noqa: DTZ001  # naive on purpose: it must be refused


# -- durations


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        (1, SECOND),
        (0.5, 500_000),
        (1e-6, 1),
        (0.1 + 0.2, 300_000),
        (timedelta(days=1), 86_400 * SECOND),
        (timedelta(microseconds=1), 1),
        (86_400 * 365 * 100, 86_400 * 365 * 100 * SECOND),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(value: object, micros: int) -> None:
    assert check_duration("ttl", value) == micros


NO_DURATION = [
    None,
    True,
    False,
    "5",
    Decimal(5),
    NOON,
    float("nan"),
    float("inf"),
    float("-inf"),
    -1,
    -0.5,
    timedelta(seconds=-1),
    timedelta.max,
    timedelta.min,
    1e15,
    1e300,
    1e308,
    -1e308,
    10**400,
    -(10**400),
]


@pytest.mark.parametrize("value", NO_DURATION, ids=lambda value: repr(value)[:25])
@pytest.mark.parametrize("positive", [True, False])
def test_what_is_no_duration_is_refused_and_never_overflows(value: object, positive: bool) -> None:
    # B-CLN-01
    with pytest.raises(InvalidArgument) as refusal:
        check_duration("ttl", value, positive=positive)
    assert refusal.value.field == "ttl"


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, timedelta(0), 1e-9])
def test_nothing_is_a_duration_only_where_it_makes_sense(zero: object) -> None:
    # B-CLN-01
    assert check_duration("delay", zero, positive=False) == 0
    with pytest.raises(InvalidArgument, match="more than 0"):
        check_duration("ttl", zero)


@given(st.integers(0, 10**15))
def test_a_timedelta_and_its_microseconds_agree(micros: int) -> None:
    assert check_duration("delay", timedelta(microseconds=micros), positive=False) == micros


@pytest.mark.parametrize(
    ("written", "meant"),
    [(None, None), (5, timedelta(seconds=5)), (0.5, timedelta(milliseconds=500)), (timedelta(1), timedelta(1))],
)
def test_a_duration_means_the_same_however_it_is_written(
    written: timedelta | float | None, meant: timedelta | None
) -> None:
    assert span(written) == meant


# -- either


@given(st.integers(0, 10**15))
def test_a_duration_given_for_a_point_in_time_is_counted_from_the_stores_clock(micros: int) -> None:
    assert check_moment("run_at", timedelta(microseconds=micros), NOW) == NOW + micros


def test_a_duration_may_reach_the_last_moment_there_is_and_not_a_microsecond_further() -> None:
    left = timedelta(microseconds=LATEST - NOW)
    assert check_moment("run_at", left, NOW) == LATEST
    with pytest.raises(InvalidArgument):
        check_moment("run_at", left + timedelta(microseconds=1), NOW)


def test_a_point_in_time_is_taken_whatever_the_clock_says() -> None:
    assert check_moment("run_at", NOON - timedelta(days=1), NOW) == NOW - 86_400 * SECOND


@pytest.mark.parametrize("value", [-1, "soon", None, True, LATEST / SECOND, timedelta(days=366 * 8000)])
def test_a_point_beyond_all_time_or_before_now_by_duration_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_moment("run_at", value, NOW)
    assert refusal.value.field == "run_at"
