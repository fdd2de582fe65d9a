"""The jobs that a worker runs: each attempt is started, timed, cancelled if asked, and turned into an outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from typing import Any, Literal

from longshore.backends.base import Backend, Outcome, completed
from longshore.core.errors import Fatal, InvalidArgument, Snooze
from longshore.core.job import Job
from longshore.core.retry import Ending
from longshore.core.times import check_moment
from longshore.core.validation import check_json, clean_text
from longshore.runtime.error_text import ProcessDied, describe
from longshore.runtime.executors.base import Executor
from longshore.runtime.retry_strategy import Strategy, decide_retry
from longshore.runtime.running_job import RunningJob, job_of_the_caller
from longshore.safe_logging import logger

_LONGEST_STEP = 0.005
"""Seconds for which jobs that never wait may share one task before other work on the loop runs."""
_FORCE_SLACK = 3.0
"""Seconds after the grace period in which an executor ends an attempt by force."""

_log = logger("longshore.worker")

StopReason = Literal["cancelled", "timeout", "lost", "stopping"]
"""Why an attempt is stopped early. A lost attempt has no outcome: another worker may own the job."""


class Attempt:
    """One execution of a claimed job."""

    __slots__ = (
        "began",
        "error",
        "grace_timer",
        "interruptible",
        "job",
        "record",
        "seconds",
        "stop_reason",
        "task",
        "timer",
    )

    def __init__(self, record: Job) -> None:
        self.record = record
        self.job: RunningJob | None = None
        self.interruptible = False
        """Whether the executor has the job. Before and after, a CancelledError would hit the worker's own code."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Ends the attempt at its timeout."""
        self.grace_timer: asyncio.TimerHandle | None = None
        """Abandons the attempt if it does not end after it was stopped."""
        self.stop_reason: StopReason | None = None
        self.began = 0.0
        self.seconds = 0.0
        """How long it ran; set at its end."""
        self.error: BaseException | None = None
        """The exception it failed with."""

    def stop(self, reason: StopReason) -> None:
        """Request that the attempt ends."""
        self.stop_reason = reason
        if self.job is not None:
            self.job.request_cancel()
        self.interrupt()

    def interrupt(self) -> None:
        """Raise CancelledError in the executor, if it has the job."""
        if self.interruptible and self.task is not None:
            self.task.cancel()

    def returned_early(self, value: Any) -> bool:
        """Whether the task returned because it was asked to stop, not because its work was done."""
        job = self.job
        if self.stop_reason is None or job is None or job.completed_explicitly:
            return False
        return job.saw_cancel or (self.stop_reason == "stopping" and value is None and job.noticed_cancel)

    def released(self, reason: str, delay: Any = None) -> Outcome:
        """Return the outcome that releases the job without counting the attempt."""
        return Outcome(self.record.id, self.record.lease, "release", error=reason, retry_at=delay)


