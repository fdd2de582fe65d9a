"""The records of the contract as JSON, both ways and exact: jobs, leases, outcomes, events, schedules and the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from longshore.backends import checks
from longshore.backends.contract import Outcome, Page, QueueInfo, SettleReport, WorkerInfo
from longshore.backends.remote.forms import (
    BYTES,
    FLAG,
    MOMENT,
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
from longshore.backends.remote.problems import error_in, told_of
from longshore.core.errors import InvalidArgument
from longshore.core.facts import Dependency, Facts, Holder, Usage, WorkerSeen
from longshore.core.filtering import JobFilter, check_filter
from longshore.core.job import Job, JobEvent, JobStats, Lease, LogEntry
from longshore.core.lifecycle import JobStatus, check_status
from longshore.core.limits import Rate, check_rate
from longshore.core.record import JobInTheMaking, record_of
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, check_schedule

SCHEMAS: dict[str, Schema] = {}
"""The records by the names under which the API's document tells of them."""


def _record(name: str, description: str, required: Sequence[str], /, **fields: Schema) -> Schema:
    SCHEMAS[name] = {
        "title": name,
        "description": description,
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
    }
    return {"$ref": f"#/components/schemas/{name}"}


_WORD: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _time(value: Json) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _put(told: dict[str, Any], moments: Mapping[str, datetime | None]) -> None:
    for name, moment in moments.items():
        if moment is not None:
            told[name] = write_time(moment)


# -- leases


def write_lease(lease: Lease) -> dict[str, Any]:
    """All of it: whoever holds it sends it back as it came."""
    told: dict[str, Any] = {"token": lease.token, "epoch": lease.epoch}
    if isinstance(lease.expires_at, datetime):
        told["expires_at"] = write_time(lease.expires_at)
    if lease.cancel_requested:
        told["cancel_requested"] = True
    return told


_LEASE_FIELDS = {"token": "", "epoch": 0, "expires_at": None, "cancel_requested": False}


def read_lease(name: str, value: Json) -> Lease:
    """A lease; only its token and its epoch are asked for."""
    told = an_object(name, value)
    token, epoch = told.get("token"), told.get("epoch")
    if not isinstance(token, str) or type(epoch) is not int:
        raise InvalidArgument(name, "must have the token and the epoch of the lease, as the claim gave them")
    only(name, told, _LEASE_FIELDS)
    ends = told.get("expires_at")
    cancelling = told.get("cancel_requested", False)
    if not isinstance(cancelling, bool):
        raise InvalidArgument(f"{name}.cancel_requested", "must be true or false")
    return Lease(token, epoch, None if ends is None else read_time(f"{name}.expires_at", ends), cancelling)


def _known_lease(value: Json) -> Lease:
    return Lease(value["token"], value["epoch"], _time(value.get("expires_at")), value.get("cancel_requested", False))


_LEASE = _record(
    "HeldLease",
    "The right to work on a job and report on it; sent back as it came. Without `expires_at` it never ends.",
    ["token", "epoch"],
    token=_WORD,
    epoch=_NUMBER,
    expires_at=_or_null(TIME.schema),
    cancel_requested={"type": "boolean", "description": "Somebody wants the job called off."},
)
LEASE: Form[Lease | None] = Form(
    lambda _, value: None if checks.lease(value) is None else write_lease(value),
    lambda name, value: None if value is None else read_lease(name, value),
    _or_null(_LEASE),
)


def _own_lease(name: str, value: Any) -> Json:
    held = checks.lease(value, name)
    if held is None:
        raise InvalidArgument(name, "must be the Lease of a claimed job, or None; got NoneType")
    return write_lease(held)


HELD: Form[Lease] = Form(_own_lease, read_lease, _LEASE)
LEASES: Form[dict[str, Lease]] = Form(
    lambda _, value: {job_id: write_lease(lease) for job_id, lease in checks.leases(value).items()},
    lambda name, value: {job_id: read_lease(name, told) for job_id, told in an_object(name, value).items()},
    {"type": "object", "additionalProperties": _LEASE, "description": "Leases by job id."},
)


# -- jobs

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


_READ: dict[str, Callable[[Any], Any]] = {
    "status": JobStatus,
    "payload": lambda value: read_bytes("payload", value),
    "tags": tuple,
    "depends_on": tuple,
    **dict.fromkeys(_TIMES, datetime.fromisoformat),
    **dict.fromkeys(_MOMENTS, lambda value: datetime.fromisoformat(value) if _is_time(value) else stored_span(value)),
    **dict.fromkeys(_SPANS, stored_span),
    "lease": _known_lease,
    "result": lambda value: read_bytes("result", value),
    "checkpoint": lambda value: read_checkpoint("checkpoint", value),
}


