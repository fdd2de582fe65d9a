"""A job as its task sees it: the record, what it may write while it runs, and the results of its dependencies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Never, Protocol, TypeVar, overload

from longshore.backends.base import Backend
from longshore.core.dependencies import RESULTS_FROM
from longshore.core.errors import Fatal, JobNotFound, LeaseLost, LongshoreError
from longshore.core.filters import JobFilter
from longshore.core.flows import policy_of
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.validation import check_json, read_json
from longshore.errors import JobInterrupted
from longshore.runtime import background

MOST_TAKEN = 64 * 1024 * 1024
"""Bytes of results that one job may take: they are in the memory of its worker, with those of its other jobs."""
_READ_AT_ONCE = 500
_READ_FIRST = 8
"""Results read before their size is known."""
_BYTES_AT_ONCE = 8 * 1024 * 1024


async def results_of(backend: Backend, job: Job) -> dict[str, Any]:
    """The decoded results by id, in the order of `depends_on`."""
    stored = await stored_results_of(backend, job, job.depends_on)

    def decoded() -> dict[str, Any]:
        return {name: None if kept is None else read_json(f"result of {name}", kept) for name, kept in stored.items()}

    return await asyncio.to_thread(decoded)  # they may be large, and would block the loop


async def stored_results_of(backend: Backend, job: Job, wanted: Sequence[str]) -> dict[str, bytes | None]:
    """The results as they were stored, by id, in the order of `wanted`; None for a job that returned nothing.

    A dependency that did not complete, or was removed, is left out if the policy of its edge is `ignore`. Under the
    other policies a job runs only after its dependencies completed, so a missing one was removed: JobNotFound. A queue
    that the caller who stored the job may not see is not read. Results that are too large are Fatal: a retry would
    find the same.
    """
    queues = job.options.get(RESULTS_FROM, ())
    found = await _completed(backend, wanted, queues)
    results = {}
    for job_id in wanted:
        if job_id in found:
            results[job_id] = found[job_id]
        elif policy_of(job, job_id) != "ignore":
            raise _removed(job_id, hidden=bool(queues))
    return results


async def _completed(backend: Backend, job_ids: Sequence[str], queues: Sequence[str]) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    size = 0
    first, at_once = 0, _READ_FIRST
    while first < len(job_ids):
        ids = job_ids[first : first + at_once]
        wanted = JobFilter(ids=ids, queues=queues, statuses=(JobStatus.COMPLETED,))
        page = await backend.list_jobs(wanted, limit=len(ids))
        found.update({job.id: job.result for job in page.items})
        size += sum(len(job.result or b"") for job in page.items)
        first += len(ids)
        if size > MOST_TAKEN:
            raise Fatal(
                f"the results it takes are more than {MOST_TAKEN / 2**20:g} MiB: the first {first:,} of "
                f"{len(job_ids):,} have {size / 2**20:,.1f} MiB; let those jobs store large results elsewhere and "
                "return their address, or take fewer of them"
            )
        at_once = max(1, min(_READ_AT_ONCE, _BYTES_AT_ONCE * first // (size + 1)))
    return found


def _removed(job_id: str, *, hidden: bool) -> JobNotFound:
    missing = JobNotFound(job_id)
    elsewhere = "; or it is in a queue that the caller who stored this job may not see" if hidden else ""
    missing.args = (
        f"the dependency {job_id!r} was removed, and its result with it: by remove_on_complete, retention or hand; "
        f"keep jobs whose results are needed{elsewhere}",
    )
    return missing


if TYPE_CHECKING:
    _Fields = Job
else:
    _Fields = object

T = TypeVar("T")


class JobReporter(Protocol):
    """Writes a running job's notes; what its methods return may be awaited."""

    def set_progress(self, record: Job, value: Any) -> Any:
        """Keeps how far the job is."""
        ...

    def append_log(self, record: Job, message: str, level: str) -> Any:
        """Adds a line to its log."""
        ...

    def save_checkpoint(self, record: Job, data: Any) -> Any:
        """Keeps what the next execution needs after a crash."""
        ...

    def dependency_results(self, record: Job) -> Any:
        """The results of the jobs it depended on, by id."""
        ...


