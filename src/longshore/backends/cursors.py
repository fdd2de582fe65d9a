"""Cursors: opaque to whoever holds them, and refused with a reason when they no longer point anywhere."""

from __future__ import annotations

import re

from longshore.backends.view import LogEnds
from longshore.core.errors import CursorExpired, InvalidArgument

_EVENT = re.compile(r"([0-9a-f]{8})-([0-9]{1,40})(?:-([0-9]{1,40}))?")
_JOB = re.compile(r"j([0-9]{1,19})")

_HIGHEST = 2**63 - 1


def event_cursor(ends: LogEnds, number: int) -> str:
    """The place of one event in the log.

    Where queues keep their events for different times, others may be pruned beyond this one already; the cursor says
    up to where, so that it expires only when something its holder could still have read is pruned.
    """
    return f"{ends.log}-{number}" + (f"-{ends.pruned_anywhere}" if ends.pruned_anywhere > number else "")


def event_number(cursor: object, ends: LogEnds) -> int:
    """The number after which to go on reading; None is the start, with whatever is still kept."""
    if cursor is None:
        return 0
    found = _EVENT.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidArgument("after", "must be the cursor of an event, or None for the start of the log")
    if found[1] != ends.log:
        raise CursorExpired("this cursor is of another event log (a restored copy begins a new one); start from None")
    number = int(found[2])
    if number > ends.end:
        raise CursorExpired("this cursor is ahead of the log, which was set back to an older copy; start from None")
    if max(number, int(found[3] or 0)) < ends.pruned_through:
        raise CursorExpired("the events after this cursor have been pruned; start from None")
    return number


def comes_after(cursor: str, place: str) -> bool:
    """Whether a cursor is after another one of the same log; True if they cannot be compared."""
    found, before = _EVENT.fullmatch(cursor), _EVENT.fullmatch(place)
    if found is None or before is None or found[1] != before[1]:
        return True
    return int(found[2]) > int(before[2])


def job_cursor(uid: int) -> str:
    """The place of one job in a listing."""
    return f"j{uid}"


def job_number(cursor: object) -> int | None:
    """The uid before which a listing goes on."""
    if cursor is None:
        return None
    found = _JOB.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None or int(found[1]) > _HIGHEST:
        raise InvalidArgument("cursor", "must be the next_cursor of a page, or None for the first page")
    return int(found[1])
