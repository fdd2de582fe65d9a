"""The worker's loop: claims jobs, starts them and settles their outcomes in exchanges with the store."""

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
"""The most jobs that one transaction settles or claims: larger ones delay other writers."""
_WORTH_AN_EXCHANGE = 25
"""Jobs that must have ended, or be claimable, before a second exchange overlaps the first."""
_MOST_ABANDONED = 10
"""Abandoned attempts per slot at which a worker stops claiming until some have ended."""
_SETTLE_TRIES = 3
"""How often the worker tries to write one outcome alone before it drops it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts to use a store that fails."""
_DRAINED_AFTER = 1.0
"""Seconds without a job after which a worker writes worker.drained."""
_SLACK = 0.002
"""Seconds by which the store's clock may lag behind ours when a retry is due."""

_log = logger("longshore.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The checked options of a worker."""

    id: str
    unique_id: bool
    """Whether the id was generated, so that no other worker has it."""
    concurrency: int
    queue: str
    """The name of its Queue; empty for all queues."""
    queues: Sequence[str] | None
    """The queues it claims from; None means all."""
    tags: Sequence[str]
    lock_seconds: float
    renew_seconds: float | None
    """Seconds between renewals; None means no renewals."""
    cancel_grace: float
    poll_seconds: float
    strategies: Mapping[str, Strategy]
    sweep: bool
    until_empty: bool


class WorkerLoop:
    """The task that runs a worker until it is `closing` and all its jobs are settled.

    An exchange is one transaction: it settles ended jobs and claims as many jobs as there are free slots. It handles at
    most half of `concurrency`, so that the other half runs during the write. A second exchange may overlap the first.
    """

    def __init__(self, backend: Backend, executor: Executor, options: WorkerOptions, owner: object) -> None:
        """Start the loop. It keeps `owner` alive, whose queue closes it."""
        self.assignee_id = options.id
        self._owner = owner
        self.loop = asyncio.get_running_loop()
        self.closing = False
        """Whether it stops claiming. Any thread may set it and then call `wake`."""
        self.job_tasks = JobTasks(executor, backend, options.strategies, options.cancel_grace, self._attempt_ended)
        self._backend = backend
        self._executor = executor
        self._options = options
        self._started_at = machine_time()  # asking the store would delay the first heartbeat
        self._work_signal = WorkSignal(backend, options.poll_seconds)
        self._registry = registry_of(backend)
        self._leases = LeaseKeeper(
            backend, options.lock_seconds, options.renew_seconds, self, heartbeat=self._write_heartbeat
        )
        self._exchanges: dict[asyncio.Task[None], int] = {}
        """Running exchanges, each with the slots that it may fill or has not freed yet."""
        self._largest_exchange = min((options.concurrency + 1) // 2, LARGEST_EXCHANGE)
        self._failure: BaseException | None = None
        """The exception of an exchange that ends the loop."""
        self._signalled = False
        """Whether the loop was notified during an exchange."""
        self._outcomes: list[Outcome] = []
        """Outcomes to settle."""
        self._to_log: dict[str, Attempt] = {}
        """Attempts to log after their outcome is settled, by job id."""
        self._settle_failures: Counter[str] = Counter()
        self._unwritable: set[str] = set()
        """Jobs whose outcomes the store cannot write."""
        self._claims_uncertain = False
        """Whether the store may hold claims of this worker whose answer was lost."""
        self._claiming_stopped = False
        """Whether too many abandoned attempts still run in this process."""
        self.store_error = ""
        """The error to write as worker.error once the store answers."""
        self._pause = _FIRST_PAUSE
        self._last_job_at = float("inf")
        self._abandoned = False
        """Whether it was abandoned and writes nothing."""
        self.work = self.loop.create_task(self._run(), name=f"longshore worker {options.id}")

    @property
    def ended(self) -> bool:
        """Whether the worker or its event loop has ended."""
        return self.work.done() or self.loop.is_closed()

    def wake(self) -> None:
        """Make the loop check whether it has work, or can end."""
        self._work_signal.notify()

    async def abandon(self) -> None:
        """End at once without writing anything."""
        self._abandoned = True
        self._leases.abandon()
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)

    def forget(self) -> None:
        """Clean up after an event loop that has stopped. The leases of held jobs expire."""
        self._leases.abandon()
        self._registry.remove(self)

    async def _run(self) -> None:
        options = self._options
        queues = ", ".join(options.queues or ["all"])
        _log.info("worker %s started: queues %s, concurrency %d", options.id, queues, options.concurrency)
        if options.sweep:
            self._registry.start_sweep(self, self._backend)
        self._leases.start()
        self._work_signal.start()
        try:
            while not self.closing or self.job_tasks.attempts or self._outcomes or self._exchanges:
                await self._work_signal.wait()
                if self._work_signal.changed:
                    self._work_signal.changed = False
                    self._leases.check_soon()
                self._start_exchanges()
        except QueueClosed:
            _log.info("worker %s stopped: its queue was closed", options.id)
            self._drop_all()
        except asyncio.CancelledError:  # from `abandon`, or because the event loop ends
            self._drop_all()
            if not self._abandoned:
                self._abandoned = True
                raise
        finally:
            self.closing = True
            self._registry.remove(self)
            ends: list[Awaitable[Any]] = [self._work_signal.stop(), self._leases.stop(), self._executor.close()]
            if self._exchanges:
                ends.append(asyncio.wait(list(self._exchanges)))
            await asyncio.gather(*ends)
            with suppress(Exception):  # it is informational: no job depends on it
                await self._write_heartbeat("stopped")

    def _drop_all(self) -> None:
        for exchange in self._exchanges:
            exchange.cancel()
        self.job_tasks.drop_all()

    # -- exchanges

    def _start_exchanges(self) -> None:
        """Start an exchange if none is running, and a second one if it has enough jobs and the store answers."""
        if self._failure is not None:
            raise self._failure
        self._signalled = bool(self._exchanges)
        if not self._exchanges and (self._outcomes or not self.closing):
            self._start_exchange()
        if len(self._exchanges) == 1 and not self._claims_uncertain and not self.store_error:
            claimable = self._free_slots() if self._work_signal.plenty else 0
            if max(len(self._outcomes), claimable) >= max(_WORTH_AN_EXCHANGE, self._options.concurrency // 4):
                self._start_exchange()

    def _start_exchange(self) -> None:
        work: Coroutine[Any, Any, None]
        if self._claims_uncertain:
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
        """Notify the loop if it was signalled during the exchange or has more to settle or claim."""
        del self._exchanges[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        more = self._outcomes or (self._work_signal.plenty and self._free_slots())
        if self._signalled or more or self.closing or self._failure is not None:
            self._work_signal.notify()

    def _free_slots(self) -> int:
        """Return how many more jobs may be claimed now."""
        if self.closing:
            return 0
        concurrency = self._options.concurrency
        abandoned = len(self.job_tasks.abandoned) + self._executor.left_behind
        if abandoned >= _MOST_ABANDONED * concurrency:
            if not self._claiming_stopped:
                self._claiming_stopped = True
                self.store_error = f"{abandoned} abandoned jobs still run; the worker stopped claiming"
                _log.error("worker %s: %s until some have ended", self._options.id, self.store_error)
            return 0
        self._claiming_stopped = False
        held = len(self.job_tasks.attempts) + len(self._outcomes) + sum(self._exchanges.values())
        return max(concurrency - held, 0)

    async def _exchange(self, outcomes: list[Outcome], limit: int) -> None:
        """Settle these outcomes and claim up to `limit` jobs in one transaction."""
        options = self._options
        sent_at = monotonic()
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
        except Exception as error:  # a third-party store may raise anything; the worker must survive it
            # only an unavailable store leaves a claim in doubt; with a shared id the claim may be another worker's
            if limit and options.unique_id and isinstance(error, BackendUnavailable):
                self._claims_uncertain = True
            await self._exchange_failed(outcomes, error)
            return
        self._pause = _FIRST_PAUSE
        if outcomes:
            self._settled(outcomes, report)
        if limit:
            self._work_signal.found(len(jobs), plenty=len(jobs) == limit)
        if jobs:
            self._start_jobs(jobs, sent_at)
        elif limit:
            if not self.job_tasks.attempts and len(self._exchanges) == 1:
                await self._idle()
            if not options.until_empty:  # it does not wait for jobs that are not due
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
        if outcomes and not isinstance(error, BackendUnavailable):  # the store may be unable to write one of them
            left = await self._settle_one_by_one(outcomes)
        self._outcomes = left + self._outcomes
        if left or not outcomes:
            await self._back_off(error)
        else:
            self.store_error = _first_line(error)
        self._work_signal.notify()

    async def _settle_one_by_one(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Settle each outcome alone and return those to retry. Drop an outcome that fails too often."""
        left: list[Outcome] = []
        for number, outcome in enumerate(outcomes):
            job_id = outcome.job_id
            try:
                report, _ = await self._backend.settle_and_dequeue([outcome], self._options.id, limit=0)
            except QueueClosed:
                raise
            except BackendUnavailable:  # not caused by the outcome
                return left + outcomes[number:]
            except Exception as error:  # a constraint, a trigger, a row too large, a third-party store
                self._settle_failures[job_id] += 1
                if self._settle_failures[job_id] < _SETTLE_TRIES:
                    left.append(outcome)
                    continue
                self._unwritable.add(job_id)
                self._release([job_id])
                self._to_log.pop(job_id, None)
                _log.error(
                    "cannot write the outcome %r of job %s; dropping it. The job is claimed again when its lease "
                    "expires: %s",
                    outcome.verb,
                    job_id,
                    _first_line(error),
                )
            else:
                self._settled([outcome], report)
            del self._settle_failures[job_id]
        return left

    async def _find_lost_claims(self) -> None:
        """Run the jobs of a claim whose answer was lost, if their leases are still valid."""
        ours = JobFilter(assignee_id=self.assignee_id, statuses=[JobStatus.RUNNING])
        sent_at = monotonic()
        try:
            stored = (await self._backend.list_jobs(ours, limit=LARGEST_EXCHANGE)).items
            now = await self._backend.now()
        except QueueClosed:
            raise
        except Exception as error:  # see _exchange
            await self._back_off(error)
        else:
            unknown = set(self._registry.not_held(self, [job.id for job in stored])) - self._unwritable
            for job in stored:
                ends = None if job.lease is None else job.lease.expires_at
                if job.id in unknown and ends is not None and ends > now:
                    left = (ends - now).total_seconds()
                    self._start_jobs([job], sent_at + left - self._options.lock_seconds)
            self._claims_uncertain = False
        self._work_signal.notify()

    async def _back_off(self, error: Exception) -> None:
        """Wait before the next call to the store; the pause doubles until the store answers."""
        self.store_error = _first_line(error)
        _log.error(
            "worker %s cannot use its store; next attempt in %.1f s: %s",
            self._options.id,
            self._pause,
            self.store_error,
        )
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        await self._report_error()

    async def _report_error(self) -> None:
        """Write worker.error; keep an error that cannot be written for later."""
        options = self._options
        if self.store_error and await record_error(self._backend, options.id, self.store_error, queue=options.queue):
            self.store_error = ""

    # -- jobs

    def _start_jobs(self, jobs: Sequence[Job], sent_at: float) -> None:
        """Start jobs claimed by a call that was sent at `sent_at`."""
        self._last_job_at = monotonic()
        self._registry.hold(self, jobs)
        in_time = self._last_job_at - sent_at < self._options.lock_seconds
        if in_time:
            self._leases.keep(jobs, sent_at)
        if not in_time or self.closing:
            reason = "the worker is closing" if in_time else "the store answered the claim after the lease expired"
            self._outcomes += [Outcome(job.id, job.lease, "release", error=reason) for job in jobs]
            self._work_signal.notify()
            return
        for job in jobs:
            if not self.job_tasks.start(job):
                self._release_overlapping(job)

    def _release_overlapping(self, job: Job) -> None:
        """Release a job that was claimed again while its earlier attempt still runs here: attempts must not overlap.

        The lease keeper may not have noticed the lost lease yet, so this stops the earlier attempt.
        """
        self.job_tasks.stop(self.job_tasks.attempts_of([job.id]), "lost")
        reason = "an earlier attempt at this job still runs in the worker that claimed it"
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
        """Stop holding jobs that are settled or lost."""
        self._leases.drop(job_ids)
        self._registry.release(self, job_ids)

    # -- for the registry and the lease keeper, from any thread

    def jobs_freed(self, job_ids: list[str]) -> None:
        """Stop the attempts at jobs that another caller ended; they have no outcome."""
        self.job_tasks.stop_threadsafe(self.job_tasks.attempts_of(job_ids), "lost")

    jobs_disowned = jobs_freed

    def jobs_cancelled(self, job_ids: list[str]) -> None:
        """Stop the attempts at these jobs."""
        self.job_tasks.stop_threadsafe(self.job_tasks.attempts_of(job_ids), "cancelled")

    def leases_lost(self, job_ids: list[str]) -> None:
        """Drop the attempts at these jobs that still run."""
        attempts = self.job_tasks.attempts_of(job_ids)
        if attempts:
            _log.warning("leases lost; dropping the jobs %s", ", ".join(each.record.id for each in attempts[:10]))
            self.job_tasks.stop_threadsafe(attempts, "lost")

    # -- status

    async def _idle(self) -> None:
        """Handle an empty claim while no job runs."""
        if self._options.until_empty:
            # a job that ended during this claim may have enqueued more
            self.closing = self.closing or not self._outcomes
        elif monotonic() - self._last_job_at > _DRAINED_AFTER:
            self._last_job_at = float("inf")
            with suppress(Exception):  # it is informational: no job depends on it
                await self._backend.record_worker_event("worker.drained", self._options.id, queue=self._options.queue)

    async def _write_heartbeat(self, state: str = "") -> None:
        """Write what `list_workers` shows, unless the worker was abandoned."""
        if self._abandoned:
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