class RunningJob(_Fields):
    """The record's fields, and what only a running job can do.

    Its notes are awaited in an `async def` and plain calls in a `def`. They carry the job's lease: LeaseLost means
    that this attempt has lost the job and should end.
    """

    __slots__ = (
        "_begun",
        "_blocking",
        "_cancelled",
        "_reporter",
        "_result",
        "_returned",
        "_write",
        "checkpoint",
        "heeded",
        "record",
        "said_complete",
        "saw_cancel",
    )
    record: Job
    """The record as it was claimed."""
    heeded: bool
    """Whether the processor knows that its end was asked for."""
    saw_cancel: bool
    """Whether the processor read `cancelled` as true before it returned."""
    said_complete: bool
    """Whether it called `complete`."""
    _reporter: JobReporter
    _blocking: bool
    _cancelled: bool
    _begun: Callable[[], None] | None
    _result: Any
    _returned: bool
    _write: Callable[[Any], Any] | None

    def __init__(self, record: Job, reporter: JobReporter) -> None:
        _set(self, "record", record)
        _set(self, "_reporter", reporter)
        _set(self, "_blocking", False)
        _set(self, "_cancelled", False)
        _set(self, "heeded", False)
        _set(self, "saw_cancel", False)
        _set(self, "said_complete", False)
        _set(self, "_returned", False)
        _set(self, "_result", None)
        _set(self, "_write", None)
        _set(self, "_begun", None)
        _set(self, "checkpoint", record.checkpoint)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in RunningJob.__slots__:  # not set yet: the record has none of these either
                raise AttributeError(name)
            return getattr(self.record, name)

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"{name} of a running job cannot be set; use its verbs")

    def __reduce__(self) -> Never:
        raise TypeError("a running job can be neither copied nor pickled; take its record: job.record")

    @property
    def cancelled(self) -> bool:
        """Whether the job should end: it was cancelled, timed out or lost its lease, or the worker stops.

        A task that reads this as true and returns has not finished, unless it calls `complete`: after a cancellation
        the job is STOPPED, and when the worker stops it goes back to the queue.
        """
        if self._cancelled and not self._returned:
            _set(self, "saw_cancel", True)
            _set(self, "heeded", True)
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raises JobInterrupted if the job should end. Call it in loops; do not await it."""
        if self.cancelled:
            raise JobInterrupted(f"job {self.record.id!r} was requested to end")

    @overload
    def complete(self) -> None: ...

    @overload
    def complete(self, result: T) -> T: ...

    def complete(self, result: Any = None) -> Any:
        """Completes the job with this result, even if the task read `cancelled` as true.

        Returns the result: `return job.complete(total)`. Do not await it; the result is stored when the task ends. A
        value that the task returns afterwards is ignored; an exception that it raises is a failure.
        """
        value = result if self._write is None else self._write(result)
        if value is not None:
            check_json("result", value)
        _set(self, "_result", value)
        _set(self, "said_complete", True)
        return result

    def returned(self, value: Any) -> Any:
        """For executors: the job's result after the processor returned. Later reads of `cancelled` do not count."""
        _set(self, "_returned", True)
        return self._result if self.said_complete else value

    def results_written_by(self, write: Callable[[Any], Any]) -> None:
        """For tasks: serialises what is given to `complete` in the same way as a return value."""
        _set(self, "_write", write)

    def report(self) -> dict[str, bool]:
        """For executors: the state of a job that returned in another process, for the worker."""
        return {"heeded": self.heeded, "saw": self.saw_cancel, "complete": self.said_complete}

    def take_report(self, told: Mapping[str, Any]) -> None:
        """For the worker: applies what the other process reported."""
        _set(self, "_returned", True)
        _set(self, "heeded", bool(told.get("heeded")))
        _set(self, "saw_cancel", bool(told.get("saw")))
        _set(self, "said_complete", bool(told.get("complete")))

    @property
    def cancel_requested(self) -> bool:
        """For executors: the same as `cancelled`, without counting as a read by the processor."""
        return self._cancelled

    def heed(self) -> None:
        """For executors: the processor has noticed a cancellation that was requested so far."""
        if self._cancelled:
            _set(self, "heeded", True)

    def call_when_begun(self, begun: Callable[[], None]) -> None:
        """For the worker: calls `begun` when an executor that lets jobs wait begins the job."""
        _set(self, "_begun", begun)

    def begin(self) -> None:
        """For an executor that lets jobs wait: the processor begins now."""
        if self._begun is not None:
            self._begun()

    def inject_payload(self, payload: bytes) -> None:
        """For the router: its arguments with the results of other jobs filled in."""
        _set(self, "record", self.record.replace(payload=payload))

    def request_cancel(self) -> None:
        """For the worker: the job should end soon."""
        _set(self, "_cancelled", True)

    def disown(self) -> None:
        """For the worker: the lease is lost or given up; refuses whatever the job still writes."""
        _set(self, "_cancelled", True)
        _set(self, "_reporter", NO_REPORTER)

    def update_progress(self, value: Any) -> Any:
        """Keeps and announces how far it is: any JSON value."""
        return self._written(self._reporter.set_progress(self.record, value))

    def log(self, message: str, level: str = "info") -> Any:
        """Adds a line to the job's own log, read with `queue.read_logs(id)`."""
        return self._written(self._reporter.append_log(self.record, message, level))

    def save_checkpoint(self, data: Any) -> Any:
        """Keeps what the next execution needs to continue from here; it reads it as `checkpoint`."""
        answer = self._written(self._reporter.save_checkpoint(self.record, data))
        _set(self, "checkpoint", data)
        return answer

    def dependency_results(self) -> Any:
        """The results of the jobs it depended on, decoded, by id.

        A dependency that did not complete (under the policy `ignore`) is left out; JobNotFound names one that completed
        and was removed since.
        """
        return self._written(self._reporter.dependency_results(self.record))

    def _written(self, note: Any) -> Any:
        """The note to await; in a thread, its answer once it is written."""
        if not self._blocking:
            return note
        answer = background.run(note)
        return Written() if answer is None else Results(answer)


