"""Jobs and flows over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, create_model

from longshore.core.dependencies import RESULTS_FROM, Dependencies, DependencyPolicy
from longshore.core.errors import InvalidArgument
from longshore.core.explain import ReasonKind
from longshore.core.flows import FlowStatus
from longshore.core.job import Job
from longshore.core.job_options import OPTIONS, BackoffLike, RepeatedJobOptions
from longshore.core.job_record import REQUEST
from longshore.core.retry import check_jitter
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment
from longshore.core.validation import MOST_NAMES, MOST_TAGS, read_json
from longshore.core.vocabulary import word_for_job
from longshore.server.models import fields
from longshore.server.models.fields import Moment as Time
from longshore.server.options import MOST_PER_BATCH

State = Literal["CREATED", "QUEUED", "RUNNING", "SUCCESS", "RETRY", "DEAD", "CANCELLED"]


class LeaseView(BaseModel):
    """The lease of a running job, without its token, which only the worker has."""

    epoch: int
    expires_at: datetime | None
    cancel_requested: bool


class JobSummary(BaseModel):
    """A job in a list, without data and result."""

    id: str
    uid: int
    queue: str
    type: str
    status: JobStatus
    state: State = Field(description="The status in a shorter vocabulary.", examples=["QUEUED"])
    tags: list[str]
    priority: int
    lifo: bool
    run_at: datetime | None
    expires_at: datetime | None
    executions: int
    retry_count: int
    crashes: int
    max_attempts: int
    max_crashes: int | None
    created_at: datetime | None
    updated_at: datetime | None
    started_at: datetime | None
    finalized_at: datetime | None
    last_retry_at: datetime | None
    assigned_at: datetime | None
    assignee_id: str | None
    error_message: str
    progress: Any
    idempotency_key: str | None
    concurrency_key: str | None
    parent_id: str | None
    schedule_id: str | None
    epoch: int
    lease: LeaseView | None


class JobView(JobSummary):
    """A job with all of its fields."""

    data: Any = Field(description="The arguments; null if they are not JSON: see data_base64.")
    data_base64: str | None
    result: Any = Field(description="The result; null if it is not JSON: see result_base64.")
    result_base64: str | None
    checkpoint: Any = Field(description="The last checkpoint; bytes are base64.")
    delay: float | None = Field(description="Seconds, as requested.")
    timeout: float | None = Field(description="Seconds.")
    depends_on: list[str]
    on_dependency_failure: DependencyPolicy
    options: dict[str, Any]


class JobPage(BaseModel):
    """A page of matching jobs."""

    items: list[JobSummary]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page; null on the last page.")


class LogLine(BaseModel):
    """A line of a job's log."""

    number: int
    at: datetime
    level: str
    message: str


class LogLines(BaseModel):
    """The log lines after the given number."""

    items: list[LogLine]


class ProgressView(BaseModel):
    """The last reported progress of a job."""

    status: JobStatus
    state: State
    progress: Any
    executions: int


class ReasonView(BaseModel):
    """One reason why a job is not running, with a remedy. The meaning of `kind` never changes."""

    kind: ReasonKind
    text: str = Field(description="For people.")
    details: dict[str, Any]


class ExplanationView(BaseModel):
    """All reasons why a job is not running, the most important first."""

    job_id: str
    status: JobStatus
    at: datetime
    reasons: list[ReasonView]


# -- views of records


def summary(job: Job, now: datetime) -> JobSummary:
    """The view of a job in a list."""
    return fields.view_of(JobSummary, job, **_common(job, now))


def view(job: Job, now: datetime) -> JobView:
    """The full view of a job."""
    data, data_base64 = readable("data", job.payload)
    result, result_base64 = readable("result", job.result)
    return _view(job, now, data=data, data_base64=data_base64, result=result, result_base64=result_base64)


def written_view(job: Job, now: datetime) -> bytes:
    """The full view as JSON, for a large job: data and result are checked and copied, not parsed and written again."""
    data_base64, result_base64 = readable("data", job.payload)[1], readable("result", job.result)[1]
    shown = _view(job, now, data=None, result=None, data_base64=data_base64, result_base64=result_base64)
    written = shown.model_dump_json(exclude={"data", "result"}).encode()
    data = job.payload if data_base64 is None else b"null"
    result = job.result or b"null" if result_base64 is None else b"null"
    return b'%b,"data":%b,"result":%b}' % (written.removesuffix(b"}"), data, result)


def _view(job: Job, now: datetime, **carried: Any) -> JobView:
    return fields.view_of(
        JobView,
        job,
        **_common(job, now),
        **carried,
        checkpoint=fields.base64_text(job.checkpoint) if isinstance(job.checkpoint, bytes) else job.checkpoint,
        delay=_seconds(job.delay),
        timeout=_seconds(job.timeout),
        depends_on=list(job.depends_on),
        options=shown_options(job),
    )


def shown_options(job: Job) -> dict[str, Any]:
    """The options of the job without those that the server adds."""
    return {name: value for name, value in job.options.items() if name not in (REQUEST, RESULTS_FROM)}


def _common(job: Job, now: datetime) -> dict[str, Any]:
    return {
        "queue": str(job.queue),
        "state": word_for_job(job, "orchestrator", now) or job.status.value,
        "tags": list(job.tags),
        "lease": None if job.lease is None else fields.view_of(LeaseView, job.lease),
    }


