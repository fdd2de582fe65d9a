"""The remote backend: checks each operation as any store does, and sends it to a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from longshore.backends import argument_checks
from longshore.backends.base import (
    UNCHANGED,
    Capabilities,
    Freed,
    Outcome,
    Page,
    QueueInfo,
    SettleReport,
    Unchanged,
    WorkerEvent,
    WorkerInfo,
)
from longshore.backends.change_signal import ChangeSignal
from longshore.backends.process_guard import ProcessGuard
from longshore.backends.remote import protocol as wire
from longshore.backends.remote.change_poller import ChangePoller
from longshore.backends.remote.client import AnswerLost, Caller, Server, understood
from longshore.backends.remote.records import write_outcome
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.errors import (
    BackendUnavailable,
    DuplicateJob,
    Forbidden,
    InvalidArgument,
    JobNotInflight,
    LongshoreError,
    QueueClosed,
)
from longshore.core.explain import Facts
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, JobStats, Lease, LogEntry
from longshore.core.limits import Rate
from longshore.core.schedule import Schedule
from longshore.core.status import TRANSITIONS, JobStatus, Verb
from longshore.core.times import SECOND, Duration, Moment, check_duration
from longshore.core.validation import check_number

R = TypeVar("R")
T = TypeVar("T")

_FORGETFUL = Capabilities(shared=True)
"""Of a server whose store does not outlive it; as long as none has answered, the best is believed."""
_write = json.JSONEncoder(separators=(",", ":")).encode


class Written(list[Any]):
    """Arguments that were checked and written already."""


class Asking(ProcessGuard):
    """A store behind a server, asked verb by verb; with a thread and connections of its own, and of no event loop."""

    capabilities = Capabilities(durable=True, shared=True)

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._signal = ChangeSignal()
        self._caller = Caller(server)
        self._poller = ChangePoller(self._caller, self._signal)
        self._address = server.address

    def __repr__(self) -> str:
        return f"<RemoteBackend of {self._address}>"

    async def _call(self, verb: wire.Verb[T], /, **arguments: Any) -> T:
        """What the server answered; AnswerLost is told as what it means to whoever called."""
        try:
            return await self._once(verb, **arguments)
        except AnswerLost as error:
            raise BackendUnavailable(
                f"{verb.name}: {error}; whether it was carried out is not known, look before you repeat it"
            ) from None

    async def _once(self, verb: wire.Verb[T], /, **arguments: Any) -> T:
        self._refuse_if_closed()
        told = {
            name: value if isinstance(value, Written) else verb.takes[name].write(name, value)
            for name, value in arguments.items()
            if value is not UNCHANGED
        }
        try:
            body = _write(told).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(verb.name, f"has arguments that cannot be sent: {error}") from None
        answer = await self._there(self._caller.ask(verb.path, body, repeatable=verb.repeatable))
        self._poller.saw(answer.mark)
        if not answer.durable:
            self.capabilities = _FORGETFUL
        if verb.says_nothing:
            self._signal.notify()
            return verb.returns.read("", None)
        with understood(self._address):
            came = json.loads(answer.body)
            returned = verb.returns.read(verb.answer, came[verb.answer] if verb.answer else came)
        if not verb.looks and _has_news(returned):
            self._signal.notify()
        return returned

    async def _there(self, work: Coroutine[Any, Any, R]) -> R:
        """Waits for work on the caller's loop, which goes on even if whoever waits has gone."""
        try:
            begun = self._caller.submit(work)
        except BackendUnavailable:  # it was closed between two lines
            self._refuse_if_closed()
            raise
        return await self._awaited(begun)

    async def _awaited(self, begun: Future[R]) -> R:
        try:
            return await asyncio.shield(asyncio.wrap_future(begun))
        except (asyncio.CancelledError, CancelledError):
            if self._closed and begun.cancelled():
                raise QueueClosed("this backend was closed; open a new one with connect(url)") from None
            raise

    def _let_go(self) -> None:
        self._caller.close()


def _has_news(returned: object) -> bool:
    """Whether somebody may have been waiting for what was done: a look that finds nothing wakes nobody."""
    if isinstance(returned, tuple):
        return any(map(_has_news, returned))
    return bool(returned.settled if isinstance(returned, SettleReport) else returned)