def _is_time(value: Json) -> bool:
    return isinstance(value, str) and "T" in value


def read_job(_: str, told: Json) -> Job:
    """What `write_job` wrote."""
    values = {**_DEFAULTS, "options": {}}
    for name, value in told.items():
        reading = _READ.get(name)
        values[name] = value if reading is None else reading(value)
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
    "priority": _NUMBER,
    "lifo": FLAG.schema,
    "run_at": MOMENT.schema,
    "delay": WAIT.schema,
    "expires_at": MOMENT.schema,
    "timeout": SPAN.schema,
    "max_attempts": _NUMBER,
    "max_crashes": _or_null(_NUMBER),
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

_NEW_JOB = _record("NewStoredJob", "A job to be stored, as `Job` has it.", ["id", "type"], **_SETTABLE)
_JOB = _record(
    "StoredJob",
    "A job as it is stored; what is as in any fresh job is left out.",
    ["id", "type", "queue", "status", "payload", "uid", "created_at", "updated_at"],
    **{
        **_SETTABLE,
        "status": STATUS.schema,
        "uid": _NUMBER,
        **dict.fromkeys(("executions", "retry_count", "crashes", "epoch"), _NUMBER),
        **dict.fromkeys(_TIMES, TIME.schema),
        "assignee_id": _WORD,
        "lease": _LEASE,
        "result": BYTES.schema,
        "error_message": _WORD,
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


NEW_JOBS: Form[list[Job]] = Form(
    _write_new_jobs,
    lambda name, jobs: [read_new_job(f"{name}[{place}]", job) for place, job in enumerate(a_list(name, jobs))],
    {"type": "array", "items": _NEW_JOB},
)
JOB: Form[Job] = Form(lambda _, job: write_job(job), read_job, _JOB)
JOBS: Form[list[Job]] = Form(
    lambda _, jobs: [write_job(job) for job in jobs],
    lambda _, jobs: [read_job("", job) for job in jobs],
    {"type": "array", "items": _JOB},
)
PAGE: Form[Page] = Form(
    lambda _, page: {"items": [write_job(job) for job in page.items], "next_cursor": page.next_cursor},
    lambda _, told: Page([read_job("", job) for job in told["items"]], told["next_cursor"]),
    _record(
        "StoredPage",
        "Some of the jobs; `next_cursor` is null on the last page.",
        ["items", "next_cursor"],
        items={"type": "array", "items": _JOB},
        next_cursor=_or_null(_WORD),
    ),
)


# -- outcomes, and what became of them

_OUTCOME_VERBS = ("complete", "fail", "bury", "stop", "release", "crash")


def write_outcome(outcome: Outcome) -> dict[str, Any]:
    """How a job ended; InvalidArgument if nobody could read it."""
    told: dict[str, Any] = {"job_id": outcome.job_id, "verb": outcome.verb}
    if outcome.verb not in _OUTCOME_VERBS:
        raise InvalidArgument("verb", f"must be one of {', '.join(_OUTCOME_VERBS)}, not {outcome.verb!r}")
    held = checks.lease(outcome.lease)
    if held is not None:
        told["lease"] = write_lease(held)
    if outcome.verb == "complete":
        result = checks.result(outcome.result)
        if result is not None:
            told["result"] = write_bytes(result)
        return told
    error = checks.error_text(outcome.error, required=outcome.verb == "fail")
    if error:
        told["error"] = error
    if outcome.verb in ("fail", "release") and outcome.retry_at is not None:
        told["retry_at"] = write_moment("retry_at", outcome.retry_at)
    return told


_OUTCOME_FIELDS: dict[str, Schema] = {
    "job_id": NAME.schema,
    "lease": LEASE.schema,
    "verb": {"enum": list(_OUTCOME_VERBS), "default": "complete"},
    "result": {"anyOf": [BYTES.schema, {"type": "null"}]},
    "error": _WORD,
    "retry_at": {"anyOf": [MOMENT.schema, {"type": "null"}]},
}
_OUTCOME = _record(
    "JobOutcome",
    "How a job ended: `complete` with a `result`; `fail` with an `error`, to be run again at `retry_at`; `bury` and "
    "`stop` for good; `crash` if its process died; `release` to give it back uncounted.",
    ["job_id"],
    **_OUTCOME_FIELDS,
)


def read_outcome(name: str, value: Json) -> Outcome:
    """How somebody says that a job ended; the store judges it."""
    told = an_object(name, value)
    only(name, told, _OUTCOME_FIELDS)
    if "job_id" not in told:
        raise InvalidArgument(f"{name}.job_id", "is missing")
    lease, result, retry_at = told.get("lease"), told.get("result"), told.get("retry_at")
    return Outcome(
        told["job_id"],
        None if lease is None else read_lease(f"{name}.lease", lease),
        told.get("verb", "complete"),
        None if result is None else read_bytes(f"{name}.result", result),
        told.get("error", ""),
        None if retry_at is None else read_moment(f"{name}.retry_at", retry_at),
    )


OUTCOMES: Form[list[Outcome]] = Form(
    lambda _, outcomes: [write_outcome(outcome) for outcome in checks.outcomes(outcomes)],
    lambda name, told: [read_outcome(f"{name}[{place}]", one) for place, one in enumerate(a_list(name, told))],
    {"type": "array", "items": _OUTCOME},
)


def write_report(_: str, report: SettleReport) -> dict[str, Any]:
    """What was settled, refused and freed."""
    return {
        "settled": {job_id: status.value for job_id, status in report.settled.items()},
        "refused": {job_id: told_of(error) for job_id, error in report.refused.items()},
        "freed": report.freed,
    }


def read_report(_: str, told: Json) -> SettleReport:
    """The same."""
    return SettleReport(
        {job_id: JobStatus(status) for job_id, status in told["settled"].items()},
        {job_id: error_in(problem) for job_id, problem in told["refused"].items()},
        told["freed"],
    )


_FREED: Schema = {"type": "object", "additionalProperties": _NUMBER}
_REPORT_FIELDS: dict[str, Schema] = {
    "settled": {"type": "object", "additionalProperties": STATUS.schema},
    "refused": {"type": "object", "additionalProperties": {"type": "object"}},
    "freed": _FREED,
}
REPORT: Form[SettleReport] = Form(
    write_report,
    read_report,
    _record(
        "SettleReport",
        "What became of each outcome, by job id: its new status, or a problem; and which workers got room back.",
        list(_REPORT_FIELDS),
        **_REPORT_FIELDS,
    ),
)
TURN: Form[tuple[SettleReport, list[Job]]] = Form(
    lambda _, turn: {**write_report("", turn[0]), "jobs": [write_job(job) for job in turn[1]]},
    lambda _, told: (read_report("", told), [read_job("", job) for job in told["jobs"]]),
    _record(
        "SettleAndClaimReport",
        "What became of each outcome, and the jobs that were claimed.",
        [*_REPORT_FIELDS, "jobs"],
        **_REPORT_FIELDS,
        jobs={"type": "array", "items": _JOB},
    ),
)
FREED: Form[dict[str, int]] = Form(lambda _, freed: freed, lambda _, freed: dict(freed), _FREED)


# -- what is looked at

COUNTS: Form[dict[JobStatus, int]] = Form(
    lambda _, counts: {status.value: count for status, count in counts.items()},
    lambda _, told: {JobStatus(status): count for status, count in told.items()},
    {"type": "object", "additionalProperties": _NUMBER},
)


def _plain(kind: type[Any], title: str, description: str, /, **schemas: Schema) -> Form[Any]:
    """A record of plain values."""
    names = [field.name for field in dataclasses.fields(kind)]
    lists = {name for name in names if schemas.get(name, {}).get("type") == "array"}
    schema = _record(title, description, names, **{each: schemas.get(each, _NUMBER) for each in names})
    return Form(
        lambda _, record: {each: getattr(record, each) for each in names},
        lambda _, told: kind(**{each: tuple(told[each]) if each in lists else told[each] for each in names}),
        schema,
    )


STATS: Form[JobStats] = _plain(JobStats, "StoredStats", "Counts over jobs that carry all tags.", tags=NAMES.schema)


def _read_log(_: str, told: Json) -> LogEntry:
    return LogEntry(told["number"], datetime.fromisoformat(told["at"]), told["level"], told["message"])


LOGS: Form[list[LogEntry]] = Form(
    lambda _, lines: [
        {"number": line.number, "at": write_time(line.at), "level": line.level, "message": line.message}
        for line in lines
    ],
    lambda _, told: [_read_log("", line) for line in told],
    {
        "type": "array",
        "items": _record(
            "StoredLogLine",
            "A line a job wrote.",
            ["number", "at", "level", "message"],
            number=_NUMBER,
            at=TIME.schema,
            level=_WORD,
            message=_WORD,
        ),
    },
)

_EVENT_TIMES = {"occurred_at"}
_EVENT_STATUSES = {"from_status", "to_status"}
_EVENT_NAMES = tuple(field.name for field in dataclasses.fields(JobEvent))


def _write_event(event: JobEvent) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(event, name) for name in _EVENT_NAMES}
    told["occurred_at"] = write_time(event.occurred_at)
    told["detail"] = dict(event.detail)
    return told


def _read_event(told: Json) -> JobEvent:
    values = dict(told)
    values["occurred_at"] = datetime.fromisoformat(told["occurred_at"])
    for name in _EVENT_STATUSES:
        values[name] = None if told[name] is None else JobStatus(told[name])
    return JobEvent(**values)


EVENTS: Form[list[JobEvent]] = Form(
    lambda _, events: [_write_event(event) for event in events],
    lambda _, told: [_read_event(event) for event in told],
    {
        "type": "array",
        "items": _record(
            "StoredEvent",
            "A line of the durable log; one job's are ordered by `job_seq`.",
            list(_EVENT_NAMES),
            cursor=_WORD,
            job_uid=_or_null(_NUMBER),
            job_id=_or_null(_WORD),
            job_seq=_NUMBER,
            queue=_WORD,
            type=_or_null(_WORD),
            event=_WORD,
            from_status=_or_null(STATUS.schema),
            to_status=_or_null(STATUS.schema),
            epoch=_NUMBER,
            execution=_NUMBER,
            assignee_id=_or_null(_WORD),
            actor=_WORD,
            occurred_at=TIME.schema,
            detail={"type": "object"},
        ),
    },
)

_FILTER_LISTS = ("statuses", "queues", "types", "tags", "ids")
_FILTER_FIELDS: dict[str, Schema] = {
    **dict.fromkeys(_FILTER_LISTS, NAMES.schema),
    "statuses": {"type": "array", "items": STATUS.schema},
    "text": _WORD,
    "data": {"type": "object"},
    "error": _WORD,
    **dict.fromkeys(("assignee_id", "parent_id", "schedule_id", "concurrency_key"), _or_null(NAME.schema)),
    **dict.fromkeys(("created_after", "created_before"), _or_null(TIME.schema)),
}


def _write_filter(_: str, value: Any) -> dict[str, Any]:
    wanted = check_filter(value)
    told: dict[str, Any] = {}
    for name in _FILTER_FIELDS:
        given = getattr(wanted, name)
        if isinstance(given, datetime):
            told[name] = TIME.write(name, given)
        elif name in _FILTER_LISTS:
            if given:
                told[name] = [str(one) for one in given]
        elif given not in (None, "") and (given or name != "data"):
            told[name] = dict(given) if name == "data" else given
    return told


def _read_filter(name: str, value: Json) -> JobFilter:
    told = an_object(name, value)
    only(name, told, _FILTER_FIELDS)
    values = dict(told)
    for field in _FILTER_LISTS:
        if field in values:
            values[field] = tuple(a_list(f"{name}.{field}", values[field]))
    if "statuses" in values:
        values["statuses"] = tuple(check_status(f"{name}.statuses", status) for status in values["statuses"])
    for field in ("created_after", "created_before"):
        if values.get(field) is not None:
            values[field] = read_time(f"{name}.{field}", values[field])
    return JobFilter(**values)


FILTER: Form[JobFilter] = Form(
    _write_filter,
    _read_filter,
    _record("StoredFilter", "Jobs for which every condition given holds.", [], **_FILTER_FIELDS),
)


# -- queues and workers

_RATE = _record(
    "StartRate",
    "At most `count` starts in every window of `per` seconds.",
    ["count", "per"],
    count=_NUMBER,
    per=SPAN.schema,
)


def _write_rate(rate: Rate | None) -> Json:
    return None if rate is None else {"count": rate.count, "per": write_span(cast(timedelta, rate.per))}


def _read_rate(name: str, value: Json) -> Rate | None:
    if value is None:
        return None
    told = an_object(name, value)
    only(name, told, {"count": 0, "per": 0})
    return Rate(told.get("count", 0), read_span("rate.per", told.get("per", 0)))


RATE: Form[Rate | None] = Form(lambda name, value: _write_rate(check_rate(name, value)), _read_rate, _or_null(_RATE))


def _write_queue(info: QueueInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "paused": info.paused,
        "running": info.running,
        "per_key": info.per_key,
        "rate": _write_rate(info.rate),
        "rate_per_key": _write_rate(info.rate_per_key),
        "counts": {status.value: count for status, count in info.counts.items()},
    }


def _read_queue(told: Json) -> QueueInfo:
    return QueueInfo(
        told["name"],
        told["paused"],
        told["running"],
        told["per_key"],
        _read_rate("rate", told["rate"]),
        _read_rate("rate_per_key", told["rate_per_key"]),
        {JobStatus(status): count for status, count in told["counts"].items()},
    )


QUEUES: Form[list[QueueInfo]] = Form(
    lambda _, queues: [_write_queue(info) for info in queues],
    lambda _, told: [_read_queue(info) for info in told],
    {
        "type": "array",
        "items": _record(
            "StoredQueue",
            "A queue's settings and its exact counts.",
            ["name", "paused", "running", "per_key", "rate", "rate_per_key", "counts"],
            name=_WORD,
            paused=FLAG.schema,
            running=_or_null(_NUMBER),
            per_key=_or_null(_NUMBER),
            rate=_or_null(_RATE),
            rate_per_key=_or_null(_RATE),
            counts=COUNTS.schema,
        ),
    },
)

_WORKER_FIELDS: dict[str, Schema] = {
    "id": NAME.schema,
    "queues": NAMES.schema,
    "tags": NAMES.schema,
    **dict.fromkeys(("concurrency", "running", "pid"), _NUMBER),
    **dict.fromkeys(("host", "version", "state"), _WORD),
    "started_at": _or_null(TIME.schema),
    "seen_at": _or_null(TIME.schema),
    "detail": {"type": "object"},
}


def _write_worker(worker: WorkerInfo) -> dict[str, Any]:
    told = {name: getattr(worker, name) for name in _WORKER_FIELDS}
    told |= {"queues": list(worker.queues), "tags": list(worker.tags), "detail": dict(worker.detail)}
    for name in ("started_at", "seen_at"):
        told[name] = None if told[name] is None else TIME.write(name, told[name])
    return told


def _read_worker(name: str, value: Json) -> WorkerInfo:
    told = an_object(name, value)
    only(name, told, _WORKER_FIELDS)
    if "id" not in told:
        raise InvalidArgument(f"{name}.id", "is missing")
    values = dict(told)
    for field in ("queues", "tags"):
        if isinstance(values.get(field), list):
            values[field] = tuple(values[field])
    for field in ("started_at", "seen_at"):
        if values.get(field) is not None:
            values[field] = read_time(f"{name}.{field}", values[field])
    return WorkerInfo(**values)


_WORKER = _record("StoredWorker", "What a worker says of itself.", ["id"], **_WORKER_FIELDS)
WORKER: Form[WorkerInfo] = Form(lambda _, value: _write_worker(checks.worker(value)), _read_worker, _WORKER)
WORKERS: Form[list[WorkerInfo]] = Form(
    lambda _, workers: [_write_worker(worker) for worker in workers],
    lambda _, told: [_read_worker("worker", worker) for worker in told],
    {"type": "array", "items": _WORKER},
)


# -- schedules

_REPEAT_FIELDS: dict[str, Schema] = {
    "cron": _or_null(_WORD),
    "every": _or_null(SPAN.schema),
    "tz": _WORD,
    "limit": _or_null(_NUMBER),
    "start": _or_null(TIME.schema),
    "end": _or_null(TIME.schema),
    "on_gap": {"enum": ["next", "skip"]},
    "on_overlap": {"enum": ["first", "second", "both"]},
    "catch_up": {"enum": ["none", "last", "all"]},
}
_SCHEDULE_TIMES = ("next_run_at", "last_run_at", "created_at", "updated_at")
_SCHEDULE_FIELDS: dict[str, Schema] = {
    "id": NAME.schema,
    "job": _NEW_JOB,
    "repeat": _record("StoredRepeat", "When to repeat: `cron`, or `every` so many seconds.", [], **_REPEAT_FIELDS),
    "paused": FLAG.schema,
    **dict.fromkeys(_SCHEDULE_TIMES, _or_null(TIME.schema)),
    "last_job_id": _or_null(_WORD),
    "run_count": _NUMBER,
    "error": _WORD,
    "passed_over": _or_null({"type": "array", "items": TIME.schema, "minItems": 2, "maxItems": 2}),
}


def _write_repeat(repeat: Repeat) -> dict[str, Any]:
    told = {name: getattr(repeat, name) for name in _REPEAT_FIELDS}
    told["every"] = None if repeat.every is None else write_span(cast(timedelta, repeat.every))
    for name in ("start", "end"):
        told[name] = None if told[name] is None else write_time(told[name])
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


def _write_schedule(schedule: Schedule) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": schedule.id,
        "job": write_new_job("job", schedule.job),
        "repeat": _write_repeat(schedule.repeat),
        "paused": schedule.paused,
        "last_job_id": schedule.last_job_id,
        "run_count": schedule.run_count,
        "error": schedule.error,
    }
    _put(told, {name: getattr(schedule, name) for name in _SCHEDULE_TIMES})
    if schedule.passed_over is not None:
        told["passed_over"] = [write_time(moment) for moment in schedule.passed_over]
    return told


