"""One call of a caller who is bound to some queues, and the rules that many verbs share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longshore.backends.contract import Backend
from longshore.core.errors import JobNotFound
from longshore.core.filtering import JobFilter
from longshore.core.job import Job
from longshore.core.names import check_name, check_names
from longshore.server.access import Caller

Arguments = dict[str, Any]
AT_ONCE = 1_000
"""Jobs or events asked of the store at once."""


class Bound:
    """One call of such a caller."""

    def __init__(self, backend: Backend, caller: Caller, verb: str, arguments: Arguments) -> None:
        self.backend = backend
        self.caller = caller
        self.verb = verb
        self.arguments = arguments

    @property
    def queues(self) -> list[str]:
        """Theirs."""
        return sorted(self.caller.queues or ())

    async def go(self, **changes: Any) -> Any:
        """Carries it out, with these arguments changed."""
        return await getattr(self.backend, self.verb)(**{**self.arguments, **changes})

    async def own(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Of these jobs those that are in their queues."""
        wanted = list(dict.fromkeys(job_ids))
        found: dict[str, Job] = {}
        for first in range(0, len(wanted), AT_ONCE):
            ids = wanted[first : first + AT_ONCE]
            page = await self.backend.list_jobs(JobFilter(ids=ids, queues=self.queues), limit=len(ids))
            found |= {job.id: job for job in page.items}
        return found

    async def check_jobs(self, job_ids: Iterable[str]) -> None:
        """JobNotFound for one that is not theirs, as for one that is not there."""
        wanted = list(job_ids)
        found = await self.own(wanted)
        for job_id in wanted:
            if job_id not in found:
                raise JobNotFound(job_id)


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
