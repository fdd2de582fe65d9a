"""`Repeat`: what it accepts, and what it rejects with the field's name."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from longshore.core.errors import InvalidArgument
from longshore.core.repeat import Repeat
from tests.core.staging import NOON


def test_an_interval_is_the_same_however_it_is_written() -> None:
    #
    assert Repeat(every=60) == Repeat(every=60.0) == Repeat(every=timedelta(minutes=1))


def test_a_moment_is_the_same_in_whichever_zone_it_is_written() -> None:
    berlin = NOON.astimezone(ZoneInfo("Europe/Berlin"))
    assert repr(Repeat(every=60, start=berlin, end=berlin)) == repr(Repeat(every=60, start=NOON, end=NOON))


def test_what_is_not_said_is_as_promised() -> None:
    # M-OPT-14
    repeat = Repeat(cron="0 2 * * *")
    assert (repeat.tz, repeat.on_gap, repeat.on_overlap, repeat.catch_up) == ("UTC", "next", "first", "last")


ODD_REPEATS: list[tuple[dict[str, Any], str]] = [
    ({}, "repeat"),
    ({"cron": "* * * * *", "every": 60}, "repeat"),
    ({"cron": ""}, "repeat.cron"),
    ({"cron": "1" + ",1" * 200_000 + " * * * *"}, "repeat.cron"),
    ({"cron": "0 0 * * *", "tz": "UTC" + "/" * 300}, "repeat.tz"),
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
    ({"cron": "0 2 * * *", "on_gap": ["next"]}, "repeat.on_gap"),
    ({"cron": "0 2 * * *", "on_overlap": None}, "repeat.on_overlap"),
    ({"every": 60, "on_gap": "never"}, "repeat.on_gap"),
    ({"every": 60, "on_overlap": "third"}, "repeat.on_overlap"),
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


@pytest.mark.parametrize(
    ("cron", "reported"),
    [
        ("0 0 30 2 *", "'30' is not a valid day of month, in the month 2"),
        ("0 25 * * *", "'25' is not a valid hour; hours are 0 to 23"),
        ("30 2 * *", "it has 4 fields; write five (minute hour day month weekday), or six with seconds first"),
        ("", "it has 0 fields"),
        ("x 2 * * *", "'x' is not a valid minute; minutes are 0 to 59"),
    ],
)
def test_an_invalid_cron_expression_is_rejected_with_the_field(cron: str, reported: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Repeat(cron=cron)
    assert reported in str(caught.value)
