"""A flow once more: new jobs from the steps of one that is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from longshore.core.dependencies import EDGE_POLICIES
from longshore.core.errors import InvalidArgument
from longshore.core.flow_progress import FLOW, about, last_steps, status_of_flow
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.names import new_id


def copy_of_flow(flow_id: str, steps: Sequence[Job], *, completed_too: bool) -> list[Job]:
    """The jobs to store. A step that is not copied is waited for as it is, which is to say not at all."""
    running = [step for step in steps if not step.status.final]
    if running and all(step.status is JobStatus.CANCELLING for step in running):
        being = "1 of its steps is" if len(running) == 1 else f"{len(running)} of its steps are"
        raise InvalidArgument(
            "flow", f"{flow_id}: {being} still being called off; try again when status().state is no longer running"
        )
    if running:
        state = status_of_flow(flow_id, steps).state
        raise InvalidArgument(
            "flow",
            f"{flow_id} is {state}, and {len(running)} of its steps are not over; cancel() it, or retry() what died",
        )
    meant = [step for step in steps if completed_too or step.status is not JobStatus.COMPLETED]
    if not meant:
        raise InvalidArgument("flow", f"{flow_id} has completed; rerun_whole() runs all its steps again")
    if completed_too and len(steps) < int(about(steps[0], "steps", "0")):
        raise InvalidArgument("flow", f"{flow_id} has lost steps that were removed since; make it anew")
    if not last_steps(meant):
        completed = "has completed, but for what it could do without; rerun_whole() runs all its steps again"
        removed = "has no last step any more, which was removed; make it anew"
        raise InvalidArgument("flow", f"{flow_id} {completed if last_steps(steps) else removed}")
    new = new_id()
    ids = {step.id: f"{new}.{number}" for number, step in _numbered(flow_id, meant)}
    return [_copied(step, ids, new, flow_id) for step in meant]


def _numbered(flow_id: str, steps: Sequence[Job]) -> list[tuple[str, Job]]:
    return [
        (step.id.removeprefix(f"{flow_id}.") if step.id.startswith(f"{flow_id}.") else step.id, step) for step in steps
    ]


def _copied(step: Job, ids: Mapping[str, str], new: str, flow_id: str) -> Job:
    options: dict[str, Any] = dict(step.options)
    if isinstance(options.get(FLOW), Mapping):
        options[FLOW] = {**options[FLOW], "steps": len(ids), "of": flow_id}
    if EDGE_POLICIES in options:
        options[EDGE_POLICIES] = {ids.get(name, name): policy for name, policy in options[EDGE_POLICIES].items()}
    return Job(
        id=ids[step.id],
        parent_id=new,
        type=step.type,
        payload=step.payload,
        queue=str(step.queue),
        tags=step.tags,
        priority=step.priority,
        lifo=step.lifo,
        delay=step.delay,
        expires_at=_as_long(step),
        timeout=step.timeout,
        max_attempts=step.max_attempts,
        max_crashes=step.max_crashes,
        concurrency_key=step.concurrency_key,
        depends_on=tuple(ids.get(name, name) for name in step.depends_on),
        on_dependency_failure=step.on_dependency_failure,
        options=options,
    )


def _as_long(step: Job) -> Any:
    """As much time as the original had to be started in."""
    if isinstance(step.expires_at, datetime) and step.created_at is not None:
        return step.expires_at - step.created_at
    return None
