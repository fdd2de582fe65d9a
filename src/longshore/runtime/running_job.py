"""A job as its task sees it: the record, its notes while it runs, and the results of its dependencies."""

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
"""Bytes of results that one job may take; they share the memory of its worker with other jobs."""
_READ_AT_ONCE = 500
_READ_FIRST = 8
"""Results read in the first call, before their size is known."""
_BYTES_AT_ONCE = 8 * 1024 * 1024


async def results_of(backend: Backend, job: Job) -> dict[str, Any]:
    """Return the decoded results by id, in the order of `depends_on`."""
    stored = await stored_results_of(backend, job, job.depends_on)

    def decoded() -> dict[str, Any]:
        return {name: None if kept is None else read_json(f"result of {name}", kept) for name, kept in stored.items()}

    return await asyncio.to_thread(decoded)  # large results would block the loop


async def stored_results_of(backend: Backend, job: Job, wanted: Sequence[str]) -> dict[str, bytes | None]:
    """Return the stored results by id, in the order of `wanted`; None for a job that returned nothing.

    A dependency that did not complete, or was removed, is omitted if the policy of its edge is `ignore`. Under the
    other policies a missing dependency was removed: JobNotFound. Queues that the caller who stored the job may not see
    are not read. Results that are too large raise Fatal, because a retry would find the same.
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
                f"the results of its dependencies are larger than {MOST_TAKEN / 2**20:g} MiB: the first {first:,} of "
                f"{len(job_ids):,} have {size / 2**20:,.1f} MiB. Store large results elsewhere and return their "
                "address, or depend on fewer jobs"
            )
        at_once = max(1, min(_READ_AT_ONCE, _BYTES_AT_ONCE * first // (size + 1)))
    return found


def _removed(job_id: str, *, hidden: bool) -> JobNotFound:
    missing = JobNotFound(job_id)
    elsewhere = "; or it is in a queue that the caller who stored this job may not read" if hidden else ""
    missing.args = (
        f"the dependency {job_id!r} was removed with its result, by remove_on_complete, retention or a caller; "
        f"keep jobs whose results you need{elsewhere}",
    )
    return missing


if TYPE_CHECKING:
    _Fields = Job
else:
    _Fields = object

T = TypeVar("T")


class JobReporter(Protocol):
    """Writes a running job's notes; the returned values may be awaitable."""

    def set_progress(self, record: Job, value: Any) -> Any:
        """Store the progress of the job."""
        ...

    def append_log(self, record: Job, message: str, level: str) -> Any:
        """Append a line to its log."""
        ...

    def save_checkpoint(self, record: Job, data: Any) -> Any:
        """Store what the next execution needs after a crash."""
        ...

    def dependency_results(self, record: Job) -> Any:
        """Return the results of its dependencies, by id."""
        ...


