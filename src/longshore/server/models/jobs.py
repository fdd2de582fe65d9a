"""Jobs and flows over HTTP: what a client sends, and what it is shown."""

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
from longshore.server.models.fields import (
    Count,
    Kept,
    Name,
    Names,
    Number,
    Seconds,
    SomeSeconds,
    Tags,
    base64_text,
    checked_by,
    view_of,
)
from longshore.server.models.fields import Moment as Time
from longshore.server.options import MOST_PER_BATCH

State = Literal["CREATED", "QUEUED", "RUNNING", "SUCCESS", "RETRY", "DEAD", "CANCELLED"]


class LeaseView(BaseModel):
    """Who holds it until when; the token that proves it is the worker's alone."""

    epoch: int
    expires_at: datetime | None
    cancel_requested: bool


class JobSummary(BaseModel):
    """A job as lists show it, without what it carries."""

    id: str
    uid: int
    queue: str
    type: str
    status: JobStatus
    state: State = Field(description="The platform's word for where it stands.", examples=["QUEUED"])
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
    """A job with all that is known of it."""

    data: Any = Field(description="Its arguments; null if they are not JSON, and then data_base64 has them.")
    data_base64: str | None
    result: Any = Field(description="What it gave back; null if that is not JSON, and then result_base64 has it.")
    result_base64: str | None
    checkpoint: Any = Field(description="Its last checkpoint; bytes are shown in base64.")
    delay: float | None = Field(description="Seconds, as given.")
    timeout: float | None = Field(description="Seconds.")
    depends_on: list[str]
    on_dependency_failure: DependencyPolicy
    options: dict[str, Any]


class JobPage(BaseModel):
    """One page of the jobs that match."""

    items: list[JobSummary]
    next_cursor: str | None = Field(description="Ask again with this for the next page; null on the last.")


class LogLine(BaseModel):
    """A line a job wrote."""

    number: int
    at: datetime
    level: str
    message: str


class LogLines(BaseModel):
    """The log entries after the given number."""

    items: list[LogLine]


class ProgressView(BaseModel):
    """How far a job is, as it said last."""

    status: JobStatus
    state: State
    progress: Any
    executions: int


class ReasonView(BaseModel):
    """One reason why a job is not running, with what to do; the meaning of `kind` never changes."""

    kind: ReasonKind
    text: str = Field(description="For people.")
    details: dict[str, Any]


class ExplanationView(BaseModel):
    """Why a job is not running now: all reasons, the one to begin with first."""

    job_id: str
    status: JobStatus
    at: datetime
    reasons: list[ReasonView]


# -- from the records


def summary(job: Job, now: datetime) -> JobSummary:
    """A job as lists show it."""
    return view_of(JobSummary, job, **_common(job, now))


def view(job: Job, now: datetime) -> JobView:
    """A job as it is shown alone."""
    data, data_base64 = readable("data", job.payload)
    result, result_base64 = readable("result", job.result)
    return _view(job, now, data=data, data_base64=data_base64, result=result, result_base64=result_base64)


def written_view(job: Job, now: datetime) -> bytes:
    """The same as JSON, for a large job: its data and result are checked and copied, not parsed and written again."""
    data_base64, result_base64 = readable("data", job.payload)[1], readable("result", job.result)[1]
    shown = _view(job, now, data=None, result=None, data_base64=data_base64, result_base64=result_base64)
    written = shown.model_dump_json(exclude={"data", "result"}).encode()
    data = job.payload if data_base64 is None else b"null"
    result = job.result or b"null" if result_base64 is None else b"null"
    return b'%b,"data":%b,"result":%b}' % (written.removesuffix(b"}"), data, result)


def _view(job: Job, now: datetime, **carried: Any) -> JobView:
    return view_of(
        JobView,
        job,
        **_common(job, now),
        **carried,
        checkpoint=base64_text(job.checkpoint) if isinstance(job.checkpoint, bytes) else job.checkpoint,
        delay=_seconds(job.delay),
        timeout=_seconds(job.timeout),
        depends_on=list(job.depends_on),
        options=shown_options(job),
    )


def shown_options(job: Job) -> dict[str, Any]:
    """The options of the job without the server's own notes."""
    return {name: value for name, value in job.options.items() if name not in (REQUEST, RESULTS_FROM)}


def _common(job: Job, now: datetime) -> dict[str, Any]:
    return {
        "queue": str(job.queue),
        "state": word_for_job(job, "orchestrator", now) or job.status.value,
        "tags": list(job.tags),
        "lease": None if job.lease is None else view_of(LeaseView, job.lease),
    }


def readable(field: str, stored: bytes | None) -> tuple[Any, str | None]:
    """The JSON inside, or the bytes themselves where a program of another kind stored them."""
    if stored is None:
        return None, None
    try:
        return read_json(field, stored), None
    except InvalidArgument:
        return None, base64_text(stored)


