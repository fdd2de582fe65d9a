"""Flows: cycle detection, progress, identity, copies for a rerun, and a Mermaid diagram."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from longshore.core.dependencies import EDGE_POLICIES
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job, new_job_like
from longshore.core.status import JobStatus
from longshore.core.validation import new_id


def find_cycle(start: str, dependencies_of: Callable[[str], Iterable[str]]) -> list[str] | None:
    """The path `start -> … -> start` along dependencies, or None if there is no cycle."""
    path = [start]
    seen = {start}
    branches = [iter(dependencies_of(start))]
    while branches:
        step = next(branches[-1], None)
        if step is None:
            branches.pop()
            path.pop()
        elif step == start:
            return [*path, start]
        elif step not in seen:
            seen.add(step)
            path.append(step)
            branches.append(iter(dependencies_of(step)))
    return None


def never_ready(starts: Iterable[str], dependencies_of: Callable[[str], Iterable[str]]) -> list[str]:
    """The starts that are on a cycle or depend on one. Each edge is visited once, at any depth."""
    begun = list(dict.fromkeys(starts))
    waiting_for: dict[str, int] = {}
    dependents: dict[str, list[str]] = defaultdict(list)
    ready = []
    to_see = list(begun)
    while to_see:
        step = to_see.pop()
        if step in waiting_for:
            continue
        needed = set(dependencies_of(step))
        waiting_for[step] = len(needed)
        if not needed:
            ready.append(step)
        for other in needed:
            dependents[other].append(step)
            to_see.append(other)
    while ready:
        for step in dependents[ready.pop()]:
            waiting_for[step] -= 1
            if waiting_for[step] == 0:
                ready.append(step)
    return [step for step in begun if waiting_for[step]]


FLOW = "flow"
"""The option of a step: the flow's name, the step's name, the number of steps, and whether it is a last step."""

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
    """The status of a flow.

    It is `running` while a step runs or can run. It is `waiting` if every unfinished step waits for a step that failed
    or was cancelled, or for a job outside the flow. It is `completed` once its last steps are, and `failed` if all
    steps have ended otherwise. If all last steps were removed, the remaining steps decide.
    """

    id: str
    name: str
    state: FlowState
    steps: tuple[StepStatus, ...]
    """In the order in which they were added."""
    counts: Mapping[JobStatus, int]
    """The number of steps by status."""

    @property
    def total(self) -> int:
        """The number of steps, without those removed since."""
        return len(self.steps)

    @property
    def ended(self) -> int:
        """The number of final steps, completed or not."""
        return sum(count for status, count in self.counts.items() if status.final)


def status_of_flow(flow_id: str, steps: Sequence[Job]) -> FlowStatus:
    """Compute it from all steps, in the order in which they were added."""
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
    """A value of the step's flow option."""
    flow = step.options.get(FLOW)
    return str(flow.get(word, otherwise)) if isinstance(flow, Mapping) else otherwise


def step_of(job: Job) -> str:
    """The name of the job as a step of a flow; empty if it is not a step."""
    return about(job, "step")


def step_name(step: Job) -> str:
    """The name given to the step, or the name of its task."""
    return about(step, "step", step.type)


def last_steps(steps: Sequence[Job]) -> list[Job]:
    """The steps that no other step waits for: their results are the flow's result."""
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
    """The step that kept a last step from completing, or that must be retried first; None if there is none.

    It is the first such step: the start of a chain of stopped steps.
    """
    by_id = {step.id: step for step in steps}
    culprits: dict[str, Job] = {}
    for step in steps:  # dependencies are added before their dependents
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


