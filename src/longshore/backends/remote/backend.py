"""The remote backend: checks each operation as any store does, and sends it to a server."""

from __future__ import annotations

import asyncio
import inspect
import json
from abc import update_abstractmethods
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar, cast

from longshore.backends import argument_checks as checks
from longshore.backends.base import UNCHANGED, Backend, Capabilities, Freed, Outcome, Page, SettleReport
from longshore.backends.change_signal import ChangeSignal
from longshore.backends.process_guard import ProcessGuard
from longshore.backends.remote import protocol
from longshore.backends.remote.change_poller import ChangePoller
from longshore.backends.remote.client import AnswerLost, Caller, Server, understood
from longshore.backends.remote.protocol import OPERATIONS, RemoteOperation
from longshore.backends.remote.records.jobs import write_outcome
from longshore.backends.remote.records.store import EventPage
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
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, Lease
from longshore.core.status import TRANSITIONS, JobStatus, Verb
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_number

R = TypeVar("R")

_NOT_DURABLE = Capabilities(shared=True)
"""For a server whose store is lost when it stops; until one has answered, the store counts as durable."""
_write = json.JSONEncoder(separators=(",", ":")).encode
_SENT_IF_GIVEN = {"types": None}
"""Arguments that are not sent with this value, because older servers reject them."""


class Written(list[Any]):
    """Arguments that are checked and encoded already."""


