"""The time zones of the core's tests, and their clock changes in 2026."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

MINUTE = timedelta(minutes=1)
LEAST_ZONES = 220
"""All zones that change their clocks in 2026, plus some others to check."""
# both hemispheres, half-hour changes, midnight changes, offsets of 45 minutes, both sides of the date line, none at all
SAMPLE = (
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


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """The minutes at which its offset changes in 2026, found by comparing days and then by bisection."""
    local = ZoneInfo(zone)

    def offset(moment: datetime) -> timedelta | None:
        return moment.astimezone(local).utcoffset()

    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(366)]
    found = []
    for before, after in pairwise(days):
        if offset(before) != offset(after):
            earlier, later = before, after
            while later - earlier > MINUTE:
                middle = earlier + (later - earlier) // MINUTE // 2 * MINUTE
                earlier, later = (middle, later) if offset(middle) == offset(before) else (earlier, middle)
            found.append(later)
    return tuple(found)


@cache
def zones() -> tuple[str, ...]:
    names = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})
    changing = [name for name in names if changes(name)]
    steady = [name for name in names if not changes(name)]
    return tuple(changing + steady[: max(0, LEAST_ZONES - len(changing))])


@cache
def one_zone_of_each_kind() -> tuple[str, ...]:
    """One zone of each group that changes its clocks at the same moments by the same amounts."""
    kinds: dict[tuple[object, ...], str] = {}
    for zone in zones():
        local = ZoneInfo(zone)
        moments = [(change - MINUTE, change) for change in changes(zone)]
        kinds.setdefault(
            tuple((b, a.astimezone(local).utcoffset(), b.astimezone(local).utcoffset()) for a, b in moments), zone
        )
    return tuple(kinds.values())


CHANGING = tuple(zone for zone in SAMPLE if changes(zone))
