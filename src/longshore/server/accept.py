"""The two-phase accept: jobs are stored as CREATED, accepted, and then acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from longshore.backends.base import Backend
from longshore.core.actor import acting, actor
from longshore.core.errors import (
    BackendUnavailable,
    DuplicateJob,
    InvalidArgument,
    InvalidTransition,
    JobNotFound,
    KeyReused,
)
from longshore.core.job import Job
from longshore.core.job_record import REQUEST, JobTemplate, record_of
from longshore.core.status import JobStatus
from longshore.core.validation import check_name, compact, new_id, written_json
from longshore.runtime.job_options import job_from
from longshore.server.models.jobs import NewJob

_ITS_OWN = frozenset({"data", "id", "idempotency_key"})
"""What each job has for itself; most jobs of a batch share all the rest."""


class _Pattern(NamedTuple):
    likeness: JobTemplate
    options: Mapping[str, Any]


class Patterns:
    """Makes the jobs of one request, whose body was read strictly: what they share is worked out and checked once."""

    def __init__(self, write: Callable[[object], str] = compact) -> None:
        self._write = write
        self._known: dict[Hashable, _Pattern] = {}

    def job(self, said: NewJob, key: str | None, fingerprint: str) -> Job:
        """A job to be stored as CREATED, which keeps the fingerprint of its request if there is one."""
        fields = said.__dict__
        shared = tuple([(name, _hashable(fields[name])) for name in said.model_fields_set if name not in _ITS_OWN])
        pattern = self._known.get(shared)
        if pattern is None:
            options = said.options()
            for name in ("data", "job_id", "idempotency_key"):
                options.pop(name, None)
            made = job_from(**options, hold=True)
            pattern = self._known[shared] = _Pattern(JobTemplate(made), made.options)
        return pattern.likeness.job(
            id=new_id() if said.id is None else check_name("id", said.id),
            payload=written_json("data", said.data, write=self._write),
            idempotency_key=None if key is None else check_name("idempotency_key", key),
            options={**pattern.options, REQUEST: fingerprint} if fingerprint else pattern.options,
        )


def _hashable(value: object) -> Hashable:
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, Hashable) else repr(value)


_TURNS = 2
"""Turns under way at once: the second step of one and the first step of the next share a commit."""
_JOBS_PER_TURN = 500
_BYTES_PER_TURN = 4 * 1024 * 1024


def fingerprint(body: Any, write: Callable[..., str] = json.dumps) -> str:
    """The same for the same JSON, however it was spaced and in whichever order its keys came."""
    written = write(body, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(written).hexdigest()[:32]


class Answer(NamedTuple):
    """What a client is told of a job it sent."""

    id: str
    queue: str
    type: str
    status: JobStatus
    replayed: bool
    """Whether it was there already: by an earlier request with the same key or id."""


@dataclass(slots=True, eq=False)
class _Submission:
    jobs: Sequence[Job]
    answered: asyncio.Future[list[Answer]]
    actor: str

    @property
    def is_batch(self) -> bool:
        """Whether it has a turn of its own."""
        return len(self.jobs) > 1


class Acceptor:
    """Takes jobs from many requests, and brings those that come at the same time to the store together."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: list[_Submission] = []
        self._turns: set[asyncio.Task[None]] = set()

    async def submit(self, jobs: Sequence[Job]) -> list[Answer]:
        """Stores and accepts all of them or none; each was made to be held (CREATED)."""
        if len(jobs) == 1:  # what comes along with others must not spoil it for them; a batch has a turn of its own
            record_of(jobs[0], 0)
        submission = _Submission(jobs, asyncio.get_running_loop().create_future(), actor())
        self._waiting.append(submission)
        self._begin_turns()
        return await submission.answered

    async def close(self) -> None:
        """Waits until all that was begun is answered."""
        while self._turns:
            await asyncio.wait(self._turns)

    def _begin_turns(self) -> None:
        while self._waiting and len(self._turns) < _TURNS:
            turn = asyncio.get_running_loop().create_task(self._take_turn(self._next()))
            self._turns.add(turn)
            turn.add_done_callback(self._turn_is_over)

    def _turn_is_over(self, turn: asyncio.Task[None]) -> None:
        self._turns.discard(turn)
        self._begin_turns()

    def _next(self) -> list[_Submission]:
        """A batch, or as many single jobs of one actor that wait as fit into one transaction."""
        first = self._waiting[0]
        chosen, size = [first], len(first.jobs[0].payload)
        if not first.is_batch:
            for submission in self._waiting[1:_JOBS_PER_TURN]:
                if submission.actor != first.actor:  # a transaction is signed by one
                    continue
                size += len(submission.jobs[0].payload)
                if submission.is_batch or size > _BYTES_PER_TURN:
                    break
                chosen.append(submission)
        taken = set(map(id, chosen))
        self._waiting = [submission for submission in self._waiting if id(submission) not in taken]
        return chosen

    async def _take_turn(self, submissions: Sequence[_Submission]) -> None:
        try:
            with acting(submissions[0].actor):
                await self._serve(submissions)
        except (InvalidArgument, DuplicateJob, KeyReused) as error:
            # one of them is refused: which one, each finds out alone
            if len(submissions) == 1:
                _tell(submissions[0], error)
            else:
                for submission in submissions:
                    await self._take_turn([submission])
        except BaseException as error:
            for submission in submissions:
                _tell(submission, error)
            if not isinstance(error, Exception):
                raise

    async def _serve(self, submissions: Sequence[_Submission]) -> None:
        stored = iter(await self._store([job for submission in submissions for job in submission.jobs]))
        found = [[next(stored) for _ in submission.jobs] for submission in submissions]
        overtaken = await self._accept([job.id for jobs in found for job in jobs if _is_held(job)])
        for submission, jobs in zip(submissions, found, strict=True):
            try:
                answers = await self._answers(submission.jobs, jobs, overtaken)
            except BackendUnavailable as error:
                _tell(submission, error)
                continue
            if not submission.answered.done():  # its client may have left meanwhile
                submission.answered.set_result(answers)

    async def _store(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs as they are stored: nearly always all are new, and then they are what was given."""
        try:
            await self._backend.enqueue_new_jobs(jobs)
        except DuplicateJob:  # some are known, by their keys or ids; whether as the same, one transaction decides
            return await self._backend.add_jobs(jobs, same_only=True)
        return jobs

    async def _accept(self, ids: Sequence[str]) -> set[str]:
        """Those that somebody else has accepted, called off or removed meanwhile; all others are accepted."""
        overtaken: set[str] = set()
        if not ids:
            return overtaken
        try:
            await self._backend.accept_jobs(ids)
        except (InvalidTransition, JobNotFound):
            for job_id in ids:
                try:
                    await self._backend.accept_jobs([job_id])
                except (InvalidTransition, JobNotFound):
                    overtaken.add(job_id)
        return overtaken

    async def _answers(self, given: Sequence[Job], found: Sequence[Job], overtaken: Collection[str]) -> list[Answer]:
        answers = []
        for new, kept in zip(given, found, strict=True):
            status = await self._status(kept, kept.id in overtaken) if _is_held(kept) else kept.status
            answers.append(Answer(kept.id, str(kept.queue), kept.type, status, not _is_held(kept) or new.id != kept.id))
        return answers

    async def _status(self, job: Job, is_overtaken: bool) -> JobStatus:
        """Where a job stands that was CREATED a moment ago."""
        if not job.depends_on and not is_overtaken:
            return JobStatus.INITIAL_PENDING
        try:  # it may wait for others, or have been given up at once
            return (await self._backend.get_job(job.id)).status
        except JobNotFound:
            if is_overtaken:  # ended by whoever accepted it, or thrown away: nothing is acknowledged that may be gone
                raise BackendUnavailable(
                    f"job {job.id!r} was removed while it was accepted; send the request again"
                ) from None
            return JobStatus.INITIAL_PENDING  # accepted, and over before we looked


def _tell(submission: _Submission, error: BaseException) -> None:
    if not submission.answered.done():
        submission.answered.set_exception(error)


def _is_held(job: Job) -> bool:
    return job.status is JobStatus.CREATED
