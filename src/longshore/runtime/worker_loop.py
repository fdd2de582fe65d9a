"""The worker's loop, from its first claim to its last settle: claims and settles travel in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from longshore.backends.base import Backend, ClaimFailed, Outcome, SettleReport
from longshore.core.errors import BackendUnavailable, QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.error_text import describe
from longshore.runtime.executors.base import Executor
from longshore.runtime.job_tasks import JobTasks, OneByOne, Run
from longshore.runtime.leases import LeaseKeeper
from longshore.runtime.process_registry import registry_of
from longshore.runtime.work_signal import WorkSignal
from longshore.runtime.worker_options import WorkerOptions
from longshore.runtime.worker_status import StatusReporter, log_endings
from longshore.safe_logging import logger


class HeldJobs:
    """A worker as its registry and its lease keeper see it; `beat` is called with every heartbeat."""

    def __init__(
        self, backend: Backend, worker: WorkerOptions, job_tasks: JobTasks, beat: Callable[[], Awaitable[None]]
    ) -> None:
        self.assignee_id = worker.id
        self._backend = backend
        self._worker = worker
        self._job_tasks = job_tasks
        self._registry = registry_of(backend)
        self._keeper = LeaseKeeper(
            backend,
            worker.lock_seconds,
            worker.renew_seconds,
            lost=self._leases_lost,
            cancelled=self.jobs_cancelled,
            beat=beat,
        )

    def begin(self) -> None:
        """From now on leases are kept, and swept if the worker wants it."""
        self._registry.joined(self, self._backend, sweep=self._worker.sweep)
        self._keeper.start()

    def leave(self) -> None:
        """Whatever is still held is nothing to others in this process any more."""
        self._registry.left(self)

    def abandon(self) -> None:
        """Keeps no lease any longer; waits for nothing."""
        self._keeper.abandon()

    async def stop(self) -> None:
        """Keeps no lease any longer; returns when no renewal is under way."""
        await self._keeper.stop()

    def look_for_cancellations(self) -> None:
        """The store has changed: somebody may have been cancelled."""
        self._keeper.look_now()

    def take(self, jobs: Sequence[Job], asked_at: float) -> bool:
        """Holds jobs that were claimed by a call that began at `asked_at`; False if its answer came too late."""
        self._registry.holds(self, jobs)
        in_time = monotonic() - asked_at < self._worker.lock_seconds
        if in_time:
            self._keeper.keep(jobs, asked_at)
        return in_time

    def let_go(self, job_ids: Sequence[str]) -> None:
        """They have ended, or are lost."""
        self._keeper.drop(job_ids)
        self._registry.let_go(self, job_ids)

    def not_held(self, job_ids: Iterable[str]) -> set[str]:
        """Which of these jobs it does not hold."""
        return set(self._registry.not_held(self, job_ids))

    # -- for the registry and the lease keeper, from any thread

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Somebody else ended them: their runs end without an outcome."""
        self._job_tasks.call_off_soon(self._job_tasks.runs_of(job_ids), "lost")

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """As above."""
        self.jobs_freed(job_ids)

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Their runs are called off."""
        self._job_tasks.call_off_soon(self._job_tasks.runs_of(job_ids), "cancelled")

    def _leases_lost(self, job_ids: list[str]) -> None:
        runs = self._job_tasks.runs_of(job_ids)  # what has ended by itself meanwhile is no loss
        if runs:
            _log.warning("leases lost, their jobs are dropped: %s", ", ".join(run.record.id for run in runs[:10]))
            self._job_tasks.call_off_soon(runs, "lost")


class Turns:
    """Tasks; `ended` is called after each."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._tell = ended
        self._under_way: dict[asyncio.Task[None], int] = {}
        self.failure: BaseException | None = None
        """What one of them has raised."""

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def spoken_for(self) -> int:
        """How many jobs they may bring, or have not given back yet."""
        return sum(self._under_way.values())

    def begin(self, turn: Coroutine[Any, Any, None], speaks_for: int) -> None:
        """Takes a turn that holds so many jobs at most."""
        task = asyncio.create_task(turn)
        self._under_way[task] = speaks_for
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Lets none of them go any further."""
        for task in self._under_way:
            task.cancel()

    async def ended(self) -> None:
        """Returns when none is under way any more."""
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failure = failure
        self._tell()


LARGEST_TURN = 500
"""Jobs one transaction settles, and claims: more would hold up other writers and gain nothing."""
_WORTH_A_TURN = 25
"""Jobs that must have ended, at least, before a second turn begins beside one that is under way."""
_LEFT_BEHIND = 10
"""Runs left behind, for each that may run at once, after which a worker begins no more until some have ended."""


def free_slots(concurrency: int, held: int) -> int:
    """How many more jobs a worker may claim that holds so many, or may get them from a claim under way."""
    return max(concurrency - held, 0)


def most_in_a_turn(concurrency: int) -> int:
    """Half of what may run at once: the rest runs while the store writes."""
    return min((concurrency + 1) // 2, LARGEST_TURN)


def a_second_turn_pays(concurrency: int, *, ended: int, claimable: int) -> bool:
    """Whether enough has ended, or can be claimed, for one more transaction beside the one under way."""
    return max(ended, claimable) >= max(_WORTH_A_TURN, concurrency // 4)


def too_much_goes_on(concurrency: int, left_behind: int) -> bool:
    """Whether so many runs were given up without having ended that their process should begin no more."""
    return left_behind >= _LEFT_BEHIND * concurrency


_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_log = logger("longshore.worker")


class StoreBackoff:
    """What has gone wrong and was not told yet; true while there is something to tell."""

    def __init__(self, status: StatusReporter) -> None:
        self._status = status
        self._text = ""
        self._pause = _FIRST_PAUSE

    def __bool__(self) -> bool:
        return bool(self._text)

    def note(self, what: Exception | str) -> None:
        """To be told with the next turn."""
        self._text = what if isinstance(what, str) else describe(what).partition("\n")[0]

    async def wait_for_better_times(self, error: Exception) -> None:
        """Leaves the store alone for a while, longer each time until it answers."""
        self.note(error)
        _log.error(
            "worker %s cannot use its store, trying again in %.1f s: %s",
            self._status.worker_id,
            self._pause,
            self._text,
        )
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        await self.tell()

    def store_answers(self) -> None:
        """The next pause is a short one again."""
        self._pause = _FIRST_PAUSE

    async def tell(self) -> None:
        """Writes worker.error; what cannot be written now is told later."""
        if self and await self._status.has_trouble(self._text):
            self._text = ""


class OrphanedClaim(NamedTuple):
    """A job to be run as if the answer had come."""

    job: Job
    seconds_left: float
    """Until its lease ends."""


def still_leased(jobs: Iterable[Job], now: datetime) -> list[OrphanedClaim]:
    """Those that may be run: a lease that is over is somebody else's, or nobody's."""
    return [
        OrphanedClaim(job, (job.lease.expires_at - now).total_seconds())
        for job in jobs
        if job.lease is not None and job.lease.expires_at is not None and job.lease.expires_at > now
    ]


async def orphaned_claims(
    backend: Backend, held: HeldJobs, given_up: set[str], lock_seconds: float
) -> list[tuple[Job, float]]:
    """The jobs, each with when its claim must have been asked for at the latest; none that was `given_up` here."""
    ours = JobFilter(assignee_id=held.assignee_id, statuses=[JobStatus.RUNNING])
    asked_at = monotonic()
    stored = (await backend.list_jobs(ours, limit=LARGEST_TURN)).items
    now = await backend.now()
    unheard = held.not_held(job.id for job in stored) - given_up
    claims = still_leased((job for job in stored if job.id in unheard), now)
    return [(job, asked_at + left - lock_seconds) for job, left in claims]


_SLACK = 0.002
"""Seconds by which the store's clock may be behind ours when a retry's time has come."""


class WorkerLoop:
    """Works on the loop it is made in, as a task, until it is `closing` and everything it holds is settled."""

    def __init__(self, backend: Backend, executor: Executor, worker: WorkerOptions) -> None:
        self.loop = asyncio.get_running_loop()
        self.closing = False
        """Whether it claims no more; may be set from any thread, by whoever rings afterwards."""
        self.job_tasks = JobTasks(executor, backend, worker.strategies, worker.cancel_grace, self._ended)
        self._backend = backend
        self._executor = executor
        self._worker = worker
        self._status = StatusReporter(
            backend, worker.id, worker.queue, worker.queues or (), worker.tags, worker.concurrency, executor
        )
        self.trouble = StoreBackoff(self._status)
        self._work_signal = WorkSignal(backend, worker.poll_seconds)
        self._turns = Turns(self._turn_ended)
        self._holding = HeldJobs(backend, worker, self.job_tasks, self._tell_of_us)
        self._outcomes: list[Outcome] = []
        self._to_be_logged: dict[str, Run] = {}
        """Runs whose outcome is not settled yet, by job id."""
        self._one_by_one = OneByOne(backend, worker.id)
        self._knocked = False
        """Whether the alarm rang while a turn was under way."""
        self._in_doubt = False
        """Whether the store may hold jobs for us that we have not heard of: the answer to their claim was lost."""
        self._choked = False
        """Whether too much goes on in this process that was given up."""
        self._silent = False
        self.work = self.loop.create_task(self._run(), name=f"longshore worker {worker.id}")

    @property
    def over(self) -> bool:
        """Whether nothing will ever be done in it any more."""
        return self.work.done() or self.loop.is_closed()

    # -- its end

    def wake(self) -> None:
        """There may be something to do, or nothing any more."""
        self._work_signal.notify()

    async def abandon(self) -> None:
        """Ends at once and writes nothing any more."""
        self._silent = True
        self._holding.abandon()
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)

    def forget(self) -> None:
        """Its loop stands still, and nobody will ever answer there: what it holds is left to its leases."""
        self._holding.abandon()
        self._holding.leave()

    # -- its course

    async def _run(self) -> None:
        worker = self._worker
        queues = ", ".join(worker.queues or ["all queues"])
        _log.info("worker %s begins: %s, %d jobs at a time", worker.id, queues, worker.concurrency)
        self._holding.begin()
        self._work_signal.start()
        try:
            while not self.closing or self.job_tasks or self._outcomes or self._turns:
                await self._work_signal.wait()
                if self._work_signal.changed:
                    self._work_signal.changed = False
                    self._holding.look_for_cancellations()
                self._take_turns()
        except QueueClosed:
            _log.info("worker %s ends: its queue was closed", worker.id)
            self._drop_everything()
        except asyncio.CancelledError:  # by force, or because the loop ends
            self._drop_everything()
            if not self._silent:
                self._silent = True
                raise
        finally:
            self.closing = True
            self._holding.leave()
            await asyncio.gather(
                self._turns.ended(), self._work_signal.stop(), self._holding.stop(), self._executor.close()
            )
            if not self._silent:
                await self._say_goodbye()

    def _drop_everything(self) -> None:
        self._turns.cancel()
        self.job_tasks.drop_everything()

    def _take_turns(self) -> None:
        """Begins a turn; beside another one only if it is well filled, and the store is known to answer."""
        if self._turns.failure is not None:
            raise self._turns.failure
        self._knocked = bool(self._turns)
        if not self._turns and (self._outcomes or not self.closing):
            self._begin_turn()
        while self._another_pays():
            self._begin_turn()

    def _another_pays(self) -> bool:
        if len(self._turns) != 1 or self._in_doubt or self.trouble:
            return False
        claimable = self._free_slots() if self._work_signal.plenty else 0
        return a_second_turn_pays(self._worker.concurrency, ended=len(self._outcomes), claimable=claimable)

    def _turn_ended(self) -> None:
        """Rings if there was a reason to take a turn while none could begin, or there is one still."""
        more = self._outcomes or (self._work_signal.plenty and self._free_slots())
        if self._knocked or more or self.closing or self._turns.failure is not None:
            self._work_signal.notify()

    def _free_slots(self) -> int:
        """How many more jobs may be claimed now."""
        if self.closing or self._too_much_goes_on():
            return 0
        return free_slots(self._worker.concurrency, len(self.job_tasks) + len(self._outcomes) + self._turns.spoken_for)

    def _too_much_goes_on(self) -> bool:
        too_much = too_much_goes_on(self._worker.concurrency, self.job_tasks.left_behind)
        if too_much and not self._choked:
            what = f"{self.job_tasks.left_behind} runs go on although they were called off; claiming no more"
            self.trouble.note(what)
            _log.error("worker %s: %s until some have ended", self._worker.id, what)
        self._choked = too_much
        return too_much

    # -- a turn

    def _begin_turn(self) -> None:
        """Settles what has ended and claims as much as there are free slots for, in one transaction."""
        if self._in_doubt:
            self._turns.begin(self._take_up_what_was_claimed(), speaks_for=self._worker.concurrency)
            return
        most = most_in_a_turn(self._worker.concurrency)
        outcomes, self._outcomes = self._outcomes[:most], self._outcomes[most:]
        limit = min(self._free_slots(), most)
        self._turns.begin(self._turn(outcomes, limit), speaks_for=max(len(outcomes), limit))

    async def _turn(self, outcomes: list[Outcome], limit: int) -> None:
        if outcomes or limit:
            asked_at = monotonic()
            worker = self._worker
            try:
                report, jobs = await self._backend.settle_and_dequeue(
                    outcomes,
                    worker.id,
                    worker.tags,
                    limit,
                    queues=worker.queues,
                    lease=worker.lock_seconds,
                    types=self._executor.types,
                )
            except QueueClosed:
                raise
            except Exception as error:  # a store of one's own may raise anything: the worker outlives it
                # a store that answers has claimed nothing; and another worker of the same name may hold jobs, too
                unheard = limit > 0 and worker.alone_with_its_id and isinstance(error, BackendUnavailable)
                self._in_doubt = self._in_doubt or unheard
                await self._turn_failed(self._not_settled(outcomes, error), error)
                return
            self.trouble.store_answers()
            if outcomes:
                self._settled(outcomes, report)
            if limit:
                await self._looked(jobs, limit, asked_at)
        await self.trouble.tell()

    async def _looked(self, jobs: Sequence[Job], limit: int, asked_at: float) -> None:
        self._work_signal.found(len(jobs), plenty=len(jobs) == limit)
        if jobs:
            self._claimed(jobs, asked_at)
            return
        self._work_signal.look_ahead(self._worker.queues)
        if not self.job_tasks and len(self._turns) == 1:
            await self._has_nothing_to_do()

    def _not_settled(self, outcomes: list[Outcome], error: Exception) -> list[Outcome]:
        """Those that the turn has left, if it settled some before it failed."""
        if not isinstance(error, ClaimFailed):
            return outcomes
        told = error.report.settled.keys() | error.report.refused.keys()
        self._settled([outcome for outcome in outcomes if outcome.job_id in told], error.report)
        return [outcome for outcome in outcomes if outcome.job_id not in told]

    async def _turn_failed(self, outcomes: list[Outcome], error: Exception) -> None:
        left = outcomes
        if outcomes and not isinstance(error, BackendUnavailable):  # one of them may be what the store cannot write
            attempt = await self._one_by_one.settle(outcomes)
            left = attempt.left
            self._settled(attempt.settled, attempt.report)
            self._holding.let_go([outcome.job_id for outcome in attempt.hopeless])
            for outcome in attempt.hopeless:
                self._to_be_logged.pop(outcome.job_id, None)
        self._outcomes = left + self._outcomes
        if left or not outcomes:
            await self.trouble.wait_for_better_times(error)
        else:
            self.trouble.note(error)
        self._work_signal.notify()

    async def _take_up_what_was_claimed(self) -> None:
        """Runs what a claim has got us whose answer was lost."""
        lock_seconds = self._worker.lock_seconds
        try:
            unheard = await orphaned_claims(self._backend, self._holding, self._one_by_one.given_up, lock_seconds)
        except QueueClosed:
            raise
        except Exception as error:  # as in a turn
            await self.trouble.wait_for_better_times(error)
        else:
            for job, asked_at in unheard:
                self._claimed([job], asked_at)
            self._in_doubt = False
        self._work_signal.notify()

    # -- its jobs

    def _claimed(self, jobs: Sequence[Job], asked_at: float) -> None:
        self._status.is_busy()
        in_time = self._holding.take(jobs, asked_at)
        if not in_time or self.closing:  # they go back as if nothing had been
            reason = "the worker is closing" if in_time else "the answer to its claim came too late"
            self._outcomes += [Outcome(job.id, job.lease, "release", error=reason) for job in jobs]
            self._work_signal.notify()
            return
        for job in jobs:
            if not self.job_tasks.start(job):
                self._hand_back(job)

    def _hand_back(self, job: Job) -> None:
        """It was lost and is ours again, while its processor still goes on: nobody is to run it beside that.

        The lease keeper may not know of the loss yet: the new claim tells it.
        """
        self.job_tasks.call_off(self.job_tasks.runs_of([job.id]), "lost")
        reason = "an earlier run of this job has not ended yet in the worker that claimed it"
        later = max(self._worker.cancel_grace, 1.0)
        self._outcomes.append(Outcome(job.id, job.lease, "release", error=reason, retry_at=later))
        self._work_signal.notify()

    def _ended(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is None:
            self._holding.let_go([run.record.id])
        else:
            self._outcomes.append(outcome)
            if outcome.verb != "complete" or _log.isEnabledFor(logging.INFO):
                self._to_be_logged[outcome.job_id] = run
        self._work_signal.notify()

    def _settled(self, outcomes: Sequence[Outcome], report: SettleReport) -> None:
        self._status.is_busy()
        self._holding.let_go([outcome.job_id for outcome in outcomes])
        log_endings(outcomes, report, self._to_be_logged)
        later = [outcome.retry_at for outcome in outcomes if outcome.retry_at is not None]
        delays = [delay for delay in later if isinstance(delay, int | float)]
        if delays:
            self._work_signal.ring_in(min(delays) + _SLACK)

    # -- what it tells

    async def _has_nothing_to_do(self) -> None:
        """Its look found nothing, and it runs nothing."""
        if self._worker.until_empty:
            # what ended during this look may have enqueued more after it
            self.closing = self.closing or not self._outcomes
        else:
            await self._status.is_idle()

    async def _tell_of_us(self, state: str = "") -> None:
        if self._silent:  # dropped by force: not another word
            return
        await self._status.is_here(len(self.job_tasks), state or ("draining" if self.closing else "running"))

    async def _say_goodbye(self) -> None:
        with suppress(Exception):  # for people only
            await self._tell_of_us("stopped")