_set = object.__setattr__


def make_blocking(job: RunningJob) -> None:
    """For the thread executor: the job's notes are plain calls, and are written when they return."""
    _set(job, "_blocking", True)


class StoreReporter:
    """Writes a running job's notes to the store; each call is to be awaited."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def set_progress(self, record: Job, value: Any) -> Coroutine[Any, Any, None]:
        """Keeps how far the job is."""
        return self.backend.set_progress(record.id, value, lease=record.lease)

    def append_log(self, record: Job, message: str, level: str) -> Coroutine[Any, Any, None]:
        """Adds a line to the job's log."""
        return self.backend.append_log(record.id, message, level, lease=record.lease)

    def save_checkpoint(self, record: Job, data: Any) -> Coroutine[Any, Any, None]:
        """Keeps what the next execution needs."""
        return self.backend.save_checkpoint(record.id, data, lease=record.lease)

    def dependency_results(self, record: Job) -> Coroutine[Any, Any, dict[str, Any]]:
        """Reads what the job's dependencies returned."""
        return results_of(self.backend, record)


class ClosedReporter:
    """For abandoned attempts: refuses all that they write."""

    def _refuse(self, record: Job, *_: object) -> Never:
        raise LeaseLost(record.id, "expired")

    set_progress = append_log = save_checkpoint = dependency_results = _refuse


NO_REPORTER = ClosedReporter()


class Written:
    """The answer to a note that was written already; you may await it."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Results(dict[str, Any]):
    """Results that were read already; you may await them."""

    def __await__(self) -> Generator[None, None, Mapping[str, Any]]:
        return self
        yield


CURRENT: ContextVar[RunningJob] = ContextVar("longshore_current_job")


def current_job() -> RunningJob:
    """The job that the calling code is part of: on the event loop, in a thread or in its own process."""
    try:
        return CURRENT.get()
    except LookupError:
        raise LongshoreError("no job is being run here: current_job() is for code called by a worker") from None


def job_of_the_caller() -> RunningJob | None:
    """The job that the calling code is part of; None outside of jobs."""
    return CURRENT.get(None)


@contextmanager
def running(job: RunningJob) -> Iterator[None]:
    """Makes the job the current one, for executors."""
    token = CURRENT.set(job)
    try:
        yield
    finally:
        CURRENT.reset(token)
