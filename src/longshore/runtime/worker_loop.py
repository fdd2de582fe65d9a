"""The worker's loop: it claims jobs, starts them and settles their outcomes, in exchanges with the store."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from time import monotonic
from typing import Any

from longshore.backends.base import Backend, ClaimFailed, Outcome, SettleReport, WorkerInfo
from longshore.core.clock import machine_time
from longshore.core.errors import BackendUnavailable, QueueClosed
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.error_text import describe
from longshore.runtime.executors.base import Executor
from longshore.runtime.job_tasks import Attempt, JobTasks
from longshore.runtime.leases import LeaseKeeper
from longshore.runtime.process_registry import registry_of
from longshore.runtime.retry_strategy import Strategy
from longshore.runtime.work_signal import WorkSignal
from longshore.runtime.worker_status import log_outcomes, record_error
from longshore.safe_logging import logger

LARGEST_EXCHANGE = 500
"""Jobs that one transaction settles, and claims: more would delay other writers without gain."""
_WORTH_AN_EXCHANGE = 25
"""Jobs that must have ended, or be claimable, before a second exchange starts beside the first."""
_MOST_ABANDONED = 10
"""Abandoned attempts per slot after which a worker claims no more until some have ended."""
_SETTLE_TRIES = 3
"""How often an outcome that the store refuses to write is tried alone before it is given up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries to use a store that fails."""
_DRAINED_AFTER = 1.0
"""Seconds without a job after which a worker that has had some writes worker.drained."""
_SLACK = 0.002
"""Seconds by which the store's clock may be behind ours when a retry is due."""