def _new_schedule(_: str, value: Any) -> dict[str, Any]:
    check_schedule(value, 0)
    job, repeat = write_new_job("job", value.job), _write_repeat(value.repeat)
    return {"id": value.id, "job": job, "repeat": repeat, "paused": value.paused}


def _known_schedule(_: str, told: Json) -> Schedule:
    values = dict(told)
    values["job"] = _known_pattern(told["job"])
    values["repeat"] = _read_repeat("repeat", told["repeat"])
    for name in _SCHEDULE_TIMES:
        values[name] = _time(told.get(name))
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


_SCHEDULE = _record("StoredSchedule", "A job made again and again.", ["id", "job", "repeat"], **_SCHEDULE_FIELDS)
NEW_SCHEDULE: Form[Schedule] = Form(
    _new_schedule,
    _given_schedule,
    _record(
        "NewStoredSchedule",
        "A schedule to be put.",
        ["id", "job", "repeat"],
        **{name: _SCHEDULE_FIELDS[name] for name in ("id", "job", "repeat", "paused")},
    ),
)
SCHEDULE: Form[Schedule] = Form(lambda _, schedule: _write_schedule(schedule), _known_schedule, _SCHEDULE)
SCHEDULES: Form[list[Schedule]] = Form(
    lambda _, schedules: [_write_schedule(schedule) for schedule in schedules],
    lambda _, told: [_known_schedule("", schedule) for schedule in told],
    {"type": "array", "items": _SCHEDULE},
)


