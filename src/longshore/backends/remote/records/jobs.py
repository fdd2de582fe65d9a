"""Jobs, leases, outcomes and filters as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from longshore.backends import argument_checks as checks
from longshore.backends.base import Outcome, Page, SettleReport
from longshore.backends.remote import codecs
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.filters import JobFilter, check_filter
from longshore.core.job import Job, Lease
from longshore.core.job_record import MutableJob, record_of
from longshore.core.status import JobStatus
from longshore.core.validation import check_status

T = TypeVar("T")

SCHEMAS: dict[str, codecs.Schema] = {}
"""The schemas of records by their names in the OpenAPI document."""


def a_record(name: str, description: str, required: Sequence[str], /, **fields: codecs.Schema) -> codecs.Schema:
    """Add the schema of a record to the document, and return a reference to it."""
    SCHEMAS[name] = {
        "title": name,
        "description": description,
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
    }
    return {"$ref": f"#/components/schemas/{name}"}


def answer_record(
    kind: Callable[..., T],
    name: str,
    description: str,
    fields: Mapping[str, codecs.Form[Any]],
    *,
    newer: Collection[str] = (),
) -> codecs.Form[T]:
    """A record of an answer, field by field; without a name the document describes it only as an object.

    The reader ignores unknown fields. `newer` are the fields that an older server omits.
    """
    required = [field for field in fields if field not in newer]
    schemas = {field: form.schema for field, form in fields.items()}
    schema = a_record(name, description, required, **schemas) if name else {"type": "object"}
    encoders = [(field, form.write) for field, form in fields.items() if form.write is not codecs.identity]
    decoders = [(field, form.read) for field, form in fields.items() if form.read is not codecs.identity]

    def write(_: str, value: Any) -> dict[str, Any]:
        data = {field: getattr(value, field) for field in fields}
        for field, write_field in encoders:
            data[field] = write_field(field, data[field])
        return data

    def read(_: str, data: codecs.Json) -> T:
        values = {field: data[field] for field in required}
        for field in newer:
            if field in data:
                values[field] = data[field]
        for field, read_field in decoders:
            if field in values:
                values[field] = read_field(field, values[field])
        return kind(**values)

    return codecs.Form(write, read, schema)


WORD: codecs.Schema = {"type": "string"}
NUMBER: codecs.Schema = {"type": "integer"}


def or_null(schema: codecs.Schema) -> codecs.Schema:
    """The same schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def write_lease(lease: Lease) -> dict[str, Any]:
    """Encode the whole lease; its holder sends it back unchanged."""
    data: dict[str, Any] = {"token": lease.token, "epoch": lease.epoch}
    if isinstance(lease.expires_at, datetime):
        data["expires_at"] = codecs.write_time(lease.expires_at)
    if lease.cancel_requested:
        data["cancel_requested"] = True
    return data


_LEASE_FIELDS = {"token": "", "epoch": 0, "expires_at": None, "cancel_requested": False}


def read_lease(name: str, value: codecs.Json) -> Lease:
    """Decode a lease from a client; only token and epoch are required."""
    data = codecs.check_object(name, value)
    token, epoch = data.get("token"), data.get("epoch")
    if not isinstance(token, str) or type(epoch) is not int:
        raise InvalidArgument(name, "must have the token and the epoch of the lease, as the claim returned them")
    codecs.only(name, data, _LEASE_FIELDS)
    ends = data.get("expires_at")
    cancelling = data.get("cancel_requested", False)
    if not isinstance(cancelling, bool):
        raise InvalidArgument(f"{name}.cancel_requested", "must be true or false")
    return Lease(token, epoch, None if ends is None else codecs.read_time(f"{name}.expires_at", ends), cancelling)


def known_lease(value: codecs.Json) -> Lease:
    """Decode a lease from the server."""
    return Lease(
        value["token"],
        value["epoch"],
        codecs.stored_time(value.get("expires_at")),
        value.get("cancel_requested", False),
    )