_log = logger("longshore.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The checked options of a worker."""

    id: str
    unique_id: bool
    """Whether no other worker can have this id, because it was generated for this one."""
    concurrency: int
    queue: str
    """The name of the one queue that its Queue sees, or nothing."""
    queues: Sequence[str] | None
    """Where it claims from; None is everywhere."""
    tags: Sequence[str]
    lock_seconds: float
    renew_seconds: float | None
    """Between two renewals; None means no renewals."""
    cancel_grace: float
    poll_seconds: float
    strategies: Mapping[str, Strategy]
    sweep: bool
    until_empty: bool


class WorkerLoop:
    """Runs as a task of the loop it is made in, until it is `closing` and everything it holds is settled.

    An exchange is one transaction that settles what has ended and claims as many jobs as slots are free. It has at most
    half of `concurrency`, so that the other half runs while the store writes; a second exchange may overlap the first.
    """

    def __init__(self, backend: Backend, executor: Executor, options: WorkerOptions, owner: object) -> None:
        """The loop keeps its `owner` alive, which has the queue that closes it."""
        self.assignee_id = options.id
        self._owner = owner
        self.loop = asyncio.get_running_loop()
        self.closing = False
        """Whether it claims no more; any thread may set it, and calls `wake` afterwards."""
        self.job_tasks = JobTasks(executor, backend, options.strategies, options.cancel_grace, self._attempt_ended)
        self._backend = backend
        self._executor = executor
        self._options = options
        self._started_at = machine_time()  # to ask the store would delay the first heartbeat
        self._work_signal = WorkSignal(backend, options.poll_seconds)
        self._registry = registry_of(backend)
        self._leases = LeaseKeeper(
            backend, options.lock_seconds, options.renew_seconds, self, heartbeat=self._write_heartbeat
        )
        self._exchanges: dict[asyncio.Task[None], int] = {}
        """Those under way, each with the slots that it may fill or has not freed yet."""
        self._largest_exchange = min((options.concurrency + 1) // 2, LARGEST_EXCHANGE)
        self._failure: BaseException | None = None
        """What an exchange has raised that ends the loop."""
        self._signalled = False
        """Whether the loop was notified while an exchange was under way."""
        self._outcomes: list[Outcome] = []
        """To be settled."""
        self._to_log: dict[str, Attempt] = {}
        """Attempts to log when their outcome is settled, by job id."""
        self._settle_failures: Counter[str] = Counter()
        self._given_up: set[str] = set()
        """Jobs whose outcomes cannot be written."""
        self._claims_in_doubt = False
        """Whether the store may hold claims for us whose answer was lost."""
        self._claiming_stopped = False
        """Whether too many abandoned attempts still run in this process."""
        self.store_error = ""
        """The error to write as worker.error when the store answers."""
        self._pause = _FIRST_PAUSE
        self._last_job_at = float("inf")
        self._silent = False
        """Whether it was abandoned and writes nothing any more."""
        self.work = self.loop.create_task(self._run(), name=f"longshore worker {options.id}")

    @property
    def over(self) -> bool:
        """Whether it has ended, or its loop has."""
        return self.work.done() or self.loop.is_closed()

    def wake(self) -> None:
        """Has it look whether there is something to do, or nothing any more."""
        self._work_signal.notify()

    async def abandon(self) -> None:
        """Ends at once and writes nothing any more."""
        self._silent = True
        self._leases.abandon()
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)

    def forget(self) -> None:
        """For a loop that does not run any more: what the worker holds comes back when its leases end."""
        self._leases.abandon()
        self._registry.remove(self)

    async def _run(self) -> None:
        options = self._options
        queues = ", ".join(options.queues or ["all queues"])
        _log.info("worker %s begins: %s, %d jobs at a time", options.id, queues, options.concurrency)
        if options.sweep:
            self._registry.start_sweep(self, self._backend)
        self._leases.start()
        self._work_signal.start()
        try:
            while not self.closing or self.job_tasks.attempts or self._outcomes or self._exchanges:
                await self._work_signal.wait()
                if self._work_signal.changed:
                    self._work_signal.changed = False
                    self._leases.look_now()
                self._start_exchanges()
        except QueueClosed:
            _log.info("worker %s ends: its queue was closed", options.id)
            self._drop_all()
        except asyncio.CancelledError:  # by `abandon`, or because the loop ends
            self._drop_all()
            if not self._silent:
                self._silent = True
                raise
        finally:
            self.closing = True
            self._registry.remove(self)
            ends: list[Awaitable[Any]] = [self._work_signal.stop(), self._leases.stop(), self._executor.close()]
            if self._exchanges:
                ends.append(asyncio.wait(list(self._exchanges)))
            await asyncio.gather(*ends)
            with suppress(Exception):  # for people only
                await self._write_heartbeat("stopped")

    def _drop_all(self) -> None:
        for exchange in self._exchanges:
            exchange.cancel()
        self.job_tasks.drop_all()

    # -- exchanges

    def _start_exchanges(self) -> None:
        """Starts an exchange if none is under way, and a second one if it has enough jobs and the store answers."""
        if self._failure is not None:
            raise self._failure
        self._signalled = bool(self._exchanges)
        if not self._exchanges and (self._outcomes or not self.closing):
            self._start_exchange()
        if len(self._exchanges) == 1 and not self._claims_in_doubt and not self.store_error:
            claimable = self._free_slots() if self._work_signal.plenty else 0
            if max(len(self._outcomes), claimable) >= max(_WORTH_AN_EXCHANGE, self._options.concurrency // 4):
                self._start_exchange()

    def _start_exchange(self) -> None:
        work: Coroutine[Any, Any, None]
        if self._claims_in_doubt:
            work, slots = self._find_lost_claims(), self._options.concurrency
        else:
            most = self._largest_exchange
            outcomes, self._outcomes = self._outcomes[:most], self._outcomes[most:]
            limit = min(self._free_slots(), most)
            if outcomes or limit:
                work, slots = self._exchange(outcomes, limit), max(len(outcomes), limit)
            elif self.store_error:
                work, slots = self._report_error(), 0
            else:
                return
        task = asyncio.create_task(work)
        self._exchanges[task] = slots
        task.add_done_callback(self._exchange_ended)

    def _exchange_ended(self, task: asyncio.Task[None]) -> None:
        """Notifies the loop if there was a reason for an exchange while none could start, or there still is one."""
        del self._exchanges[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        more = self._outcomes or (self._work_signal.plenty and self._free_slots())
        if self._signalled or more or self.closing or self._failure is not None:
            self._work_signal.notify()

    def _free_slots(self) -> int:
        """How many more jobs may be claimed now."""
        if self.closing:
            return 0
        concurrency = self._options.concurrency
        abandoned = len(self.job_tasks.abandoned) + self._executor.left_behind
        if abandoned >= _MOST_ABANDONED * concurrency:
            if not self._claiming_stopped:
                self._claiming_stopped = True
                self.store_error = f"{abandoned} abandoned jobs still run; claiming no more"
                _log.error("worker %s: %s until some have ended", self._options.id, self.store_error)
            return 0
        self._claiming_stopped = False
        held = len(self.job_tasks.attempts) + len(self._outcomes) + sum(self._exchanges.values())
        return max(concurrency - held, 0)

    async def _exchange(self, outcomes: list[Outcome], limit: int) -> None:
        """Settles these outcomes and claims up to `limit` jobs, in one transaction."""
        options = self._options
        asked_at = monotonic()
        try:
            report, jobs = await self._backend.settle_and_dequeue(
                outcomes,
                options.id,
                options.tags,
                limit,
                queues=options.queues,
                lease=options.lock_seconds,
                types=self._executor.types,
            )
        except QueueClosed:
            raise
        except Exception as error:  # a user's own store may raise anything: the worker outlives it
            # a store that answers has claimed nothing; another worker with the same id may hold jobs, too
            if limit and options.unique_id and isinstance(error, BackendUnavailable):
                self._claims_in_doubt = True
            await self._exchange_failed(outcomes, error)
            return
        self._pause = _FIRST_PAUSE
        if outcomes:
            self._settled(outcomes, report)
        if limit:
            self._work_signal.found(len(jobs), plenty=len(jobs) == limit)
        if jobs:
            self._start_jobs(jobs, asked_at)
        elif limit:
            if not self.job_tasks.attempts and len(self._exchanges) == 1:
                await self._idle()
            if not options.until_empty:  # which leaves alone what is not due yet
                self._work_signal.notify_when_due(options.queues)
        if self.store_error:
            await self._report_error()

    async def _exchange_failed(self, outcomes: list[Outcome], error: Exception) -> None:
        if isinstance(error, ClaimFailed):  # some were settled before the claim failed
            report = error.report
            known = report.settled.keys() | report.refused.keys()
            self._settled([outcome for outcome in outcomes if outcome.job_id in known], report)
            outcomes = [outcome for outcome in outcomes if outcome.job_id not in known]
        left = outcomes
        if outcomes and not isinstance(error, BackendUnavailable):  # one of them may be what the store cannot write
            left = await self._settle_one_by_one(outcomes)
        self._outcomes = left + self._outcomes
        if left or not outcomes:
            await self._back_off(error)
        else:
            self.store_error = _first_line(error)
        self._work_signal.notify()

    async def _settle_one_by_one(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Settles each outcome alone; returns those to try again. One that fails too often is given up."""
        left: list[Outcome] = []
        for number, outcome in enumerate(outcomes):
            job_id = outcome.job_id
            try:
                report, _ = await self._backend.settle_and_dequeue([outcome], self._options.id, limit=0)
            except QueueClosed:
                raise
            except BackendUnavailable:  # no outcome is the cause
                return left + outcomes[number:]
            except Exception as error:  # a constraint, a trigger, a row too large, a user's own store
                self._settle_failures[job_id] += 1
                if self._settle_failures[job_id] < _SETTLE_TRIES:
                    left.append(outcome)
                    continue
                self._given_up.add(job_id)
                self._release([job_id])
                self._to_log.pop(job_id, None)
                _log.error(
                    "the outcome %r of job %s cannot be written and is given up; the job comes back when its lease "
                    "ends: %s",
                    outcome.verb,
                    job_id,
                    _first_line(error),
                )
            else:
                self._settled([outcome], report)
            del self._settle_failures[job_id]
        return left

    async def _find_lost_claims(self) -> None:
        """Runs the jobs of a claim whose answer was lost, if their leases still hold."""
        ours = JobFilter(assignee_id=self.assignee_id, statuses=[JobStatus.RUNNING])
        asked_at = monotonic()
        try:
            stored = (await self._backend.list_jobs(ours, limit=LARGEST_EXCHANGE)).items
            now = await self._backend.now()
        except QueueClosed:
            raise
        except Exception as error:  # as in an exchange
            await self._back_off(error)
        else:
            unknown = set(self._registry.not_held(self, [job.id for job in stored])) - self._given_up
            for job in stored:
                ends = None if job.lease is None else job.lease.expires_at
                if job.id in unknown and ends is not None and ends > now:
                    left = (ends - now).total_seconds()
                    self._start_jobs([job], asked_at + left - self._options.lock_seconds)
            self._claims_in_doubt = False
        self._work_signal.notify()

    async def _back_off(self, error: Exception) -> None:
        """Leaves the store alone for a while, longer each time until it answers."""
        self.store_error = _first_line(error)
        _log.error(
            "worker %s cannot use its store, trying again in %.1f s: %s",
            self._options.id,
            self._pause,
            self.store_error,
        )
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        await self._report_error()

    async def _report_error(self) -> None:
        """Writes worker.error; an error that cannot be written now is written later."""
        options = self._options
        if self.store_error and await record_error(self._backend, options.id, self.store_error, queue=options.queue):
            self.store_error = ""

    # -- jobs

    def _start_jobs(self, jobs: Sequence[Job], asked_at: float) -> None:
        """Starts jobs that were claimed by a call that began at `asked_at`."""
        self._last_job_at = monotonic()
        self._registry.hold(self, jobs)
        in_time = self._last_job_at - asked_at < self._options.lock_seconds
        if in_time:
            self._leases.keep(jobs, asked_at)
        if not in_time or self.closing:
            reason = "the worker is closing" if in_time else "the answer to its claim came too late"
            self._outcomes += [Outcome(job.id, job.lease, "release", error=reason) for job in jobs]
            self._work_signal.notify()
            return
        for job in jobs:
            if not self.job_tasks.start(job):
                self._release_overlapping(job)

    def _release_overlapping(self, job: Job) -> None:
        """Re-claimed while its earlier attempt still runs here: releases it so that attempts never overlap.

        The lease keeper may not know of the lost lease yet, so the earlier attempt is stopped here.
        """
        self.job_tasks.stop(self.job_tasks.attempts_of([job.id]), "lost")
        reason = "an earlier run of this job has not ended yet in the worker that claimed it"
        later = max(self._options.cancel_grace, 1.0)
        self._outcomes.append(Outcome(job.id, job.lease, "release", error=reason, retry_at=later))
        self._work_signal.notify()

    def _attempt_ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if outcome is None:
            self._release([attempt.record.id])
        else:
            self._outcomes.append(outcome)
            if outcome.verb != "complete" or _log.isEnabledFor(logging.INFO):
                self._to_log[outcome.job_id] = attempt
        self._work_signal.notify()

    def _settled(self, outcomes: Sequence[Outcome], report: SettleReport) -> None:
        self._last_job_at = monotonic()
        self._release([outcome.job_id for outcome in outcomes])
        if self._to_log or report.refused:
            log_outcomes(outcomes, report, self._to_log)
        delays = [outcome.retry_at for outcome in outcomes if isinstance(outcome.retry_at, int | float)]
        if delays:
            self._work_signal.notify_in(min(delays) + _SLACK)

    def _release(self, job_ids: list[str]) -> None:
        """Holds these jobs no longer: they are settled or lost."""
        self._leases.drop(job_ids)
        self._registry.release(self, job_ids)

    # -- for the registry and the lease keeper, from any thread

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Another caller ended these jobs: their attempts end without an outcome."""
        self.job_tasks.stop_threadsafe(self.job_tasks.attempts_of(job_ids), "lost")

    jobs_disowned = jobs_freed

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Stops the attempts at these jobs."""
        self.job_tasks.stop_threadsafe(self.job_tasks.attempts_of(job_ids), "cancelled")

    def leases_lost(self, job_ids: list[str]) -> None:
        """Drops the attempts at these jobs; ignores those that have ended meanwhile."""
        attempts = self.job_tasks.attempts_of(job_ids)
        if attempts:
            _log.warning("leases lost, their jobs are dropped: %s", ", ".join(each.record.id for each in attempts[:10]))
            self.job_tasks.stop_threadsafe(attempts, "lost")

    # -- status

    async def _idle(self) -> None:
        """Its claim found nothing, and it runs nothing."""
        if self._options.until_empty:
            # what ended during this claim may have enqueued more after it
            self.closing = self.closing or not self._outcomes
        elif monotonic() - self._last_job_at > _DRAINED_AFTER:
            self._last_job_at = float("inf")
            with suppress(Exception):  # for people only
                await self._backend.record_worker_event("worker.drained", self._options.id, queue=self._options.queue)

    async def _write_heartbeat(self, state: str = "") -> None:
        """Writes what `list_workers` shows; nothing once the worker was abandoned."""
        if self._silent:
            return
        options, types = self._options, self._executor.types
        await self._backend.heartbeat_worker(
            WorkerInfo(
                id=options.id,
                queues=tuple(options.queues or ()),
                tags=tuple(options.tags),
                types=None if types is None else tuple(types),
                concurrency=options.concurrency,
                running=len(self.job_tasks.attempts),
                host=socket.gethostname(),
                pid=os.getpid(),
                version=version("longshore"),
                state=state or ("draining" if self.closing else "running"),
                started_at=self._started_at,
            )
        )


def _first_line(error: Exception) -> str:
    return describe(error).partition("\n")[0]
