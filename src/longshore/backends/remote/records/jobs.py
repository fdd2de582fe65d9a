"""Jobs over the wire: whole, as they are stored, and as whoever submits one may describe it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

from longshore.backends import checks
from longshore.backends.contract import Page
from longshore.backends.remote.forms import (
    BYTES,
    FLAG,
    MOMENT,
    MOST_LISTED,
    NAME,
    NAMES,
    SPAN,
    STATUS,
    TIME,
    WAIT,
    Form,
    Json,
    Schema,
    a_list,
    an_object,
    answered,
    list_of,
    not_too_many,
    only,
    read_bytes,
    read_checkpoint,
    read_moment,
    read_span,
    read_time,
    stored_span,
    write_bytes,
    write_checkpoint,
    write_moment,
    write_span,
    write_time,
)
from longshore.backends.remote.records.leases import HELD, known_lease, write_lease
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.job_record import JobInTheMaking, record_of
from longshore.core.status import JobStatus
from longshore.core.validation import check_status

_DEFAULTS: dict[str, Any] = {
    field.name: () if field.name in ("tags", "depends_on") else field.default
    for field in dataclasses.fields(Job)
    if field.default is not dataclasses.MISSING
}
_TIMES = ("created_at", "updated_at", "started_at", "finalized_at", "last_retry_at", "assigned_at")
_MOMENTS = ("run_at", "expires_at")
_SPANS = ("delay", "timeout")
_AS_THEY_ARE = (
    *("priority", "lifo", "max_attempts", "max_crashes", "idempotency_key", "concurrency_key", "parent_id"),
    *("on_dependency_failure", "uid", "executions", "retry_count", "crashes", "epoch", "assignee_id"),
    *("error_message", "progress", "schedule_id"),
)
_UNLESS = tuple((name, _DEFAULTS[name]) for name in _AS_THEY_ARE)


def write_job(job: Job) -> dict[str, Any]:
    """The whole record; what is as in any fresh job is left out."""
    told: dict[str, Any] = {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "status": job.status.value,
        "payload": write_bytes(job.payload),
    }
    for name, default in _UNLESS:
        value = getattr(job, name)
        if value != default:
            told[name] = value
    if job.tags:
        told["tags"] = list(job.tags)
    if job.depends_on:
        told["depends_on"] = list(job.depends_on)
    if job.options:
        told["options"] = dict(job.options)
    for name in _TIMES:
        value = getattr(job, name)
        if value is not None:
            told[name] = write_time(value)
    for name in _MOMENTS:
        value = getattr(job, name)
        if value is not None:
            told[name] = write_span(value) if isinstance(value, timedelta) else write_time(value)
    for name in _SPANS:
        value = getattr(job, name)
        if value is not None:
            told[name] = write_span(value)
    if job.lease is not None:
        told["lease"] = write_lease(job.lease)
    if job.result is not None:
        told["result"] = write_bytes(job.result)
    if job.checkpoint is not None:
        told["checkpoint"] = write_checkpoint(job.checkpoint)
    return told


_WORD = answered(str, WORD)
_READ: dict[str, Callable[[Any], Any]] = {
    "id": lambda value: _WORD.read("id", value),
    "type": lambda value: _WORD.read("type", value),
    "queue": lambda value: _WORD.read("queue", value),
    "status": JobStatus,
    "payload": lambda value: read_bytes("payload", value),
    "tags": tuple,
    "depends_on": tuple,
    **dict.fromkeys(_TIMES, datetime.fromisoformat),
    **dict.fromkeys(_MOMENTS, lambda value: datetime.fromisoformat(value) if _is_time(value) else stored_span(value)),
    **dict.fromkeys(_SPANS, stored_span),
    "lease": known_lease,
    "result": lambda value: read_bytes("result", value),
    "checkpoint": lambda value: read_checkpoint("checkpoint", value),
}


_JOB_NAMES = frozenset(field.name for field in dataclasses.fields(Job))


def _is_time(value: Json) -> bool:
    return isinstance(value, str) and "T" in value


def read_job(_: str, told: Json) -> Job:
    """What `write_job` wrote; a field that only a newer server knows is passed over."""
    values = {**_DEFAULTS, "options": {}}
    for name, value in told.items():
        reading = _READ.get(name)
        if reading is not None:
            values[name] = reading(value)
        elif name in _JOB_NAMES:
            values[name] = value
    job = JobInTheMaking(**values)
    job.__class__ = Job
    return cast(Job, job)


_SETTABLE: dict[str, Schema] = {
    "id": NAME.schema,
    "type": NAME.schema,
    "queue": NAME.schema,
    "payload": BYTES.schema,
    "tags": NAMES.schema,
    "status": {"enum": [JobStatus.INITIAL_PENDING.value, JobStatus.CREATED.value]},
    "priority": NUMBER,
    "lifo": FLAG.schema,
    "run_at": MOMENT.schema,
    "delay": WAIT.schema,
    "expires_at": MOMENT.schema,
    "timeout": SPAN.schema,
    "max_attempts": NUMBER,
    "max_crashes": or_null(NUMBER),
    "idempotency_key": NAME.schema,
    "concurrency_key": NAME.schema,
    "parent_id": NAME.schema,
    "depends_on": NAMES.schema,
    "on_dependency_failure": {"enum": ["wait", "stop", "ignore"]},
    "schedule_id": NAME.schema,
    "created_at": TIME.schema,
    "options": {"type": "object"},
}
"""What whoever submits a job may say of it."""

_NEW_JOB = a_record("NewStoredJob", "A job to be stored, as `Job` has it.", ["id", "type"], **_SETTABLE)
_JOB = a_record(
    "StoredJob",
    "A job as it is stored; what is as in any fresh job is left out, and what is forgotten of one that was removed.",
    ["id", "type", "queue", "status", "payload", "uid"],
    **{
        **_SETTABLE,
        "status": STATUS.schema,
        "uid": NUMBER,
        **dict.fromkeys(("executions", "retry_count", "crashes", "epoch"), NUMBER),
        **dict.fromkeys(_TIMES, TIME.schema),
        "assignee_id": WORD,
        "lease": HELD.schema,
        "result": BYTES.schema,
        "error_message": WORD,
        "progress": {},
        "checkpoint": {},
    },
)


def write_new_job(_: str, job: Any) -> dict[str, Any]:
    """What a caller set, refused as any store would refuse it; times that are durations stay such."""
    record_of(job, 0)
    told: dict[str, Any] = {"id": job.id, "type": job.type}
    if job.payload != b"null":
        told["payload"] = write_bytes(bytes(job.payload))
    for name in ("queue", "priority", "lifo", "max_attempts", "max_crashes", "on_dependency_failure"):
        value = getattr(job, name)
        if value != _DEFAULTS[name]:
            told[name] = value
    for name in ("idempotency_key", "concurrency_key", "parent_id", "schedule_id"):
        value = getattr(job, name)
        if value is not None:
            told[name] = value
    if job.status is not JobStatus.INITIAL_PENDING:
        told["status"] = check_status("status", job.status).value
    if job.tags != ():
        told["tags"] = list(job.tags)
    if job.depends_on != ():
        told["depends_on"] = list(job.depends_on)
    if job.options != {}:
        told["options"] = dict(job.options)
    for name in _MOMENTS:
        value = getattr(job, name)
        if value is not None:
            told[name] = write_moment(name, value)
    if job.delay is not None:
        told["delay"] = WAIT.write("delay", job.delay)
    if job.timeout is not None:
        told["timeout"] = SPAN.write("timeout", job.timeout)
    if job.created_at is not None:
        told["created_at"] = TIME.write("created_at", job.created_at)
    return told


_READ_NEW: dict[str, Callable[[str, Any], Any]] = {
    "tags": not_too_many,
    "depends_on": not_too_many,
    "payload": read_bytes,
    "run_at": read_moment,
    "expires_at": read_moment,
    "delay": read_span,
    "timeout": read_span,
    "created_at": read_time,
}


def read_new_job(name: str, value: Json) -> Job:
    """A job that somebody sent; the store judges what is in it."""
    told = an_object(name, value)
    only(name, told, _SETTABLE)
    for needed in ("id", "type"):
        if needed not in told:
            raise InvalidArgument(f"{name}.{needed}", "is missing")
    values: dict[str, Any] = {}
    for field, given in told.items():
        reading = _READ_NEW.get(field)
        values[field] = given if reading is None or given is None else reading(field, given)
    return Job(**values)


NEW_JOB: Form[Job] = Form(write_new_job, read_new_job, _NEW_JOB)


def _write_new_jobs(_: str, jobs: Any) -> list[dict[str, Any]]:
    told = []
    for place, job in enumerate(checks.jobs(jobs)):
        try:
            told.append(write_new_job("job", job))
        except InvalidArgument as error:
            raise InvalidArgument(f"jobs[{place}].{error.field}", error.problem) from None
    return told


def _read_new_jobs(name: str, jobs: Json) -> list[Job]:
    told = not_too_many(name, a_list(name, jobs))
    return [read_new_job(f"{name}[{place}]", job) for place, job in enumerate(told)]


NEW_JOBS: Form[list[Job]] = Form(
    _write_new_jobs,
    _read_new_jobs,
    {"type": "array", "items": _NEW_JOB, "maxItems": MOST_LISTED},
)
JOB: Form[Job] = Form(lambda _, job: write_job(job), read_job, _JOB)
JOBS: Form[list[Job]] = list_of(JOB)
PAGE: Form[Page] = Form(
    lambda _, page: {"items": [write_job(job) for job in page.items], "next_cursor": page.next_cursor},
    lambda _, told: Page([read_job("", job) for job in told["items"]], told["next_cursor"]),
    a_record(
        "StoredPage",
        "Some of the jobs; `next_cursor` is null on the last page.",
        ["items", "next_cursor"],
        items=JOBS.schema,
        next_cursor=or_null(WORD),
    ),
)
