"""A batch of jobs on Spark: its size, its rows and its tasks."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from longshore.core.errors import Snooze
from longshore.runtime.error_text import ProcessDied
from longshore.runtime.executors.base import CannotStart
from longshore.runtime.executors.wire import Unreadable, answer_to_note, failure_from, frame, job_fields, read_frame
from longshore.runtime.running_job import RunningJob
from longshore.spark.executor.rows import Columns

BATCH = 10_000
"""The default number of jobs in one batch."""
LULL = 0.05
"""Seconds without a new job after which a batch starts."""
LONGEST_GATHERING = 0.5
SLICES_PER_SLOT = 4
"""Tasks of a batch per slot: a slow job delays only the few jobs behind it in its task."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of payloads in one batch, because they pass through the memory of driver and Java."""


def gathered(*, jobs: int, before: int, waited: float, most: int) -> bool:
    """Whether to stop waiting for more jobs; `before` is the number of jobs one pause ago."""
    return jobs >= most or jobs == before or waited >= LONGEST_GATHERING


def may_begin(*, jobs: int, under_way: Sequence[int], slots: int, most: int) -> bool:
    """Whether a batch of these jobs may start while others run, given the jobs left in each.

    Beside others only if it is as large as what is left of them, so that batches stay large while processors are busy;
    and never more batches than slots, because one slow job may occupy a slot for each.
    """
    if not under_way:
        return True
    return len(under_way) <= slots and (jobs >= most or jobs >= sum(under_way))


def how_many(sizes: Sequence[int], most: int) -> int:
    """The number of jobs with payloads of these sizes that go into one batch; at least one."""
    left = MOST_BYTES
    for count, size in enumerate(sizes[:most]):
        left -= size
        if left < 0 and count:
            return count
    return min(len(sizes), most)


_ENDED_WITH_ANOTHER = "its Spark batch was ended because of another job that could not be ended otherwise"


class Row:
    """A job as a row of a batch."""

    __slots__ = ("answer", "batch", "begun", "disowned", "job", "line", "number")

    def __init__(self, job: RunningJob) -> None:
        self.job = job
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """The result or the error of the job; cancelled if it has neither."""
        self.answer.add_done_callback(_looked_at)
        self.batch: Batch | None = None
        self.number = -1
        self.line: TaskLine | None = None
        """The connection to the task that runs it."""
        self.begun = False
        self.disowned = False
        """Whether the worker asked its task to exit while it ran this row."""

    def fail(self, error: Exception) -> None:
        """Set the outcome, unless the row has ended."""
        if not self.answer.done():
            self.answer.set_exception(error)


class TaskLine:
    """The worker's connection to one Spark task."""

    def __init__(self, writer: asyncio.StreamWriter, task: str) -> None:
        self._writer = writer
        self.task = task
        self.row: Row | None = None
        """The row that the task runs now."""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, unless the connection is closing."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def answer(self, message: dict[str, Any]) -> None:
        """Send a message and wait until the buffer is drained."""
        self.send(message)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class Batch:
    """The rows of one batch with one function."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.token = secrets.token_hex(32)
        """The secret of this batch's tasks."""
        self.unready = ""
        """Why its tasks cannot run any job."""
        self.left = len(rows)
        self.over = asyncio.Event()
        self.called_off = False
        """Whether some of its rows were cancelled, so that its tasks should end soon."""
        self.to_be_forced = asyncio.Event()
        """Whether Spark must kill its tasks because of one of its jobs."""
        self._rows = rows
        self._lines: set[TaskLine] = set()
        self._silent = asyncio.Event()
        self._silent.set()
        for number, row in enumerate(rows):
            row.batch, row.number = self, number
            row.answer.add_done_callback(self._ended)

    def left_to_run(self) -> Columns:
        """Return the rows that have not ended, for the tasks; thread-safe."""
        rows = [row for row in self._rows if not row.answer.done()]
        fields = [json.dumps(job_fields(row.job.record), separators=(",", ":")) for row in rows]
        return [row.number for row in rows], fields, [row.job.record.payload for row in rows]

    def give_back(self, seconds: float, reason: str) -> None:
        """Release all rows that have not ended; they were not run."""
        for row in self._rows:
            row.fail(CannotStart(seconds, reason))

    async def lines_closed(self, patience: float) -> None:
        """Wait until all tasks have closed their connections; only then dead tasks are known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._silent.wait()

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self.left -= 1
        if not self.left:
            self.over.set()

    # -- its tasks

    async def serve(self, reader: asyncio.StreamReader, line: TaskLine) -> None:
        """Read the messages of a task until it closes the connection or dies."""
        self._lines.add(line)
        self._silent.clear()
        reason = "ended without a word"
        try:
            while True:
                message, body = await read_frame(reader)
                await self._hear(line, message, body)
        except (EOFError, OSError):
            pass
        except (Unreadable, LookupError, TypeError, ValueError) as problem:
            reason = f"sent something unreadable to the worker: {problem!r}"
        finally:
            self._lines.discard(line)
            line.close()
            self._gone(line, reason)
            if not self._lines:
                self._silent.set()

    async def _hear(self, line: TaskLine, message: dict[str, Any], body: bytes) -> None:
        if "begun" in message:
            self._begun(line, self._rows[message["begun"]])
        elif "run" in message:
            self._row_ended(line, message, body)
        elif "note" in message:
            if line.row is not None:
                await line.answer(await answer_to_note(line.row.job, message, body))
        elif "rows" in message:
            await line.answer({"answer": message["question"], "value": self._taken(line, message["rows"])})
        elif "skipped" in message:
            self._rows[message["skipped"]].answer.cancel()
        else:  # it cannot run jobs, or has run them all
            self.unready = str(message.get("unready", self.unready))
            await line.answer({"answer": message["question"], "value": None})

    def _taken(self, line: TaskLine, numbers: Sequence[int]) -> list[int]:
        """Assign the rows to this task; return the rows that have ended, which it skips."""
        for row in [self._rows[number] for number in numbers]:
            if row.line is not None and row.line is not line:  # Spark abandoned that task and retries it
                row.line.close()
                self._gone(row.line, "fell silent")
            row.line = line
        return [number for number in numbers if self._rows[number].answer.done()]

    def _begun(self, line: TaskLine, row: Row) -> None:
        line.row = row
        if row.line is line and not row.answer.done():
            row.begun = True
            row.job.begin()

    def _row_ended(self, line: TaskLine, message: dict[str, Any], body: bytes) -> None:
        row = self._rows[message["run"]]
        line.row = None
        if row.line is not line or row.answer.done():
            return  # this task lost the row; the task that has it now reports its end
        if "failed" in message:
            row.fail(failure_from(message))
        else:
            value = json.loads(body) if body else None
            row.job.take_report(message)
            row.answer.set_result(value)

    def _gone(self, line: TaskLine, reason: str) -> None:
        """Fail the row that the task ran, and release the rows it had not started."""
        for had in self._rows:
            if had.line is line:
                had.line = None
        row, line.row = line.row, None
        if row is None or row.answer.done():
            return
        if row.disowned:
            row.answer.cancel()
        elif self.to_be_forced.is_set():
            row.fail(Snooze(0, _ENDED_WITH_ANOTHER))
        else:
            row.fail(ProcessDied(f"its Spark task {reason} while it ran the job ({line.task}); see the executor's log"))


def _looked_at(answer: asyncio.Future[Any]) -> None:
    """Retrieve the exception, so that asyncio does not warn about a row without a waiter."""
    if not answer.cancelled():
        answer.exception()
