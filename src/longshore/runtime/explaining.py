"""Why a job is not running now: the one answer that queues, handles, the command line and the server give."""

from __future__ import annotations

from longshore.backends.base import Backend
from longshore.core.errors import JobNotFound, ScheduleNotFound
from longshore.core.explain import Explanation, explanation_of, no_job_but_a_schedule


async def explain(backend: Backend, job_id: str) -> Explanation:
    """All that is in the way of the job, as one look at the store finds it; JobNotFound if there is no such job.

    That one says more where the id is a schedule's, or that of a run to come.
    """
    try:
        return explanation_of(await backend.facts_about(job_id))
    except JobNotFound as missing:
        told = await _told_of_schedule(backend, job_id)
        if told:
            missing.args = (told,)
        raise


async def _told_of_schedule(backend: Backend, job_id: str) -> str:
    for schedule_id in dict.fromkeys((job_id, job_id.rpartition("@")[0])):
        if schedule_id:
            try:
                schedule = await backend.get_schedule(schedule_id)
            except ScheduleNotFound:
                continue
            return no_job_but_a_schedule(job_id, schedule, await backend.now())
    return ""
