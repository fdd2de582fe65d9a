"""Schedules and workers as JSON text, for stores that keep them in one column."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from functools import lru_cache
from typing import Any

from longshore.backends.contract import WorkerInfo
from longshore.core.cron import Repeat, Schedule
from longshore.core.job import Job
from longshore.core.moments import check_duration, from_micros, span, to_micros

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
_as_json = json.JSONEncoder(ensure_ascii=False).encode  # made once: thousands of schedules may fire at a time
_SPANS: tuple[str, ...] = ("delay", "expires_at", "timeout")
_MOMENTS: tuple[str, ...] = ("next_run_at", "last_run_at", "created_at", "updated_at")


def schedule_row(schedule: Schedule) -> tuple[str, bool, int | None, str]:
    """A row of `schedules`: what they are found by, and the whole as text."""
    due = None if schedule.next_run_at is None else to_micros(schedule.next_run_at)
    return schedule.id, schedule.paused, due, schedule_text(schedule)


def schedule_text(schedule: Schedule) -> str:
    """A schedule as text."""
    job, repeat = schedule.job, schedule.repeat
    pattern = {name: getattr(job, name) for name in _PATTERN_FIELDS}
    pattern["options"] = dict(job.options)
    pattern["payload"] = job.payload.hex()
    for name in _SPANS:
        pattern[name] = _micros(getattr(job, name))
    times = {
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
    body: dict[str, Any] = {"id": schedule.id, "job": pattern, "repeat": times, "paused": schedule.paused}
    body |= {"last_job_id": schedule.last_job_id, "run_count": schedule.run_count, "error": schedule.error}
    for name in _MOMENTS:
        moment = getattr(schedule, name)
        body[name] = None if moment is None else to_micros(moment)
    return _as_json(body)


def schedule_of(text: str) -> Schedule:
    """What `schedule_text` was given."""
    body = json.loads(text)
    pattern, times = body.pop("job"), body.pop("repeat")
    pattern["payload"] = bytes.fromhex(pattern["payload"])
    pattern["tags"] = tuple(pattern["tags"])
    for kept, spans in ((pattern, _SPANS), (times, ("every",))):
        for name in spans:
            kept[name] = None if kept[name] is None else timedelta(microseconds=kept[name])
    for kept, moments in ((times, ("start", "end")), (body, _MOMENTS)):
        for name in moments:
            kept[name] = None if kept[name] is None else from_micros(kept[name])
    return Schedule(job=Job(id=body["id"], **pattern), repeat=_repeat_as_stored(tuple(times.items())), **body)


@lru_cache(maxsize=1024)  # many schedules come at the same times, and then they share this
def _repeat_as_stored(fields: tuple[tuple[str, Any], ...]) -> Repeat:
    """Without the checks: what was good when it was stored must stay readable, whatever a newer zone list says."""
    repeat = object.__new__(Repeat)
    known = dict(fields)
    for spec in dataclasses.fields(Repeat):
        object.__setattr__(repeat, spec.name, known.get(spec.name, spec.default))
    return repeat


def worker_text(worker: WorkerInfo) -> str:
    """A worker as text."""
    body = {spec.name: getattr(worker, spec.name) for spec in dataclasses.fields(worker)}
    body["detail"] = dict(worker.detail)
    for name in ("started_at", "seen_at"):
        body[name] = None if body[name] is None else to_micros(body[name])
    return json.dumps(body, ensure_ascii=False)


def worker_of(text: str) -> WorkerInfo:
    """What `worker_text` was given."""
    body: dict[str, Any] = json.loads(text)
    for name in ("started_at", "seen_at"):
        body[name] = None if body[name] is None else from_micros(body[name])
    for name in ("queues", "tags"):
        body[name] = tuple(body[name])
    return WorkerInfo(**body)


def _micros(value: Any) -> int | None:
    length = span(value)
    return None if length is None else check_duration("duration", length, positive=False)
