"""Handles: how a caller asks after a job it enqueued, and waits for what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from longshore.core.errors import JobCancelled, JobFailed
from longshore.core.explain import Explanation
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, Duration, check_duration
from longshore.runtime import background

R_co = TypeVar("R_co", covariant=True)

RESULT_TIMEOUT = 60.0
"""Seconds that `result()` waits unless told otherwise: a job that no worker takes must not hold its caller for ever."""


class Inquiry(Protocol):
    """Where a handle asks."""

    async def job(self, job_id: str) -> Job:
        """The job as it stands, or JobNotFound."""
        ...

    async def ended(self, job_id: str, timeout: float | None) -> Job:
        """The job once it is final, or TimeoutError."""
        ...

    async def explain(self, job_id: str) -> Explanation:
        """Why it is not running now, or JobNotFound."""
        ...

    async def cancel(self, job_id: str) -> bool:
        """Asks for its end; False if it is over already."""
        ...


class JobHandle(Generic[R_co]):
    """A job that was enqueued. Every question is asked of the store anew; the `…_sync` forms block."""

    __slots__ = ("_inquiry", "_read", "id", "replayed")

    def __init__(
        self, job_id: str, inquiry: Inquiry, read: Callable[[bytes | None], Any], *, replayed: bool = False
    ) -> None:
        self.id = job_id
        self.replayed = replayed
        """Whether the job was there already when this was enqueued, by its key or id: with its own arguments."""
        self._inquiry = inquiry
        self._read = read

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    async def result(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Waits until the job has ended, and returns what it gave back, as the type its task is annotated with.

        Raises JobFailed if it failed for good, JobCancelled if it was called off, and TimeoutError after `timeout`
        seconds (None: never), which leaves the job as it is: ask again at any time.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout, positive=False) / SECOND
        try:
            job = await self._inquiry.ended(self.id, seconds)
        except TimeoutError:
            raise TimeoutError(_still(await self._inquiry.job(self.id), seconds)) from None
        if job.status is JobStatus.COMPLETED:
            return self._read(job.result)  # type: ignore[no-any-return]  # read as the task's own return annotation
        if job.status is JobStatus.DEAD:
            raise JobFailed(job.id, job.error_message)
        raise JobCancelled(job.id, job.status, job.error_message)

    async def job(self) -> Job:
        """The whole record as it stands now."""
        return await self._inquiry.job(self.id)

    async def status(self) -> JobStatus:
        """Where it is now."""
        return (await self.job()).status

    async def explain(self) -> Explanation:
        """Why it is not running now: who or what is in its way, each reason with its way out."""
        return await self._inquiry.explain(self.id)

    async def cancel(self) -> bool:
        """Asks for its end, and returns at once; False if it had ended already."""
        return await self._inquiry.cancel(self.id)

    def result_sync(self, timeout: Duration | None = RESULT_TIMEOUT) -> R_co:
        """Like `result`, for code without an event loop."""
        return background.run(self.result(timeout))

    def job_sync(self) -> Job:
        """Like `job`, for code without an event loop."""
        return background.run(self.job())

    def status_sync(self) -> JobStatus:
        """Like `status`, for code without an event loop."""
        return background.run(self.status())

    def explain_sync(self) -> Explanation:
        """Like `explain`, for code without an event loop."""
        return background.run(self.explain())

    def cancel_sync(self) -> bool:
        """Like `cancel`, for code without an event loop."""
        return background.run(self.cancel())


def _still(job: Job, seconds: float | None) -> str:
    told = f"job {job.id} ({job.type}) is {job.status} still after {seconds:g} seconds"
    if job.executions == 0:
        return f"{told} and was never started; does a worker run for the queue {str(job.queue)!r}?"
    error = job.error_message.partition("\n")[0]
    return f"{told}, at its execution number {job.executions}{f'; the last one failed with {error}' if error else ''}"