# -- why a job is not running


def _write_usage(usage: Usage) -> dict[str, Any]:
    return {
        "limit": usage.limit,
        "running": usage.running,
        "holders": [
            {"job_id": one.job_id, "worker": one.worker, "since": None if one.since is None else write_time(one.since)}
            for one in usage.holders
        ],
        "rate": _write_rate(usage.rate),
        "started": usage.started,
        "window_ends": None if usage.window_ends is None else write_time(usage.window_ends),
    }


def _read_usage(told: Json) -> Usage:
    return Usage(
        told["limit"],
        told["running"],
        tuple(Holder(one["job_id"], one["worker"], _time(one["since"])) for one in told["holders"]),
        _read_rate("rate", told["rate"]),
        told["started"],
        _time(told["window_ends"]),
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
                **{name: getattr(one, name) for name in ("id", "queues", "tags", "concurrency", "running", "state")},
                "seen_at": None if one.seen_at is None else write_time(one.seen_at),
            }
            for one in facts.workers
        ],
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
                _time(one["seen_at"]),
            )
            for one in told["workers"]
        ),
    )


FACTS: Form[Facts] = Form(
    _write_facts,
    _read_facts,
    _record(
        "JobFacts",
        "One look at all that may keep a job from running.",
        ["now", "job", "eligible_at", "paused", "queue", "key", "waits_for", "deps_left", "ahead", "workers"],
        now=TIME.schema,
        job=_JOB,
        eligible_at=TIME.schema,
        paused=FLAG.schema,
        queue={"type": "object"},
        key={"type": "object"},
        waits_for={"type": "array", "items": {"type": "object"}},
        deps_left=_NUMBER,
        ahead=_NUMBER,
        workers={"type": "array", "items": {"type": "object"}},
    ),
)
