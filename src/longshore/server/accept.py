"""The two-phase accept: jobs are stored as CREATED, accepted, and then acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from longshore.backends.base import Backend
from longshore.core import errors
from longshore.core.actor import acting, actor
from longshore.core.job import Job
from longshore.core.job_options import job_from
from longshore.core.job_record import REQUEST, JobTemplate, record_of
from longshore.core.status import JobStatus
from longshore.core.validation import check_name, compact, new_id, written_json
from longshore.server.models.jobs import NewJob

_OF_ONE_JOB = frozenset({"data", "id", "idempotency_key"})
"""Fields that differ from job to job; most jobs of a batch share all others."""


class JobMaker:
    """Builds the jobs of one request from its validated body; checks options that several jobs share once."""

    def __init__(self, write: Callable[[object], str] = compact) -> None:
        self._write = write
        self._templates: dict[Hashable, tuple[JobTemplate, Mapping[str, Any]]] = {}

    def job(self, body: NewJob, key: str | None, fingerprint: str) -> Job:
        """Return a job to be stored as CREATED, with the fingerprint of its request if there is one."""
        fields = body.__dict__
        shared = tuple([(name, _hashable(fields[name])) for name in body.model_fields_set if name not in _OF_ONE_JOB])
        if shared not in self._templates:
            given = body.options()
            for name in ("data", "job_id", "idempotency_key"):
                given.pop(name, None)
            made = job_from(**given, hold=True)
            self._templates[shared] = JobTemplate(made), made.options
        template, options = self._templates[shared]
        return template.job(
            id=new_id() if body.id is None else check_name("id", body.id),
            payload=written_json("data", body.data, write=self._write),
            idempotency_key=None if key is None else check_name("idempotency_key", key),
            options={**options, REQUEST: fingerprint} if fingerprint else options,
        )


def _hashable(value: object) -> Hashable:
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, Hashable) else repr(value)


_CONCURRENT = 2
"""Transactions under way: the second step of one and the first step of the next share a commit."""
_MOST_JOBS = 500
_MOST_BYTES = 4 * 1024 * 1024
"""Bounds of one transaction for single jobs of several requests."""


def fingerprint(body: Any, write: Callable[..., str] = json.dumps) -> str:
    """A hash of the JSON that ignores spacing and the order of keys."""
    written = write(body, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(written).hexdigest()[:32]


class Answer(NamedTuple):
    """The answer for one job of a request."""

    id: str
    queue: str
    type: str
    status: JobStatus
    replayed: bool
    """Whether an earlier request with the same key or id stored it."""


@dataclass(slots=True, eq=False)
class _Submission:
    jobs: Sequence[Job]
    answered: asyncio.Future[list[Answer]]
    actor: str

    @property
    def is_batch(self) -> bool:
        """Whether it needs its own transaction."""
        return len(self.jobs) > 1

    def refuse(self, error: BaseException) -> None:
        """Raise the error in the request, unless its client has left."""
        if not self.answered.done():
            self.answered.set_exception(error)


class Acceptor:
    """Stores the jobs of many requests; single jobs that arrive together share a transaction."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: list[_Submission] = []
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, jobs: Sequence[Job]) -> list[Answer]:
        """Store and accept all jobs or none; each was made with `hold`."""
        if len(jobs) == 1:  # refuse an invalid job before it shares a transaction with others
            record_of(jobs[0], 0)
        submission = _Submission(jobs, asyncio.get_running_loop().create_future(), actor())
        self._waiting.append(submission)
        self._start()
        return await submission.answered

    async def close(self) -> None:
        """Wait until every submission is answered."""
        while self._running:
            await asyncio.wait(self._running)

    def _start(self) -> None:
        while self._waiting and len(self._running) < _CONCURRENT:
            running = asyncio.get_running_loop().create_task(self._process(self._next()))
            self._running.add(running)
            running.add_done_callback(self._done)

    def _done(self, ended: asyncio.Task[None]) -> None:
        self._running.discard(ended)
        self._start()

    def _next(self) -> list[_Submission]:
        """A batch, or as many single jobs of one actor as fit into one transaction."""
        first = self._waiting[0]
        chosen, size = [first], len(first.jobs[0].payload)
        if not first.is_batch:
            for submission in self._waiting[1:_MOST_JOBS]:
                if submission.actor != first.actor:  # a transaction records one actor
                    continue
                size += len(submission.jobs[0].payload)
                if submission.is_batch or size > _MOST_BYTES:
                    break
                chosen.append(submission)
        taken = set(map(id, chosen))
        self._waiting = [submission for submission in self._waiting if id(submission) not in taken]
        return chosen

    async def _process(self, submissions: Sequence[_Submission]) -> None:
        try:
            with acting(submissions[0].actor):
                await self._serve(submissions)
        except (errors.InvalidArgument, errors.DuplicateJob, errors.KeyReused) as error:
            if len(submissions) == 1:
                submissions[0].refuse(error)
            else:  # process them one by one, so that only the refused one fails
                for submission in submissions:
                    await self._process([submission])
        except BaseException as error:
            for submission in submissions:
                submission.refuse(error)
            if not isinstance(error, Exception):
                raise

    async def _serve(self, submissions: Sequence[_Submission]) -> None:
        stored = iter(await self._store([job for submission in submissions for job in submission.jobs]))
        found = [[next(stored) for _ in submission.jobs] for submission in submissions]
        changed = await self._accept([job.id for jobs in found for job in jobs if _is_held(job)])
        for submission, jobs in zip(submissions, found, strict=True):
            try:
                answers = await self._answers(submission.jobs, jobs, changed)
            except errors.BackendUnavailable as error:
                submission.refuse(error)
                continue
            if not submission.answered.done():  # its client may have left
                submission.answered.set_result(answers)

    async def _store(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs as stored; nearly always all are new and equal to the given ones."""
        try:
            await self._backend.enqueue_new_jobs(jobs)
        except errors.DuplicateJob:  # one transaction decides whether the same request stored these keys or ids
            return await self._backend.add_jobs(jobs, same_only=True)
        return jobs

    async def _accept(self, ids: Sequence[str]) -> set[str]:
        """Accept them; return those that another process accepted, cancelled or removed first."""
        changed: set[str] = set()
        if not ids:
            return changed
        try:
            await self._backend.accept_jobs(ids)
        except (errors.InvalidTransition, errors.JobNotFound):
            for job_id in ids:
                try:
                    await self._backend.accept_jobs([job_id])
                except (errors.InvalidTransition, errors.JobNotFound):
                    changed.add(job_id)
        return changed

    async def _answers(self, given: Sequence[Job], found: Sequence[Job], changed: Collection[str]) -> list[Answer]:
        answers = []
        for new, kept in zip(given, found, strict=True):
            status = await self._status(kept, kept.id in changed) if _is_held(kept) else kept.status
            answers.append(Answer(kept.id, str(kept.queue), kept.type, status, not _is_held(kept) or new.id != kept.id))
        return answers

    async def _status(self, job: Job, is_changed: bool) -> JobStatus:
        """The present status of a job that was CREATED a moment ago."""
        if not job.depends_on and not is_changed:
            return JobStatus.INITIAL_PENDING
        try:  # it may wait for others, or be stopped already
            return (await self._backend.get_job(job.id)).status
        except errors.JobNotFound:
            if is_changed:  # do not acknowledge a job that may never have been accepted
                raise errors.BackendUnavailable(
                    f"job {job.id!r} was removed while it was accepted; send the request again"
                ) from None
            return JobStatus.INITIAL_PENDING  # accepted, run and removed before this read


def _is_held(job: Job) -> bool:
    return job.status is JobStatus.CREATED
