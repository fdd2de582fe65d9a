"""Finds the task of a job and the executor that runs it."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from longshore.app.middleware import Middleware, run_within
from longshore.app.step import inject_results
from longshore.app.task import Task
from longshore.core.dependencies import INPUTS
from longshore.core.errors import InvalidArgument, Snooze
from longshore.core.explain import NO_TASK_NAMED
from longshore.core.job import Job
from longshore.core.validation import check_number
from longshore.runtime.executors.base import CANCEL_GRACE, Executor, Target
from longshore.runtime.executors.event_loop import run_on_loop
from longshore.runtime.executors.thread import ThreadExecutor
from longshore.runtime.running_job import RunningJob
from longshore.safe_logging import logger


@dataclass(slots=True)
class SparkSettings:
    """Where Spark work runs. None means the active session, the settings of spark-submit, or this machine."""

    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    """Jobs in one batch of `executor="spark"`; None means the executor's default."""

    def change(self, master: str | None, config: Mapping[str, str] | None, batch_size: int | None) -> None:
        """Check all settings, then change them."""
        if master is not None and (not isinstance(master, str) or not master):
            raise InvalidArgument("master", f"must be a Spark master URL, such as local[4], not {master!r}")
        if master is not None and master.startswith("sc://"):
            raise InvalidArgument(
                "master", "is a Spark Connect URL, which has no local driver; use local[*], spark://…, yarn or k8s://…"
            )
        for name, value in (config or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidArgument(f"config[{name!r}]", f"must map text to text; got {value!r}")
        if batch_size is not None:
            check_number("batch_size", batch_size, least=1)
        self.master, self.config, self.batch_size = master, dict(config or {}), batch_size


def from_spark(module: str, name: str) -> Any:
    """Import a name of `longshore.spark`, which is above this package and loaded only on demand."""
    return getattr(importlib.import_module(f"longshore.spark.{module}"), name)


_MOST_LOGGED = 100
"""The most unknown types that are logged."""

_log = logger("longshore.worker")

UNKNOWN_PAUSE = 60.0
"""Seconds for which a job of an unknown type is released: another worker may know it."""


class Router(Executor):
    """Finds the task of each job and runs it: an `async def` on the loop, others in a thread, a process or on Spark."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        layers: Sequence[Middleware],
        *,
        processes: int,
        cancel_grace: float = CANCEL_GRACE,
        spark: SparkSettings | None = None,
    ) -> None:
        self._tasks = tasks
        self._layers = layers
        self._processes = processes
        self._cancel_grace = cancel_grace
        self._threads: ThreadExecutor | None = None
        self._process_executors: dict[str, Executor] = {}
        self._spark: Executor | None = None
        self._spark_targets: dict[str, Target] = {}
        self._spark_settings = spark or SparkSettings()
        self._unknown_types: set[str] = set()
        self.runs = 0
        """The number of jobs it was given."""
        for task in tasks.values():
            _ = task.signature.arguments  # an annotation that cannot be resolved fails here, not in the first job
            if task.executor == "process":
                self._executor_for(task)
            elif task.executor == "spark":  # its executor loads Spark, so it is created for the first job
                self._spark_targets[task.name] = _target(task)

    @property
    def types(self) -> Sequence[str]:
        """The names of the tasks declared so far."""
        return tuple(self._tasks)

    @property
    def left_behind(self) -> int:
        """The number of threads that do not end; a process can be killed."""
        return 0 if self._threads is None else self._threads.left_behind

    def begins_later(self, record: Job) -> bool:
        """Whether the job waits for a process or for Spark."""
        task = self._tasks.get(record.type)
        return task is not None and task.executor in ("process", "spark")

    async def run(self, job: RunningJob) -> Any:
        """Run the job's task within the middleware."""
        self.runs += 1
        task = self._tasks.get(job.record.type)
        if task is None:
            raise Snooze(UNKNOWN_PAUSE, self._unknown(job.record.type))
        if INPUTS in job.record.options and self._reporter is not None:
            await inject_results(job, self._reporter.backend)
        if task.is_async and task.executor == "auto":
            work = partial(run_on_loop, task.run_async, job)
        else:
            work = partial(self._executor_for(task).run, job)
        return await (run_within(self._layers, job, work) if self._layers else work())

    async def close(self) -> None:
        """Close the executors."""
        for executor in (self._threads, self._spark, *self._process_executors.values()):
            if executor is not None:
                await executor.close()

    def _executor_for(self, task: Task[..., Any]) -> Executor:
        """Return the executor of a task that does not run on the event loop; it may be declared after the start."""
        if task.executor == "process":
            if task.name not in self._process_executors:
                self._process_executors[task.name] = self._process_executor(task)
            return self._process_executors[task.name]
        if task.executor == "spark":
            if task.name not in self._spark_targets:
                self._spark_targets[task.name] = _target(task)
            self._spark = self._spark or self._spark_executor()
            return self._spark
        if self._threads is None:
            self._threads = ThreadExecutor(self._call, cancel_grace=self._cancel_grace)
        return self._threads

    def _call(self, job: RunningJob) -> Any:
        return self._tasks[job.record.type].run_here(job)

    def _process_executor(self, task: Task[..., Any]) -> Executor:
        from longshore.runtime.executors.process import ProcessExecutor  # only where there are processes

        return ProcessExecutor(
            _target(task),
            processes=self._processes,
            memory_limit=task.memory_limit,
            cancel_grace=self._cancel_grace,
            jobs_per_process=task.jobs_per_process,
        )

    def _spark_executor(self) -> Executor:
        spark = self._spark_settings
        size = {} if spark.batch_size is None else {"batch_size": spark.batch_size}
        made: Executor = from_spark("executor.spark", "SparkExecutor")(
            self._spark_targets, master=spark.master, config=spark.config, cancel_grace=self._cancel_grace, **size
        )
        return made

    def _unknown(self, job_type: str) -> str:
        """Return why the job is released; log it once for each type."""
        near = difflib.get_close_matches(job_type, self._tasks, 3)
        hint = f", but {' and '.join(near)}" if near else ""
        known = ", ".join(sorted(self._tasks)[:20]) or "none"
        reason = f"{NO_TASK_NAMED} {job_type!r}{hint}; the tasks it knows: {known}"
        if job_type not in self._unknown_types and len(self._unknown_types) < _MOST_LOGGED:
            self._unknown_types.add(job_type)
            _log.warning("%s; releasing such jobs for %g seconds", reason, UNKNOWN_PAUSE)
        return reason


def _target(task: Task[..., Any]) -> Target:
    """Return the target by which another process finds the task; InvalidArgument if it would find another object."""
    module, name = task.function.__module__, task.function.__qualname__
    found: Any = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    if found is not task:
        raise InvalidArgument(
            "executor",
            f"the task {task.name} runs in other processes, which look for {module}.{name} and find another object; "
            f"declare it with @harbor.task at the top level of its module, not as in {task.place}",
        )
    return Target.named(module, f"{name}.{task.entry}", "executor")