class RunningJob(_Fields):
    """A job while a worker runs it: the fields of its record, its notes and its cancellation. See docs/tasks.md.

    Await the notes in an `async def`; call them plainly in a `def`. They carry the job's lease: LeaseLost means that
    this attempt has lost the job and should end.
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
        "completed_explicitly",
        "noticed_cancel",
        "record",
        "saw_cancel",
    )
    record: Job
    """The record as it was claimed."""
    noticed_cancel: bool
    """Whether the processor has noticed a request to end."""
    saw_cancel: bool
    """Whether the processor read `cancelled` as true before it returned."""
    completed_explicitly: bool
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
        _set(self, "noticed_cancel", False)
        _set(self, "saw_cancel", False)
        _set(self, "completed_explicitly", False)
        _set(self, "_returned", False)
        _set(self, "_result", None)
        _set(self, "_write", None)
        _set(self, "_begun", None)
        _set(self, "checkpoint", record.checkpoint)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in RunningJob.__slots__:  # not set yet, and not a field of the record
                raise AttributeError(name)
            return getattr(self.record, name)

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"cannot set {name!r} of a running job; use its methods, such as update_progress()")

    def __reduce__(self) -> Never:
        raise TypeError("a running job cannot be copied or pickled; use its record: job.record")

    @property
    def cancelled(self) -> bool:
        """Whether the job should end: it was cancelled, timed out or lost its lease, or the worker stops.

        A task that reads this as true and returns counts as interrupted, unless it calls `complete`. After a
        cancellation the job is STOPPED; if the worker stops, the job is released to its queue.
        """
        if self._cancelled and not self._returned:
            _set(self, "saw_cancel", True)
            _set(self, "noticed_cancel", True)
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raise JobInterrupted if the job should end. Call it in loops; do not await it."""
        if self.cancelled:
            raise JobInterrupted(f"job {self.record.id!r} was asked to stop")

    @overload
    def complete(self) -> None: ...

    @overload
    def complete(self, result: T) -> T: ...

    def complete(self, result: Any = None) -> Any:
        """Complete the job with this result, even if the task read `cancelled` as true.

        Returns the result: `return job.complete(total)`. Do not await it; the result is stored when the task ends. A
        value that the task returns afterwards is ignored; an exception that it raises is a failure.
        """
        value = result if self._write is None else self._write(result)
        if value is not None:
            check_json("result", value)
        _set(self, "_result", value)
        _set(self, "completed_explicitly", True)
        return result

    def returned(self, value: Any) -> Any:
        """Return the job's result, for executors. Later reads of `cancelled` do not count."""
        _set(self, "_returned", True)
        return self._result if self.completed_explicitly else value

    def results_written_by(self, write: Callable[[Any], Any]) -> None:
        """Serialise the value passed to `complete` like a return value, for tasks."""
        _set(self, "_write", write)

    def report(self) -> dict[str, bool]:
        """Return the state of a job that returned in another process, for executors."""
        return {"noticed_cancel": self.noticed_cancel, "saw": self.saw_cancel, "complete": self.completed_explicitly}

    def take_report(self, report: Mapping[str, Any]) -> None:
        """Apply the state that the other process reported, for the worker."""
        _set(self, "_returned", True)
        _set(self, "noticed_cancel", bool(report.get("noticed_cancel")))
        _set(self, "saw_cancel", bool(report.get("saw")))
        _set(self, "completed_explicitly", bool(report.get("complete")))

    @property
    def cancel_requested(self) -> bool:
        """The same as `cancelled`, without counting as a read by the task; for executors."""
        return self._cancelled

    def notice_cancel(self) -> None:
        """Record that the processor has noticed the cancellation, for executors."""
        if self._cancelled:
            _set(self, "noticed_cancel", True)

    def call_when_begun(self, begun: Callable[[], None]) -> None:
        """Call `begun` when the executor starts the job after a wait, for the worker."""
        _set(self, "_begun", begun)

    def begin(self) -> None:
        """Report that the processor starts now, for executors that let jobs wait."""
        if self._begun is not None:
            self._begun()

    def inject_payload(self, payload: bytes) -> None:
        """Replace the arguments by those with the results of other jobs filled in, for the router."""
        _set(self, "record", self.record.replace(payload=payload))

    def request_cancel(self) -> None:
        """Request that the job ends soon, for the worker."""
        _set(self, "_cancelled", True)

    def disown(self) -> None:
        """Refuse further writes, after the lease is lost or released; for the worker."""
        _set(self, "_cancelled", True)
        _set(self, "_reporter", NO_REPORTER)

    def update_progress(self, value: Any) -> Any:
        """Store the job's progress, any JSON value, and publish it as an event."""
        return self._written(self._reporter.set_progress(self.record, value))

    def log(self, message: str, level: str = "info") -> Any:
        """Append a line to the job's log, which `queue.read_logs(id)` returns."""
        return self._written(self._reporter.append_log(self.record, message, level))

    def save_checkpoint(self, data: Any) -> Any:
        """Store what the next execution needs to continue from here; it reads it as `checkpoint`."""
        answer = self._written(self._reporter.save_checkpoint(self.record, data))
        _set(self, "checkpoint", data)
        return answer

    def dependency_results(self) -> Any:
        """Return the decoded results of the job's dependencies, by id.

        A dependency that did not complete (under the policy `ignore`) is omitted. JobNotFound names one that completed
        and was removed since.
        """
        return self._written(self._reporter.dependency_results(self.record))

    def _written(self, note: Any) -> Any:
        """Return the note to await; in a thread, wait until it is written."""
        if not self._blocking:
            return note
        answer = background.run(note)
        return Written() if answer is None else Results(answer)


_set = object.__setattr__


def make_blocking(job: RunningJob) -> None:
    """Make the job's notes blocking calls, for the thread executor."""
    _set(job, "_blocking", True)


class StoreReporter:
    """Writes a running job's notes to the store; await each call."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def set_progress(self, record: Job, value: Any) -> Coroutine[Any, Any, None]:
        """Store the progress of the job."""
        return self.backend.set_progress(record.id, value, lease=record.lease)

    def append_log(self, record: Job, message: str, level: str) -> Coroutine[Any, Any, None]:
        """Append a line to the job's log."""
        return self.backend.append_log(record.id, message, level, lease=record.lease)

    def save_checkpoint(self, record: Job, data: Any) -> Coroutine[Any, Any, None]:
        """Store what the next execution needs."""
        return self.backend.save_checkpoint(record.id, data, lease=record.lease)

    def dependency_results(self, record: Job) -> Coroutine[Any, Any, dict[str, Any]]:
        """Return the results of the job's dependencies."""
        return results_of(self.backend, record)


class ClosedReporter:
    """The reporter of abandoned attempts: refuses every write."""

    def _refuse(self, record: Job, *_: object) -> Never:
        raise LeaseLost(record.id, "expired")

    set_progress = append_log = save_checkpoint = dependency_results = _refuse


NO_REPORTER = ClosedReporter()


class Written:
    """The answer to a note that is already written; awaiting it is optional."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Results(dict[str, Any]):
    """Results that are already read; awaiting them is optional."""

    def __await__(self) -> Generator[None, None, Mapping[str, Any]]:
        return self
        yield


CURRENT: ContextVar[RunningJob] = ContextVar("longshore_current_job")


def current_job() -> RunningJob:
    """Return the job that runs the calling code: `current_job().update_progress(0.5)`. See docs/tasks.md."""
    try:
        return CURRENT.get()
    except LookupError:
        raise LongshoreError("no job runs here; call current_job() only in code that a worker runs") from None


def job_of_the_caller() -> RunningJob | None:
    """Return the job that runs the calling code, or None."""
    return CURRENT.get(None)


@contextmanager
def running(job: RunningJob) -> Iterator[None]:
    """Make the job the current one, for executors."""
    token = CURRENT.set(job)
    try:
        yield
    finally:
        CURRENT.reset(token)