async def in_pieces(limit: int, piece: Callable[[int], Coroutine[Any, Any, list[R]]]) -> list[R]:
    """As many as asked for, by requests of a size that a server takes; fewer if one fails after the first."""
    found: list[R] = []
    while True:
        most = min(limit - len(found), wire.MOST_AT_ONCE)
        try:
            jobs = await piece(most)
        except LongshoreError:
            if not found:
                raise
            return found  # they were given to nobody else
        found += jobs
        if len(jobs) < most or len(found) >= limit:
            return found


def sorted_out(outcomes: Sequence[Outcome]) -> tuple[Written, dict[str, Any]]:
    """Those that can be sent, written; and those that no store would take, each with the reason."""
    good = Written()
    refused: dict[str, Any] = {}
    for outcome in argument_checks.outcomes(outcomes):
        try:
            good.append(write_outcome(outcome))
        except InvalidArgument as error:
            refused.setdefault(outcome.job_id, error)
    return good, refused


def with_refusals(report: SettleReport, refused: dict[str, Any]) -> SettleReport:
    """The report, with those as well that were never sent."""
    for job_id, error in refused.items():
        report.refused.setdefault(job_id, error)
    return report


def _targets(*verbs: Verb) -> frozenset[JobStatus]:
    return frozenset(arrow.target for arrow in TRANSITIONS if arrow.verb in verbs)


_ENDINGS: dict[str, frozenset[JobStatus]] = {
    **{verb.value: _targets(verb) for verb in Verb},
    "complete": _targets(Verb.COMPLETE),
    "fail": _targets(Verb.FAIL, Verb.STOP_WITH_RETRY),
    "bury": _targets(Verb.BURY, Verb.STOP_WITH_RETRY),
    "stop": _targets(Verb.STOP),
    "release": _targets(Verb.RELEASE, Verb.ACKNOWLEDGE),
    "crash": _targets(Verb.CRASH, Verb.BURY),
}
"""Where each verb and each outcome may leave a job; an outcome also leaves one that is being cancelled somewhere."""


def was_settled(job: Job, lease: Lease, verb: str) -> bool:
    """Whether the job is where this ending leaves it, and nobody has claimed it since this lease."""
    return job.epoch == lease.epoch and job.status in _ENDINGS[verb]


def doubtful(report: SettleReport, outcomes: Sequence[Outcome]) -> dict[str, tuple[Lease, str]]:
    """Of outcomes that were sent again those that are refused now, maybe because they were settled the first time."""
    return {
        outcome.job_id: (outcome.lease, outcome.verb)
        for outcome in outcomes
        if outcome.lease is not None and isinstance(report.refused.get(outcome.job_id), JobNotInflight)
    }


def recognised(
    report: SettleReport, unsure: Mapping[str, tuple[Lease, str]], stored: Mapping[str, Job]
) -> SettleReport:
    """The report, in which those count as settled whose jobs are where they left them."""
    for job_id, (lease, verb) in unsure.items():
        job = stored.get(job_id)
        if job is not None and was_settled(job, lease, verb):
            del report.refused[job_id]
            report.settled[job_id] = job.status
            if job.assignee_id is not None:
                report.freed[job.assignee_id] = report.freed.get(job.assignee_id, 0) + 1
    return report


def are_those_sent(sent: Sequence[Job], in_the_way: Collection[str], stored: Mapping[str, Job]) -> bool:
    """Whether all ids in the way are of jobs that were sent, and stand there as they were sent."""
    known = set(in_the_way)
    own = [job for job in sent if job.id in known]
    return {job.id for job in own} == known and all(is_as_sent(job, stored.get(job.id)) for job in own)


def is_as_sent(sent: Job, stored: Job | None) -> bool:
    """Whether the stored job is what was sent: then it does not matter whose request stored it."""
    return (
        stored is not None
        and (sent.type, sent.payload, str(sent.queue)) == (stored.type, stored.payload, stored.queue)
        and (set(sent.tags), sent.priority, sent.lifo) == (set(stored.tags), stored.priority, stored.lifo)
        and (sent.idempotency_key, sent.concurrency_key) == (stored.idempotency_key, stored.concurrency_key)
        and (sent.parent_id, sent.schedule_id) == (stored.parent_id, stored.schedule_id)
        and set(sent.depends_on) == set(stored.depends_on)
        and _without_note(sent) == _without_note(stored)
    )


