"""Puts results of earlier steps into a job's arguments before its task reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from longshore.backends.base import Backend
from longshore.core.dependencies import INPUTS, spliced, unpacked
from longshore.core.errors import BackendUnavailable, Fatal, InvalidArgument, JobNotFound, Snooze
from longshore.core.job import Job
from longshore.core.validation import read_json
from longshore.runtime.running_job import RunningJob, stored_results_of

_PAUSE = 5.0
"""Seconds after which a job is tried again whose arguments could not be read: it is not its fault."""


async def hand_on_results(job: RunningJob, backend: Backend) -> None:
    """Reads them from the store; one that is not there for it ends the job, for it will not come back."""
    try:
        results = await stored_results_of(backend, job.record, _taken(job.record))
    except BackendUnavailable as error:
        raise Snooze(_PAUSE, f"the results it takes cannot be read now: {error}") from error
    except JobNotFound as error:
        raise Fatal(str(error)) from error
    job.hand_on(await asyncio.to_thread(filled, job.record, results))  # they may be large, and others are on the loop


def _taken(job: Job) -> list[str]:
    """Those it takes a result of; what it only comes after may be gone."""
    try:
        return list(dict.fromkeys(job.depends_on[number] for _, number in unpacked(job.options[INPUTS])))
    except (InvalidArgument, IndexError) as error:
        raise Fatal(f"its results cannot be handed on: {error}") from error


def filled(job: Job, results: Mapping[str, bytes | None]) -> bytes:
    """The payload with the results in their places; null where there is none."""
    for job_id, result in results.items():
        if result is not None:
            read_json(f"result of {job_id}", result)  # what is no JSON would change what stands around it
    try:
        return spliced(job.payload, job.options[INPUTS], lambda number: results.get(job.depends_on[number]))
    except (ValueError, IndexError) as error:  # stored by nobody who knows how
        raise Fatal(f"its results cannot be handed on: {error}") from error
