"""Queues, schedules, workers, events and the facts of `explain` as JSON."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from longshore.backends import argument_checks
from longshore.backends.base import QueueInfo, WorkerInfo
from longshore.backends.remote.codecs import (
    FLAG,
    NAME,
    NAMES,
    SPAN,
    STATUS,
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
from longshore.backends.remote.records.jobs import (
    JOB,
    NEW_JOB,
    NUMBER,
    WORD,
    a_record,
    or_null,
    read_job,
    read_new_job,
    write_job,
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

COUNTS: Form[dict[JobStatus, int]] = Form(
    lambda _, counts: {status.value: count for status, count in counts.items()},
    lambda _, told: {JobStatus(status): count for status, count in told.items()},
    {"type": "object", "additionalProperties": NUMBER},
)
_STATS_NAMES = tuple(field.name for field in dataclasses.fields(JobStats))
STATS: Form[JobStats] = Form(
    lambda _, stats: {name: getattr(stats, name) for name in _STATS_NAMES},
    lambda _, told: JobStats(**{name: told[name] for name in _STATS_NAMES} | {"tags": tuple(told["tags"])}),
    a_record(
        "StoredStats",
        "Counts over jobs that carry all tags.",
        _STATS_NAMES,
        **{**dict.fromkeys(_STATS_NAMES, NUMBER), "tags": NAMES.schema},
    ),
)

_RATE = a_record(
    "StartRate",
    "At most `count` starts in every window of `per` seconds.",
    ["count", "per"],
    count=NUMBER,
    per=SPAN.schema,
)


def write_rate(rate: Rate | None) -> Json:
    """A limit on starts, or null for none."""
    return None if rate is None else {"count": rate.count, "per": write_span(cast(timedelta, rate.per))}


def read_rate(name: str, value: Json) -> Rate | None:
    """The same; the store judges its numbers."""
    if value is None:
        return None
    told = an_object(name, value)
    only(name, told, {"count": 0, "per": 0})
    return Rate(told.get("count", 0), read_span("rate.per", told.get("per", 0)))


RATE: Form[Rate | None] = Form(lambda name, value: write_rate(check_rate(name, value)), read_rate, or_null(_RATE))


def _write_queue(_: str, info: QueueInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "paused": info.paused,
        "running": info.running,
        "per_key": info.per_key,
        "rate": write_rate(info.rate),
        "rate_per_key": write_rate(info.rate_per_key),
        "counts": COUNTS.write("counts", info.counts),
    }


def _read_queue(_: str, told: Json) -> QueueInfo:
    return QueueInfo(
        told["name"],
        told["paused"],
        told["running"],
        told["per_key"],
        read_rate("rate", told["rate"]),
        read_rate("rate_per_key", told["rate_per_key"]),
        COUNTS.read("counts", told["counts"]),
    )


_QUEUE = a_record(
    "StoredQueue",
    "A queue's settings and its exact counts.",
    ["name", "paused", "running", "per_key", "rate", "rate_per_key", "counts"],
    name=WORD,
    paused=FLAG.schema,
    running=or_null(NUMBER),
    per_key=or_null(NUMBER),
    rate=or_null(_RATE),
    rate_per_key=or_null(_RATE),
    counts=COUNTS.schema,
)
QUEUES: Form[list[QueueInfo]] = list_of(Form(_write_queue, _read_queue, _QUEUE))

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

_WORKER_FIELDS: dict[str, Schema] = {
    "id": NAME.schema,
    "queues": NAMES.schema,
    "tags": NAMES.schema,
    **dict.fromkeys(("concurrency", "running", "pid"), NUMBER),
    **dict.fromkeys(("host", "version", "state"), WORD),
    "started_at": or_null(TIME.schema),
    "seen_at": or_null(TIME.schema),
    "detail": {"type": "object"},
    "types": or_null(NAMES.schema),
}


def _write_worker(worker: WorkerInfo) -> dict[str, Any]:
    told = {name: getattr(worker, name) for name in _WORKER_FIELDS}
    told |= {"queues": list(worker.queues), "tags": list(worker.tags), "detail": dict(worker.detail)}
    told["types"] = None if worker.types is None else list(worker.types)
    for name in ("started_at", "seen_at"):
        told[name] = None if told[name] is None else TIME.write(name, told[name])
    return told


def _read_worker(name: str, value: Json) -> WorkerInfo:
    told = an_object(name, value)
    only(name, told, _WORKER_FIELDS)
    if "id" not in told:
        raise InvalidArgument(f"{name}.id", "is missing")
    values = dict(told)
    for field in ("queues", "tags", "types"):
        if isinstance(values.get(field), list):
            values[field] = tuple(values[field])
    for field in ("started_at", "seen_at"):
        if values.get(field) is not None:
            values[field] = read_time(f"{name}.{field}", values[field])
    return WorkerInfo(**values)


_WORKER = a_record("StoredWorker", "What a worker says of itself.", ["id"], **_WORKER_FIELDS)
WORKER: Form[WorkerInfo] = Form(lambda _, value: _write_worker(argument_checks.worker(value)), _read_worker, _WORKER)
WORKERS: Form[list[WorkerInfo]] = Form(
    lambda _, workers: [_write_worker(worker) for worker in workers],
    lambda _, told: [_read_worker("worker", worker) for worker in told],
    {"type": "array", "items": _WORKER},
)


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


def _write_usage(usage: Usage) -> dict[str, Any]:
    return {
        "limit": usage.limit,
        "running": usage.running,
        "holders": [
            {"job_id": one.job_id, "worker": one.worker, "since": None if one.since is None else write_time(one.since)}
            for one in usage.holders
        ],
        "rate": write_rate(usage.rate),
        "started": usage.started,
        "window_ends": None if usage.window_ends is None else write_time(usage.window_ends),
    }


def _read_usage(told: Json) -> Usage:
    return Usage(
        told["limit"],
        told["running"],
        tuple(Holder(one["job_id"], one["worker"], stored_time(one["since"])) for one in told["holders"]),
        read_rate("rate", told["rate"]),
        told["started"],
        stored_time(told["window_ends"]),
    )


def _write_facts(_: str, facts: Facts) -> dict[str, Any]:
    return {
        "now": write_time(facts.now),
        "job": write_job(facts.job),
        "eligible_at": write_time(facts.eligible_at),
        "paused": facts.paused,
        "queue": _write_usage(facts.queue),
        "key": _write_usage(facts.key),
        "waits_for": [{"job_id": one.job_id, "status": one.status, "step": one.step} for one in facts.waits_for],
        "deps_left": facts.deps_left,
        "ahead": facts.ahead,
        "workers": [
            {
                **{
                    name: getattr(one, name)
                    for name in ("id", "queues", "tags", "concurrency", "running", "state", "types")
                },
                "seen_at": None if one.seen_at is None else write_time(one.seen_at),
            }
            for one in facts.workers
        ],
        "recent_ends": [write_time(end) for end in facts.recent_ends],
        "given_back": facts.given_back,
        "clock_step": None
        if facts.clock_step is None
        else {"at": write_time(facts.clock_step.at), "seconds": facts.clock_step.by.total_seconds()},
    }


def _read_facts(_: str, told: Json) -> Facts:
    return Facts(
        datetime.fromisoformat(told["now"]),
        read_job("", told["job"]),
        datetime.fromisoformat(told["eligible_at"]),
        told["paused"],
        _read_usage(told["queue"]),
        _read_usage(told["key"]),
        tuple(
            Dependency(one["job_id"], None if one["status"] is None else JobStatus(one["status"]), one["step"])
            for one in told["waits_for"]
        ),
        told["deps_left"],
        told["ahead"],
        tuple(
            WorkerSeen(
                one["id"],
                tuple(one["queues"]),
                tuple(one["tags"]),
                one["concurrency"],
                one["running"],
                one["state"],
                stored_time(one["seen_at"]),
                None if one.get("types") is None else tuple(one["types"]),
            )
            for one in told["workers"]
        ),
        given_back=told.get("given_back", ""),
        recent_ends=tuple(datetime.fromisoformat(end) for end in told.get("recent_ends", ())),
        clock_step=_read_clock_step(told.get("clock_step")),
    )


def _read_clock_step(told: Json) -> ClockStep | None:
    return None if told is None else ClockStep(datetime.fromisoformat(told["at"]), timedelta(seconds=told["seconds"]))


FACTS: Form[Facts] = Form(
    _write_facts,
    _read_facts,
    a_record(
        "JobFacts",
        "One look at all that may keep a job from running.",
        ["now", "job", "eligible_at", "paused", "queue", "key", "waits_for", "deps_left", "ahead", "workers"],
        now=TIME.schema,
        job=JOB.schema,
        eligible_at=TIME.schema,
        paused=FLAG.schema,
        queue={"type": "object"},
        key={"type": "object"},
        waits_for={"type": "array", "items": {"type": "object"}},
        deps_left=NUMBER,
        ahead=NUMBER,
        workers={"type": "array", "items": {"type": "object"}},
        recent_ends={"type": "array", "items": TIME.schema},
        given_back=WORD,
        clock_step=or_null({"type": "object"}),
    ),
)