_LEASE = a_record(
    "HeldLease",
    "The right to work on a job and to settle it. Send it back unchanged. Without `expires_at` it does not expire.",
    ["token", "epoch"],
    token=WORD,
    epoch=NUMBER,
    expires_at=or_null(codecs.TIME.schema),
    cancel_requested={"type": "boolean", "description": "Whether the cancellation of the job was requested."},
)
LEASE: codecs.Form[Lease | None] = codecs.Form(
    lambda _, value: None if checks.lease(value) is None else write_lease(value),
    lambda name, value: None if value is None else read_lease(name, value),
    or_null(_LEASE),
)


def _own_lease(name: str, value: Any) -> codecs.Json:
    held = checks.lease(value, name)
    if held is None:
        raise InvalidArgument(name, "must be the Lease of a claimed job, or None; got NoneType")
    return write_lease(held)


HELD: codecs.Form[Lease] = codecs.Form(_own_lease, read_lease, _LEASE)
LEASES: codecs.Form[dict[str, Lease]] = codecs.Form(
    lambda _, value: {job_id: write_lease(lease) for job_id, lease in checks.leases(value).items()},
    lambda name, value: {
        job_id: read_lease(name, data)
        for job_id, data in codecs.not_too_many(name, codecs.check_object(name, value)).items()
    },
    {
        "type": "object",
        "maxProperties": codecs.MOST_LISTED,
        "additionalProperties": _LEASE,
        "description": "Leases by job id.",
    },
)

_DEFAULTS: dict[str, Any] = {
    field.name: () if field.name in ("tags", "depends_on") else field.default
    for field in dataclasses.fields(Job)
    if field.default is not dataclasses.MISSING
}
_TIMES = ("created_at", "updated_at", "started_at", "finalized_at", "last_retry_at", "assigned_at")
_MOMENTS = ("run_at", "expires_at")
_SPANS = ("delay", "timeout")
_UNCHANGED_FIELDS = (
    *("priority", "lifo", "max_attempts", "max_crashes", "idempotency_key", "concurrency_key", "parent_id"),
    *("on_dependency_failure", "uid", "executions", "retry_count", "crashes", "epoch", "assignee_id"),
    *("error_message", "progress", "schedule_id"),
)
_UNLESS = tuple((name, _DEFAULTS[name]) for name in _UNCHANGED_FIELDS)


def write_job(job: Job) -> dict[str, Any]:
    """Encode the whole record without the fields that have their defaults."""
    data: dict[str, Any] = {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "status": job.status.value,
        "payload": codecs.write_bytes(job.payload),
    }
    for name, default in _UNLESS:
        value = getattr(job, name)
        if value != default:
            data[name] = value
    if job.tags:
        data["tags"] = list(job.tags)
    if job.depends_on:
        data["depends_on"] = list(job.depends_on)
    if job.options:
        data["options"] = dict(job.options)
    for name in (*_TIMES, *_MOMENTS, *_SPANS):
        value = getattr(job, name)
        if value is not None:
            data[name] = codecs.write_span(value) if isinstance(value, timedelta) else codecs.write_time(value)
    if job.lease is not None:
        data["lease"] = write_lease(job.lease)
    if job.result is not None:
        data["result"] = codecs.write_bytes(job.result)
    if job.checkpoint is not None:
        data["checkpoint"] = codecs.write_checkpoint(job.checkpoint)
    return data


_WORD = codecs.answered(str, WORD)
_READ: dict[str, Callable[[Any], Any]] = {
    "id": lambda value: _WORD.read("id", value),
    "type": lambda value: _WORD.read("type", value),
    "queue": lambda value: _WORD.read("queue", value),
    "status": JobStatus,
    "payload": lambda value: codecs.read_bytes("payload", value),
    "tags": tuple,
    "depends_on": tuple,
    **dict.fromkeys(_TIMES, datetime.fromisoformat),
    **dict.fromkeys(
        _MOMENTS, lambda value: datetime.fromisoformat(value) if _is_time(value) else codecs.stored_span(value)
    ),
    **dict.fromkeys(_SPANS, codecs.stored_span),
    "lease": known_lease,
    "result": lambda value: codecs.read_bytes("result", value),
    "checkpoint": lambda value: codecs.read_checkpoint("checkpoint", value),
}


_JOB_NAMES = frozenset(field.name for field in dataclasses.fields(Job))


def _is_time(value: codecs.Json) -> bool:
    return isinstance(value, str) and "T" in value


