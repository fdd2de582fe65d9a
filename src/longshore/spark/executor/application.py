"""One job that is a Spark application: its session, progress and cancellation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from longshore.core.errors import LongshoreError
from longshore.runtime.error_text import ProcessDied
from longshore.runtime.executors.base import CannotStart
from longshore.runtime.running_job import RunningJob
from longshore.safe_logging import logger
from longshore.spark.spark_session import SparkUnavailable, leave_the_java_of_others, session

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession


_MOST = 99
_OVER = ("SUCCEEDED", "FAILED")


class Percent:
    """The percentage of the known tasks; 100 is reported at the end only.

    An execution that continues an earlier one starts from the percent that the earlier one reached.
    """

    def __init__(self, earlier: Any = None) -> None:
        """`earlier` is the progress that the job already has; it may have any form."""
        info = earlier.get("percent") if isinstance(earlier, Mapping) else None
        self._begun_at = self._reported = min(info, _MOST) if isinstance(info, int) and info > 0 else 0

    def after(self, done: int, known: int) -> int | None:
        """The percent to report, or None if it is not more than the last reported one."""
        share = min(done / known, 1) if known else 0
        percent = self._begun_at + int((_MOST - self._begun_at) * share)
        if percent <= self._reported:
            return None
        self._reported = percent
        return percent


class TaskCount:
    """Counts the tasks of the Spark jobs in some groups; finished Spark jobs are queried once."""

    def __init__(self, tracker: StatusTracker, groups: tuple[str | None, ...]) -> None:
        self._tracker = tracker
        self._groups = groups
        self._over: dict[int, tuple[int, int]] = {}

    def now(self) -> tuple[int, int]:
        """Return the finished and the known tasks of all Spark jobs."""
        counted = dict(self._over)
        for group in self._groups:
            for job in self._tracker.getJobIdsForGroup(group):
                if job not in self._over:
                    counted[job] = self._of(job)
        return sum(done for done, _ in counted.values()), sum(known for _, known in counted.values())

    def _of(self, job: int) -> tuple[int, int]:
        info = self._tracker.getJobInfo(job)
        if info is None:
            return 0, 0
        stages = [self._tracker.getStageInfo(stage) for stage in info.stageIds]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        known = sum(stage.numTasks for stage in stages if stage is not None)
        if info.status in _OVER:  # skipped stages report no finished tasks
            self._over[job] = (done, done)
            return done, done
        return done, known


def progress_note(percent: int, done: int, known: int) -> dict[str, Any]:
    """The progress of a job."""
    return {"percent": percent, "tasks_done": done, "tasks_known": known}


_BETWEEN_LOOKS = 0.1
_LOOKS_PER_COUNT = 10
_DIES_WITHIN = 2.0
"""Seconds to wait for the exit of a Java whose connection broke."""
_AWAY = 30.0
"""Seconds before a job is tried again after a worker could not start Spark."""
_JAVA_DIED = 70  # EX_SOFTWARE

_log = logger("longshore.worker")


def run_application(
    job: RunningJob,
    name: str,
    call: Callable[[SparkSession], Any],
    *,
    master: str | None,
    config: Mapping[str, str],
    reports_progress: bool,
) -> Any:
    """Call the function with a session that ends with this process; what it raises is raised.

    If Java dies, ProcessDied is raised, or this process ends, too: the worker counts a crash either way.
    """
    leave_the_java_of_others()
    try:
        spark = session(f"{name} {job.id}", master=master, config=config)
    except SparkUnavailable as error:  # not the job's fault: it is released without counting an attempt
        raise CannotStart(_AWAY, f"this worker cannot run it now: {error}") from error
    context = spark.sparkContext
    group = f"longshore-{job.id}-{job.record.epoch}"
    context.setJobGroup(group, f"{name} {job.id}", interruptOnCancel=True)
    java: subprocess.Popen[bytes] = context._gateway.proc  # type: ignore[union-attr]  # it has started one
    count = TaskCount(context.statusTracker(), (group, None)) if reports_progress else None
    watch = _Watch(spark, job, java, count)
    watch.start()
    try:
        value = call(spark)
    except BaseException as error:
        with suppress(subprocess.TimeoutExpired):
            code = java.wait(_DIES_WITHIN if not job.cancel_requested and not _answers(spark) else 0)
            raise ProcessDied(_obituary(code)) from error
        raise
    finally:
        watch.stop()
    if count is not None:
        with suppress(Exception):  # the work is done, even if the progress cannot be stored
            job.update_progress(progress_note(100, *count.now()))
    spark.stop()
    return value


class _Watch:
    """A thread that stops Spark's work when the job is cancelled, and reports progress."""

    def __init__(
        self, spark: SparkSession, job: RunningJob, java: subprocess.Popen[bytes], count: TaskCount | None
    ) -> None:
        self._spark = spark
        self._job = job
        self._java = java
        self._count = count
        self._percent = Percent(job.record.progress)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="longshore-spark-watch", daemon=True)

    def start(self) -> None:
        """Run until stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._over.set()
        self._thread.join(_DIES_WITHIN)

    def _work(self) -> None:
        looks = 0
        while not self._over.wait(_BETWEEN_LOOKS):
            looks += 1
            if self._java.poll() is not None and not self._over.wait(_DIES_WITHIN):
                # the function ignores the cancellation: exit, so that the worker sees a dead process
                print(_obituary(self._java.returncode), file=sys.stderr, flush=True)
                os._exit(_JAVA_DIED)
            try:
                if self._job.cancel_requested:
                    self._stop_everything()
                elif self._count is not None and looks % _LOOKS_PER_COUNT == 0:
                    self._report_progress(*self._count.now())
            except LongshoreError:  # the lease is lost, and the job is being stopped
                self._count = None
            except Exception as error:  # Java is exiting or busy: try again
                _log.debug("Spark did not answer: %r", error)

    def _stop_everything(self) -> None:
        """Cancel repeatedly, because the function may start more Spark jobs before it notices."""
        self._spark.sparkContext.cancelAllJobs()
        for query in self._spark.streams.active:
            query.stop()

    def _report_progress(self, done: int, known: int) -> None:
        percent = self._percent.after(done, known)
        if percent is not None:
            self._job.update_progress(progress_note(percent, done, known))


def _answers(spark: SparkSession) -> bool:
    try:
        spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j raises many types for a dead Java
        return False
    return True


def _obituary(code: int) -> str:
    return f"the Java of this Spark application ended with code {code} before the job ended"
