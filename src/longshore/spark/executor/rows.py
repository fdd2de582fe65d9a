"""Code inside a Spark task: run jobs one by one and report to the worker."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore.runtime.executors import child_runner
from longshore.runtime.executors.base import Target
from longshore.runtime.executors.wire import job_from, next_frame
from longshore.runtime.running_job import RunningJob

if TYPE_CHECKING:
    import pyarrow


ROWS = "number int, job string, payload binary"
"""The rows sent to tasks: the number in the batch, the fields as JSON, and the payload."""
Columns = tuple[list[int], list[str], list[bytes]]
"""The same, column by column."""
ENDED = "number int"
"""The rows that Spark returns: finished ones. The task reports outcomes over its connection."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What Spark sends with a batch; it comes from the program, never from the store."""

    host: str
    port: int
    token: str
    target: Target
    path: tuple[str, ...]
    """The worker's import path, as a fallback for modules that a task does not find."""


def task_spec_for(target: Target, address: tuple[str, int], token: str) -> TaskSpec:
    """The setup for tasks of this process's program."""
    return TaskSpec(*address, token, target, tuple(str(Path(folder).absolute()) for folder in sys.path))


_ANSWERS_WITHIN = 30.0
_CALLED_OFF = 75  # EX_TEMPFAIL: the job ignored its cancellation


def run_rows(spec: TaskSpec, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the finished rows, after the worker has received their outcomes; for mapInArrow."""
    import pyarrow

    runner: RowRunner | None = None
    try:
        for batch in batches:
            runner = runner or RowRunner(spec)
            numbers: list[int] = batch.column("number").to_pylist()
            runner.run(numbers, batch.column("job").to_pylist(), batch.column("payload").to_pylist())
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array(numbers, pyarrow.int32())], names=["number"])
    finally:
        if runner is not None:
            runner.hang_up()


class RowRunner:
    """Runs rows on the task's thread; another thread listens, so that messages reach a busy job."""

    def __init__(self, spec: TaskSpec) -> None:
        self._connection = _connected(spec)
        self._channel = child_runner.ChildChannel(self._connection)
        self._lock = threading.Lock()
        self._skipped: set[int] = set()
        self._at: int | None = None
        """The number of the running row."""
        self._over = False
        self._channel.send({"hello": spec.token, "task": _task_name()})
        self._listener = threading.Thread(target=self._listen, name="longshore-line", daemon=True)
        self._listener.start()
        try:
            self._runner = child_runner.ChildRunner(_found(spec.target, spec.path))
        except BaseException as error:
            self._channel.ask({"unready": child_runner.failure_message(error)["failed"]}).result()
            raise
        self._handler_before: Any = None
        with suppress(ValueError):  # signals reach the main thread only
            self._handler_before = signal.signal(signal.SIGINT, self._runner.interrupted)

    def run(self, numbers: list[int], jobs: list[str], payloads: list[bytes]) -> None:
        """Run the rows that have not ended; the others ended before Spark retried this task."""
        unwanted = self._channel.ask({"rows": numbers}).result()
        with self._lock:
            self._skipped.update(unwanted)
        for number, fields, payload in zip(numbers, jobs, payloads, strict=True):
            job = RunningJob(job_from(json.loads(fields), payload), child_runner.ChannelReporter(self._channel))
            if not self._begins(number, job):
                continue
            message, body = self._runner.perform(job)
            child_runner.flush_output()
            with self._lock:
                self._at = None
                self._runner.forget()
            self._channel.send({**message, "run": number}, body)

    def hang_up(self) -> None:
        """Close the connection after the worker has received everything."""
        try:
            self._channel.ask({"over": True}).result()
        finally:
            self._over = True
            if self._handler_before is not None:
                signal.signal(signal.SIGINT, self._handler_before)
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._listener.join()
            self._channel.close()

    def _begins(self, number: int, job: RunningJob) -> bool:
        with self._lock:  # so that a row is either skipped or reported as started
            if number in self._skipped:
                return False
            self._at = number
            self._runner.take(job)
            self._channel.send({"begun": number})
            return True

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        with suppress(OSError):
            while (received := next_frame(self._channel.incoming)) is not None:
                self._hear(received[0])
        if not self._over:  # the worker is gone or has stopped this task
            os._exit(child_runner.CHANNEL_LOST)

    def _hear(self, message: dict[str, Any]) -> None:
        if "answer" in message:
            self._channel.answered(message)
        elif "cancel" in message:
            self._called_off(message["cancel"])
        elif message.get("interrupt") == self._at:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif message.get("kill") == self._at:
            os._exit(_CALLED_OFF)

    def _called_off(self, number: int) -> None:
        with self._lock:
            if self._at == number:
                self._runner.cancel()
            else:
                self._skipped.add(number)
                self._channel.send({"skipped": number})


def _connected(spec: TaskSpec) -> socket.socket:
    try:
        connection = socket.create_connection((spec.host, spec.port), timeout=_ANSWERS_WITHIN)
    except OSError as error:
        raise ConnectionError(
            f"this Spark task does not reach its worker at {spec.host}:{spec.port} ({error}); "
            "spark.driver.host must be an address of the worker that executors reach"
        ) from error
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _task_name() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return "a task"
    return f"task {context.partitionId()} of stage {context.stageId()}, try {context.attemptNumber() + 1}"


@functools.lru_cache(maxsize=100)
def _found(target: Target, path: tuple[str, ...]) -> Callable[[RunningJob], Any]:
    """Import the function once per process that Spark reuses for its tasks."""
    sys.path.extend(folder for folder in path if folder not in sys.path)
    function: Callable[[RunningJob], Any] = target.find()
    return function