def read_job(_: str, data: codecs.Json) -> Job:
    """Decode a job from the server; ignore fields of a newer server."""
    values = {**_DEFAULTS, "options": {}}
    for name, value in data.items():
        reading = _READ.get(name)
        if reading is not None:
            values[name] = reading(value)
        elif name in _JOB_NAMES:
            values[name] = value
    job = MutableJob(**values)
    job.__class__ = Job
    return cast(Job, job)


_SETTABLE: dict[str, codecs.Schema] = {
    "id": codecs.NAME.schema,
    "type": codecs.NAME.schema,
    "queue": codecs.NAME.schema,
    "payload": codecs.BYTES.schema,
    "tags": codecs.NAMES.schema,
    "status": {"enum": [JobStatus.INITIAL_PENDING.value, JobStatus.CREATED.value]},
    "priority": NUMBER,
    "lifo": codecs.FLAG.schema,
    "run_at": codecs.MOMENT.schema,
    "delay": codecs.WAIT.schema,
    "expires_at": codecs.MOMENT.schema,
    "timeout": codecs.SPAN.schema,
    "max_attempts": NUMBER,
    "max_crashes": or_null(NUMBER),
    "idempotency_key": codecs.NAME.schema,
    "concurrency_key": codecs.NAME.schema,
    "parent_id": codecs.NAME.schema,
    "depends_on": codecs.NAMES.schema,
    "on_dependency_failure": {"enum": ["wait", "stop", "ignore"]},
    "schedule_id": codecs.NAME.schema,
    "created_at": codecs.TIME.schema,
    "options": {"type": "object"},
}
"""The fields that the submitter of a job may set."""

_NEW_JOB = a_record("NewStoredJob", "A job to store, with the fields of `Job`.", ["id", "type"], **_SETTABLE)
_JOB = a_record(
    "StoredJob",
    "A job as stored. Fields with the values of a new job are omitted, and so are unknown fields of a removed one.",
    ["id", "type", "queue", "status", "payload", "uid"],
    **{
        **_SETTABLE,
        "status": codecs.STATUS.schema,
        "uid": NUMBER,
        **dict.fromkeys(("executions", "retry_count", "crashes", "epoch"), NUMBER),
        **dict.fromkeys(_TIMES, codecs.TIME.schema),
        "assignee_id": WORD,
        "lease": HELD.schema,
        "result": codecs.BYTES.schema,
        "error_message": WORD,
        "progress": {},
        "checkpoint": {},
    },
)


_UNCHANGED_NEW_FIELDS = (
    *("queue", "priority", "lifo", "max_attempts", "max_crashes", "on_dependency_failure"),
    *("idempotency_key", "concurrency_key", "parent_id", "schedule_id"),
)


def write_new_job(_: str, job: Any) -> dict[str, Any]:
    """Check a new job like any store, and encode the fields that are set; durations stay durations."""
    record_of(job, 0)
    data: dict[str, Any] = {"id": job.id, "type": job.type}
    if job.payload != b"null":
        data["payload"] = codecs.write_bytes(bytes(job.payload))
    for name in _UNCHANGED_NEW_FIELDS:
        value = getattr(job, name)
        if value != _DEFAULTS[name]:
            data[name] = value
    if job.status is not JobStatus.INITIAL_PENDING:
        data["status"] = check_status("status", job.status).value
    if job.tags != ():
        data["tags"] = list(job.tags)
    if job.depends_on != ():
        data["depends_on"] = list(job.depends_on)
    if job.options != {}:
        data["options"] = dict(job.options)
    for name in _MOMENTS:
        value = getattr(job, name)
        if value is not None:
            data[name] = codecs.write_moment(name, value)
    if job.delay is not None:
        data["delay"] = codecs.WAIT.write("delay", job.delay)
    if job.timeout is not None:
        data["timeout"] = codecs.SPAN.write("timeout", job.timeout)
    if job.created_at is not None:
        data["created_at"] = codecs.TIME.write("created_at", job.created_at)
    return data


