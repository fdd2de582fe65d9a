"""One call of a scoped caller, and the rules that most operations follow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from longshore.backends.base import Backend, Page
from longshore.core.errors import JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.validation import check_name, check_names
from longshore.server.auth import Caller
from longshore.server.response_limits import JobSizes

Arguments = dict[str, Any]
AT_ONCE = 1_000
"""Jobs or events asked of the store at once."""
MOST_LOOKS = 20
"""For one request so many times as many events are looked through: a log may be endless."""


class Bound:
    """One call of such a caller."""

    def __init__(self, backend: Backend, caller: Caller, verb: str, arguments: Arguments, heaviest: JobSizes) -> None:
        self.backend = backend
        self.caller = caller
        self.verb = verb
        self.arguments = arguments
        self.heaviest = heaviest

    @property
    def queues(self) -> list[str]:
        """Theirs."""
        return sorted(self.caller.queues or ())

    async def go(self, **changes: Any) -> Any:
        """Carries it out, with these arguments changed."""
        return await getattr(self.backend, self.verb)(**{**self.arguments, **changes})

    async def own(self, job_ids: Iterable[str]) -> dict[str, str]:
        """Of these jobs those that are in their queues, each with its queue."""
        wanted = list(dict.fromkeys(job_ids))
        found: dict[str, str] = {}
        for first in range(0, len(wanted), AT_ONCE):
            theirs = JobFilter(ids=wanted[first : first + AT_ONCE], queues=self.queues)
            look = partial(_look, self.backend, theirs)
            told, _ = await self.heaviest.told_of_each(look, len(theirs.ids), self.queues, _with_its_queue)
            found |= told
        return found

    async def check_jobs(self, job_ids: Iterable[str]) -> None:
        """JobNotFound for one that is not theirs, as for one that is not there."""
        wanted = list(job_ids)
        found = await self.own(wanted)
        for job_id in wanted:
            if job_id not in found:
                raise JobNotFound(job_id)


async def _look(backend: Backend, wanted: JobFilter, limit: int, cursor: str | None) -> Page:
    return await backend.list_jobs(wanted, limit=limit, cursor=cursor)


def _with_its_queue(job: Job) -> tuple[str, str]:
    return job.id, str(job.queue)


async def for_all_queues(call: Bound) -> Any:
    call.caller.check_everywhere()
    return await call.go()  # pragma: no cover - whoever comes here is bound


async def as_it_is(call: Bound) -> Any:
    return await call.go()


async def of_one_job(call: Bound) -> Any:
    await call.check_jobs([check_name("job_id", call.arguments["job_id"])])
    return await call.go()


async def of_one_queue(call: Bound) -> Any:
    queue = call.arguments.get("queue")
    if queue is None:
        return await for_all_queues(call)
    call.caller.check_queue(check_name("queue", queue))
    return await call.go()


async def of_many_jobs(call: Bound) -> Any:
    await call.check_jobs(check_names("job_ids", call.arguments["job_ids"]))
    return await call.go()
