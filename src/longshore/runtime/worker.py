"""The worker: claims as much as it may run, hands each job to its executor, and settles what has ended in batches."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Self

from longshore.backends.contract import Outcome, SettleReport
from longshore.core.errors import BackendUnavailable, InvalidArgument, QueueClosed
from longshore.core.filtering import JobFilter
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.moments import SECOND, Duration, check_duration
from longshore.core.names import check_name, check_names, new_id
from longshore.core.numbers import check_number
from longshore.runtime.alarm import Alarm
from longshore.runtime.crew import Crew
from longshore.runtime.dock import dock_of
from longshore.runtime.executors.contract import CANCEL_GRACE
from longshore.runtime.failures import describe
from longshore.runtime.heartbeat import LeaseKeeper
from longshore.runtime.job_queue import Queue
from longshore.runtime.retries import Strategy
from longshore.runtime.runs import CalledOff, Run
from longshore.runtime.settling import OneByOne
from longshore.runtime.turns import Turns
from longshore.runtime.voice import Voice, log_endings
from longshore.runtime.worker_options import RENEW_TIME, Processor, checked, executor_for, queues_of, renewal

_LARGEST_TURN = 500
"""Jobs one transaction settles, and claims: more would hold up other writers and gain nothing."""
_WORTH_A_TURN = 25
"""Jobs that must have ended, at least, before a second turn begins beside one that is under way."""
_LEFT_BEHIND = 10
"""Runs left behind, for each that may run at once, after which a worker begins no more until some have ended."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SLACK = 0.002
"""Seconds by which the store's clock may be behind ours when a retry's time has come."""
_DRAINED_AFTER = 1.0
"""Seconds without a job after which a worker that has had some says that it is drained."""
_LAST_WORDS = 10.0
"""Seconds a closing worker tries to reach its store after its grace is over."""
_NEVER = float("inf")

_log = logging.getLogger("longshore.worker")