_READ_NEW: dict[str, Callable[[str, Any], Any]] = {
    "tags": codecs.not_too_many,
    "depends_on": codecs.not_too_many,
    "payload": codecs.read_bytes,
    "run_at": codecs.read_moment,
    "expires_at": codecs.read_moment,
    "delay": codecs.read_span,
    "timeout": codecs.read_span,
    "created_at": codecs.read_time,
}


def read_new_job(name: str, value: codecs.Json) -> Job:
    """Decode a new job from a client; the store checks its values."""
    values: dict[str, Any] = {}
    for field, given in codecs.fields_in(name, value, _SETTABLE, ("id", "type")).items():
        reading = _READ_NEW.get(field)
        values[field] = given if reading is None or given is None else reading(field, given)
    return Job(**values)


NEW_JOB: codecs.Form[Job] = codecs.Form(write_new_job, read_new_job, _NEW_JOB)


def _write_new_jobs(_: str, jobs: Any) -> list[dict[str, Any]]:
    data = []
    for index, job in enumerate(checks.jobs(jobs)):
        try:
            data.append(write_new_job("job", job))
        except InvalidArgument as error:
            raise InvalidArgument(f"jobs[{index}].{error.field}", error.problem) from None
    return data


def _read_new_jobs(name: str, jobs: codecs.Json) -> list[Job]:
    data = codecs.not_too_many(name, codecs.check_list(name, jobs))
    return [read_new_job(f"{name}[{index}]", job) for index, job in enumerate(data)]


NEW_JOBS: codecs.Form[list[Job]] = codecs.Form(
    _write_new_jobs, _read_new_jobs, {"type": "array", "items": _NEW_JOB, "maxItems": codecs.MOST_LISTED}
)
JOB: codecs.Form[Job] = codecs.Form(lambda _, job: write_job(job), read_job, _JOB)
JOBS: codecs.Form[list[Job]] = codecs.list_of(JOB)
PAGE = answer_record(
    Page,
    "StoredPage",
    "One page of jobs; `next_cursor` is null on the last page.",
    {"items": JOBS, "next_cursor": codecs.plain(or_null(WORD))},
)

_FILTER_LISTS = ("statuses", "queues", "types", "tags", "ids")
_FILTER_FIELDS: dict[str, codecs.Schema] = {
    **dict.fromkeys(_FILTER_LISTS, codecs.NAMES.schema),
    "statuses": {"type": "array", "items": codecs.STATUS.schema},
    "text": WORD,
    "data": {"type": "object"},
    "error": WORD,
    **dict.fromkeys(("assignee_id", "parent_id", "schedule_id", "concurrency_key"), or_null(codecs.NAME.schema)),
    **dict.fromkeys(("created_after", "created_before"), or_null(codecs.TIME.schema)),
}


def _write_filter(_: str, value: Any) -> dict[str, Any]:
    wanted = check_filter(value)
    data: dict[str, Any] = {}
    for name in _FILTER_FIELDS:
        given = getattr(wanted, name)
        if isinstance(given, datetime):
            data[name] = codecs.TIME.write(name, given)
        elif name in _FILTER_LISTS:
            if given:
                data[name] = [str(one) for one in given]
        elif given not in (None, "") and (given or name != "data"):
            data[name] = dict(given) if name == "data" else given
    return data


def _read_filter(name: str, value: codecs.Json) -> JobFilter:
    values = dict(codecs.fields_in(name, value, _FILTER_FIELDS))
    for field in _FILTER_LISTS:
        if field in values:
            values[field] = tuple(
                codecs.not_too_many(f"{name}.{field}", codecs.check_list(f"{name}.{field}", values[field]))
            )
    if "statuses" in values:
        values["statuses"] = tuple(check_status(f"{name}.statuses", status) for status in values["statuses"])
    for field in ("created_after", "created_before"):
        if values.get(field) is not None:
            values[field] = codecs.read_time(f"{name}.{field}", values[field])
    return JobFilter(**values)


FILTER: codecs.Form[JobFilter] = codecs.Form(
    _write_filter,
    _read_filter,
    a_record("StoredFilter", "Selects jobs that meet every given condition.", [], **_FILTER_FIELDS),
)

_OUTCOME_VERBS = ("complete", "fail", "bury", "stop", "release", "crash")


