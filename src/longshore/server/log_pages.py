"""Pages of the log for callers who may not see, or do not want, every event of it."""

from __future__ import annotations

from collections.abc import Callable

from longshore.backends.base import Backend
from longshore.core.job import JobEvent
from longshore.server.models.events import EventPage, event_view

_AT_ONCE = 1_000
_MOST_LOOKS = 20
"""One call looks through so many times as many events, and then its cursor leads on: a log may be endless."""


async def page_of_log(
    backend: Backend,
    after: str | None,
    limit: int,
    *,
    queue: str | None = None,
    job_id: str | None = None,
    passes: Callable[[JobEvent], bool] | None = None,
) -> EventPage:
    """Up to `limit` events after the cursor that pass, oldest first; `next_cursor` is how far it looked.

    The page is short of its limit only at the end of the log, or after so many events that did not pass that the
    caller had better ask on.
    """
    if passes is None:
        events = await backend.read_events(after, limit, queue=queue, job_id=job_id)
        return _page(events, events[-1].cursor if events else after)
    found: list[JobEvent] = []
    cursor = after
    for _ in range(_MOST_LOOKS):
        events = await backend.read_events(cursor, _AT_ONCE, queue=queue, job_id=job_id)
        for event in events:
            cursor = event.cursor
            if passes(event):
                found.append(event)
                if len(found) == limit:
                    return _page(found, cursor)
        if len(events) < _AT_ONCE:
            break
    return _page(found, cursor)


def _page(events: list[JobEvent], cursor: str | None) -> EventPage:
    return EventPage.model_construct(items=[event_view(event) for event in events], next_cursor=cursor)
