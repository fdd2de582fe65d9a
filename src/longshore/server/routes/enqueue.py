"""Enqueue one job, or up to 1,000 in one request."""

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
from longshore.core.validation import compact_incrementally, dumps_incrementally
from longshore.server.accept import JobMaker, fingerprint
from longshore.server.auth import Caller, Calling, GuardedRoute, needs
from longshore.server.body_limits import release
from longshore.server.middleware import submitting
from longshore.server.models.jobs import Accepted, AcceptedJobs, NewJob, NewJobs
from longshore.server.parameters import root_of
from longshore.server.platform import Here
from longshore.server.problems import refusals
from longshore.server.queue_scoping import check_parents, note_result_queues
from longshore.server.response_limits import run_in_thread

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=GuardedRoute)


def _key(description: str, longest: int) -> Any:
    return Header(
        alias="Idempotency-Key", description=description, examples=["order-1047"], min_length=1, max_length=longest
    )


IdempotencyKey = Annotated[
    str | None,
    _key("Makes the request safe to repeat: the same key returns the same job, even after a lost response.", 255),
]
BatchKey = Annotated[
    str | None,
    _key("As for one job. Each job of a queue gets the key with a number: order-1047/0, order-1047/1 …", 250),
]
_LOCATION = {"Location": {"description": "The path of the job.", "schema": {"type": "string"}}}


@router.post(
    "/jobs",
    summary="Submit a job",
    status_code=202,
    response_model=Accepted,
    responses={**refusals(409), 202: {"headers": _LOCATION}},
)
@needs(Scope.SUBMIT)
async def submit_job(
    body: NewJob, request: Request, here: Here, caller: Calling, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store the job durably and respond; a worker runs it later.

    Send an Idempotency-Key and repeat the request until you get a response: only one job is created. The same key with
    a different body is refused with 422.
    """
    _check_one_key(request)
    caller.check_queue(body.queue)
    made = (body, request, idempotency_key)
    job = await run_in_thread(_one_job, *made) if request.state.large else _one_job(*made)
    body.data = None
    release(request)
    await check_parents(here.backend, caller, [job])
    here.job_sizes.note_added([job])
    with submitting(request, note_result_queues(caller, [job])) as traced:
        (answer,) = await here.acceptor.submit(traced)
    headers = {"Location": f"{root_of(request)}/v1/jobs/{quote(answer.id, safe='')}"}
    return Response(json.dumps(answer._asdict()), 202, headers, "application/json")


@router.post(
    "/jobs/batch",
    summary="Submit up to 1,000 jobs",
    status_code=202,
    response_model=AcceptedJobs,
    responses=refusals(409),
)
@needs(Scope.SUBMIT)
async def submit_jobs(
    body: NewJobs, request: Request, here: Here, caller: Calling, idempotency_key: BatchKey = None
) -> Response:
    """Store all jobs or none, in one transaction.

    With an Idempotency-Key you can repeat the whole batch safely. A job with its own `idempotency_key` keeps that key.
    """
    _check_one_key(request)
    made = (body, request, caller, idempotency_key)
    jobs = await run_in_thread(_all_jobs, *made) if request.state.large else _all_jobs(*made)
    body.jobs.clear()
    release(request)
    await check_parents(here.backend, caller, jobs)
    here.job_sizes.note_added(jobs)
    with submitting(request, note_result_queues(caller, jobs)) as traced:
        answers = await here.acceptor.submit(traced)
    answered = json.dumps({"jobs": [answer._asdict() for answer in answers]})
    return Response(answered, 202, media_type="application/json")


def _check_one_key(request: Request) -> None:
    if len(request.headers.getlist("idempotency-key")) > 1:
        raise InvalidArgument("Idempotency-Key", "was sent more than once; send it once")


def _one_job(body: NewJob, request: Request, key: str | None) -> Job:
    named = key is not None or body.id is not None
    return _maker(request).job(body, key, _fingerprint(request, request.state.body) if named else "")


def _all_jobs(body: NewJobs, request: Request, caller: Caller, batch_key: str | None) -> list[Job]:
    jobs = []
    maker = _maker(request)
    whole = _fingerprint(request, request.state.body) if batch_key is not None else ""
    places: Counter[str] = Counter()
    for position, spec in enumerate(body.jobs):
        caller.check_queue(spec.queue)
        key, hashed = spec.idempotency_key, ""
        if key is None and batch_key is not None:
            # Keys belong to a queue and are numbered within it, so two different bodies with the same key and a
            # common queue conflict on the first job of that queue.
            key, hashed = f"{batch_key}/{places[spec.queue]}", whole
            places[spec.queue] += 1
        elif key is not None or spec.id is not None:
            hashed = _fingerprint(request, spec.model_dump(mode="json", exclude_unset=True))
        try:
            jobs.append(maker.job(spec, key, hashed))
        except InvalidArgument as error:
            raise InvalidArgument(f"jobs[{position}].{error.field}", error.problem) from None
    return jobs


def _maker(request: Request) -> JobMaker:
    return JobMaker(compact_incrementally) if request.state.large else JobMaker()


def _fingerprint(request: Request, body: Any) -> str:
    """The fingerprint of the body as sent, or of a part of it."""
    return fingerprint(body, dumps_incrementally) if request.state.large else fingerprint(body)
