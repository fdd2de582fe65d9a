"""Schedules and workers as JSON text, for stores that keep them in one column."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from longshore.backends.base import WorkerInfo
from longshore.core.job import Job
from longshore.core.job_record import JobTemplate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.times import check_duration, from_micros, optional_moment, span, to_micros

_PATTERN_FIELDS = (
    "type",
    "queue",
    "tags",
    "priority",
    "lifo",
    "max_attempts",
    "max_crashes",
    "concurrency_key",
    "parent_id",
    "options",
)
_as_json = json.JSONEncoder(ensure_ascii=False).encode  # created once: thousands of schedules may fire together
_SPANS: tuple[str, ...] = ("delay", "expires_at", "timeout")
FiringColumns = tuple[str, int | None, int | None, str | None, int, int | None]


def schedule_row(schedule: Schedule) -> tuple[Any, ...]:
    """A row of `schedules`: the indexed columns, the columns that change when it fires, and the rest as text."""
    return (*firing_columns(schedule), schedule.paused, schedule_text(schedule))


def firing_columns(schedule: Schedule) -> FiringColumns:
    """The columns that change when it fires; only these are written then."""
    return (
        schedule.id,
        _moment(schedule.next_run_at),
        _moment(schedule.last_run_at),
        schedule.last_job_id,
        schedule.run_count,
        _moment(schedule.updated_at),
    )


def _moment(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def schedule_text(schedule: Schedule) -> str:
    """The fields that do not change when it fires, as JSON text."""
    job, repeat = schedule.job, schedule.repeat
    pattern = {name: getattr(job, name) for name in _PATTERN_FIELDS}
    pattern["options"] = dict(job.options)
    pattern["payload"] = job.payload.hex()
    for name in _SPANS:
        pattern[name] = _micros(getattr(job, name))
    times: dict[str, Any] = {
        "cron": repeat.cron,
        "every": _micros(repeat.every),
        "tz": repeat.tz,
        "limit": repeat.limit,
        "start": None if repeat.start is None else to_micros(repeat.start),
        "end": None if repeat.end is None else to_micros(repeat.end),
        "on_gap": repeat.on_gap,
        "on_overlap": repeat.on_overlap,
        "catch_up": repeat.catch_up,
    }
    if repeat.immediate:  # omitted otherwise: earlier versions do not know the field
        times["immediate"] = True
    body: dict[str, Any] = {"id": schedule.id, "job": pattern, "repeat": times, "paused": schedule.paused}
    body |= {"created_at": _moment(schedule.created_at), "error": schedule.error}
    if schedule.passed_over is not None:
        body["passed_over"] = list(map(to_micros, schedule.passed_over))
    return _as_json(body)


def schedule_of(
    next_run_at: int | None,
    last_run_at: int | None,
    last_job_id: str | None,
    run_count: int,
    updated_at: int | None,
    text: str,
) -> Schedule:
    """Decode a row of `schedules`. Texts of older stores also hold the columns; those values are ignored."""
    body = json.loads(text)
    pattern, times = body.pop("job"), body.pop("repeat")
    pattern["payload"] = bytes.fromhex(pattern["payload"])
    pattern["tags"] = tuple(pattern["tags"])
    for name in _SPANS:
        if pattern[name] is not None:
            pattern[name] = timedelta(microseconds=pattern[name])
    return Schedule(
        id=body["id"],
        job=_BLANK.job(id=body["id"], **pattern),
        repeat=_repeat_as_stored(tuple(times.items())),
        paused=body["paused"],
        next_run_at=optional_moment(next_run_at),
        last_run_at=optional_moment(last_run_at),
        last_job_id=last_job_id,
        run_count=run_count,
        created_at=optional_moment(body["created_at"]),
        updated_at=optional_moment(updated_at),
        error=body["error"],
        passed_over=_range_of(body.get("passed_over")),
    )


def _range_of(ends: list[int] | None) -> tuple[datetime, datetime] | None:
    return None if ends is None else (from_micros(ends[0]), from_micros(ends[1]))


_BLANK = JobTemplate(Job(id="", type=""))


@lru_cache(maxsize=1024)  # many schedules share their times
def _repeat_as_stored(fields: tuple[tuple[str, Any], ...]) -> Repeat:
    """Skip the checks: a stored value must stay readable, even if a newer time zone database rejects it."""
    repeat = object.__new__(Repeat)
    known = dict(fields)
    known["every"] = None if known["every"] is None else timedelta(microseconds=known["every"])
    for name in ("start", "end"):
        known[name] = optional_moment(known[name])
    for spec in dataclasses.fields(Repeat):
        object.__setattr__(repeat, spec.name, known.get(spec.name, spec.default))
    return repeat


def worker_text(worker: WorkerInfo) -> str:
    """A worker as JSON text."""
    body = {spec.name: getattr(worker, spec.name) for spec in dataclasses.fields(worker)}
    body["detail"] = dict(worker.detail)
    for name in ("started_at", "seen_at"):
        body[name] = None if body[name] is None else to_micros(body[name])
    return json.dumps(body, ensure_ascii=False)


def worker_of(text: str) -> WorkerInfo:
    """Decode the text of `worker_text`."""
    body: dict[str, Any] = json.loads(text)
    for name in ("started_at", "seen_at"):
        body[name] = None if body[name] is None else from_micros(body[name])
    for name in ("queues", "tags"):
        body[name] = tuple(body[name])
    body["types"] = None if body.get("types") is None else tuple(body["types"])
    return WorkerInfo(**body)


def _micros(value: Any) -> int | None:
    length = span(value)
    return None if length is None else check_duration("duration", length, positive=False)
