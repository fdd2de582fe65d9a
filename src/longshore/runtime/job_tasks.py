"""The jobs that a worker runs: each attempt is started, timed, cancelled if asked, and turned into an outcome."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from time import monotonic
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from longshore.backends.base import Backend, Outcome, SettleReport, completed
from longshore.core.errors import BackendUnavailable, Fatal, InvalidArgument, QueueClosed, Snooze
from longshore.core.job import Job
from longshore.core.retry import Ending
from longshore.core.times import Moment, check_moment
from longshore.core.validation import check_json, clean_text
from longshore.runtime.error_text import ProcessDied, describe
from longshore.runtime.executors.base import Executor
from longshore.runtime.retry_strategy import Strategy, decide_retry
from longshore.runtime.running_job import RunningJob, job_of_the_caller
from longshore.safe_logging import logger

_T = TypeVar("_T")

_LONGEST_STEP = 0.005
"""Seconds after which others on the loop get their turn, however many have ended at once."""


class FirstSteps(Generic[_T]):
    """Each gets a context of its own. The first that waits keeps the task, and those behind it begin in another.

    A task for each would cost more than a small job itself does.
    """

    def __init__(self, begin: Callable[[_T, asyncio.Task[None]], Coroutine[Any, Any, None]]) -> None:
        """`begin` gives the coroutine, which is told the task it will run in and must not raise."""
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._line: deque[_T] = deque()
        self._due = False

    def start(self, one: _T) -> None:
        """Begins soon, in the order they came."""
        self._line.append(one)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Called again after the task's first step: whoever is left in line then, must not wait for it."""
        self._due = bool(self._line)
        if self._due:
            # the task's own callbacks keep it alive while it waits, as of any other task
            self._loop.create_task(self._take_steps())
            self._loop.call_soon(self._go_on)

    async def _take_steps(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        until = monotonic() + _LONGEST_STEP
        # a task that was cancelled, by one that ended all the same, would pass that on to the next
        while self._line and not task.cancelling():
            steps = self._begin(self._line.popleft(), task)
            context = copy_context()
            try:
                waits_for = context.run(steps.send, None)
            except StopIteration:
                if monotonic() >= until:
                    return
                continue
            await _Rest(steps, context, waits_for)
            return


class _Rest:
    """What is left of a coroutine after its first step, in the context it began in."""

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
            except BaseException as error:  # whatever it is, it is meant for the coroutine
                given, resume = error, self._steps.throw
            try:
                waits_for = self._context.run(resume, given)
            except StopIteration:
                return


CalledOff = Literal["cancelled", "timeout", "lost", "stopping"]
"""Why a run should end early. A lost one has no outcome: it is somebody else's to report."""


class Run:
    """A job that is being run, by one task of the worker's loop."""

    __slots__ = (
        "began",
        "called_off",
        "error",
        "grace",
        "job",
        "record",
        "seconds",
        "task",
        "timer",
        "under_way",
        "when_begun",
    )

    def __init__(self, record: Job) -> None:
        self.record = record
        self.job: RunningJob | None = None
        self.under_way = False
        """Whether the executor has it: before and after there is nothing to be interrupted."""
        self.task: asyncio.Task[None] | None = None
        self.when_begun: Callable[[], None] | None = None
        """To be called by the executor, if it lets the job wait."""
        self.timer: asyncio.TimerHandle | None = None
        self.grace: asyncio.TimerHandle | None = None
        self.called_off: CalledOff | None = None
        self.began = 0.0
        self.seconds = 0.0
        """How long it ran, after it has ended."""
        self.error: BaseException | None = None
        """The exception that it failed with."""

    def begins(self) -> None:
        """The processor starts now, possibly after waiting for its process."""
        self.began = monotonic()
        if self.when_begun is not None:
            self.when_begun()

    def call_off(self, why: CalledOff) -> None:
        """Tells the processor that it should end."""
        self.called_off = why
        if self.job is not None:
            self.job.request_cancel()
        self.interrupt()

    def interrupt(self) -> None:
        """Reaches the executor as CancelledError, if it has the job."""
        if self.under_way and self.task is not None:
            self.task.cancel()

    async def outcome(self, executor: Executor, backend: Backend, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """Runs the job once and tells how it ended; None if nobody may be told."""
        if self.called_off is not None:  # before it began
            return await self.without_an_answer(strategies)
        try:
            self.job = executor.take(self.record, backend)
            self.job.call_when_begun(self.begins)
            self.began = monotonic()
            self.under_way = True
            value = await executor.run(self.job)
        except BaseException as error:  # whatever it is, SystemExit and all, it is this job's end and not the worker's
            return await self.failed(error, strategies)
        self.under_way = False
        if self.called_off == "timeout" or self._is_late:  # it came too late to count
            self.called_off = "timeout"
            return await self.without_an_answer(strategies)
        if self._stopped_short(value):
            return await self.without_an_answer(strategies)
        if value is None:
            return completed(self.record.id, self.record.lease)
        try:
            return completed(self.record.id, self.record.lease, check_json("result", value))
        except Exception as refusal:  # a value of one's own class may raise anything when it is looked at
            if isinstance(refusal, InvalidArgument):
                refusal.__traceback__ = None  # it tells of nothing but our own looking
            refusal.add_note("the job did its work, but what it returned cannot be stored")
            return await self.failed(refusal, strategies)

    def _stopped_short(self, value: Any) -> bool:
        """Whether the processor returned because it should end, not because its work was done."""
        job = self.job
        if self.called_off is None or job is None or job.said_complete:
            return False
        return job.saw_cancel or (self.called_off == "stopping" and value is None and job.heeded)

    async def without_an_answer(self, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """The outcome of a run that was called off and gave no answer of its own."""
        if self.called_off == "timeout":
            return await self._timed_out(strategies)
        if self.called_off == "cancelled":
            return Outcome(self.record.id, self.record.lease, "stop", error="cancelled")
        if self.called_off == "stopping":
            return self._given_back("the worker stopped before the job had ended")
        return None

    async def failed(self, error: BaseException, strategies: Mapping[str, Strategy]) -> Outcome | None:
        """The outcome of a run that ended with an exception."""
        self.under_way = False
        stopped = isinstance(error, asyncio.CancelledError)
        if self.called_off in ("lost", "timeout") or (stopped and self.called_off is not None):
            return await self.without_an_answer(strategies)
        if isinstance(error, Snooze):
            try:
                check_moment("delay", error.delay, 0)
                return self._given_back(clean_text("reason", error.reason), error.delay)
            except InvalidArgument as refusal:  # nobody can say when it should run again: a failure like any other
                error = refusal
        if self.called_off == "stopping":  # whatever it is, it would not have come without our asking
            return await self.without_an_answer(strategies)
        if isinstance(error, ProcessDied):
            self.error = error
            return Outcome(self.record.id, self.record.lease, "crash", error=str(error))
        text = "CancelledError: the processor cancelled itself" if stopped else describe(error)
        return await self._retried_or_buried(Ending("failure", text, isinstance(error, Fatal)), error, strategies)

    def _given_back(self, reason: str, delay: Moment | None = None) -> Outcome:
        return Outcome(self.record.id, self.record.lease, "release", error=reason, retry_at=delay)

    async def _timed_out(self, strategies: Mapping[str, Strategy]) -> Outcome:
        text = f"TimeoutError: the job took longer than its timeout of {self.seconds_allowed:g} seconds"
        return await self._retried_or_buried(Ending("timeout", text), TimeoutError(text), strategies)

    async def _retried_or_buried(
        self, ending: Ending, error: BaseException, strategies: Mapping[str, Strategy]
    ) -> Outcome:
        self.error = error
        decision = await decide_retry(self.record, ending, error, strategies)
        retry_at = decision.delay if decision.verb == "fail" and decision.delay else None
        return Outcome(self.record.id, self.record.lease, decision.verb, error=ending.error, retry_at=retry_at)

    @property
    def seconds_allowed(self) -> float | None:
        """How long the execution may take."""
        timeout: Any = self.record.timeout  # a timedelta in every record that was stored
        return None if timeout is None else timeout.total_seconds()

    @property
    def _is_late(self) -> bool:
        """Whether its time was over, though the loop was too busy to say so."""
        return (
            self.timer is not None
            and self.called_off is None
            and self.timer.when() <= asyncio.get_running_loop().time()
        )


_TRIES = 3

_log = logger("longshore.worker")


class Attempt(NamedTuple):
    """What became of outcomes that were settled one by one."""

    settled: list[Outcome]
    report: SettleReport
    left: list[Outcome]
    """To be tried again."""
    hopeless: list[Outcome]
    """Not to be tried again: their jobs come back when their leases end."""


class OneByOne:
    """Settles outcomes of one worker alone; one that failed so `_TRIES` times, is given up."""

    def __init__(self, backend: Backend, worker_id: str) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._failures: Counter[str] = Counter()
        self.given_up: set[str] = set()
        """Jobs whose outcomes cannot be written."""

    async def settle(self, outcomes: Sequence[Outcome]) -> Attempt:
        """Tries each of them once."""
        attempt = Attempt([], SettleReport(), [], [])
        for number, outcome in enumerate(outcomes):
            try:
                report, _ = await self._backend.settle_and_dequeue([outcome], self._worker_id, limit=0)
            except QueueClosed:
                raise
            except BackendUnavailable:  # it is the store's trouble and no outcome's
                attempt.left.extend(outcomes[number:])
                break
            except Exception as error:  # a constraint, a trigger, a row too large, a store of one's own
                self._failed(attempt, outcome, error)
            else:
                attempt.settled.append(outcome)
                attempt.report.settled.update(report.settled)
                attempt.report.refused.update(report.refused)
                del self._failures[outcome.job_id]
        return attempt

    def _failed(self, attempt: Attempt, outcome: Outcome, error: Exception) -> None:
        self._failures[outcome.job_id] += 1
        if self._failures[outcome.job_id] < _TRIES:
            attempt.left.append(outcome)
            return
        del self._failures[outcome.job_id]
        attempt.hopeless.append(outcome)
        self.given_up.add(outcome.job_id)
        _log.error(
            "the outcome %r of job %s cannot be written and is given up; the job comes back when its lease ends: %s",
            outcome.verb,
            outcome.job_id,
            describe(error).partition("\n")[0],
        )


_FORCE_SLACK = 3.0
"""Seconds after the grace in which an executor ends by force what did not end by itself."""


class JobTasks:
    """Runs jobs in tasks of the running loop; `ended` is called there with each run and its outcome, if it has one."""

    def __init__(
        self,
        executor: Executor,
        backend: Backend,
        strategies: Mapping[str, Strategy],
        grace: float,
        ended: Callable[[Run, Outcome | None], None],
    ) -> None:
        self._executor = executor
        self._backend = backend
        self._strategies = strategies
        self._patience = grace + _FORCE_SLACK
        self._tell = ended
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}
        self._stray: set[asyncio.Task[None]] = set()
        self._first_steps = FirstSteps(self._execute)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def left_behind(self) -> int:
        """How many runs still go on that were given up."""
        return len(self._stray) + self._executor.left_behind

    def start(self, record: Job) -> bool:
        """Runs a job that was just claimed; False if an earlier run of it, whose lease was lost, has not ended yet."""
        if record.id in self._runs:
            return False
        run = Run(record)
        self._runs[record.id] = run
        if run.seconds_allowed is not None:
            if self._executor.begins_later(record):  # the time it waits for its process is not its own
                run.when_begun = lambda: self._time(run)
            else:
                self._time(run)
        self._first_steps.start(run)
        return True

    def _time(self, run: Run) -> None:
        if run.seconds_allowed is not None and run.timer is None:
            run.timer = self._loop.call_later(run.seconds_allowed, self._call_off, run, "timeout")

    async def _execute(self, run: Run, task: asyncio.Task[None]) -> None:
        run.task = task
        try:
            outcome = await run.outcome(self._executor, self._backend, self._strategies)
        except BaseException as error:  # a GeneratorExit in a future, which closes all that awaits it: still an end
            outcome = await run.failed(error, self._strategies)
        self._ended(run, outcome)

    def _ended(self, run: Run, outcome: Outcome | None) -> None:
        for timer in (run.timer, run.grace):
            if timer is not None:
                timer.cancel()
        job_id = run.record.id
        if self._runs.get(job_id) is run:
            del self._runs[job_id]
            run.seconds = monotonic() - run.began if run.began else 0.0
            self._tell(run, None if run.called_off == "lost" else outcome)

    def runs_of(self, job_ids: Iterable[str]) -> list[Run]:
        """Those of these jobs that are run here; may be asked from any thread."""
        return [run for job_id in job_ids if (run := self._runs.get(job_id)) is not None]

    def runs_where(self, chosen: Callable[[Job], bool]) -> list[Run]:
        """The runs of these jobs; may be asked from any thread."""
        return [run for run in list(self._runs.values()) if chosen(run.record)]

    def runs_the_caller(self) -> bool:
        """Whether the calling code is part of a job that is run here."""
        job = job_of_the_caller()
        return job is not None and any(run.job is job for run in self.runs_of([job.record.id]))

    def call_off(self, runs: Iterable[Run], why: CalledOff) -> None:
        """Asks these runs to end, if they have not ended."""
        for run in runs:
            if self._runs.get(run.record.id) is run:
                self._call_off(run, why)

    def call_off_soon(self, runs: Sequence[Run], why: CalledOff) -> None:
        """As above, from any thread: these very runs, as the loop may claim their jobs anew before it hears of it."""
        if runs:
            with suppress(RuntimeError):  # its loop has closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self.call_off, runs, why)

    def drop_everything(self) -> None:
        """Asks all runs to end and forgets them: they have no outcome any more."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            if run.timer is not None:
                run.timer.cancel()
            run.call_off("lost")
            self._leave_behind(run)

    def _call_off(self, run: Run, why: CalledOff) -> None:
        if run.called_off is None:
            run.call_off(why)
            run.grace = self._loop.call_later(self._patience, self._give_up, run)
        elif why == "lost":  # whatever it was called off for, its outcome is somebody else's now
            run.called_off = why

    def _give_up(self, run: Run) -> None:
        """The run did not end in time: it is settled without it, and whatever it still does counts for nothing."""
        _log.warning(
            "job %s goes on although it was called off (%s); going on without it", run.record.id, run.called_off
        )
        run.interrupt()
        self._leave_behind(run)
        self._keep_alive(self._loop.create_task(self._settle_without(run)))

    async def _settle_without(self, run: Run) -> None:
        self._ended(run, await run.without_an_answer(self._strategies))

    def _leave_behind(self, run: Run) -> None:
        """Nothing that it still says is written."""
        if run.job is not None:
            run.job.disown()
        if run.task is not None:
            self._keep_alive(run.task)

    def _keep_alive(self, task: asyncio.Task[None]) -> None:
        self._stray.add(task)  # a task nobody refers to may vanish in the midst of its work
        task.add_done_callback(self._stray.discard)