def copy_of_flow(flow_id: str, steps: Sequence[Job], *, completed_too: bool) -> list[Job]:
    """The jobs to store. A copy does not wait for a step that is not copied: that step has completed."""
    running = [step for step in steps if not step.status.final]
    if running and all(step.status is JobStatus.CANCELLING for step in running):
        being = "1 of its steps is" if len(running) == 1 else f"{len(running)} of its steps are"
        raise InvalidArgument(
            "flow", f"{flow_id}: {being} still being cancelled; try again when status().state is no longer running"
        )
    if running:
        state = status_of_flow(flow_id, steps).state
        raise InvalidArgument(
            "flow",
            f"{flow_id} is {state}, and {len(running)} of its steps are unfinished; cancel() it, or retry() dead steps",
        )
    meant = [step for step in steps if completed_too or step.status is not JobStatus.COMPLETED]
    if not meant:
        raise InvalidArgument("flow", f"{flow_id} has completed; rerun_whole() runs all its steps again")
    if completed_too and len(steps) < int(about(steps[0], "steps", "0")):
        raise InvalidArgument("flow", f"{flow_id} has lost steps that were removed since; enqueue the flow again")
    if not last_steps(meant):
        completed = "has completed, except for steps that may fail; rerun_whole() runs all its steps again"
        removed = "has lost its last step, which was removed; enqueue the flow again"
        raise InvalidArgument("flow", f"{flow_id} {completed if last_steps(steps) else removed}")
    new = new_id()
    ids = {step.id: f"{new}.{step.id.removeprefix(f'{flow_id}.')}" for step in meant}
    return [_copied(step, ids, new, flow_id) for step in meant]


def _copied(step: Job, ids: Mapping[str, str], new: str, flow_id: str) -> Job:
    options: dict[str, Any] = dict(step.options)
    if isinstance(options.get(FLOW), Mapping):
        options[FLOW] = {**options[FLOW], "steps": len(ids), "of": flow_id}
    if EDGE_POLICIES in options:
        options[EDGE_POLICIES] = {ids.get(name, name): policy for name, policy in options[EDGE_POLICIES].items()}
    return new_job_like(
        step,
        id=ids[step.id],
        parent_id=new,
        expires_at=_relative_expiry(step),
        depends_on=tuple(ids.get(name, name) for name in step.depends_on),
        on_dependency_failure=step.on_dependency_failure,
        options=options,
    )


def _relative_expiry(step: Job) -> Any:
    """The original's time from creation to expiry."""
    if isinstance(step.expires_at, datetime) and step.created_at is not None:
        return step.expires_at - step.created_at
    return None


MOST_DRAWN = 200
"""The most steps in a diagram."""


def drawing(steps: Sequence[Job]) -> str:
    """A Mermaid diagram of the steps, their statuses and an arrow to each dependent; dotted if the step may fail."""
    drawn = {step.id: f"s{number}" for number, step in enumerate(steps[:MOST_DRAWN])}
    lines = ["flowchart TD"]
    for step in steps[:MOST_DRAWN]:
        lines.append(f'    {drawn[step.id]}["{_safe(step_name(step))}<br/>{step.status.value}"]')
        for name in step.depends_on:
            if name in drawn:
                arrow = "-.->" if policy_of(step, name) == "ignore" else "-->"
                lines.append(f"    {drawn[name]} {arrow} {drawn[step.id]}")
    if len(steps) > MOST_DRAWN:
        lines.append(f'    more["and {len(steps) - MOST_DRAWN} more"]')
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Escape characters that have a meaning in Mermaid or HTML."""
    return "".join(letter if letter.isalnum() or letter in " _-.:/" else f"#{ord(letter)};" for letter in text)


def flow_conflict(flow_id: str, steps: Mapping[str, Job], known: Iterable[Job]) -> str:
    """Why jobs with the ids of these steps are not this flow, stored before; empty if they are.

    Unknown steps may have been removed since. Each step of a flow records how many steps there are.
    """
    for job in known:
        step = steps[job.id]
        if job.parent_id != flow_id:
            owner = f"of the flow {job.parent_id!r}" if about(job, "name") else "that belongs to no flow"
            return f"its step {job.id!r} cannot be stored: that id belongs to a {job.type!r} {owner}"
        if about(job, "steps") != about(step, "steps"):
            return f"it already exists with {about(job, 'steps')} steps, but this one has {about(step, 'steps')}"
        if job.type != step.type:
            return f"it already exists, and its step {job.id!r} is a {job.type!r} there but a {step.type!r} here"
    return ""


def policy_of(job: Job, job_id: str) -> str:
    """The policy of the job for the failure of this dependency."""
    policies = job.options.get(EDGE_POLICIES) or {}
    return str(policies.get(job_id, job.on_dependency_failure))
