"""How far a flow is, from its steps as they are: pure, for handles, pages and terminals alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from longshore.core.dependencies import policy_of
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus

FLOW = "flow"
"""The option of a step: the flow's name, its own, how many there are, and whether the flow's result is its."""

FlowState = Literal["running", "waiting", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step of a flow."""

    name: str
    job_id: str
    status: JobStatus
    progress: Any
    error: str
    waits_for: tuple[str, ...]
    """The ids of the steps that it depends on."""


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """A flow as it stands.

    It is `running` while a step of it runs or can run; `waiting` if every step left waits for another one that failed
    or was called off, or for a job that is no step; `completed` once its last steps are, and `failed` if all is over
    and they are not. Where all last steps were removed, it is told from those that are left.
    """

    id: str
    name: str
    state: FlowState
    steps: tuple[StepStatus, ...]
    """In the order in which they were added."""
    counts: Mapping[JobStatus, int]
    """Of the statuses that steps are in."""

    @property
    def total(self) -> int:
        """How many steps it has, less those removed since."""
        return len(self.steps)

    @property
    def ended(self) -> int:
        """How many of them are over, well or not."""
        return sum(count for status, count in self.counts.items() if status.final)


def status_of_flow(flow_id: str, steps: Sequence[Job]) -> FlowStatus:
    """From all steps, in the order in which they were added."""
    counts = Counter(step.status for step in steps)
    return FlowStatus(
        flow_id,
        about(steps[0], "name", flow_id),
        _state(steps, counts),
        tuple(
            StepStatus(step_name(step), step.id, step.status, step.progress, step.error_message, tuple(step.depends_on))
            for step in steps
        ),
        dict(counts),
    )


def about(step: Job, word: str, otherwise: str = "") -> str:
    """What a step says of its flow."""
    told = step.options.get(FLOW)
    return str(told.get(word, otherwise)) if isinstance(told, Mapping) else otherwise


def step_of(job: Job) -> str:
    """The name that it has as a step of a flow; nothing if it is none."""
    return about(job, "step")


def step_name(step: Job) -> str:
    """The name it was given, or that of its task."""
    return about(step, "step", step.type)


def last_steps(steps: Sequence[Job]) -> list[Job]:
    """Those whose results are the flow's: nobody in it waits for them."""
    return [step for step in steps if about(step, "last")]


def _state(steps: Sequence[Job], counts: Mapping[JobStatus, int]) -> FlowState:
    unfinished = {status for status in counts if not status.final}
    if unfinished - {JobStatus.WAITING_CHILDREN}:
        return "running"
    if unfinished:
        return "waiting"
    completed = all(step.status is JobStatus.COMPLETED for step in last_steps(steps) or steps)
    return "completed" if completed else "failed"


def what_failed(steps: Sequence[Job]) -> Job | None:
    """A step because of which a last one did not complete, or cannot before it is retried; None if there is none.

    The first one is told: of a chain that was stopped, where it began.
    """
    by_id = {step.id: step for step in steps}
    culprits: dict[str, Job] = {}
    for step in steps:  # what a step waits for was added before it
        if step.status is JobStatus.COMPLETED:
            continue
        for name in step.depends_on:
            other = by_id.get(name)
            if other is None:
                continue
            if name in culprits and (not other.status.final or policy_of(step, name) != "ignore"):
                culprits[step.id] = culprits[name]
                break
        else:
            if step.status.final:
                culprits[step.id] = step
    return next((culprits[step.id] for step in last_steps(steps) if step.id in culprits), None)