class JobTasks:
    """The attempts that run on this event loop; `ended` is called with each attempt and its outcome, if it has one.

    An attempt runs in its own context. Attempts that end without waiting share an asyncio task: a task for each would
    cost more than a small job. The first attempt that waits keeps the task, and the rest start in another.
    """

    def __init__(
        self,
        executor: Executor,
        backend: Backend,
        strategies: Mapping[str, Strategy],
        grace: float,
        ended: Callable[[Attempt, Outcome | None], None],
    ) -> None:
        self._executor = executor
        self._backend = backend
        self._strategies = strategies
        self._grace = grace + _FORCE_SLACK
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self.attempts: dict[str, Attempt] = {}
        """Attempts by job id. Other threads may read it."""
        self._starting: deque[Attempt] = deque()
        self._start_scheduled = False
        self.abandoned: set[asyncio.Task[None]] = set()
        """Tasks of abandoned attempts that still run."""

    # -- start

    def start(self, record: Job) -> bool:
        """Run a claimed job; return False if an earlier attempt with a lost lease still runs."""
        if record.id in self.attempts:
            return False
        attempt = Attempt(record)
        self.attempts[record.id] = attempt
        if record.timeout is not None and not self._executor.begins_later(record):
            self._start_timer(attempt)
        self._starting.append(attempt)
        if not self._start_scheduled:
            self._start_scheduled = True
            self._loop.call_soon(self._start_task)
        return True

    def _start_timer(self, attempt: Attempt) -> None:
        timeout: Any = attempt.record.timeout  # a timedelta in every stored record
        if timeout is not None and attempt.timer is None:
            attempt.timer = self._loop.call_later(timeout.total_seconds(), self._stop, attempt, "timeout")

    def _start_task(self) -> None:
        """Start a task for the waiting attempts, and check after its first step for those it left."""
        self._start_scheduled = bool(self._starting)
        if self._start_scheduled:
            # what the task awaits keeps it alive, as for any task
            self._loop.create_task(self._run_starting())
            self._loop.call_soon(self._start_task)

    async def _run_starting(self) -> None:
        """Run attempts one after the other until one of them waits; then run that one to its end."""
        task = asyncio.current_task()
        assert task is not None
        until = monotonic() + _LONGEST_STEP
        # a cancelled task would pass its cancellation to the next attempt
        while self._starting and not task.cancelling():
            steps = self._execute(self._starting.popleft(), task)
            context = copy_context()
            try:
                waits_for = context.run(steps.send, None)
            except StopIteration:
                if monotonic() >= until:
                    return
                continue
            await _Continuation(steps, context, waits_for)
            return

    # -- one attempt

    async def _execute(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        attempt.task = task
        try:
            outcome = await self._run(attempt)
        except BaseException as error:  # GeneratorExit from a future closes the coroutines that await it
            outcome = await self._failed(attempt, error)
        self._finish(attempt, outcome)

    async def _run(self, attempt: Attempt) -> Outcome | None:
        """Run the job once; return None if the attempt is lost and has no outcome."""
        record = attempt.record
        if attempt.stop_reason is not None:  # stopped before it began
            return await self._stopped(attempt)
        try:
            job = attempt.job = self._executor.take(record, self._backend)
            job.call_when_begun(partial(self._began, attempt))
            attempt.began = monotonic()
            attempt.interruptible = True
            value = await self._executor.run(job)
        except BaseException as error:  # any exception, SystemExit included, ends this job and not the worker
            return await self._failed(attempt, error)
        attempt.interruptible = False
        # a busy loop may run the timer late
        if attempt.timer is not None and attempt.stop_reason is None and attempt.timer.when() <= self._loop.time():
            attempt.stop_reason = "timeout"
        if attempt.stop_reason is not None and (attempt.stop_reason == "timeout" or attempt.returned_early(value)):
            return await self._stopped(attempt)
        if value is None:
            return completed(record.id, record.lease)
        try:
            return completed(record.id, record.lease, check_json("result", value))
        except Exception as refusal:  # a value of a user's class may raise anything
            if isinstance(refusal, InvalidArgument):
                refusal.__traceback__ = None  # the traceback shows only our own check
            refusal.add_note("the job completed its work, but its result cannot be stored")
            return await self._failed(attempt, refusal)

    def _began(self, attempt: Attempt) -> None:
        """Record that the executor started the job, which may have waited for a process."""
        attempt.began = monotonic()
        self._start_timer(attempt)

    async def _stopped(self, attempt: Attempt) -> Outcome | None:
        """Return the outcome of an attempt that was stopped."""
        record = attempt.record
        if attempt.stop_reason == "timeout":
            timeout: Any = record.timeout
            text = f"TimeoutError: the job took longer than its timeout of {timeout.total_seconds():g} seconds"
            return await self._retry_or_die(attempt, Ending("timeout", text), TimeoutError(text))
        if attempt.stop_reason == "cancelled":
            return Outcome(record.id, record.lease, "stop", error="cancelled")
        if attempt.stop_reason == "stopping":
            return attempt.released("the worker stopped before the job had ended")
        return None

    async def _failed(self, attempt: Attempt, error: BaseException) -> Outcome | None:
        """Return the outcome of an attempt that raised."""
        attempt.interruptible = False
        cancelled = isinstance(error, asyncio.CancelledError)
        if attempt.stop_reason in ("lost", "timeout") or (cancelled and attempt.stop_reason is not None):
            return await self._stopped(attempt)
        if isinstance(error, Snooze):
            try:
                check_moment("delay", error.delay, 0)
                return attempt.released(clean_text("reason", error.reason), error.delay)
            except InvalidArgument as refusal:  # without a valid delay it is an ordinary failure
                error = refusal
        if attempt.stop_reason == "stopping":  # the stop caused the exception
            return await self._stopped(attempt)
        if isinstance(error, ProcessDied):
            attempt.error = error
            return Outcome(attempt.record.id, attempt.record.lease, "crash", error=str(error))
        text = "CancelledError: the task cancelled itself" if cancelled else describe(error)
        return await self._retry_or_die(attempt, Ending("failure", text, isinstance(error, Fatal)), error)

    async def _retry_or_die(self, attempt: Attempt, ending: Ending, error: BaseException) -> Outcome:
        attempt.error = error
        record = attempt.record
        decision = await decide_retry(record, ending, error, self._strategies)
        retry_at = decision.delay if decision.verb == "fail" and decision.delay else None
        return Outcome(record.id, record.lease, decision.verb, error=ending.error, retry_at=retry_at)

    def _finish(self, attempt: Attempt, outcome: Outcome | None) -> None:
        for timer in (attempt.timer, attempt.grace_timer):
            if timer is not None:
                timer.cancel()
        job_id = attempt.record.id
        if self.attempts.get(job_id) is attempt:
            del self.attempts[job_id]
            attempt.seconds = monotonic() - attempt.began if attempt.began else 0.0
            attempt.job = None  # breaks a reference cycle, so that no garbage collection is needed
            self._ended(attempt, None if attempt.stop_reason == "lost" else outcome)

    # -- stop

    def attempts_of(self, job_ids: Iterable[str]) -> list[Attempt]:
        """Return the attempts at these jobs that run here. Any thread may call it."""
        return [attempt for job_id in job_ids if (attempt := self.attempts.get(job_id)) is not None]

    def runs_the_caller(self) -> bool:
        """Whether the calling code is part of a job that runs here."""
        job = job_of_the_caller()
        return job is not None and any(attempt.job is job for attempt in self.attempts_of([job.record.id]))

    def stop(self, attempts: Iterable[Attempt], reason: StopReason) -> None:
        """Request that these attempts end, unless they have ended."""
        for attempt in attempts:
            if self.attempts.get(attempt.record.id) is attempt:
                self._stop(attempt, reason)

    def stop_threadsafe(self, attempts: list[Attempt], reason: StopReason) -> None:
        """Do the same from any thread. Takes attempts, not ids: the loop may claim the jobs again first."""
        if attempts:
            with suppress(RuntimeError):  # its loop has closed
                self._loop.call_soon_threadsafe(self.stop, attempts, reason)

    def drop_all(self) -> None:
        """Stop all attempts and forget them; they have no outcome."""
        attempts, self.attempts = self.attempts, {}
        for attempt in attempts.values():
            if attempt.timer is not None:
                attempt.timer.cancel()
            attempt.stop("lost")
            self._disown(attempt)

    def _stop(self, attempt: Attempt, reason: StopReason) -> None:
        if attempt.stop_reason is None:
            attempt.stop(reason)
            attempt.grace_timer = self._loop.call_later(self._grace, self._abandon, attempt)
        elif reason == "lost":  # the outcome is no longer ours to report
            attempt.stop_reason = reason

    def _abandon(self, attempt: Attempt) -> None:
        """Settle an attempt that did not end in time; ignore what it still does."""
        _log.warning("job %s ignored its cancellation (%s); abandoning it", attempt.record.id, attempt.stop_reason)
        attempt.interrupt()
        self._disown(attempt)
        self._keep_alive(self._loop.create_task(self._settle_abandoned(attempt)))

    async def _settle_abandoned(self, attempt: Attempt) -> None:
        self._finish(attempt, await self._stopped(attempt))

    def _disown(self, attempt: Attempt) -> None:
        """Refuse all further writes of the attempt."""
        if attempt.job is not None:
            attempt.job.disown()
        if attempt.task is not None:
            self._keep_alive(attempt.task)

    def _keep_alive(self, task: asyncio.Task[None]) -> None:
        self.abandoned.add(task)  # the loop itself keeps only weak references to tasks
        task.add_done_callback(self.abandoned.discard)


class _Continuation:
    """The rest of a coroutine after its first step, in the context it began in."""

    def __init__(self, steps: Coroutine[Any, Any, None], context: Context, waits_for: Any) -> None:
        self._steps = steps
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            resume: Callable[[Any], Any]
            try:
                given: Any = yield waits_for
                resume = self._steps.send
            except BaseException as error:  # the coroutine must receive it
                given, resume = error, self._steps.throw
            try:
                waits_for = self._context.run(resume, given)
            except StopIteration:
                return