def _seconds(span: object) -> float | None:
    return span.total_seconds() if isinstance(span, timedelta) else None


Jitter = Annotated[StrictFloat, checked_by(check_jitter)]


class Backoff(BaseModel):
    """How long to wait between one try and the next."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["fixed", "exponential"]
    delay: Seconds = Field(description="Seconds before the first repeat.")
    cap: Seconds | None = Field(None, description="Seconds it never exceeds.")
    jitter: Jitter = Field(0.0, ge=0, le=1, description="How much of it, as a share, is left to chance.")


_TYPES: Mapping[Any, tuple[Any, str]] = {
    int: (Count, ""),
    bool: (StrictBool, ""),
    str | None: (Name | None, ""),
    int | None: (Count | None, " Null is no limit."),
    bool | int: (Kept, " True, or how many to keep."),
    Duration | None: (Seconds | None, " In seconds."),
    Moment | None: (Time | None, ""),
    BackoffLike | None: (Backoff | None, ""),
    Sequence[str]: (Annotated[Tags, Field(max_length=MOST_TAGS)], ""),
    Dependencies: (Annotated[Names, Field(max_length=MOST_NAMES)], ""),
    DependencyPolicy: (DependencyPolicy, ""),
}
"""The field of a request for an option, by the option's type, and what to add to its description."""
_BOUNDS: Mapping[str, Any] = {"priority": Number, "timeout": SomeSeconds | None}
"""Options whose bounds are others than those of their type."""


def _fields(names: Iterable[str]) -> dict[str, Any]:
    """The fields of a request for these options, with their defaults and descriptions."""
    fields = {}
    for name in names:
        option = OPTIONS[name]
        type_, more = _TYPES[option.type]
        many: Any = {"default_factory": list, "json_schema_extra": {"default": []}}  # faster than a default to copy
        default = many if option.default == () else {"default": option.default}
        fields[name] = (_BOUNDS.get(name, type_), Field(**default, description=f"{option.help}{more}"))
    return fields


_RepeatedJob = create_model("_RepeatedJob", **_fields(RepeatedJobOptions.__annotations__))
_OneJob = create_model("_OneJob", **_fields(("run_at", "expires_at", "depends_on", "on_dependency_failure")))


class JobSettings(_RepeatedJob):  # type: ignore[misc, valid-type]  # pydantic makes it from the table of options
    """Options of a job, or of the jobs a schedule makes."""

    model_config = ConfigDict(extra="forbid")

    queue: Name = Field("default", description="Where it waits.")

    def options(self) -> dict[str, Any]:
        """As `job_from` takes them."""
        given = dict(self)
        if self.backoff is not None:
            given["backoff"] = self.backoff.model_dump(exclude_none=True)
        return given


class NewJob(JobSettings, _OneJob):  # type: ignore[misc, valid-type]  # as above
    """A job to be run."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"type": "echo", "data": {"say": "hello"}},
                {"type": "send_mail", "queue": "mail", "data": {"to": "ada"}, "attempts": 3, "tags": ["eu"]},
            ]
        },
    )

    type: Name = Field(description="Which task runs it.")
    data: Any = Field(None, description="Its arguments: any JSON.")
    id: Name | None = Field(None, description=OPTIONS["job_id"].help)

    def options(self) -> dict[str, Any]:
        """As above."""
        given = super().options()
        given["job_id"] = given.pop("id")
        return given


class BatchJob(NewJob):
    """One of the jobs of a batch."""

    idempotency_key: Name | None = Field(None, description="As the header Idempotency-Key, for this job alone.")


class NewJobs(BaseModel):
    """Jobs to be stored together: all of them or none."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"jobs": [{"type": "echo", "data": {"say": 1}}, {"type": "sleep"}]}]},
    )

    jobs: list[BatchJob] = Field(min_length=1, max_length=MOST_PER_BATCH)


class Accepted(BaseModel):
    """A job that is stored durably and will be run."""

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
    """The jobs that are stored and will be run, in the order in which they were sent."""

    jobs: list[Accepted]


class StepView(BaseModel):
    """One step of a flow, which is a job."""

    name: str
    job_id: str
    status: JobStatus
    progress: Any
    error: str
    waits_for: list[str]


class FlowView(BaseModel):
    """A flow as it stands: how far it is, step by step."""

    id: str
    name: str
    state: Literal["running", "waiting", "completed", "failed"]
    total: int
    ended: int
    counts: dict[JobStatus, int]
    steps: list[StepView]


def flow_view(flow: FlowStatus) -> FlowView:
    """From the record."""
    steps = [view_of(StepView, step, waits_for=list(step.waits_for)) for step in flow.steps]
    return view_of(FlowView, flow, counts=dict(flow.counts), steps=steps)
