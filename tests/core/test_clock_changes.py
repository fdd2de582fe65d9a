"""Every clock change in 2026, in every zone that has one: nothing runs twice, and nothing is skipped.

The reference steps through UTC minute by minute and reads the zone's local time: no arithmetic with offsets, and
nothing of cronsim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product, takewhile
from zoneinfo import ZoneInfo

import pytest

from longshore.core.repeat import OnGap, OnOverlap, Repeat, planned_times
from longshore.core.times import from_micros, to_micros
from tests.core.clock_changes import MINUTE, changes, one_zone_of_each_kind, zones

HOUR = timedelta(hours=1)
SHARES = 8

Named = Callable[[int, int], bool]
"""Whether an expression names this hour and minute of the day."""


class Walk:
    """The local times of a zone, minute by minute, from one moment to another."""

    def __init__(self, zone: str, begin: datetime, end: datetime) -> None:
        local = ZoneInfo(zone)
        self.begin, self.end = begin, end
        self.minutes = [begin + number * MINUTE for number in range((end - begin) // MINUTE)]
        self.shown = [minute.astimezone(local).replace(tzinfo=None) for minute in self.minutes]
        self.when: dict[datetime, list[datetime]] = defaultdict(list)
        for minute, shown in zip(self.minutes, self.shown, strict=True):
            self.when[shown.replace(fold=0)].append(minute)

    def as_minutes_pass(self, named: Named) -> list[datetime]:
        """All moments whose local minute is named."""
        return [m for m, shown in zip(self.minutes, self.shown, strict=True) if named(shown.hour, shown.minute)]

    def by_time_of_day(self, named: Named, on_gap: OnGap, on_overlap: OnOverlap) -> list[datetime]:
        """Each named time of each day: its local occurrence, or what the policies say."""
        found: set[datetime] = set()
        for wall in self.all_times():
            if not named(wall.hour, wall.minute):
                continue
            moments = self.when.get(wall, [])
            if moments:
                found.update({"first": moments[:1], "second": moments[-1:], "both": moments}[on_overlap])
            elif on_gap == "next":
                found.add(next(m for m, s in zip(self.minutes, self.shown, strict=True) if s > wall))
        return sorted(found)

    def all_times(self) -> Iterator[datetime]:
        """Every minute of a calendar without clock changes, whether it occurs here or not."""
        wall, last = min(self.when), max(self.when)
        while wall <= last:
            yield wall
            wall += MINUTE


@dataclass(frozen=True)
class Expression:
    cron: str
    named: Named
    names_hours: bool


def at(hour: int, minute: int) -> Expression:
    return Expression(f"{minute} {hour} * * *", lambda h, m: (h, m) == (hour, minute), names_hours=True)


BY_THE_MINUTE = (
    Expression("*/30 * * * *", lambda _, m: m % 30 == 0, names_hours=False),
    Expression("*/20 * * * *", lambda _, m: m % 20 == 0, names_hours=False),
    Expression("*/7 * * * *", lambda _, m: m % 7 == 0, names_hours=False),
    Expression("0 * * * *", lambda _, m: m == 0, names_hours=False),
    Expression("15 * * * *", lambda _, m: m == 15, names_hours=False),
    Expression("30 0-23 * * *", lambda _, m: m == 30, names_hours=False),
)
BY_THE_HOUR = (
    Expression("0 */2 * * *", lambda h, m: h % 2 == 0 and m == 0, names_hours=True),
    Expression("30 */3 * * *", lambda h, m: h % 3 == 0 and m == 30, names_hours=True),
    Expression("*/15 0,1,2,3 * * *", lambda h, m: h < 4 and m % 15 == 0, names_hours=True),
    Expression("*/30 2 * * *", lambda h, m: h == 2 and m % 30 == 0, names_hours=True),
    Expression("45 23 * * *", lambda h, m: (h, m) == (23, 45), names_hours=True),
)
POLICIES: tuple[tuple[OnGap, OnOverlap], ...] = tuple(product(("next", "skip"), ("first", "second", "both")))


def around(change: datetime, zone: str, *, proving: bool) -> list[Expression]:
    """Daily times before, in and after skipped and repeated hours, and expressions of every other kind."""
    wall = change.astimezone(ZoneInfo(zone))
    minutes = range(-150, 150) if proving else (-90, -60, -45, -30, -1, 0, 1, 15, 30, 59, 60, 75)
    times = {(wall + number * MINUTE).replace(tzinfo=None).time() for number in minutes}
    return [*(at(time.hour, time.minute) for time in sorted(times)), *BY_THE_MINUTE, *BY_THE_HOUR]


def planned(expression: Expression, zone: str, walk: Walk, on_gap: OnGap, on_overlap: OnOverlap) -> list[datetime]:
    repeat = Repeat(cron=expression.cron, tz=zone, on_gap=on_gap, on_overlap=on_overlap)
    begin, end = to_micros(walk.begin) - 1, to_micros(walk.end)
    return [from_micros(time) for time in takewhile(lambda time: time < end, planned_times(repeat, begin, begin))]


def check(zone: str, policies: Sequence[tuple[OnGap, OnOverlap]], *, proving: bool) -> int:
    compared = 0
    length = 26 * HOUR if proving else 5 * HOUR
    for change in changes(zone) or (datetime(2026, 3, 29, 1, tzinfo=UTC),):
        walk = Walk(zone, change - length, change + length)
        for expression in around(change, zone, proving=proving):
            for on_gap, on_overlap in policies:
                if expression.names_hours:
                    expected = walk.by_time_of_day(expression.named, on_gap, on_overlap)
                else:
                    expected = walk.as_minutes_pass(expression.named)
                found = planned(expression, zone, walk, on_gap, on_overlap)
                assert found == expected, (zone, change, expression.cron, on_gap, on_overlap)
                compared += 1
    return compared


def test_the_zones_are_all_that_change_their_clocks_in_2026_and_some_that_do_not() -> None:
    changing = [zone for zone in zones() if changes(zone)]
    assert len(zones()) >= 200
    assert len(changing) >= 150
    assert sum(len(changes(zone)) for zone in changing) >= 300


@pytest.mark.prove
@pytest.mark.parametrize("share", range(SHARES))
def test_no_occurrence_is_repeated_or_missed_at_any_clock_change(share: int, proving: bool) -> None:
    # M-OPT-10 M-OPT-14 X-93
    chosen = zones()[share::SHARES]
    compared = sum(check(zone, [("next", "first")], proving=proving) for zone in chosen)
    print(f"{len(chosen)} zones, {sum(len(changes(zone)) for zone in chosen)} changes, {compared} expressions compared")


@pytest.mark.prove
@pytest.mark.parametrize(("on_gap", "on_overlap"), POLICIES)
def test_every_policy_for_skipped_or_repeated_times_does_what_it_says(
    on_gap: OnGap, on_overlap: OnOverlap, proving: bool
) -> None:
    # M-OPT-14 X-93
    chosen = zones() if proving else one_zone_of_each_kind()
    compared = sum(check(zone, [(on_gap, on_overlap)], proving=False) for zone in chosen)
    print(f"{len(chosen)} zones, {compared} expressions compared under {on_gap}, {on_overlap}")


def test_the_reference_itself_sees_what_the_clocks_of_berlin_do() -> None:
    """Otherwise two mistakes could agree."""
    spring = Walk("Europe/Berlin", datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 3, 29, 22, tzinfo=UTC))
    half_past_two = at(2, 30).named
    assert spring.by_time_of_day(half_past_two, "next", "first") == [datetime(2026, 3, 29, 1, tzinfo=UTC)]
    assert spring.by_time_of_day(half_past_two, "skip", "first") == []
    autumn = Walk("Europe/Berlin", datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 22, tzinfo=UTC))
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert autumn.by_time_of_day(half_past_two, "next", "first") == [first]
    assert autumn.by_time_of_day(half_past_two, "next", "second") == [second]
    assert autumn.by_time_of_day(half_past_two, "next", "both") == [first, second]
    assert len(autumn.as_minutes_pass(lambda _, m: m == 30)) == 24
