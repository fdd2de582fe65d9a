"""Results that jobs are given of others: of a caller's own queues, whatever they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longshore.core.dependencies import RESULTS_FROM
from longshore.core.job import Job
from longshore.server.access import Caller


def with_results_within(caller: Caller, jobs: Sequence[Job]) -> list[Job]:
    """The jobs to store: each that waits for others with a note of the queues whose results it may be given.

    A worker reads them with rights of its own, when they are there. An id may be nobody's when it is named, or become
    another's after that, so that what it stands for now says nothing.
    """
    if caller.queues is None:
        return list(jobs)
    note = {RESULTS_FROM: sorted(caller.queues)}
    return [
        job.replace(options={**job.options, **note}) if job.depends_on and isinstance(job.options, Mapping) else job
        for job in jobs
    ]
