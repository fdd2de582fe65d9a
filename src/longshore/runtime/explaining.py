"""Why a job is not running now: the one answer that queues, handles, the command line and the server give."""

from __future__ import annotations

from longshore.backends.contract import Backend
from longshore.core.explanation import Explanation, explanation_of


async def explain(backend: Backend, job_id: str) -> Explanation:
    """All that is in the way of the job, as one look at the store finds it; JobNotFound if there is no such job."""
    return explanation_of(await backend.facts_about(job_id))
