"""Finds the task of a job and the executor that runs it."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore.app.middleware import Middleware, run_within
from longshore.app.step import hand_on_results
from longshore.app.task import Task
from longshore.backends.base import Backend
from longshore.core.dependencies import INPUTS
from longshore.core.errors import InvalidArgument, Snooze
from longshore.core.explain import NO_TASK_NAMED
from longshore.core.job import Job
from longshore.core.validation import check_number
from longshore.runtime.executors.base import CANCEL_GRACE, Executor, Target
from longshore.runtime.executors.event_loop import LoopExecutor
from longshore.runtime.executors.thread import ThreadExecutor
from longshore.runtime.running_job import AsyncReporter, RunningJob
from longshore.safe_logging import logger


@dataclass(slots=True)
class SparkSettings:
    """Where Spark work runs: None is the session that is there, what spark-submit says, or this machine."""

    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    """Jobs in one batch of `executor="spark"`; None is the executor's own."""

    def change(self, master: str | None, config: Mapping[str, str] | None, batch_size: int | None) -> None:
        """Checked, all or nothing."""
        if master is not None and (not isinstance(master, str) or not master):
            raise InvalidArgument("master", f"must be Spark's address of a cluster, such as local[4], not {master!r}")
        if master is not None and master.startswith("sc://"):
            raise InvalidArgument(
                "master", "is of Spark Connect, which has no driver here; name local[*], spark://…, yarn or k8s://…"
            )
        for name, value in (config or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidArgument(f"config[{name!r}]", f"must be text for text, as Spark's are; got {value!r}")
        if batch_size is not None:
            check_number("batch_size", batch_size, least=1)
        self.master, self.config, self.batch_size = master, dict(config or {}), batch_size


def from_spark(module: str, name: str) -> Any:
    """A name of `longshore.spark`, which stands above this package and is loaded only where a task needs it."""
    return getattr(importlib.import_module(f"longshore.spark.{module}"), name)


_MOST_TOLD = 100
"""Unknown types told of in the log; after so many, more would tell nobody anything."""

_log = logger("longshore.worker")

UNKNOWN_PAUSE = 60.0
"""Seconds for which a job that no task here is for goes back to the queue: another worker may know it."""


class Router(Executor):
    """Runs each job with the task of its type: `async def` on the loop, `def` in threads, or in processes."""

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
        self._on_loop = LoopExecutor(self._awaited)
        self._in_threads = ThreadExecutor(self._called, cancel_grace=cancel_grace)
        self._in_processes: dict[str, Executor] = {}
        self._on_spark: Executor | None = None
        self._spark_targets: dict[str, Target] = {}
        self._spark_settings = spark or SparkSettings()
        self._told: set[str] = set()
        self._backend: Backend | None = None
        """Where the jobs it was given come from."""
        self.runs = 0
        """How many jobs it was given."""
        for task in tasks.values():
            _ = task.signature.arguments  # an annotation that cannot be looked up is told now and not by the first job
            if task.executor == "process":
                self._in_processes[task.name] = self._process_executor(task)
            elif task.executor == "spark":
                self._spark_targets[task.name] = _target(task)

    @property
    def types(self) -> Sequence[str]:
        """The names of the tasks declared so far."""
        return tuple(self._tasks)

    def take(self, record: Job, backend: Backend) -> RunningJob:
        """As the task's executor wants it."""
        self._backend = backend
        task = self._tasks.get(record.type)
        return RunningJob(record, AsyncReporter(backend)) if task is None else self._for(task).take(record, backend)

    @property
    def left_behind(self) -> int:
        """Those of the threads: a process can be ended."""
        return self._in_threads.left_behind

    def begins_later(self, record: Job) -> bool:
        """As the task's executor does."""
        task = self._tasks.get(record.type)
        return task is not None and task.executor in ("process", "spark")

    async def run(self, job: RunningJob) -> Any:
        """Within the middleware, on the task's executor."""
        self.runs += 1
        task = self._tasks.get(job.record.type)
        if task is None:
            raise Snooze(UNKNOWN_PAUSE, self._told_of_unknown(job.record.type))
        executor = self._for(task)
        if INPUTS in job.record.options and self._backend is not None:
            await hand_on_results(job, self._backend)
        if not self._layers:
            return await executor.run(job)
        return await run_within(self._layers, job, lambda: executor.run(job))

    async def close(self) -> None:
        """Closes them all."""
        for executor in (self._on_loop, self._in_threads, self._on_spark, *self._in_processes.values()):
            if executor is not None:
                await executor.close()

    def _for(self, task: Task[..., Any]) -> Executor:
        if task.executor == "process":
            if task.name not in self._in_processes:  # declared after the worker was made
                self._in_processes[task.name] = self._process_executor(task)
            return self._in_processes[task.name]
        if task.executor == "spark":
            if task.name not in self._spark_targets:
                self._spark_targets[task.name] = _target(task)
            self._on_spark = self._on_spark or self._spark_executor()
            return self._on_spark
        return self._on_loop if task.is_async else self._in_threads

    async def _awaited(self, job: RunningJob) -> Any:
        return await self._tasks[job.record.type].run_async(job)

    def _called(self, job: RunningJob) -> Any:
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

    def _told_of_unknown(self, job_type: str) -> str:
        reason = self._unknown(job_type)
        if job_type not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(job_type)
            _log.warning("%s; such jobs go back for %g seconds", reason, UNKNOWN_PAUSE)
        return reason

    def _unknown(self, job_type: str) -> str:
        near = difflib.get_close_matches(job_type, self._tasks, 3)
        hint = f", but {' and '.join(near)}" if near else ""
        known = ", ".join(sorted(self._tasks)[:20]) or "none"
        return f"{NO_TASK_NAMED} {job_type!r}{hint}; the tasks it knows: {known}"


def _target(task: Task[..., Any]) -> Target:
    """By which another process finds the task; InvalidArgument if it would find another thing."""
    module, name = task.function.__module__, task.function.__qualname__
    found: Any = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    if found is not task:
        raise InvalidArgument(
            "executor",
            f"the task {task.name} runs in other processes, which look for it as {module}.{name} and find another "
            f"thing; declare it with @harbor.task at the top of its module, not as in {task.place}",
        )
    return Target.named(module, f"{name}.{task.entry}", "executor")
