"""What was written, over the wire: the lines of jobs, and the durable log."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any, NamedTuple

from longshore.backends.remote.forms import STATUS, TIME, Form, Json, list_of, write_time
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.job import JobEvent, LogEntry
from longshore.core.status import JobStatus


def _write_line(_: str, line: LogEntry) -> dict[str, Any]:
    return {"number": line.number, "at": write_time(line.at), "level": line.level, "message": line.message}


def _read_line(_: str, told: Json) -> LogEntry:
    return LogEntry(told["number"], datetime.fromisoformat(told["at"]), told["level"], told["message"])


_LINE = a_record(
    "StoredLogLine",
    "A line a job wrote.",
    ["number", "at", "level", "message"],
    number=NUMBER,
    at=TIME.schema,
    level=WORD,
    message=WORD,
)
LOGS: Form[list[LogEntry]] = list_of(Form(_write_line, _read_line, _LINE))

_EVENT_STATUSES = {"from_status", "to_status"}
_EVENT_NAMES = tuple(field.name for field in dataclasses.fields(JobEvent))


def _write_event(_: str, event: JobEvent) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(event, name) for name in _EVENT_NAMES}
    told["occurred_at"] = write_time(event.occurred_at)
    told["detail"] = dict(event.detail)
    return told


def _read_event(_: str, told: Json) -> JobEvent:
    values = {name: told[name] for name in _EVENT_NAMES}  # a newer server may tell more
    values["occurred_at"] = datetime.fromisoformat(told["occurred_at"])
    for name in _EVENT_STATUSES:
        values[name] = None if told[name] is None else JobStatus(told[name])
    return JobEvent(**values)


_EVENT = a_record(
    "StoredEvent",
    "A line of the durable log; one job's are ordered by `job_seq`.",
    list(_EVENT_NAMES),
    cursor=WORD,
    job_uid=or_null(NUMBER),
    job_id=or_null(WORD),
    job_seq=NUMBER,
    queue=WORD,
    type=or_null(WORD),
    event=WORD,
    from_status=or_null(STATUS.schema),
    to_status=or_null(STATUS.schema),
    epoch=NUMBER,
    execution=NUMBER,
    assignee_id=or_null(WORD),
    actor=WORD,
    occurred_at=TIME.schema,
    detail={"type": "object"},
)
EVENTS: Form[list[JobEvent]] = list_of(Form(_write_event, _read_event, _EVENT))


class Stretch(NamedTuple):
    """Events of the log, and where to read on; None where the list itself tells it: from its last one if it is full."""

    events: list[JobEvent]
    next_cursor: str | None = None


def _write_stretch(name: str, found: Stretch | list[JobEvent]) -> dict[str, Any]:
    if not isinstance(found, Stretch):
        return {"events": EVENTS.write(name, found)}
    return {"events": EVENTS.write(name, found.events), "next_cursor": found.next_cursor}


STRETCH: Form[Stretch] = Form(
    _write_stretch,
    lambda name, told: Stretch(EVENTS.read(name, told["events"]), told.get("next_cursor")),
    a_record(
        "StoredEvents",
        "Up to `limit` events; fewer at the end of the log, unless there is a `next_cursor`: read on from there.",
        ["events"],
        events=EVENTS.schema,
        next_cursor=or_null(WORD),
    ),
)
