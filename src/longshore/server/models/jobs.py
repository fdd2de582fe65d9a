"""Jobs and flows over HTTP: what a client sends, and what it is shown."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat

from longshore.core.dependencies import RESULTS_FROM, DependencyPolicy
from longshore.core.errors import InvalidArgument
from longshore.core.explain import ReasonKind
from longshore.core.flows import FlowStatus
from longshore.core.job import Job
from longshore.core.job_record import REQUEST
from longshore.core.retry import check_jitter
from longshore.core.status import JobStatus
from longshore.core.validation import MOST_NAMES, MOST_TAGS, read_json
from longshore.core.vocabulary import word_for_job
from longshore.server.models.fields import (
    Count,
    Kept,
    Moment,
    Name,
    Names,
    Number,
    Seconds,
    SomeSeconds,
    Tags,
    base64_text,
    in_words_of_the_sdk,
)
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
    checkpoint: Any = Field(description="What it saved to go on from; bytes are shown in base64.")
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
    """The lines after the number asked for."""

    items: list[LogLine]


class ProgressView(BaseModel):
    """How far a job is, as it said last."""

    status: JobStatus
    state: State
    progress: Any
    executions: int


class ReasonView(BaseModel):
    """One reason why a job is not running, with the way out; `kind` never changes its meaning."""

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
    return JobSummary.model_construct(**_summed_up(job, now))


def view(job: Job, now: datetime) -> JobView:
    """A job as it is shown alone."""
    data, data_base64 = _readable("data", job.payload)
    result, result_base64 = _readable("result", job.result)
    return _view(job, now, data=data, data_base64=data_base64, result=result, result_base64=result_base64)


def written_view(job: Job, now: datetime) -> bytes:
    """The same as JSON, of a large job: what it carries is read to see that it is JSON, and not written anew."""
    data, result = (_is_readable("data", job.payload), job.result is None or _is_readable("result", job.result))
    shown = _view(
        job,
        now,
        data_base64=None if data else base64_text(job.payload),
        result_base64=None if result else base64_text(job.result or b""),
    )
    told = shown.model_dump_json(exclude={"data", "result"}).encode()
    carried = (job.payload if data else b"null", job.result or b"null" if result else b"null")
    return b'%b,"data":%b,"result":%b}' % (told.removesuffix(b"}"), *carried)


def _view(job: Job, now: datetime, **carried: Any) -> JobView:
    return JobView.model_construct(
        **_summed_up(job, now),
        **carried,
        checkpoint=base64_text(job.checkpoint) if isinstance(job.checkpoint, bytes) else job.checkpoint,
        delay=_seconds(job.delay),
        timeout=_seconds(job.timeout),
        depends_on=list(job.depends_on),
        on_dependency_failure=job.on_dependency_failure,
        options=shown_options(job),
    )


def shown_options(job: Job) -> dict[str, Any]:
    """What was asked for with it; not the server's own notes of the request it came with, and of who sent it."""
    return {name: value for name, value in job.options.items() if name not in (REQUEST, RESULTS_FROM)}


def _summed_up(job: Job, now: datetime) -> dict[str, Any]:
    lease = job.lease
    return {
        "id": job.id,
        "uid": job.uid,
        "queue": str(job.queue),
        "type": job.type,
        "status": job.status,
        "state": word_for_job(job, "orchestrator", now) or job.status.value,
        "tags": list(job.tags),
        "priority": job.priority,
        "lifo": job.lifo,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "executions": job.executions,
        "retry_count": job.retry_count,
        "crashes": job.crashes,
        "max_attempts": job.max_attempts,
        "max_crashes": job.max_crashes,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "started_at": job.started_at,
        "finalized_at": job.finalized_at,
        "last_retry_at": job.last_retry_at,
        "assigned_at": job.assigned_at,
        "assignee_id": job.assignee_id,
        "error_message": job.error_message,
        "progress": job.progress,
        "idempotency_key": job.idempotency_key,
        "concurrency_key": job.concurrency_key,
        "parent_id": job.parent_id,
        "schedule_id": job.schedule_id,
        "epoch": job.epoch,
        "lease": None
        if lease is None
        else LeaseView(epoch=lease.epoch, expires_at=lease.expires_at, cancel_requested=lease.cancel_requested),
    }


