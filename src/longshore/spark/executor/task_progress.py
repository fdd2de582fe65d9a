"""How far a Spark application is, in whole percent that never go back: Spark itself learns of its tasks as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import StatusTracker

_MOST = 99
_OVER = ("SUCCEEDED", "FAILED")


class Percent:
    """Of the tasks that are known so far; 100 is only for the end.

    An execution that goes on from an earlier one has what that left over for the tasks of its own.
    """

    def __init__(self, earlier: Any = None) -> None:
        """`earlier` is the progress that the job has already: a note of ours, or whatever else."""
        told = earlier.get("percent") if isinstance(earlier, Mapping) else None
        self._begun_at = self._told = min(told, _MOST) if isinstance(told, int) and told > 0 else 0

    def after(self, done: int, known: int) -> int | None:
        """The percent to tell of, or None if they are no more than was told already."""
        share = min(done / known, 1) if known else 0
        percent = self._begun_at + int((_MOST - self._begun_at) * share)
        if percent <= self._told:
            return None
        self._told = percent
        return percent


class TaskCount:
    """Tasks done and known of the Spark jobs in some groups; those that are over are asked about once."""

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
        return _sums(counted)

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


def _sums(counted: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    return sum(done for done, _ in counted.values()), sum(known for _, known in counted.values())


def progress_note(percent: int, done: int, known: int) -> dict[str, Any]:
    """What a job's progress says."""
    return {"percent": percent, "tasks_done": done, "tasks_known": known}
