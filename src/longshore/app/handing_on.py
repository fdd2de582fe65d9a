"""Results of other steps put into a job's arguments, before its task reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.backends.contract import Backend
from longshore.core.errors import BackendUnavailable, Fatal, InvalidArgument, JobNotFound, Snooze
from longshore.core.inputs import INPUTS, fill_in, unpacked
from longshore.core.job import Job
from longshore.core.payload import check_json, read_json
from longshore.runtime.dependency_results import results_of
from longshore.runtime.running_job import RunningJob

_PAUSE = 5.0
"""Seconds after which a job is tried again whose arguments could not be read: it is not its fault."""


async def hand_on_results(job: RunningJob, backend: Backend) -> None:
    """Reads them from the store; one that was removed meanwhile ends the job, for it will not come back."""
    try:
        results = await results_of(backend, job.record, _taken(job.record))
    except BackendUnavailable as error:
        raise Snooze(_PAUSE, f"the results it takes cannot be read now: {error}") from error
    except JobNotFound as error:
        raise Fatal(str(error)) from error
    job.hand_on(filled(job.record, results))


def _taken(job: Job) -> list[str]:
    """Those it takes a result of; what it only comes after may be gone."""
    try:
        return list(dict.fromkeys(job.depends_on[number] for _, number in unpacked(job.options[INPUTS])))
    except (InvalidArgument, IndexError) as error:
        raise Fatal(f"its results cannot be handed on: {error}") from error


def filled(job: Job, results: Mapping[str, Any]) -> bytes:
    """The payload with the results in their places; None where there is none."""
    data = read_json("payload", job.payload)
    try:
        fill_in(data, job.options[INPUTS], lambda number: results.get(job.depends_on[number]))
    except (InvalidArgument, IndexError) as error:  # stored by nobody who knows how
        raise Fatal(f"its results cannot be handed on: {error}") from error
    return check_json("arguments", data, limit=_NO_LIMIT)


_NO_LIMIT = 2**62
"""What is stored is limited; what is put together from it here is not stored."""