def _readable(field: str, stored: bytes | None) -> tuple[Any, str | None]:
    """The JSON inside, or the bytes themselves where a program of another kind stored them."""
    if stored is None:
        return None, None
    try:
        return read_json(field, stored), None
    except InvalidArgument:
        return None, base64_text(stored)


def _is_readable(field: str, stored: bytes) -> bool:
    try:
        read_json(field, stored)
    except InvalidArgument:
        return False
    return True


def _seconds(span: object) -> float | None:
    return span.total_seconds() if isinstance(span, timedelta) else None


Jitter = Annotated[StrictFloat, in_words_of_the_sdk(check_jitter)]


class Backoff(BaseModel):
    """How long to wait between one try and the next."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["fixed", "exponential"]
    delay: Seconds = Field(description="Seconds before the first repeat.")
    cap: Seconds | None = Field(None, description="Seconds it never exceeds.")
    jitter: Jitter = Field(0.0, ge=0, le=1, description="How much of it, as a share, is left to chance.")


class JobSettings(BaseModel):
    """What may be said of a job, or of the jobs a schedule makes, besides its type and data."""

    model_config = ConfigDict(extra="forbid")

    queue: Name = Field("default", description="Where it waits.")
    priority: Number = Field(0, description="Smaller is sooner.")
    lifo: StrictBool = Field(False, description="Before all others of its priority, the newest first.")
    delay: Seconds | None = Field(None, description="Seconds before it may start.")
    attempts: Count = Field(1, description="Tries in all; 0 is no limit.")
    backoff: Backoff | None = None
    retry_strategy: Name | None = Field(None, description="A strategy that its worker knows by this name.")
    tags: Tags = Field(default_factory=list, max_length=MOST_TAGS, json_schema_extra={"default": []})
    timeout: SomeSeconds | None = Field(None, description="Seconds that one try may take.")
    parent_id: Name | None = None
    remove_on_complete: Kept = Field(False, description="True, or how many to keep.")
    remove_on_fail: Kept = Field(False, description="True, or how many to keep.")
    concurrency_key: Name | None = Field(None, description="Jobs that share it share its limits.")
    max_crashes: Count | None = Field(3, description="Crashes survived; null is no limit.")

    def options(self) -> dict[str, Any]:
        """As `job_from` takes them."""
        told = dict(self)
        if self.backoff is not None:
            told["backoff"] = self.backoff.model_dump(exclude_none=True)
        return told


class NewJob(JobSettings):
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
    id: Name | None = Field(None, description="An id of your own; left out, it gets a UUID.")
    run_at: Moment | None = Field(None, description="Not before; wins over delay.")
    expires_at: Moment | None = Field(None, description="Not started after this.")
    depends_on: Names = Field(
        default_factory=list,
        max_length=MOST_NAMES,
        description="Ids of jobs that must complete before.",
        json_schema_extra={"default": []},
    )
    on_dependency_failure: Literal["wait", "stop", "ignore"] = "wait"

    def options(self) -> dict[str, Any]:
        """As above."""
        told = super().options()
        told["job_id"] = told.pop("id")
        return told


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
    """A job that is stored and will be run, whatever happens to anybody."""

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
    steps = [
        StepView.model_construct(
            name=step.name,
            job_id=step.job_id,
            status=step.status,
            progress=step.progress,
            error=step.error,
            waits_for=list(step.waits_for),
        )
        for step in flow.steps
    ]
    return FlowView.model_construct(
        id=flow.id,
        name=flow.name,
        state=flow.state,
        total=flow.total,
        ended=flow.ended,
        counts=dict(flow.counts),
        steps=steps,
    )