def _sent(operation: RemoteOperation) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Build the method of RemoteBackend that sends this operation, with the signature of the contract."""
    signature, takes = inspect.signature(operation.method), operation.takes
    settles = operation.answer == "freed" and "lease" in takes
    selects = "tags" in takes and "job_ids" in takes

    @wraps(operation.method, updated=())  # not its __dict__, which marks it as abstract
    async def send(self: RemoteBackend, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        del arguments["self"]
        if "connection" in arguments:
            _refuse_connection(arguments.pop("connection"))
        if selects:
            checks.selection(arguments["tags"], arguments["job_ids"], arguments["queue"])
        if operation.in_pieces:
            return await self._in_pieces(operation.name, **arguments)
        return await (self._settle if settles else self._call)(operation.name, **arguments)

    return send


def _refuse_connection(connection: object) -> None:
    if connection is not None:
        raise InvalidArgument(
            "connection",
            f"a store behind a server cannot join a transaction of {type(connection).__name__}; connect to the "
            "database directly, or pass an idempotency_key to make repeated enqueues safe",
        )


def _sends_operations(kind: type[Any]) -> type[Any]:
    """Add a method for every operation that the class does not define."""
    for operation in OPERATIONS.values():
        if operation.name not in vars(kind):
            setattr(kind, operation.name, _sent(operation))
    update_abstractmethods(kind)
    return kind


@_sends_operations
class RemoteBackend(ProcessGuard, Backend):
    """The store of a server. It has its own thread and connections, and is not bound to an event loop.

    `_sent` builds most methods from the rows of `protocol.OPERATIONS`. The others need several requests, or check after
    a lost answer whether the request was carried out.
    """

    capabilities = Capabilities(durable=True, shared=True)

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._signal = ChangeSignal()
        self._caller = Caller(server)
        self._poller = ChangePoller(self._caller, self._signal)
        self._address = server.address

    def __repr__(self) -> str:
        return f"<RemoteBackend of {self._address}>"

    # -- one request

    async def _call(self, name: str, /, **arguments: Any) -> Any:
        """Return the server's answer; raise BackendUnavailable if it was lost."""
        try:
            return await self._once(name, **arguments)
        except AnswerLost as error:
            raise BackendUnavailable(
                f"{name}: {error}; whether it was carried out is unknown. Check before you repeat it"
            ) from None

    async def _once(self, name: str, /, **arguments: Any) -> Any:
        self._refuse_if_closed()
        operation = OPERATIONS[name]
        sent = {
            argument: value if isinstance(value, Written) else operation.takes[argument].write(argument, value)
            for argument, value in arguments.items()
            if value is not _SENT_IF_GIVEN.get(argument, UNCHANGED)
        }
        try:
            body = _write(sent).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(name, f"has arguments that cannot be sent: {error}") from None
        answer = await self._on_client_loop(self._caller.ask(operation.path, body, repeatable=operation.repeatable))
        self._poller.saw(answer.mark)
        if not answer.durable:
            self.capabilities = _NOT_DURABLE
        if operation.returns_nothing:
            self._signal.notify()
            return None
        with understood(self._address):
            decoded = json.loads(answer.body)
            body_part = decoded[operation.answer] if operation.answer else decoded
            returned = operation.returns.read(operation.answer, body_part)
        if not operation.reads and _has_changes(returned):
            self._signal.notify()
        return returned

    async def _in_pieces(self, name: str, limit: int, **arguments: Any) -> list[Any]:
        """Fetch up to `limit` items in requests of a size that a server accepts; fewer if one fails after the first."""
        left, found = checks.limit(limit), list[Any]()
        while True:
            most = min(left - len(found), protocol.MOST_AT_ONCE)
            try:
                some = await self._call(name, limit=most, **arguments)
            except LongshoreError:
                if not found:
                    raise
                return found  # no other caller received them
            found += some
            if len(some) < most or len(found) >= left:
                return found

    async def _on_client_loop(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for work on the client's loop; the work continues if the waiting task is cancelled."""
        try:
            begun = self._caller.submit(work)
        except BackendUnavailable:  # closed after the check
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

    def _release_resources(self) -> None:
        self._caller.close()

    # -- enqueue

    async def enqueue_job(self, job: Job) -> str:
        try:
            stored: str = await self._once("enqueue_job", job=job)
        except AnswerLost:
            (stored,) = await self._enqueue_again("enqueue_jobs", [job])
        return stored

    async def enqueue_jobs(self, jobs: Sequence[Job], *, connection: object = None) -> list[str]:
        _refuse_connection(connection)
        return await self._enqueue("enqueue_jobs", checks.jobs(jobs))

    async def enqueue_new_jobs(self, jobs: Sequence[Job]) -> list[str]:
        return await self._enqueue("enqueue_new_jobs", checks.jobs(jobs))

    async def _enqueue(self, name: str, jobs: Sequence[Job]) -> list[str]:
        try:
            stored: list[str] = await self._once(name, jobs=jobs)
        except AnswerLost:
            stored = await self._enqueue_again(name, jobs)
        return stored

    async def _enqueue_again(self, name: str, jobs: Sequence[Job]) -> list[str]:
        """After a lost answer: either all jobs are stored as sent, or none."""
        try:
            stored: list[str] = await self._call(name, jobs=jobs)
            return stored
        except DuplicateJob as error:
            try:
                known = await self._by_id([job.id for job in jobs])
            except Forbidden:
                error.args = (
                    "ids already in use, most likely by this call, whose first answer was lost; a token with the scope "
                    f"read can check it: {', '.join(map(repr, error.job_ids[:10]))}",
                )
                raise error from None
            if are_those_sent(jobs, error.job_ids, known):
                return [job.id for job in jobs]
            raise

    async def _by_id(self, job_ids: Sequence[str]) -> dict[str, Job]:
        page = await self.list_jobs(JobFilter(ids=tuple(job_ids)), limit=max(1, len(job_ids)))
        return {job.id: job for job in page.items}

    # -- settle

    async def _settle(self, name: str, /, **arguments: Any) -> Freed:
        """Settle one job. If the answer was lost, the job itself shows whether this lease settled it."""
        try:
            freed: Freed = await self._once(name, **arguments)
        except AnswerLost:
            try:
                freed = await self._call(name, **arguments)
            except JobNotInflight:
                job, lease = await self.get_job(arguments["job_id"]), arguments["lease"]
                if lease is None or not was_settled(job, lease, name):
                    raise
                freed = {} if job.assignee_id is None else {job.assignee_id: 1}
        return freed

    async def settle_jobs(self, outcomes: Sequence[Outcome]) -> SettleReport:
        good, refused = written_outcomes(outcomes)
        if not good:
            self._refuse_if_closed()
            return SettleReport(refused=refused)
        try:
            report: SettleReport = await self._once("settle_jobs", outcomes=good)
        except AnswerLost:  # settled outcomes are refused now; their jobs show it
            report = await self._call("settle_jobs", outcomes=good)
            unverified = refused_again(report, outcomes)
            if unverified:
                report = recognised(report, unverified, await self._by_id(list(unverified)))
        return with_refusals(report, refused)

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
        good, refused = written_outcomes(outcomes)
        most = min(check_number("limit", limit), protocol.MOST_AT_ONCE)
        claim: dict[str, Any] = {
            "assignee_id": assignee_id,
            "tags": tags,
            "queues": queues,
            "types": types,
            "lease": lease,
        }
        report, jobs = await self._call("settle_and_dequeue", outcomes=good, limit=most, **claim)
        if most < limit and len(jobs) == most:
            with suppress(LongshoreError):  # the caller gets what was settled and claimed in any case
                jobs += await self.dequeue_jobs(limit=limit - most, **claim)
        return with_refusals(report, refused), jobs

    # -- read

    async def list_jobs(
        self,
        filter: JobFilter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        due: bool | None = None,
    ) -> Page:
        left, items = checks.limit(limit), list[Job]()
        how: dict[str, Any] = {"filter": filter, "oldest_first": oldest_first, "due": due}
        while True:
            page: Page = await self._call("list_jobs", limit=min(left, protocol.MOST_AT_ONCE), cursor=cursor, **how)
            items += page.items
            left -= len(page.items)
            cursor = page.next_cursor
            if cursor is None or left <= 0:
                return Page(items, cursor)

    async def read_events(
        self, after: str | None = None, limit: int = 1000, *, queue: str | None = None, job_id: str | None = None
    ) -> list[JobEvent]:
        left, events = checks.limit(limit), list[JobEvent]()
        while True:
            most = min(left, protocol.MOST_AT_ONCE)
            found: EventPage = await self._call("read_events", after=after, limit=most, queue=queue, job_id=job_id)
            events += found.events
            left -= len(found.events)
            if left <= 0 or (len(found.events) < most and found.next_cursor is None):
                return events
            after = found.next_cursor or events[-1].cursor

    async def wait_for_change(self, timeout: Duration, after: str | None = None) -> bool:
        micros = check_duration("timeout", timeout, positive=False)
        seen = self._signal.count
        self._refuse_if_closed()
        if after is None or micros:  # a single check needs no poller
            self._poller.still_wanted()
            if not self._poller.listening:
                await self._awaited(self._poller.begin(sure=after is not None))
        if after is not None:
            changed: bool = await self._call("wait_for_change", timeout=0, after=after)
            if changed or not micros:
                return changed
        changed = await self._signal.wait(seen, micros / SECOND)
        self._poller.still_wanted()
        return changed


def open_remote(server: Server) -> Backend:
    """A backend on this server. Type checkers consider the class abstract: they do not see generated methods."""
    return cast(Callable[[Server], Backend], RemoteBackend)(server)


def _has_changes(returned: object) -> bool:
    """Whether the operation changed anything: one that found nothing wakes no caller."""
    if isinstance(returned, tuple):
        return any(map(_has_changes, returned))
    return bool(returned.settled if isinstance(returned, SettleReport) else returned)


def written_outcomes(outcomes: Sequence[Outcome]) -> tuple[Written, dict[str, Any]]:
    """The valid outcomes as JSON, and the error of each malformed one by job id."""
    good = Written()
    refused: dict[str, Any] = {}
    for outcome in checks.outcomes(outcomes):
        try:
            good.append(write_outcome(outcome))
        except InvalidArgument as error:
            refused.setdefault(outcome.job_id, error)
    return good, refused


def with_refusals(report: SettleReport, refused: dict[str, Any]) -> SettleReport:
    """Add the outcomes that were not sent to the report."""
    for job_id, error in refused.items():
        report.refused.setdefault(job_id, error)
    return report


def _targets(*verbs: Verb) -> frozenset[JobStatus]:
    return frozenset(move.target for move in TRANSITIONS if move.verb in verbs)


_ENDINGS: dict[str, frozenset[JobStatus]] = {
    **{verb.value: _targets(verb) for verb in Verb},
    "complete": _targets(Verb.COMPLETE),
    "fail": _targets(Verb.FAIL, Verb.STOP_WITH_RETRY),
    "bury": _targets(Verb.BURY, Verb.STOP_WITH_RETRY),
    "stop": _targets(Verb.STOP),
    "release": _targets(Verb.RELEASE, Verb.ACKNOWLEDGE),
    "crash": _targets(Verb.CRASH, Verb.BURY),
}
"""The statuses in which each operation and outcome may leave a job, also one that is being cancelled."""


def was_settled(job: Job, lease: Lease, verb: str) -> bool:
    """Whether the job has a status that this settlement leads to, and was not claimed since this lease."""
    return job.epoch == lease.epoch and job.status in _ENDINGS[verb]


def refused_again(report: SettleReport, outcomes: Sequence[Outcome]) -> dict[str, tuple[Lease, str]]:
    """The outcomes that were refused when sent again, perhaps because the first request settled them."""
    return {
        outcome.job_id: (outcome.lease, outcome.verb)
        for outcome in outcomes
        if outcome.lease is not None and isinstance(report.refused.get(outcome.job_id), JobNotInflight)
    }


def recognised(
    report: SettleReport, unverified: Mapping[str, tuple[Lease, str]], stored: Mapping[str, Job]
) -> SettleReport:
    """Count the outcomes as settled whose jobs show that this lease settled them."""
    for job_id, (lease, verb) in unverified.items():
        job = stored.get(job_id)
        if job is not None and was_settled(job, lease, verb):
            del report.refused[job_id]
            report.settled[job_id] = job.status
            if job.assignee_id is not None:
                report.freed[job.assignee_id] = report.freed.get(job.assignee_id, 0) + 1
    return report


def are_those_sent(sent: Sequence[Job], in_use: Collection[str], stored: Mapping[str, Job]) -> bool:
    """Whether all ids in use belong to jobs that were sent, and are stored as sent."""
    known = set(in_use)
    own = [job for job in sent if job.id in known]
    return {job.id for job in own} == known and all(is_as_sent(job, stored.get(job.id)) for job in own)


def is_as_sent(sent: Job, stored: Job | None) -> bool:
    """Whether the stored job equals the one that was sent."""
    return (
        stored is not None
        and (sent.type, sent.payload, str(sent.queue)) == (stored.type, stored.payload, stored.queue)
        and (set(sent.tags), sent.priority, sent.lifo) == (set(stored.tags), stored.priority, stored.lifo)
        and (sent.idempotency_key, sent.concurrency_key) == (stored.idempotency_key, stored.concurrency_key)
        and (sent.parent_id, sent.schedule_id) == (stored.parent_id, stored.schedule_id)
        and set(sent.depends_on) == set(stored.depends_on)
        and _without_scoping(sent) == _without_scoping(stored)
    )


def _without_scoping(job: Job) -> dict[str, Any]:
    """Its options without the queues of the caller, which the server adds."""
    return {name: value for name, value in job.options.items() if name != RESULTS_FROM}
