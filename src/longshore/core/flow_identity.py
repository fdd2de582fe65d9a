"""Whether a flow that is enqueued under an id is the one that is stored under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from longshore.core.flow_progress import about
from longshore.core.job import Job


def what_is_another(flow_id: str, steps: Mapping[str, Job], known: Iterable[Job]) -> str:
    """Why jobs that have ids of these steps are not this flow, stored before; nothing if they are.

    Steps that are not known may have been removed since: how many there were, each step of a flow tells.
    """
    for job in known:
        step = steps[job.id]
        if job.parent_id != flow_id:
            owner = f"of the flow {job.parent_id!r}" if about(job, "name") else "of nobody's flow"
            return f"its step {job.id!r} cannot be stored: a {job.type!r} {owner} has that id"
        if about(job, "steps") != about(step, "steps"):
            return f"it is stored already, with {about(job, 'steps')} steps, and this one has {about(step, 'steps')}"
        if job.type != step.type:
            return f"it is stored already, and there its step {job.id!r} is a {job.type!r}, here a {step.type!r}"
    return ""
