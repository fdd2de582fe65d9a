"""Queues, schedules, workers, events and the facts of `explain` as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from longshore.backends import argument_checks as checks
from longshore.backends.base import QueueInfo, WorkerInfo
from longshore.backends.remote import codecs
from longshore.backends.remote.records.jobs import (
    JOB,
    NEW_JOB,
    NUMBER,
    WORD,
    a_record,
    answer_record,
    or_null,
    read_new_job,
    write_new_job,
)
from longshore.core.clock import ClockStep
from longshore.core.errors import InvalidArgument
from longshore.core.explain import Dependency, Facts, Holder, Usage, WorkerSeen
from longshore.core.job import Job, JobEvent, JobStats, LogEntry
from longshore.core.limits import Rate, check_rate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, check_schedule
from longshore.core.status import JobStatus

COUNTS: codecs.Form[dict[JobStatus, int]] = codecs.Form(
    lambda _, counts: {status.value: count for status, count in counts.items()},
    lambda _, data: {JobStatus(status): count for status, count in data.items()},
    {"type": "object", "additionalProperties": NUMBER},
)


def _tuple_of(form: codecs.Form[Any], schema: codecs.Schema) -> codecs.Form[tuple[Any, ...]]:
    return codecs.Form(
        lambda name, values: [form.write(name, value) for value in values],
        lambda name, data: tuple([form.read(name, one) for one in data]),
        schema,
    )


_WORD, _NUMBER, _YES_OR_NO = codecs.plain(WORD), codecs.plain(NUMBER), codecs.plain(codecs.FLAG.schema)
_WORD_OR_NULL, _NUMBER_OR_NULL = codecs.plain(or_null(WORD)), codecs.plain(or_null(NUMBER))
_TIME: codecs.Form[datetime] = codecs.Form(
    lambda _, moment: codecs.write_time(moment), lambda _, data: datetime.fromisoformat(data), codecs.TIME.schema
)
_STATUS_OR_NULL = codecs.optional(codecs.Form(codecs.identity, lambda _, data: JobStatus(data), codecs.STATUS.schema))
_NAMES: codecs.Form[tuple[str, ...]] = codecs.Form(codecs.identity, lambda _, data: tuple(data), codecs.NAMES.schema)
_OBJECT: codecs.Schema = {"type": "object"}
_OBJECTS: codecs.Schema = {"type": "array", "items": _OBJECT}
_DETAIL: codecs.Form[Any] = codecs.Form(lambda _, detail: dict(detail), codecs.identity, _OBJECT)


def _schemas(forms: Mapping[str, codecs.Form[Any]]) -> dict[str, codecs.Schema]:
    return {name: form.schema for name, form in forms.items()}


STATS = answer_record(
    JobStats,
    "StoredStats",
    "Counts over the jobs that have all tags.",
    {each.name: _NAMES if each.name == "tags" else _NUMBER for each in dataclasses.fields(JobStats)},
)

_RATE = a_record(
    "StartRate",
    "At most `count` starts in every window of `per` seconds.",
    ["count", "per"],
    count=NUMBER,
    per=codecs.SPAN.schema,
)


def write_rate(rate: Rate | None) -> codecs.Json:
    """Encode a rate, or null for no limit."""
    return None if rate is None else {"count": rate.count, "per": codecs.write_span(cast(timedelta, rate.per))}


def read_rate(name: str, value: codecs.Json) -> Rate | None:
    """Decode a rate; the store checks its numbers."""
    if value is None:
        return None
    data = codecs.fields_in(name, value, {"count": 0, "per": 0})
    return Rate(data.get("count", 0), codecs.read_span("rate.per", data.get("per", 0)))


RATE: codecs.Form[Rate | None] = codecs.Form(
    lambda name, value: write_rate(check_rate(name, value)), read_rate, or_null(_RATE)
)


_SET_RATE: codecs.Form[Rate | None] = codecs.Form(lambda _, rate: write_rate(rate), read_rate, or_null(_RATE))
QUEUES = codecs.list_of(
    answer_record(
        QueueInfo,
        "StoredQueue",
        "A queue's settings and its exact counts.",
        {
            "name": _WORD,
            "paused": _YES_OR_NO,
            "running": _NUMBER_OR_NULL,
            "per_key": _NUMBER_OR_NULL,
            "rate": _SET_RATE,
            "rate_per_key": _SET_RATE,
            "counts": COUNTS,
        },
    )
)

_SENT_TIME: codecs.Form[datetime] = codecs.Form(
    lambda _, moment: codecs.write_time(moment), codecs.read_time, codecs.TIME.schema
)


def _read_text(name: str, value: codecs.Json) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(name, f"must be text, not {type(value).__name__}")
    return value


_SENT_TEXT: codecs.Form[str] = codecs.Form(codecs.identity, _read_text, WORD)
_REPEAT_FIELDS: dict[str, codecs.Form[Any]] = {
    "cron": codecs.optional(_SENT_TEXT),
    "every": codecs.optional(
        codecs.Form(lambda _, every: codecs.write_span(every), codecs.read_span, codecs.SPAN.schema)
    ),
    "tz": _SENT_TEXT,
    "limit": _NUMBER_OR_NULL,
    "start": codecs.optional(_SENT_TIME),
    "end": codecs.optional(_SENT_TIME),
    "on_gap": codecs.plain({"enum": ["next", "skip"]}),
    "on_overlap": codecs.plain({"enum": ["first", "second", "both"]}),
    "catch_up": codecs.plain({"enum": ["none", "last", "all"]}),
    "immediate": _YES_OR_NO,
}
_SCHEDULE_TIMES = ("next_run_at", "last_run_at", "created_at", "updated_at")
_SCHEDULE_FIELDS: dict[str, codecs.Schema] = {
    "id": codecs.NAME.schema,
    "job": NEW_JOB.schema,
    "repeat": a_record(
        "StoredRepeat", "When to repeat: `cron`, or `every` in seconds.", [], **_schemas(_REPEAT_FIELDS)
    ),
    "paused": codecs.FLAG.schema,
    **dict.fromkeys(_SCHEDULE_TIMES, or_null(codecs.TIME.schema)),
    "last_job_id": or_null(WORD),
    "run_count": NUMBER,
    "error": WORD,
    "passed_over": or_null({"type": "array", "items": codecs.TIME.schema, "minItems": 2, "maxItems": 2}),
}


def _write_repeat(repeat: Repeat) -> dict[str, Any]:
    data = {name: form.write(name, getattr(repeat, name)) for name, form in _REPEAT_FIELDS.items()}
    if not repeat.immediate:  # earlier servers do not know the field
        del data["immediate"]
    return data


def _read_repeat(name: str, value: codecs.Json) -> Repeat:
    return Repeat(**codecs.read_fields(name, value, _REPEAT_FIELDS))


def _write_schedule(_: str, schedule: Schedule) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": schedule.id,
        "job": write_new_job("job", schedule.job),
        "repeat": _write_repeat(schedule.repeat),
        "paused": schedule.paused,
        "last_job_id": schedule.last_job_id,
        "run_count": schedule.run_count,
        "error": schedule.error,
    }
    for name in _SCHEDULE_TIMES:
        moment = getattr(schedule, name)
        if moment is not None:
            data[name] = codecs.write_time(moment)
    if schedule.passed_over is not None:
        data["passed_over"] = [codecs.write_time(moment) for moment in schedule.passed_over]
    return data


def _new_schedule(_: str, value: Any) -> dict[str, Any]:
    check_schedule(value, 0)
    job, repeat = write_new_job("job", value.job), _write_repeat(value.repeat)
    return {"id": value.id, "job": job, "repeat": repeat, "paused": value.paused}


_SCHEDULE_NAMES = frozenset(field.name for field in dataclasses.fields(Schedule))


def _known_schedule(_: str, data: codecs.Json) -> Schedule:
    values = {name: value for name, value in data.items() if name in _SCHEDULE_NAMES}  # newer servers send more
    values["job"] = _known_template(data["job"])
    values["repeat"] = _read_repeat("repeat", data["repeat"])
    for name in _SCHEDULE_TIMES:
        values[name] = codecs.stored_time(data.get(name))
    if data.get("passed_over") is not None:
        begin, end = data["passed_over"]
        values["passed_over"] = (datetime.fromisoformat(begin), datetime.fromisoformat(end))
    return Schedule(**values)


def _known_template(data: codecs.Json) -> Job:
    job = read_new_job("job", data)
    spans = {name: codecs.stored_span(data[name]) for name in ("delay", "timeout", "expires_at") if name in data}
    return job.replace(**spans) if spans else job


def _given_schedule(name: str, value: codecs.Json) -> Schedule:
    data = codecs.fields_in(name, value, {"id": "", "job": {}, "repeat": {}, "paused": False}, ("id", "job", "repeat"))
    job = read_new_job(f"{name}.job", data["job"])
    repeat = _read_repeat("repeat", data["repeat"])
    return Schedule(id=data["id"], job=job, repeat=repeat, paused=data.get("paused", False))


_SCHEDULE = a_record(
    "StoredSchedule", "A job that is enqueued repeatedly.", ["id", "job", "repeat"], **_SCHEDULE_FIELDS
)
NEW_SCHEDULE: codecs.Form[Schedule] = codecs.Form(
    _new_schedule,
    _given_schedule,
    a_record(
        "NewStoredSchedule",
        "A schedule to store or change.",
        ["id", "job", "repeat"],
        **{name: _SCHEDULE_FIELDS[name] for name in ("id", "job", "repeat", "paused")},
    ),
)
SCHEDULE: codecs.Form[Schedule] = codecs.Form(_write_schedule, _known_schedule, _SCHEDULE)
SCHEDULES: codecs.Form[list[Schedule]] = codecs.list_of(SCHEDULE)

_SENT_NAMES: codecs.Form[Any] = codecs.Form(
    lambda _, names: list(names), lambda _, data: tuple(data) if isinstance(data, list) else data, codecs.NAMES.schema
)
_WORKER_FIELDS: dict[str, codecs.Form[Any]] = {
    "id": codecs.plain(codecs.NAME.schema),
    "queues": _SENT_NAMES,
    "tags": _SENT_NAMES,
    **dict.fromkeys(("concurrency", "running", "pid"), _NUMBER),
    **dict.fromkeys(("host", "version", "state"), _WORD),
    "started_at": codecs.optional(codecs.TIME),
    "seen_at": codecs.optional(codecs.TIME),
    "detail": _DETAIL,
    "types": codecs.optional(_SENT_NAMES),
}
_WORKER: codecs.Form[WorkerInfo] = codecs.Form(
    lambda _, worker: {name: form.write(name, getattr(worker, name)) for name, form in _WORKER_FIELDS.items()},
    lambda name, data: WorkerInfo(**codecs.read_fields(name, data, _WORKER_FIELDS, ["id"])),
    a_record("StoredWorker", "The report of a worker.", ["id"], **_schemas(_WORKER_FIELDS)),
)
WORKER: codecs.Form[WorkerInfo] = codecs.Form(
    lambda name, value: _WORKER.write(name, checks.worker(value)), _WORKER.read, _WORKER.schema
)
WORKERS = codecs.list_of(_WORKER)


LOGS = codecs.list_of(
    answer_record(
        LogEntry,
        "StoredLogLine",
        "A line that a job logged.",
        {"number": _NUMBER, "at": _TIME, "level": _WORD, "message": _WORD},
    )
)
EVENTS = codecs.list_of(
    answer_record(
        JobEvent,
        "StoredEvent",
        "One event of the event log; `job_seq` orders the events of one job.",
        {
            "cursor": _WORD,
            "job_uid": _NUMBER_OR_NULL,
            "job_id": _WORD_OR_NULL,
            "job_seq": _NUMBER,
            "queue": _WORD,
            "type": _WORD_OR_NULL,
            "event": _WORD,
            "from_status": _STATUS_OR_NULL,
            "to_status": _STATUS_OR_NULL,
            "epoch": _NUMBER,
            "execution": _NUMBER,
            "assignee_id": _WORD_OR_NULL,
            "actor": _WORD,
            "occurred_at": _TIME,
            "detail": _DETAIL,
        },
    )
)


class EventPage(NamedTuple):
    """Events, and the cursor to continue from; None if that is the cursor of the last event."""

    events: list[JobEvent]
    next_cursor: str | None = None


def _write_event_page(name: str, found: EventPage | list[JobEvent]) -> dict[str, Any]:
    if not isinstance(found, EventPage):
        return {"events": EVENTS.write(name, found)}
    return {"events": EVENTS.write(name, found.events), "next_cursor": found.next_cursor}


EVENT_PAGE: codecs.Form[EventPage] = codecs.Form(
    _write_event_page,
    lambda name, data: EventPage(EVENTS.read(name, data["events"]), data.get("next_cursor")),
    a_record(
        "StoredEvents",
        "Up to `limit` events. Fewer mean the end of the log, unless there is a `next_cursor`: continue from there.",
        ["events"],
        events=EVENTS.schema,
        next_cursor=or_null(WORD),
    ),
)


_HOLDER = answer_record(Holder, "", "", {"job_id": _WORD, "worker": _WORD_OR_NULL, "since": codecs.optional(_TIME)})
_USAGE = answer_record(
    Usage,
    "",
    "",
    {
        "limit": _NUMBER_OR_NULL,
        "running": _NUMBER,
        "holders": _tuple_of(_HOLDER, _OBJECTS),
        "rate": _SET_RATE,
        "started": _NUMBER,
        "window_ends": codecs.optional(_TIME),
    },
)
_DEPENDENCY = answer_record(Dependency, "", "", {"job_id": _WORD, "status": _STATUS_OR_NULL, "step": _WORD})
_WORKER_SEEN = answer_record(
    WorkerSeen,
    "",
    "",
    {
        "id": _WORD,
        "queues": _NAMES,
        "tags": _NAMES,
        "concurrency": _NUMBER,
        "running": _NUMBER,
        "state": _WORD,
        "seen_at": codecs.optional(_TIME),
        "types": codecs.optional(_NAMES),
    },
    newer=["types"],
)
_CLOCK_STEP: codecs.Form[ClockStep] = codecs.Form(
    lambda _, step: {"at": codecs.write_time(step.at), "seconds": step.by.total_seconds()},
    lambda _, data: ClockStep(datetime.fromisoformat(data["at"]), timedelta(seconds=data["seconds"])),
    _OBJECT,
)
FACTS = answer_record(
    Facts,
    "JobFacts",
    "A snapshot of everything that may keep a job from running.",
    {
        "now": _TIME,
        "job": JOB,
        "eligible_at": _TIME,
        "paused": _YES_OR_NO,
        "queue": _USAGE,
        "key": _USAGE,
        "waits_for": _tuple_of(_DEPENDENCY, _OBJECTS),
        "deps_left": _NUMBER,
        "ahead": _NUMBER,
        "workers": _tuple_of(_WORKER_SEEN, _OBJECTS),
        "recent_ends": _tuple_of(_TIME, {"type": "array", "items": _TIME.schema}),
        "given_back": _WORD,
        "clock_step": codecs.optional(_CLOCK_STEP),
    },
    newer=["recent_ends", "given_back", "clock_step"],
)
