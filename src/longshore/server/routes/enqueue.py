"""Enqueues jobs: one, or up to a thousand at once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.tokens import Scope
from longshore.core.validation import compact_patiently, write_patiently
from longshore.server.accept import Patterns, fingerprint
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.body_limits import release
from longshore.server.middleware import submitting
from longshore.server.models.jobs import Accepted, AcceptedJobs, NewJob, NewJobs
from longshore.server.parameters import root_of
from longshore.server.platform import Here
from longshore.server.problems import refusals
from longshore.server.queue_scoping.operations import check_kinship, with_results_within
from longshore.server.response_limits import beside_the_loop

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=GuardedRoute)


def _key(description: str, longest: int) -> Any:
    return Header(
        alias="Idempotency-Key", description=description, examples=["order-1047"], min_length=1, max_length=longest
    )


IdempotencyKey = Annotated[
    str | None,
    _key("Makes the request safe to repeat: the same key gives the same job, whatever became of the answer.", 255),
]
BatchKey = Annotated[
    str | None,
    _key("As for one job. Each job of a queue gets it with its place behind it: order-1047/0, /1 …", 250),
]
_LOCATION = {"Location": {"description": "Where the job can be looked at.", "schema": {"type": "string"}}}


@router.post(
    "/jobs",
    operation_id="submit_job",
    summary="Submit a job",
    status_code=202,
    response_model=Accepted,
    responses={**refusals(409), 202: {"headers": _LOCATION}},
)
@needs(Scope.SUBMIT)
async def submit_job(
    body: NewJob, request: Request, here: Here, caller: Calling, idempotency_key: IdempotencyKey = None
) -> Response:
    """Stores the job durably, accepts it, and answers; it is run in the background.

    Send an Idempotency-Key, and repeat the request until it is answered: there will be one job. The same key with
    another body is refused with 422.
    """
    _check_one_key(request)
    caller.check_queue(body.queue)
    made = (body, request, idempotency_key)
    job = await beside_the_loop(_one_job, *made) if request.state.large else _one_job(*made)
    body.data = None
    release(request)
    await check_kinship(here.backend, caller, [job])
    here.heaviest.came_in([job])
    with submitting(request, with_results_within(caller, [job])) as (told,):
        (answer,) = await here.acceptor.submit([told])
    headers = {"Location": f"{root_of(request)}/v1/jobs/{quote(answer.id, safe='')}"}
    return Response(json.dumps(answer._asdict()), 202, headers, "application/json")


@router.post(
    "/jobs/batch",
    operation_id="submit_jobs",
    summary="Submit up to 1,000 jobs",
    status_code=202,
    response_model=AcceptedJobs,
    responses=refusals(409),
)
@needs(Scope.SUBMIT)
async def submit_jobs(
    body: NewJobs, request: Request, here: Here, caller: Calling, idempotency_key: BatchKey = None
) -> Response:
    """Stores all of them or none, in one transaction.

    With an Idempotency-Key the whole batch is safe to repeat; a job with an `idempotency_key` of its own keeps that.
    """
    _check_one_key(request)
    made = (body, request, caller, idempotency_key)
    jobs = await beside_the_loop(_all_jobs, *made) if request.state.large else _all_jobs(*made)
    body.jobs.clear()
    release(request)
    await check_kinship(here.backend, caller, jobs)
    here.heaviest.came_in(jobs)
    with submitting(request, with_results_within(caller, jobs)) as told:
        answers = await here.acceptor.submit(told)
    answered = json.dumps({"jobs": [answer._asdict() for answer in answers]})
    return Response(answered, 202, media_type="application/json")


def _check_one_key(request: Request) -> None:
    if len(request.headers.getlist("idempotency-key")) > 1:
        raise InvalidArgument("Idempotency-Key", "was sent more than once; a request has one")


def _one_job(body: NewJob, request: Request, key: str | None) -> Job:
    named = key is not None or body.id is not None
    return _patterns(request).job(body, key, _printed(request, request.state.body) if named else "")


def _all_jobs(body: NewJobs, request: Request, caller: Caller, batch_key: str | None) -> list[Job]:
    jobs = []
    patterns = _patterns(request)
    whole = _printed(request, request.state.body) if batch_key is not None else ""
    places: Counter[str] = Counter()
    for position, spec in enumerate(body.jobs):
        caller.check_queue(spec.queue)
        key, printed = spec.idempotency_key, ""
        if key is None and batch_key is not None:
            # each stands for the whole body; numbered within its queue, as keys are, two bodies that share a queue
            # meet in its first one, whichever of their jobs have moved elsewhere or have keys of their own
            key, printed = f"{batch_key}/{places[spec.queue]}", whole
            places[spec.queue] += 1
        elif key is not None or spec.id is not None:
            printed = _printed(request, spec.model_dump(mode="json", exclude_unset=True))
        try:
            jobs.append(patterns.job(spec, key, printed))
        except InvalidArgument as error:
            raise InvalidArgument(f"jobs[{position}].{error.field}", error.problem) from None
    return jobs


def _patterns(request: Request) -> Patterns:
    return Patterns(compact_patiently) if request.state.large else Patterns()


def _printed(request: Request, body: Any) -> str:
    """The fingerprint of the body as it came, or of a part of it."""
    return fingerprint(body, write_patiently) if request.state.large else fingerprint(body)
