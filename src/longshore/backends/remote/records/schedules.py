"""Schedules over the wire: what is repeated, when, and how it went so far."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any, cast

from longshore.backends.remote.forms import (
    FLAG,
    NAME,
    SPAN,
    TIME,
    Form,
    Json,
    Schema,
    an_object,
    list_of,
    only,
    read_span,
    read_time,
    stored_span,
    stored_time,
    write_span,
    write_time,
)
from longshore.backends.remote.records.jobs import NEW_JOB, read_new_job, write_new_job
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, check_schedule

_REPEAT_FIELDS: dict[str, Schema] = {
    "cron": or_null(WORD),
    "every": or_null(SPAN.schema),
    "tz": WORD,
    "limit": or_null(NUMBER),
    "start": or_null(TIME.schema),
    "end": or_null(TIME.schema),
    "on_gap": {"enum": ["next", "skip"]},
    "on_overlap": {"enum": ["first", "second", "both"]},
    "catch_up": {"enum": ["none", "last", "all"]},
    "immediate": FLAG.schema,
}
_SCHEDULE_TIMES = ("next_run_at", "last_run_at", "created_at", "updated_at")
_SCHEDULE_FIELDS: dict[str, Schema] = {
    "id": NAME.schema,
    "job": NEW_JOB.schema,
    "repeat": a_record("StoredRepeat", "When to repeat: `cron`, or `every` so many seconds.", [], **_REPEAT_FIELDS),
    "paused": FLAG.schema,
    **dict.fromkeys(_SCHEDULE_TIMES, or_null(TIME.schema)),
    "last_job_id": or_null(WORD),
    "run_count": NUMBER,
    "error": WORD,
    "passed_over": or_null({"type": "array", "items": TIME.schema, "minItems": 2, "maxItems": 2}),
}


def _write_repeat(repeat: Repeat) -> dict[str, Any]:
    told = {name: getattr(repeat, name) for name in _REPEAT_FIELDS}
    told["every"] = None if repeat.every is None else write_span(cast(timedelta, repeat.every))
    for name in ("start", "end"):
        told[name] = None if told[name] is None else write_time(told[name])
    if not repeat.immediate:  # servers of earlier versions do not know the field
        del told["immediate"]
    return told


def _read_repeat(name: str, value: Json) -> Repeat:
    told = an_object(name, value)
    only(name, told, _REPEAT_FIELDS)
    values = dict(told)
    if values.get("every") is not None:
        values["every"] = read_span(f"{name}.every", values["every"])
    for field in ("start", "end"):
        if values.get(field) is not None:
            values[field] = read_time(f"{name}.{field}", values[field])
    for field, wanted in (("cron", str), ("tz", str)):
        if values.get(field) is not None and not isinstance(values[field], wanted):
            raise InvalidArgument(f"{name}.{field}", f"must be text, not {type(values[field]).__name__}")
    return Repeat(**values)


def _write_schedule(_: str, schedule: Schedule) -> dict[str, Any]:
    told: dict[str, Any] = {
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
            told[name] = write_time(moment)
    if schedule.passed_over is not None:
        told["passed_over"] = [write_time(moment) for moment in schedule.passed_over]
    return told


def _new_schedule(_: str, value: Any) -> dict[str, Any]:
    check_schedule(value, 0)
    job, repeat = write_new_job("job", value.job), _write_repeat(value.repeat)
    return {"id": value.id, "job": job, "repeat": repeat, "paused": value.paused}


_SCHEDULE_NAMES = frozenset(field.name for field in dataclasses.fields(Schedule))


def _known_schedule(_: str, told: Json) -> Schedule:
    values = {name: value for name, value in told.items() if name in _SCHEDULE_NAMES}  # a newer server may tell more
    values["job"] = _known_pattern(told["job"])
    values["repeat"] = _read_repeat("repeat", told["repeat"])
    for name in _SCHEDULE_TIMES:
        values[name] = stored_time(told.get(name))
    if told.get("passed_over") is not None:
        begin, end = told["passed_over"]
        values["passed_over"] = (datetime.fromisoformat(begin), datetime.fromisoformat(end))
    return Schedule(**values)


def _known_pattern(told: Json) -> Job:
    job = read_new_job("job", told)
    spans = {name: stored_span(told[name]) for name in ("delay", "timeout", "expires_at") if name in told}
    return job.replace(**spans) if spans else job


def _given_schedule(name: str, value: Json) -> Schedule:
    told = an_object(name, value)
    only(name, told, {"id": "", "job": {}, "repeat": {}, "paused": False})
    for needed in ("id", "job", "repeat"):
        if needed not in told:
            raise InvalidArgument(f"{name}.{needed}", "is missing")
    job = read_new_job(f"{name}.job", told["job"])
    repeat = _read_repeat("repeat", told["repeat"])
    return Schedule(id=told["id"], job=job, repeat=repeat, paused=told.get("paused", False))


_SCHEDULE = a_record("StoredSchedule", "A job made again and again.", ["id", "job", "repeat"], **_SCHEDULE_FIELDS)
NEW_SCHEDULE: Form[Schedule] = Form(
    _new_schedule,
    _given_schedule,
    a_record(
        "NewStoredSchedule",
        "A schedule to be put.",
        ["id", "job", "repeat"],
        **{name: _SCHEDULE_FIELDS[name] for name in ("id", "job", "repeat", "paused")},
    ),
)
SCHEDULE: Form[Schedule] = Form(_write_schedule, _known_schedule, _SCHEDULE)
SCHEDULES: Form[list[Schedule]] = list_of(SCHEDULE)