class Worker:
    """Runs the jobs of a queue, at most `concurrency` at a time.

    `process` is an `async def` (run on this event loop), a `def` (run in threads) or an Executor. With `autorun` it
    begins at once where an event loop runs; `run()` begins it otherwise, and returns when it was closed.
    """

    def __init__(
        self,
        queue: Queue,
        process: Processor,
        *,
        concurrency: int = 1,
        lock_duration: Duration = 30,
        lock_renew_time: Duration = RENEW_TIME,
        autorun: bool = True,
        tags: Sequence[str] = (),
        strategies: Mapping[str, Strategy] | None = None,
        sweep: bool = True,
        queues: Sequence[str] | None = None,
        id: str | None = None,
        cancel_grace: Duration = CANCEL_GRACE,
        poll_interval: Duration = 0.5,
    ) -> None:
        if not isinstance(queue, Queue):
            raise InvalidArgument("queue", f"must be a Queue, not {type(queue).__name__}")
        if queue.closed:
            raise QueueClosed("this queue was closed; make a new one: Queue(connect(url))")
        self.id = check_name("id", id if id is not None else f"{socket.gethostname()[:100]}-{os.getpid()}-{new_id()}")
        self.assignee_id = self.id
        self.concurrency = check_number("concurrency", concurrency, least=1)
        self._lock_seconds = check_duration("lock_duration", lock_duration) / SECOND
        self._renew_seconds = renewal(self._lock_seconds, lock_renew_time)
        self._grace = check_duration("cancel_grace", cancel_grace, positive=False) / SECOND
        self._poll = check_duration("poll_interval", poll_interval) / SECOND
        self._tags = check_names("tags", tags)
        self._queues = queues_of(queue, queues)
        self._strategies = checked(strategies or {})
        self._sweep = sweep
        self._executor = executor_for(process, self._grace)
        self._queue = queue
        self._backend = queue.backend
        self._dock = dock_of(queue.backend)
        queue.employ(self)
        self._outcomes: list[Outcome] = []
        self._voice = Voice(queue.backend, self.id, queue.name or "", self._queues or (), self._tags, self.concurrency)
        self._one_by_one = OneByOne(queue.backend, self.id)
        self._knocked = False
        """Whether the alarm rang while a turn was under way."""
        self._in_doubt = False
        """Whether the store may hold jobs for us that we have not heard of: the answer to their claim was lost."""
        self._given_up: set[str] = set()
        self._alone_with_its_id = id is None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closing = False
        self._silent = False
        self._choked = False
        self._idle_since = _NEVER
        self._pause = _FIRST_PAUSE
        self._trouble = ""
        if autorun:
            with suppress(RuntimeError):  # no loop runs here: run() will begin it
                self._begin(asyncio.get_running_loop())

    @property
    def running(self) -> int:
        """How many jobs it runs now."""
        return 0 if self._work is None else len(self._crew)

    async def run(self) -> None:
        """Works until it is closed; a second call waits for the same end, and one after the end returns at once.

        Cancelled, it closes the worker: running jobs are called off and handed back.
        """
        if self._work is None and not self._closing:
            self._begin(asyncio.get_running_loop())
        if self._work is not None:
            try:
                await asyncio.shield(self._work)
            except asyncio.CancelledError:  # whoever no longer waits for it wants no worker that nobody waits for
                await self.close(grace=0)
                raise

    async def __aenter__(self) -> Self:
        if self._work is None and not self._closing:
            self._begin(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, force: bool = False, *, grace: Duration | None = None) -> None:
        """Claims no more, lets running jobs end and records their outcomes; safe to call twice.

        Called by a job that it runs itself, it returns at once: the worker ends after that job.

        After `grace` seconds (None: however long it takes) running jobs are called off and handed back uncharged. With
        `force` they are dropped at once, and nothing is written any more: their leases run out.
        """
        patience = None if grace is None else check_duration("grace", grace, positive=False) / SECOND
        self._closing = True
        if self._work is None or self._loop is None or self._work.done() or self._loop.is_closed():
            return
        if not self._loop.is_running():  # nobody will ever answer there
            self._keeper.abandon()
            self._dock.left(self)
            return
        if asyncio.get_running_loop() is not self._loop:
            there = asyncio.run_coroutine_threadsafe(self.close(force, grace=grace), self._loop)
            await asyncio.wrap_future(there)
            return
        if self._crew.runs_the_caller():  # which ends before we do: it must not wait for us
            self._ending = self._loop.create_task(self._end(force, patience), context=Context())
            return
        await self._end(force, patience)

    async def _end(self, force: bool, patience: float | None) -> None:
        assert self._work is not None
        if force:
            await self._abandon()
            return
        self._alarm.ring()
        if patience is not None:
            await asyncio.wait([self._work], timeout=patience)
            self._crew.call_off(self._crew.runs_where(lambda _: True), "stopping")
            await asyncio.wait([self._work], timeout=self._grace + _LAST_WORDS)
            if not self._work.done():  # it cannot even say that it gives them back: their leases run out
                await self._abandon()
        await asyncio.wait([self._work])

    # -- for the dock and the lease keeper, from any thread

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Somebody else ended them: their runs end without an outcome."""
        self._call_off(self._crew.runs_of(job_ids), "lost")

    def jobs_disowned(self, job_ids: list[str]) -> None:
        """As above."""
        self.jobs_freed(job_ids)

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Their runs are called off."""
        self._call_off(self._crew.runs_of(job_ids), "cancelled")

    def _leases_lost(self, job_ids: list[str]) -> None:
        runs = self._crew.runs_of(job_ids)  # what has ended by itself meanwhile is no loss
        if runs:
            _log.warning("leases lost, their jobs are dropped: %s", ", ".join(run.record.id for run in runs[:10]))
            self._call_off(runs, "lost")

    def _call_off(self, runs: Sequence[Run], why: CalledOff) -> None:
        """These very runs, found at once: by the time the loop hears of it their jobs may have been claimed anew."""
        assert self._loop is not None  # nobody holds a job before it has begun
        if runs:
            with suppress(RuntimeError):  # its loop has closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._crew.call_off, runs, why)

    # -- the work

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._crew = Crew(self._executor, self._backend, self._strategies, self._grace, self._ended)
        self._alarm = Alarm(self._backend, self._poll)
        self._turns = Turns(self._turn_ended)
        self._keeper = LeaseKeeper(
            self._backend,
            self._lock_seconds,
            self._renew_seconds,
            lost=self._leases_lost,
            cancelled=self.jobs_cancelled,
            beat=self._tell_of_us,
        )
        self._work = loop.create_task(self._run(), name=f"longshore worker {self.id}")

    async def _run(self) -> None:
        _log.info(
            "worker %s begins: %s, %d jobs at a time",
            self.id,
            ", ".join(self._queues or ["all queues"]),
            self.concurrency,
        )
        self._dock.joined(self, self._backend, sweep=self._sweep)
        self._alarm.start()
        self._keeper.start()
        try:
            while not self._closing or self._crew or self._outcomes or self._turns:
                await self._alarm.wait()
                if self._alarm.changed:
                    self._alarm.changed = False
                    self._keeper.look_now()
                self._take_turns()
        except QueueClosed:
            _log.info("worker %s ends: its queue was closed", self.id)
            self._drop_everything()
        except asyncio.CancelledError:  # by force, or because the loop ends
            self._drop_everything()
            if not self._silent:
                self._silent = True
                raise
        finally:
            self._closing = True
            self._dock.left(self)
            await asyncio.gather(self._turns.ended(), self._alarm.stop(), self._keeper.stop(), self._executor.close())
            if not self._silent:
                await self._say_goodbye()

    def _drop_everything(self) -> None:
        self._turns.cancel()
        self._crew.drop_everything()

    def _take_turns(self) -> None:
        """Begins a turn; beside another one only if it is well filled, and the store is known to answer."""
        if self._turns.failure is not None:
            raise self._turns.failure
        self._knocked = bool(self._turns)
        if not self._turns and (self._outcomes or not self._closing):
            self._begin_turn()
        while self._another_pays():
            self._begin_turn()

    def _another_pays(self) -> bool:
        if len(self._turns) != 1 or self._in_doubt or self._trouble:
            return False
        waiting = self._room() if self._alarm.plenty else 0
        return max(len(self._outcomes), waiting) >= max(_WORTH_A_TURN, self.concurrency // 4)

    def _turn_ended(self) -> None:
        """Rings if there was a reason to take a turn while none could begin, or there is one still."""
        more = self._outcomes or (self._alarm.plenty and self._room())
        if self._knocked or more or self._closing or self._turns.failure is not None:
            self._alarm.ring()

    def _room(self) -> int:
        """How many more jobs may be claimed now."""
        if self._closing or self._too_much_goes_on():
            return 0
        held = len(self._crew) + len(self._outcomes) + self._turns.spoken_for
        return max(self.concurrency - held, 0)

    def _begin_turn(self) -> None:
        """Settles what has ended and claims as much as there is room for, in one transaction."""
        if self._in_doubt:
            self._turns.begin(self._take_up_what_was_claimed(), speaks_for=self.concurrency)
            return
        most = min((self.concurrency + 1) // 2, _LARGEST_TURN)  # half of it at a time: the rest runs meanwhile
        outcomes, self._outcomes = self._outcomes[:most], self._outcomes[most:]
        limit = min(self._room(), most)
        self._turns.begin(self._turn(outcomes, limit), speaks_for=max(len(outcomes), limit))

    async def _turn(self, outcomes: list[Outcome], limit: int) -> None:
        if not outcomes and not limit:
            if self._trouble:
                await self._tell_trouble()
            return
        asked_at = monotonic()
        try:
            report, jobs = await self._backend.settle_and_dequeue(
                outcomes, self.id, self._tags, limit, queues=self._queues, lease=self._lock_seconds
            )
        except QueueClosed:
            raise
        except Exception as error:  # a store of one's own may raise anything: the worker outlives it
            # a store that answers has claimed nothing; and another worker of the same name may hold jobs, too
            self._in_doubt = self._in_doubt or (
                limit > 0 and self._alone_with_its_id and isinstance(error, BackendUnavailable)
            )
            await self._turn_failed(outcomes, error)
            return
        self._pause = _FIRST_PAUSE
        if outcomes:
            self._settled(outcomes, report)
        if limit:
            self._alarm.found(len(jobs), plenty=len(jobs) == limit)
            if not jobs:
                self._alarm.look_ahead(self._queues)
        if jobs:
            self._claimed(jobs, asked_at)
        elif limit and not self._crew and len(self._turns) == 1:
            await self._tell_drained()
        if self._trouble:
            await self._tell_trouble()

    def _too_much_goes_on(self) -> bool:
        """Whether so many runs were given up without having ended that this process should begin no more."""
        too_much = self._crew.left_behind >= _LEFT_BEHIND * self.concurrency
        if too_much and not self._choked:
            self._trouble = f"{self._crew.left_behind} runs go on although they were called off; claiming no more"
            _log.error("worker %s: %s until some have ended", self.id, self._trouble)
        self._choked = too_much
        return too_much

    async def _take_up_what_was_claimed(self) -> None:
        """Runs what a claim has got us whose answer was lost."""
        ours = JobFilter(assignee_id=self.id, statuses=[JobStatus.RUNNING])
        asked_at = monotonic()
        try:
            held = (await self._backend.list_jobs(ours, limit=_LARGEST_TURN)).items
            now = await self._backend.now()
        except QueueClosed:
            raise
        except Exception as error:  # as in a turn
            await self._wait_for_better_times(error)
            self._alarm.ring()
            return
        unheard = {*self._dock.not_held(self, [job.id for job in held])} - self._given_up
        for job in held:
            ends_at = None if job.lease is None else job.lease.expires_at
            if job.id in unheard and ends_at is not None and ends_at > now:  # others we have lost ourselves
                self._claimed([job], asked_at + (ends_at - now).total_seconds() - self._lock_seconds)
        self._in_doubt = False
        self._alarm.ring()

    async def _turn_failed(self, outcomes: list[Outcome], error: Exception) -> None:
        left = outcomes
        if outcomes and not isinstance(error, BackendUnavailable):  # one of them may be what the store cannot write
            attempt = await self._one_by_one.settle(outcomes)
            left = attempt.left
            self._settled(attempt.settled, attempt.report)
            self._let_go([outcome.job_id for outcome in attempt.hopeless])
            self._given_up.update(outcome.job_id for outcome in attempt.hopeless)
        self._outcomes = left + self._outcomes
        if left or not outcomes:
            await self._wait_for_better_times(error)
        else:
            self._trouble = describe(error).partition("\n")[0]
        self._alarm.ring()

    def _claimed(self, jobs: Sequence[Job], asked_at: float) -> None:
        self._idle_since = monotonic()
        self._dock.holds(self, jobs)
        late = monotonic() - asked_at >= self._lock_seconds
        if not late:
            self._keeper.keep(jobs, asked_at)
        if late or self._closing:  # they go back as if nothing had been
            reason = "the answer to its claim came too late" if late else "the worker is closing"
            self._outcomes += [Outcome(job.id, job.lease, "release", error=reason) for job in jobs]
            self._alarm.ring()
            return
        for job in jobs:
            if not self._crew.start(job):
                self._hand_back(job)

    def _hand_back(self, job: Job) -> None:
        """It was lost and is ours again, while its processor still goes on: nobody is to run it beside that."""
        reason = "an earlier run of this job has not ended yet in the worker that claimed it"
        self._outcomes.append(Outcome(job.id, job.lease, "release", error=reason, retry_at=max(self._grace, 1.0)))
        self._alarm.ring()

    def _ended(self, job_id: str, outcome: Outcome | None) -> None:
        if outcome is None:
            self._let_go([job_id])
        else:
            self._outcomes.append(outcome)
        self._alarm.ring()

    def _let_go(self, job_ids: Sequence[str]) -> None:
        self._keeper.drop(job_ids)
        self._dock.let_go(self, job_ids)

    async def _abandon(self) -> None:
        """Ends at once and writes nothing any more."""
        assert self._work is not None
        self._silent = True
        self._keeper.abandon()
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    # -- what it tells

    def _settled(self, outcomes: Sequence[Outcome], report: SettleReport) -> None:
        self._idle_since = monotonic()
        self._let_go([outcome.job_id for outcome in outcomes])
        log_endings(outcomes, report)
        delays = [outcome.retry_at for outcome in outcomes if isinstance(outcome.retry_at, int | float)]
        if delays:
            self._alarm.ring_in(min(delays) + _SLACK)

    async def _wait_for_better_times(self, error: Exception) -> None:
        self._trouble = describe(error).partition("\n")[0]
        _log.error("worker %s cannot use its store, trying again in %.1f s: %s", self.id, self._pause, self._trouble)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        await self._tell_trouble()

    async def _tell_trouble(self) -> None:
        if await self._voice.has_trouble(self._trouble):
            self._trouble = ""

    async def _tell_drained(self) -> None:
        if monotonic() - self._idle_since > _DRAINED_AFTER:
            self._idle_since = _NEVER
            await self._voice.is_drained()

    async def _tell_of_us(self, state: str = "") -> None:
        await self._voice.is_here(len(self._crew), state or ("draining" if self._closing else "running"))

    async def _say_goodbye(self) -> None:
        with suppress(Exception):  # for people only
            await self._tell_of_us("stopped")
