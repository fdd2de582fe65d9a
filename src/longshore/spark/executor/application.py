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
    """Of the tasks that are known so far; 100 is only for the end.

    An execution that continues an earlier one starts from the percent that the earlier one reached.
    """

    def __init__(self, earlier: Any = None) -> None:
        """`earlier` is the progress that the job has already: a note of ours, or whatever else."""
        told = earlier.get("percent") if isinstance(earlier, Mapping) else None
        self._begun_at = self._told = min(told, _MOST) if isinstance(told, int) and told > 0 else 0

    def after(self, done: int, known: int) -> int | None:
        """The percent to report, or None if it is not more than the last reported one."""
        share = min(done / known, 1) if known else 0
        percent = self._begun_at + int((_MOST - self._begun_at) * share)
        if percent <= self._told:
            return None
        self._told = percent
        return percent


class TaskCount:
    """Counts the tasks of the Spark jobs in some groups; finished Spark jobs are queried once."""

    def __init__(self, tracker: StatusTracker, groups: tuple[str | None, ...]) -> None:
        self._tracker = tracker
        self._groups = groups
        self._over: dict[int, tuple[int, int]] = {}

    def now(self) -> tuple[int, int]:
        """Of all jobs that Spark has begun."""
        counted = dict(self._over)
        for group in self._groups:
            for job in self._tracker.getJobIdsForGroup(group):
                if job not in self._over:
                    counted[job] = self._of(job)
        return sum(done for done, _ in counted.values()), sum(known for _, known in counted.values())

    def _of(self, job: int) -> tuple[int, int]:
        told = self._tracker.getJobInfo(job)
        if told is None:
            return 0, 0
        stages = [self._tracker.getStageInfo(stage) for stage in told.stageIds]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        known = sum(stage.numTasks for stage in stages if stage is not None)
        if told.status in _OVER:  # stages that were skipped, as their work was there already, have no task done
            self._over[job] = (done, done)
            return done, done
        return done, known


def progress_note(percent: int, done: int, known: int) -> dict[str, Any]:
    """What a job's progress says."""
    return {"percent": percent, "tasks_done": done, "tasks_known": known}


_BETWEEN_LOOKS = 0.1
_LOOKS_PER_COUNT = 10
_DIES_WITHIN = 2.0
"""Seconds after which a Java whose line broke has been noticed to be dead, if it is."""
_AWAY = 30.0
"""Seconds for which a job stays away from a worker that has no Spark to give it."""
_JAVA_DIED = 70  # EX_SOFTWARE

_log = logger("longshore.worker")


def run_application(
    job: RunningJob,
    name: str,
    call: Callable[[SparkSession], Any],
    *,
    master: str | None,
    config: Mapping[str, str],
    tells_progress: bool,
) -> Any:
    """Calls the function with a session that ends with this process; what it raises is raised.

    If Java dies, ProcessDied is raised, or this process ends, too: the worker counts a crash either way.
    """
    leave_the_java_of_others()
    try:
        spark = session(f"{name} {job.id}", master=master, config=config)
    except SparkUnavailable as error:  # the worker's own fault: the job goes back uncharged
        raise CannotStart(_AWAY, f"this worker cannot run it now: {error}") from error
    context = spark.sparkContext
    group = f"longshore-{job.id}-{job.record.epoch}"
    context.setJobGroup(group, f"{name} {job.id}", interruptOnCancel=True)
    java: subprocess.Popen[bytes] = context._gateway.proc  # type: ignore[union-attr]  # it has started one
    count = TaskCount(context.statusTracker(), (group, None)) if tells_progress else None
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
        """Until it is stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Returns when it says no more."""
        self._over.set()
        self._thread.join(_DIES_WITHIN)

    def _work(self) -> None:
        looks = 0
        while not self._over.wait(_BETWEEN_LOOKS):
            looks += 1
            if self._java.poll() is not None and not self._over.wait(_DIES_WITHIN):
                # the function has not noticed, and perhaps never will: the worker sees a process that died
                print(_obituary(self._java.returncode), file=sys.stderr, flush=True)
                os._exit(_JAVA_DIED)
            try:
                if self._job.cancel_requested:
                    self._stop_everything()
                elif self._count is not None and looks % _LOOKS_PER_COUNT == 0:
                    self._tell(*self._count.now())
            except LongshoreError:  # the job is not ours any more: its end is under way
                self._count = None
            except Exception as error:  # Java is about to die, or too busy to answer: it is asked again
                _log.debug("Spark did not answer: %r", error)

    def _stop_everything(self) -> None:
        """Again and again: the function may begin more before it notices."""
        self._spark.sparkContext.cancelAllJobs()
        for query in self._spark.streams.active:
            query.stop()

    def _tell(self, done: int, known: int) -> None:
        percent = self._percent.after(done, known)
        if percent is not None:
            self._job.update_progress(progress_note(percent, done, known))


def _answers(spark: SparkSession) -> bool:
    try:
        spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j has many words for a Java that is gone
        return False
    return True


def _obituary(code: int) -> str:
    return f"the Java of this Spark application ended with code {code} before the job ended"