def write_outcome(outcome: Outcome) -> dict[str, Any]:
    """Encode an outcome; raise InvalidArgument if it is malformed."""
    data: dict[str, Any] = {"job_id": outcome.job_id, "verb": outcome.verb}
    if outcome.verb not in _OUTCOME_VERBS:
        raise InvalidArgument("verb", f"must be one of {', '.join(_OUTCOME_VERBS)}, not {outcome.verb!r}")
    held = checks.lease(outcome.lease)
    if held is not None:
        data["lease"] = write_lease(held)
    if outcome.verb == "complete":
        result = checks.result(outcome.result)
        if result is not None:
            data["result"] = codecs.write_bytes(result)
        return data
    error = checks.error_text(outcome.error, required=outcome.verb == "fail")
    if error:
        data["error"] = error
    if outcome.verb in ("fail", "release") and outcome.retry_at is not None:
        data["retry_at"] = codecs.write_moment("retry_at", outcome.retry_at)
    return data


_OUTCOME_FIELDS: dict[str, codecs.Schema] = {
    "job_id": codecs.NAME.schema,
    "lease": LEASE.schema,
    "verb": {"enum": list(_OUTCOME_VERBS), "default": "complete"},
    "result": {"anyOf": [codecs.BYTES.schema, {"type": "null"}]},
    "error": WORD,
    "retry_at": {"anyOf": [codecs.MOMENT.schema, {"type": "null"}]},
}
_OUTCOME = a_record(
    "JobOutcome",
    "How a job ended: `complete` with a `result`; `fail` with an `error`, to run again at `retry_at`; `bury` or "
    "`stop` permanently; `crash` if its process died; `release` to return it without counting an attempt.",
    ["job_id"],
    **_OUTCOME_FIELDS,
)


def read_outcome(name: str, value: codecs.Json) -> Outcome:
    """Decode an outcome from a client; the store checks its values."""
    data = codecs.fields_in(name, value, _OUTCOME_FIELDS, ["job_id"])
    lease, result, retry_at = data.get("lease"), data.get("result"), data.get("retry_at")
    return Outcome(
        data["job_id"],
        None if lease is None else read_lease(f"{name}.lease", lease),
        data.get("verb", "complete"),
        None if result is None else codecs.read_bytes(f"{name}.result", result),
        data.get("error", ""),
        None if retry_at is None else codecs.read_moment(f"{name}.retry_at", retry_at),
    )


def _read_outcomes(name: str, data: codecs.Json) -> list[Outcome]:
    given = codecs.not_too_many(name, codecs.check_list(name, data))
    return [read_outcome(f"{name}[{index}]", one) for index, one in enumerate(given)]


OUTCOMES: codecs.Form[list[Outcome]] = codecs.Form(
    lambda _, outcomes: [write_outcome(outcome) for outcome in checks.outcomes(outcomes)],
    _read_outcomes,
    {"type": "array", "items": _OUTCOME, "maxItems": codecs.MOST_LISTED},
)


FREED: codecs.Form[dict[str, int]] = codecs.Form(
    codecs.identity, lambda _, freed: dict(freed), {"type": "object", "additionalProperties": NUMBER}
)
_PROBLEM: codecs.Form[LongshoreError] = codecs.Form(
    lambda _, error: codecs.problem_of(error), lambda _, problem: codecs.error_in(problem), {"type": "object"}
)
REPORT = answer_record(
    SettleReport,
    "SettleReport",
    "The result of each outcome by job id: its new status, or a problem; and the slots released by each worker.",
    {"settled": codecs.map_of(codecs.STATUS), "refused": codecs.map_of(_PROBLEM), "freed": FREED},
)
TURN: codecs.Form[tuple[SettleReport, list[Job]]] = codecs.Form(
    lambda name, turn: {**REPORT.write(name, turn[0]), "jobs": JOBS.write(name, turn[1])},
    lambda name, data: (REPORT.read(name, data), JOBS.read(name, data["jobs"])),
    a_record(
        "SettleAndClaimReport",
        "The result of each outcome, and the claimed jobs.",
        [*SCHEMAS["SettleReport"]["required"], "jobs"],
        **SCHEMAS["SettleReport"]["properties"],
        jobs=JOBS.schema,
    ),
)
