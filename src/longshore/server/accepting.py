"""The two-phase accept: stored as CREATED, then accepted, then answered; and what a repeated request is answered with.

If the server dies between the two steps, the job stays CREATED and never runs by itself; the client's retry with the
same key finds it, and accepts it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from longshore.backends.contract import Backend
from longshore.core.acting import acting, actor
from longshore.core.errors import DuplicateJob, InvalidArgument, InvalidTransition, JobNotFound, LongshoreError
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.record import record_of
from longshore.server.refusals import KeyReused

REQUEST = "request"
"""The option of a job under which the fingerprint of its request is kept, to tell a repeat from another request."""

_TURNS = 2
"""Turns under way at once: the second step of one and the first step of the next share a commit."""
_JOBS_PER_TURN = 500
_BYTES_PER_TURN = 4 * 1024 * 1024


def fingerprint(body: Any) -> str:
    """The same for the same JSON, however it was spaced and in whichever order its keys came."""
    written = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
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


class SubmissionDesk:
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
                size += len(submission.jobs[0].payload)
                if submission.is_batch or size > _BYTES_PER_TURN:
                    break
                if submission.actor == first.actor:  # a transaction is signed by one
                    chosen.append(submission)
        taken = set(map(id, chosen))
        self._waiting = [submission for submission in self._waiting if id(submission) not in taken]
        return chosen

    async def _take_turn(self, submissions: Sequence[_Submission]) -> None:
        try:
            with acting(submissions[0].actor):
                await self._serve(submissions)
        except (InvalidArgument, DuplicateJob) as error:  # one of them is refused: which one, each finds out alone
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
        good: list[tuple[_Submission, list[Job]]] = []
        for submission in submissions:
            found = [next(stored) for _ in submission.jobs]
            refusal = _another(submission.jobs, found)
            if refusal is None:
                good.append((submission, found))
            else:
                await self._withdraw(submission.jobs, found)
                _tell(submission, refusal)
        await self._accept([job.id for _, found in good for job in found if _is_held(job)])
        for submission, found in good:
            if not submission.answered.done():  # its client may have left
                submission.answered.set_result(await self._answers(submission.jobs, found))

    async def _store(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs as they are stored: nearly always all are new, and then they are what was given."""
        with suppress(DuplicateJob):
            if await self._backend.enqueue_jobs(jobs) == [job.id for job in jobs]:
                return jobs
        return await self._backend.add_jobs(jobs)  # by now all of them are known, by their keys or their ids

    async def _accept(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        try:
            await self._backend.accept_jobs(ids)
        except (InvalidTransition, JobNotFound):  # another server accepted, or somebody called off, one of them
            for job_id in ids:
                with suppress(InvalidTransition, JobNotFound):
                    await self._backend.accept_jobs([job_id])

    async def _withdraw(self, given: Sequence[Job], found: Sequence[Job]) -> None:
        """Takes out again what was stored along with a job that is refused.

        What has a key stays, for it is remembered: it never runs, and the request put right finds and accepts it.
        """
        fresh = [
            new.id
            for new, kept in zip(given, found, strict=True)
            if new.idempotency_key is None and new.id == kept.id and _is_held(kept) and _same(new, kept)
        ]
        if fresh:
            cancelled, _ = await self._backend.cancel_jobs(job_ids=fresh, held=False)
            if cancelled:
                with suppress(InvalidTransition):
                    await self._backend.delete_jobs(job_ids=cancelled)

    async def _answers(self, given: Sequence[Job], found: Sequence[Job]) -> list[Answer]:
        answers = []
        for new, kept in zip(given, found, strict=True):
            status = kept.status
            if status is JobStatus.CREATED:
                status = JobStatus.INITIAL_PENDING
                if kept.depends_on:  # it may wait for others, or have been given up at once
                    with suppress(JobNotFound):
                        status = (await self._backend.get_job(kept.id)).status
            answers.append(Answer(kept.id, str(kept.queue), kept.type, status, not _is_held(kept) or new.id != kept.id))
        return answers


def _tell(submission: _Submission, error: BaseException) -> None:
    if not submission.answered.done():
        submission.answered.set_exception(error)


def _is_held(job: Job) -> bool:
    return job.status is JobStatus.CREATED


def _another(given: Sequence[Job], found: Sequence[Job]) -> LongshoreError | None:
    """Why this is no repeat of the request that the key or id belongs to; None if it is one, or all is new."""
    taken = []
    for new, kept in zip(given, found, strict=True):
        if _same(new, kept):
            continue
        if new.idempotency_key is not None and new.idempotency_key == kept.idempotency_key:
            return KeyReused(new.idempotency_key, kept.id)
        taken.append(kept.id)
    return DuplicateJob(taken) if taken else None


def _same(new: Job, kept: Job) -> bool:
    if new is kept or new.type != kept.type or str(new.queue) != str(kept.queue):
        return new is kept
    if kept.created_at is None:  # of a job that was removed nothing more is remembered
        return True
    if REQUEST in kept.options:
        return bool(kept.options[REQUEST] == new.options.get(REQUEST))
    return new.payload == kept.payload