def readable(field: str, stored: bytes | None) -> tuple[Any, str | None]:
    """Return the value if the bytes are JSON, otherwise the bytes as base64."""
    if stored is None:
        return None, None
    try:
        return read_json(field, stored), None
    except InvalidArgument:
        return None, fields.base64_text(stored)


def _seconds(span: object) -> float | None:
    return span.total_seconds() if isinstance(span, timedelta) else None


Jitter = Annotated[StrictFloat, fields.checked_by(check_jitter)]


class Backoff(BaseModel):
    """The wait between two attempts of a job."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["fixed", "exponential"]
    delay: fields.Seconds = Field(description="Seconds before the first retry.")
    cap: fields.Seconds | None = Field(None, description="The longest wait in seconds.")
    jitter: Jitter = Field(0.0, ge=0, le=1, description="The random share of the wait, from 0 to 1.")


_TYPES: Mapping[Any, tuple[Any, str]] = {
    int: (fields.Count, ""),
    bool: (StrictBool, ""),
    str | None: (fields.Name | None, ""),
    int | None: (fields.Count | None, " Null means no limit."),
    bool | int: (fields.Kept, " True, or how many to keep."),
    Duration | None: (fields.Seconds | None, " In seconds."),
    Moment | None: (Time | None, ""),
    BackoffLike | None: (Backoff | None, ""),
    Sequence[str]: (Annotated[fields.Tags, Field(max_length=MOST_TAGS)], ""),
    Dependencies: (Annotated[fields.Names, Field(max_length=MOST_NAMES)], ""),
    DependencyPolicy: (DependencyPolicy, ""),
}
"""The field type and the end of the description, by the type of an option."""
_BOUNDS: Mapping[str, Any] = {"priority": fields.Number, "timeout": fields.SomeSeconds | None}
"""Options with other limits than those of their type."""


def _fields(names: Iterable[str]) -> dict[str, Any]:
    """The fields of a request for these options, with their defaults and descriptions."""
    fields = {}
    for name in names:
        option = OPTIONS[name]
        type_, more = _TYPES[option.type]
        many: Any = {"default_factory": list, "json_schema_extra": {"default": []}}  # faster than copying a default
        default = many if option.default == () else {"default": option.default}
        fields[name] = (_BOUNDS.get(name, type_), Field(**default, description=f"{option.help}{more}"))
    return fields


_RepeatedJob = create_model("_RepeatedJob", **_fields(RepeatedJobOptions.__annotations__))
_OneJob = create_model("_OneJob", **_fields(("run_at", "expires_at", "depends_on", "on_dependency_failure")))


class JobSettings(_RepeatedJob):  # type: ignore[misc, valid-type]  # created from the table of options
    """Options of a job, or of the jobs of a schedule."""

    model_config = ConfigDict(extra="forbid")

    queue: fields.Name = Field("default", description="The queue of the job.")

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `job_from`."""
        given = dict(self)
        if self.backoff is not None:
            given["backoff"] = self.backoff.model_dump(exclude_none=True)
        return given


class NewJob(JobSettings, _OneJob):  # type: ignore[misc, valid-type]  # as above
    """A job to enqueue, with its options."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"type": "echo", "data": {"say": "hello"}},
                {"type": "send_mail", "queue": "mail", "data": {"to": "ada"}, "attempts": 3, "tags": ["eu"]},
            ]
        },
    )

    type: fields.Name = Field(description="The name of the task.")
    data: Any = Field(None, description="The task's arguments: any JSON.")
    id: fields.Name | None = Field(None, description=OPTIONS["job_id"].help)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `job_from`."""
        given = super().options()
        given["job_id"] = given.pop("id")
        return given


class BatchJob(NewJob):
    """One job of a batch."""

    idempotency_key: fields.Name | None = Field(None, description="Like the header Idempotency-Key, for this job only.")


class NewJobs(BaseModel):
    """Jobs to store in one transaction: all of them or none."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"jobs": [{"type": "echo", "data": {"say": 1}}, {"type": "sleep"}]}]},
    )

    jobs: list[BatchJob] = Field(min_length=1, max_length=MOST_PER_BATCH)


class Accepted(BaseModel):
    """A job that is stored durably."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "01a13b3d-1f0a-7c7e-9d49-94a8a6a2c0c1",
                    "queue": "default",
                    "type": "echo",
                    "status": "INITIAL_PENDING",
                    "replayed": False,
                }
            ]
        }
    )

    id: str
    queue: str
    type: str
    status: JobStatus
    replayed: bool = Field(description="Whether an earlier request with the same key or id stored it.")


class AcceptedJobs(BaseModel):
    """The stored jobs, in the order of the request."""

    jobs: list[Accepted]


class StepView(BaseModel):
    """One step of a flow; each step is a job."""

    name: str
    job_id: str
    status: JobStatus
    progress: Any
    error: str
    waits_for: list[str]


class FlowView(BaseModel):
    """The state of a flow and of its steps."""

    id: str
    name: str
    state: Literal["running", "waiting", "completed", "failed"]
    total: int
    ended: int
    counts: dict[JobStatus, int]
    steps: list[StepView]


def flow_view(flow: FlowStatus) -> FlowView:
    """The view of a flow."""
    steps = [fields.view_of(StepView, step, waits_for=list(step.waits_for)) for step in flow.steps]
    return fields.view_of(FlowView, flow, counts=dict(flow.counts), steps=steps)
