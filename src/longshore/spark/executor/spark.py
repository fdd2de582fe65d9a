"""The executor that runs jobs as rows of batches on Spark, for large fan-outs of one function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from longshore.core.errors import LongshoreError
from longshore.core.job import Job
from longshore.core.times import SECOND, Duration, check_duration
from longshore.core.validation import check_number, new_id
from longshore.runtime.executors.base import (
    CANCEL_GRACE,
    UNTIL_INTERRUPTED,
    CannotStart,
    Executor,
    StartBackoff,
    Target,
    ignore_exception,
    refuse_while_importing,
)
from longshore.runtime.running_job import RunningJob
from longshore.safe_logging import logger
from longshore.spark.executor.batch import BATCH, LULL, Batch, Row, gathered, how_many, may_begin
from longshore.spark.executor.driver import Driver, DriverServer
from longshore.spark.executor.rows import task_spec_for

_OBEYS_WITHIN = 1.5
"""Seconds for a process to exit on request; after that, Spark kills it."""
_LINES_CLOSE_WITHIN = 10.0
_LEAVES_WITHIN, _LEAVES_IN_ORDER = 0.5, 30.0
"""Seconds in which idle tasks should end, after a cancellation and otherwise."""
_CLOSED_PAUSE = 5.0

_log = logger("longshore.worker")


class SparkExecutor(Executor):
    """Runs `function(job)`, a `def` or an `async def` at the top of a module, in the tasks of a Spark session.

    The session is the one that is active in this process, or one that is started on `master` with `config`. Jobs are
    gathered for a moment and go out in batches of `batch_size` at most; each is settled when it ends, and not with its
    batch. A task that dies takes down the one job that it ran: ProcessDied, a crash of that job alone.
    """

    def __init__(
        self,
        function: Callable[[RunningJob], Any] | Target | Mapping[str, Target],
        *,
        master: str | None = None,
        config: Mapping[str, str] | None = None,
        batch_size: int = BATCH,
        cancel_grace: Duration = CANCEL_GRACE,
    ) -> None:
        """`function` may also be given by its name, or by its name for each type of job."""
        self._targets = function if isinstance(function, Target | Mapping) else Target.of(function)
        self._most = check_number("batch_size", batch_size, least=1)
        self._grace = check_duration("cancel_grace", cancel_grace, positive=False) / SECOND
        self._driver = Driver(master, dict(config or {}))
        self._server = DriverServer()
        self._slots = 1
        self._waiting: dict[str, list[Row]] = {}
        """Jobs without a batch, by type."""
        self._batches: dict[asyncio.Task[None], Batch] = {}
        self._gatherers: set[asyncio.Task[None]] = set()
        self._pauses = StartBackoff()
        self._closed = False

    def begins_later(self, record: Job) -> bool:  # noqa: ARG002 - all jobs do
        """True: a job waits for its batch and for the jobs before it in its task."""
        return True

    async def run(self, job: RunningJob) -> Any:
        """Run the job as a row of a batch."""
        if self._closed:
            raise CannotStart(_CLOSED_PAUSE, "the executor of this worker was closed with another worker")
        row = Row(job)
        self._gather(row)
        try:
            return await asyncio.shield(row.answer)
        except asyncio.CancelledError:
            job.request_cancel()
            return await self._called_off(row)
        finally:
            row.answer.cancel()  # cancelled twice: no caller waits for the answer

    async def close(self) -> None:
        """Stop all batches, and the session if it was started here."""
        self._closed = True
        for work in (*self._gatherers, *self._batches):
            work.cancel()
        await asyncio.gather(*self._gatherers, *self._batches, return_exceptions=True)
        await self._server.close()
        await self._driver.close()

    # -- gathering

    def _gather(self, row: Row) -> None:
        kind = row.job.record.type
        if kind in self._waiting:
            self._waiting[kind].append(row)
            return
        self._waiting[kind] = [row]
        gatherer = asyncio.create_task(self._send_out(kind))
        self._gatherers.add(gatherer)
        gatherer.add_done_callback(self._gatherers.discard)

    async def _send_out(self, kind: str) -> None:
        """Run batches until no job of this type waits."""
        while self._waiting[kind]:
            await self._until_gathered(kind)
            while self._waiting[kind] and not self._may_begin(kind):  # noqa: ASYNC110  # any row that ends may change the answer
                await asyncio.sleep(LULL)
            waiting = self._waiting[kind]
            count = how_many([len(row.job.record.payload) for row in waiting], self._most)
            self._waiting[kind] = waiting[count:]
            if count:
                self._begin(kind, waiting[:count])
        del self._waiting[kind]

    async def _until_gathered(self, kind: str) -> None:
        began = monotonic()
        before = -1
        while not gathered(jobs=len(self._waiting[kind]), before=before, waited=monotonic() - began, most=self._most):
            before = len(self._waiting[kind])
            await asyncio.sleep(LULL)

    def _may_begin(self, kind: str) -> bool:
        under_way = [batch.left for batch in self._batches.values()]
        return may_begin(jobs=len(self._waiting[kind]), under_way=under_way, slots=self._slots, most=self._most)

    # -- a batch

    def _begin(self, kind: str, rows: list[Row]) -> None:
        batch = Batch(rows)
        target = self._targets if isinstance(self._targets, Target) else self._targets[kind]
        work = asyncio.create_task(self._run(batch, target))
        self._batches[work] = batch
        work.add_done_callback(lambda work: self._batches.pop(work))

    async def _run(self, batch: Batch, target: Target) -> None:
        self._server.expect(batch)
        try:
            while batch.left and await self._ran_some(batch, target):
                pass
        except Exception as error:  # Spark raises many types, none caused by a job
            away = self._pauses.after(batch.unready or _in_a_line(error))
            batch.give_back(away.delay, away.reason)
        except asyncio.CancelledError:
            batch.give_back(0, "the worker stopped before the job had ended")
            raise
        finally:
            self._server.forget(batch)

    async def _ran_some(self, batch: Batch, target: Target) -> bool:
        """Run the remaining rows on Spark, again after a dead task; raise if no row made progress."""
        refuse_while_importing()
        place = await self._driver.start()
        self._slots = place.slots
        port = await self._server.open(place.bound_to)
        before = batch.left
        batch.to_be_forced.clear()
        group = f"longshore-{new_id()}"
        spec = task_spec_for(target, (place.host, port), batch.token)
        work = asyncio.create_task(self._driver.submit(batch.left_to_run, spec, group))
        work.add_done_callback(ignore_exception)
        try:
            failure = await self._watched(batch, work, group)
        except asyncio.CancelledError:
            await self._driver.cancel(group)
            raise
        await batch.lines_closed(_LINES_CLOSE_WITHIN)
        if failure is not None:
            await self._driver.forget_if_dead()
        if batch.left == before:
            raise failure or LongshoreError("Spark reports success, but no task reported a job")
        self._pauses.end()
        return True

    async def _watched(self, batch: Batch, work: asyncio.Task[None], group: str) -> BaseException | None:
        """Return the error of Spark. Cancel its tasks when all rows have ended or one task must be killed."""
        over = asyncio.create_task(batch.over.wait())
        forced = asyncio.create_task(batch.to_be_forced.wait())
        try:
            await asyncio.wait({work, over, forced}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not forced.done():
                patience = _LEAVES_WITHIN if batch.called_off else _LEAVES_IN_ORDER
                await asyncio.wait({work, forced}, timeout=patience)
            if not work.done():
                await self._driver.cancel(group)
            await asyncio.wait({work})
            return work.exception()
        finally:
            over.cancel()
            forced.cancel()

    # -- cancellation

    async def _called_off(self, row: Row) -> Any:
        """Return the job's result if it comes within the grace period."""
        if row.batch is None:
            self._waiting[row.job.record.type].remove(row)
        else:
            row.batch.called_off = True
            if row.line is not None:
                await self._ended_by_and_by(row, row.batch)
        answer = row.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            return answer.result()
        raise asyncio.CancelledError

    async def _ended_by_and_by(self, row: Row, batch: Batch) -> None:
        """Stop a job in steps: request, signal, exit of the process, kill by Spark."""
        patience = self._grace * UNTIL_INTERRUPTED
        for seconds, word in ((patience, "cancel"), (self._grace - patience, "interrupt"), (_OBEYS_WITHIN, "kill")):
            if row.line is not None and (row.begun or word == "cancel"):
                row.disowned = row.disowned or word == "kill"
                row.line.send({word: row.number})
            if (await asyncio.wait({row.answer}, timeout=seconds))[0]:
                return
        if row.begun:
            batch.to_be_forced.set()
            await asyncio.wait({row.answer}, timeout=_OBEYS_WITHIN)


def _in_a_line(error: Exception) -> str:
    """The useful line of a Spark error, which is pages of Java."""
    text = str(error)
    _, found, rest = text.partition("Caused by: ")
    lines = [line.strip() for line in (rest if found else text).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:500]}"
