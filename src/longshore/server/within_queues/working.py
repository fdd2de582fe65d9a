"""A worker that is bound to some queues: it takes, keeps and ends what is in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from longshore.backends.base import Outcome, SettleReport, WorkerInfo
from longshore.core.errors import Forbidden, JobNotFound, LongshoreError
from longshore.core.explain import HEARD_WITHIN
from longshore.core.job import Job, Lease
from longshore.core.validation import check_name, check_names
from longshore.server.within_queues.call import Bound


def claimed_queues(call: Bound) -> list[str]:
    wanted = call.arguments.get("queues")
    return (
        call.queues if wanted is None else [call.caller.check_queue(queue) for queue in check_names("queues", wanted)]
    )


async def dequeue(call: Bound) -> Any:
    return await call.go(queues=claimed_queues(call))


async def extend(call: Bound) -> dict[str, Lease]:
    found = await call.own(check_names("leases", call.arguments["leases"]))
    held = {job_id: lease for job_id, lease in call.arguments["leases"].items() if job_id in found}
    answer: dict[str, Lease] = await call.go(leases=held)
    return answer


async def _own_outcomes(call: Bound) -> tuple[list[Outcome], dict[str, LongshoreError]]:
    outcomes: Sequence[Outcome] = call.arguments["outcomes"]
    found = await call.own(check_name("job_id", outcome.job_id) for outcome in outcomes)
    refused: dict[str, LongshoreError] = {
        outcome.job_id: JobNotFound(outcome.job_id) for outcome in outcomes if outcome.job_id not in found
    }
    return [outcome for outcome in outcomes if outcome.job_id in found], refused


async def settle(call: Bound) -> SettleReport:
    outcomes, refused = await _own_outcomes(call)
    report: SettleReport = await call.go(outcomes=outcomes)
    return dataclasses.replace(report, refused={**report.refused, **refused})


async def turn(call: Bound) -> tuple[SettleReport, list[Job]]:
    queues = claimed_queues(call)
    outcomes, refused = await _own_outcomes(call)
    report, jobs = await call.go(outcomes=outcomes, queues=queues)
    return dataclasses.replace(report, refused={**report.refused, **refused}), jobs


async def heartbeat(call: Bound) -> Any:
    worker: WorkerInfo = call.arguments["worker"]
    named = check_names("worker.queues", worker.queues)
    queues = tuple(call.caller.check_queue(queue) for queue in named) or tuple(call.queues)
    await _check_worker_id(call, check_name("worker.id", worker.id))
    return await call.go(worker=dataclasses.replace(worker, queues=queues))


async def _check_worker_id(call: Bound, worker_id: str) -> None:
    """Forbidden if somebody who works for other queues goes by this id, and is alive."""
    known = next((one for one in await call.backend.list_workers() if one.id == worker_id), None)
    if known is None or known.seen_at is None or known.state == "stopped":
        return
    if not call.caller.owns(known.queues) and await call.backend.now() - known.seen_at <= HEARD_WITHIN:
        raise Forbidden(f"a worker that is not {call.caller.name}'s has the id {worker_id!r}; choose another for yours")


async def worker_event(call: Bound) -> Any:
    queue = call.arguments.get("queue", "")
    if queue == "" and len(call.queues) == 1:
        queue = call.queues[0]
    return await call.go(queue=call.caller.check_queue(queue) if queue else "")


async def visible_jobs(call: Bound) -> list[Job]:
    """What is done for all, because it is due; told are only their own."""
    return [job for job in await call.go() if call.caller.sees(job.queue)]
