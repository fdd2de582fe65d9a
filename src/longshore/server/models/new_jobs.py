"""New jobs over HTTP: what a client sends, and how it is told that they are stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat

from longshore.core.retry import check_jitter
from longshore.core.status import JobStatus
from longshore.core.validation import MOST_NAMES, MOST_TAGS
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
    in_words_of_the_sdk,
)
from longshore.server.options import MOST_PER_BATCH

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