def _without_note(job: Job) -> dict[str, Any]:
    """Its options as they were given: a server notes for whom it stored a job."""
    return {name: value for name, value in job.options.items() if name != RESULTS_FROM}


class RemoteBackend(Asking):
    """Jobs in the store of a server."""

    # -- a job comes in

    async def enqueue_job(self, job: Job) -> str:
        try:
            return await self._once(wire.ENQUEUE_JOB, job=job)
        except AnswerLost:
            (job_id,) = await self._enqueue_again(wire.ENQUEUE_JOBS, [job])
            return job_id

    async def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        _refuse(connection)
        return await self._enqueue(wire.ENQUEUE_JOBS, argument_checks.jobs(jobs))

    async def enqueue_new_jobs(self, jobs: Sequence[Job]) -> list[str]:
        return await self._enqueue(wire.ENQUEUE_NEW_JOBS, argument_checks.jobs(jobs))

    async def _enqueue(self, verb: wire.Verb[list[str]], jobs: Sequence[Job]) -> list[str]:
        try:
            return await self._once(verb, jobs=jobs)
        except AnswerLost:
            return await self._enqueue_again(verb, jobs)

    async def _enqueue_again(self, verb: wire.Verb[list[str]], jobs: Sequence[Job]) -> list[str]:
        """Where nobody knows whether they were stored: all of them are, as they were sent, or none of them."""
        try:
            return await self._call(verb, jobs=jobs)
        except DuplicateJob as error:
            try:
                stored = await self._by_id([job.id for job in jobs])
            except Forbidden:
                error.args = (
                    "ids in use already, most likely by this very call, whose first answer was lost; to make sure "
                    f"takes a token with the scope read: {', '.join(map(repr, error.job_ids[:10]))}",
                )
                raise error from None
            if are_those_sent(jobs, error.job_ids, stored):
                return [job.id for job in jobs]
            raise

    async def _by_id(self, job_ids: Sequence[str]) -> dict[str, Job]:
        page = await self.list_jobs(JobFilter(ids=tuple(job_ids)), limit=max(1, len(job_ids)))
        return {job.id: job for job in page.items}

    async def add_jobs(self, jobs: Sequence[Job], *, connection: object = None, same_only: bool = False) -> list[Job]:
        batch = argument_checks.jobs(jobs)
        _refuse(connection)
        return await self._call(wire.ADD_JOBS, jobs=batch, same_only=same_only)

    async def accept_jobs(self, job_ids: Sequence[str]) -> None:
        await self._call(wire.ACCEPT_JOBS, job_ids=job_ids)

    # -- a worker takes it and keeps it

    async def dequeue_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        lease: Duration | None = 30,
    ) -> list[Job]:
        claim = _claim(assignee_id, tags, queues, lease, types)

        async def piece(most: int) -> list[Job]:
            return await self._call(wire.DEQUEUE_JOBS, limit=most, **claim)

        return await in_pieces(argument_checks.limit(limit), piece)

    async def extend_leases(self, leases: Mapping[str, Lease], duration: Duration) -> dict[str, Lease]:
        return await self._call(wire.EXTEND_LEASES, leases=leases, duration=duration)

    async def release_lease(
        self, job_id: str, lease: Lease, *, run_at: Moment | None = None, reason: str = ""
    ) -> Freed:
        return await self._settle(wire.RELEASE_LEASE, job_id, lease, run_at=run_at, reason=reason)

    async def set_progress(self, job_id: str, value: Any, *, lease: Lease | None = None) -> None:
        await self._call(wire.SET_PROGRESS, job_id=job_id, value=value, lease=lease)

    async def append_log(self, job_id: str, message: str, level: str = "info", *, lease: Lease | None = None) -> None:
        await self._call(wire.APPEND_LOG, job_id=job_id, message=message, level=level, lease=lease)

    async def save_checkpoint(self, job_id: str, data: Any, *, lease: Lease | None = None) -> None:
        await self._call(wire.SAVE_CHECKPOINT, job_id=job_id, data=data, lease=lease)

    # -- it ends

    async def complete_job(self, job_id: str, result: bytes | None = None, *, lease: Lease | None = None) -> Freed:
        return await self._settle(wire.COMPLETE_JOB, job_id, lease, result=result)

    async def fail_job(
        self, job_id: str, error: str, *, retry_at: Moment | None = None, lease: Lease | None = None
    ) -> Freed:
        return await self._settle(wire.FAIL_JOB, job_id, lease, error=error, retry_at=retry_at)

    async def bury_job(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        return await self._settle(wire.BURY_JOB, job_id, lease, error=error)

    async def stop_job(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        return await self._settle(wire.STOP_JOB, job_id, lease, error=error)

    async def stop_job_with_retry(self, job_id: str, error: str, *, lease: Lease | None = None) -> Freed:
        return await self._settle(wire.STOP_JOB_WITH_RETRY, job_id, lease, error=error)

    async def mark_job_unknown_stopped(self, job_id: str, error: str = "", *, lease: Lease | None = None) -> Freed:
        return await self._settle(wire.MARK_JOB_UNKNOWN_STOPPED, job_id, lease, error=error)

    async def _settle(self, verb: wire.Verb[Freed], job_id: str, lease: Lease | None, **arguments: Any) -> Freed:
        """One ending; if its answer was lost, the job itself tells whether this lease has brought it about."""
        try:
            return await self._once(verb, job_id=job_id, lease=lease, **arguments)
        except AnswerLost:
            try:
                return await self._call(verb, job_id=job_id, lease=lease, **arguments)
            except JobNotInflight:
                job = await self.get_job(job_id)
                if lease is None or not was_settled(job, lease, verb.name):
                    raise
                return {} if job.assignee_id is None else {job.assignee_id: 1}

    async def update_job_status(
        self, job_id: str, status: JobStatus, result: bytes | None = None, error: str = ""
    ) -> Freed:
        return await self._call(wire.UPDATE_JOB_STATUS, job_id=job_id, status=status, result=result, error=error)

    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        good, refused = sorted_out(outcomes)
        if not good:
            self._refuse_if_closed()
            return SettleReport(refused=refused)
        try:
            report = await self._once(wire.SETTLE_JOBS, outcomes=good)
        except AnswerLost:
            report = await self._settle_again(outcomes, good)
        return with_refusals(report, refused)

    async def _settle_again(self, outcomes: Sequence[Outcome], written: Written) -> SettleReport:
        """Where nobody knows whether they were settled: those that were are refused now, and known by their jobs."""
        report = await self._call(wire.SETTLE_JOBS, outcomes=written)
        unsure = doubtful(report, outcomes)
        return recognised(report, unsure, await self._by_id(list(unsure))) if unsure else report

    async def settle_and_dequeue(
        self,
        outcomes: Sequence[Outcome],
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        lease: Duration | None = 30,
    ) -> tuple[SettleReport, list[Job]]:
        good, refused = sorted_out(outcomes)
        most = min(check_number("limit", limit), wire.MOST_AT_ONCE)
        claim = _claim(assignee_id, tags, queues, lease, types)
        report, jobs = await self._call(wire.SETTLE_AND_DEQUEUE, outcomes=good, limit=most, **claim)
        if most < limit and len(jobs) == most:
            with suppress(LongshoreError):  # what was settled and claimed is told, whatever becomes of the rest
                jobs += await self.dequeue_jobs(
                    assignee_id, tags, limit - most, queues=queues, lease=lease, types=types
                )
        return with_refusals(report, refused), jobs

    # -- somebody calls it off, or its worker vanishes

    async def cancel_jobs(
        self,
        tags: Sequence[str] = (),
        job_ids: Sequence[str] = (),
        *,
        queue: str | None = None,
        held: bool = True,
    ) -> tuple[list[str], list[str]]:
        chosen_tags, chosen_ids, chosen_queue = argument_checks.selection(tags, job_ids, queue)
        return await self._call(wire.CANCEL_JOBS, tags=chosen_tags, job_ids=chosen_ids, queue=chosen_queue, held=held)

    async def acknowledge_cancellation(self, job_id: str, was_executing: bool, *, lease: Lease | None = None) -> None:
        await self._call(wire.ACKNOWLEDGE_CANCELLATION, job_id=job_id, was_executing=was_executing, lease=lease)

    async def mark_worker_unresponsive(self, assignee_id: str) -> None:
        await self._call(wire.MARK_WORKER_UNRESPONSIVE, assignee_id=assignee_id)

    async def reclaim_expired_leases(self, limit: int = 1000) -> list[Job]:
        return await in_pieces(
            argument_checks.limit(limit), lambda most: self._call(wire.RECLAIM_EXPIRED_LEASES, limit=most)
        )

    async def time_out_cancellations(self, timeout: Duration, limit: int = 1000) -> list[Job]:
        return await in_pieces(
            argument_checks.limit(limit),
            lambda most: self._call(wire.TIME_OUT_CANCELLATIONS, timeout=timeout, limit=most),
        )

    async def reset_running_jobs(self, *, queue: str | None = None) -> None:
        await self._call(wire.RESET_RUNNING_JOBS, queue=queue)

    # -- somebody looks

    async def now(self) -> datetime:
        return await self._call(wire.NOW)

    async def get_job(self, job_id: str) -> Job:
        return await self._call(wire.GET_JOB, job_id=job_id)

    async def facts_about(self, job_id: str) -> Facts:
        return await self._call(wire.FACTS_ABOUT, job_id=job_id)

    async def list_jobs(
        self,
        filter: JobFilter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        due: bool | None = None,
    ) -> Page:
        left, items = argument_checks.limit(limit), list[Job]()
        while True:
            page = await self._call(
                wire.LIST_JOBS,
                filter=filter,
                limit=min(left, wire.MOST_AT_ONCE),
                cursor=cursor,
                oldest_first=oldest_first,
                due=due,
            )
            items += page.items
            left -= len(page.items)
            cursor = page.next_cursor
            if cursor is None or left <= 0:
                return Page(items, cursor)

    async def get_job_stats(self, tags: Sequence[str] = (), *, queue: str | None = None) -> JobStats:
        return await self._call(wire.GET_JOB_STATS, tags=tags, queue=queue)

    async def count_jobs(self, queue: str | None = None) -> dict[JobStatus, int]:
        return await self._call(wire.COUNT_JOBS, queue=queue)

    async def count_delayed(self, queue: str | None = None) -> int:
        return await self._call(wire.COUNT_DELAYED, queue=queue)

    async def next_due(self, queues: Sequence[str] | None = None, *, after: datetime | None = None) -> datetime | None:
        return await self._call(wire.NEXT_DUE, queues=queues, after=after)

    async def read_logs(self, job_id: str, after: int = 0) -> list[LogEntry]:
        return await self._call(wire.READ_LOGS, job_id=job_id, after=after)

    async def read_events(
        self, after: str | None = None, limit: int = 1000, *, queue: str | None = None, job_id: str | None = None
    ) -> list[JobEvent]:
        left, events = argument_checks.limit(limit), list[JobEvent]()
        while True:
            most = min(left, wire.MOST_AT_ONCE)
            found = await self._call(wire.READ_EVENTS, after=after, limit=most, queue=queue, job_id=job_id)
            events += found.events
            left -= len(found.events)
            if left <= 0 or (len(found.events) < most and found.next_cursor is None):
                return events
            after = found.next_cursor or events[-1].cursor

    async def end_of_events(self) -> str:
        return await self._call(wire.END_OF_EVENTS)

    async def wait_for_change(self, timeout: Duration, after: str | None = None) -> bool:
        micros = check_duration("timeout", timeout, positive=False)
        seen = self._signal.count
        self._refuse_if_closed()
        if after is not None and micros == 0:  # a look, for which nobody needs to listen
            return await self._call(wire.WAIT_FOR_CHANGE, timeout=0, after=after)
        self._poller.still_wanted()
        if not self._poller.listening:
            await self._awaited(self._poller.begin(sure=after is not None))
        if after is not None and await self._call(wire.WAIT_FOR_CHANGE, timeout=0, after=after):
            return True
        changed = await self._signal.wait(seen, micros / SECOND)
        self._poller.still_wanted()
        return changed

    # -- an operator acts

    async def retry_job(self, job_id: str, *, reset: bool = True, actor: str = "") -> None:
        await self._call(wire.RETRY_JOB, job_id=job_id, reset=reset, actor=actor)

    async def promote_job(self, job_id: str) -> None:
        await self._call(wire.PROMOTE_JOB, job_id=job_id)

    async def delete_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, queue: str | None = None
    ) -> None:
        chosen_tags, chosen_ids, chosen_queue = argument_checks.selection(tags, job_ids, queue)
        await self._call(wire.DELETE_JOBS, tags=chosen_tags, job_ids=chosen_ids, queue=chosen_queue)

    async def pause_queue(self, queue: str) -> None:
        await self._call(wire.PAUSE_QUEUE, queue=queue)

    async def resume_queue(self, queue: str) -> None:
        await self._call(wire.RESUME_QUEUE, queue=queue)

    async def set_limits(
        self,
        queue: str,
        *,
        running: int | Unchanged | None = UNCHANGED,
        per_key: int | Unchanged | None = UNCHANGED,
        rate: Rate | Unchanged | None = UNCHANGED,
        rate_per_key: Rate | Unchanged | None = UNCHANGED,
    ) -> None:
        await self._call(
            wire.SET_LIMITS, queue=queue, running=running, per_key=per_key, rate=rate, rate_per_key=rate_per_key
        )

    async def list_queues(self) -> list[QueueInfo]:
        return await self._call(wire.LIST_QUEUES)

    # -- time passes

    async def put_schedule(self, schedule: Schedule, *, keep_pause: bool = False) -> Schedule:
        return await self._call(wire.PUT_SCHEDULE, schedule=schedule, keep_pause=keep_pause)

    async def get_schedules(self) -> list[Schedule]:
        return await self._call(wire.GET_SCHEDULES)

    async def get_schedule(self, schedule_id: str) -> Schedule:
        return await self._call(wire.GET_SCHEDULE, schedule_id=schedule_id)

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        return await self._call(wire.PAUSE_SCHEDULE, schedule_id=schedule_id)

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        return await self._call(wire.RESUME_SCHEDULE, schedule_id=schedule_id)

    async def run_schedule(self, schedule_id: str) -> Job:
        return await self._call(wire.RUN_SCHEDULE, schedule_id=schedule_id)

    async def remove_schedule(self, schedule_id: str) -> bool:
        return await self._call(wire.REMOVE_SCHEDULE, schedule_id=schedule_id)

    async def next_firing(self) -> datetime | None:
        return await self._call(wire.NEXT_FIRING)

    async def fire_due_schedules(self, limit: int = 100) -> list[Job]:
        return await self._call(wire.FIRE_DUE_SCHEDULES, limit=limit)

    async def announce_due_jobs(self, limit: int = 1000) -> list[str]:
        return await in_pieces(
            argument_checks.limit(limit), lambda most: self._call(wire.ANNOUNCE_DUE_JOBS, limit=most)
        )

    async def cleanup_expired_jobs(self, ttl: Duration, *, queue: str | None = None) -> int:
        return await self._call(wire.CLEANUP_EXPIRED_JOBS, ttl=ttl, queue=queue)

    async def set_retention(
        self,
        queue: str,
        *,
        finished: Duration | Unchanged | None = UNCHANGED,
        dead: Duration | Unchanged | None = UNCHANGED,
        events: Duration | Unchanged | None = UNCHANGED,
    ) -> None:
        await self._call(wire.SET_RETENTION, queue=queue, finished=finished, dead=dead, events=events)

    async def apply_retention(self, limit: int = 1000) -> int:
        return await self._call(wire.APPLY_RETENTION, limit=limit)

    async def heartbeat_worker(self, worker: WorkerInfo) -> None:
        await self._call(wire.HEARTBEAT_WORKER, worker=worker)

    async def list_workers(self) -> list[WorkerInfo]:
        return await self._call(wire.LIST_WORKERS)

    async def record_worker_event(
        self, event: WorkerEvent, worker_id: str, *, queue: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        await self._call(wire.RECORD_WORKER_EVENT, event=event, worker_id=worker_id, queue=queue, detail=detail)


def _refuse(connection: object) -> None:
    if connection is not None:
        raise InvalidArgument(
            "connection",
            f"a store behind a server cannot join a transaction of {type(connection).__name__}; connect to the "
            "database itself, or use an idempotency_key to make repeating an enqueue safe",
        )


def _claim(
    assignee_id: str,
    tags: Sequence[str],
    queues: Sequence[str] | None,
    lease: Duration | None,
    types: Sequence[str] | None,
) -> dict[str, Any]:
    """The arguments of a claim; `types` only if given, because older servers refuse it."""
    claim = {"assignee_id": assignee_id, "tags": tags, "queues": queues, "lease": lease}
    return claim if types is None else {**claim, "types": types}
