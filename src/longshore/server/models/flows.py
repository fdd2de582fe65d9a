"""Flows over HTTP: many jobs seen as one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from longshore.core.flows import FlowStatus
from longshore.core.status import JobStatus


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
