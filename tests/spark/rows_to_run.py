"""What Spark's tasks run in the tests: found there by name, as a user's own functions are."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

from longshore import Harbor
from longshore.core.errors import Fatal, Snooze
from longshore.runtime.running_job import RunningJob, current_job

harbor = Harbor("memory://")


def _note_down(job: RunningJob) -> None:
    """One file for each time a job is run."""
    folder = job.data.get("folder")
    if folder is not None:
        (Path(folder) / f"{job.data['n']}-{job.executions}-{os.getpid()}-{time.perf_counter_ns()}").touch()


def as_told(job: RunningJob) -> Any:
    """Whatever the job's data says."""
    _note_down(job)
    match job.data.get("do"):
        case "raise":
            raise ValueError(f"bad row {job.data['n']}")
        case "bury":
            raise Fatal("never again")
        case "snooze":
            if job.executions == 1:
                raise Snooze(0, "not yet")
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "no JSON":
            return object()
        case "sleep":
            time.sleep(job.data["seconds"])  # noqa: TID251  # a job's own work
        case "freeze":
            deque(itertools.repeat(0), maxlen=0)  # endless C code that never runs Python code
    return job.data["n"] * 2


async def with_notes(job: RunningJob) -> Any:
    """Write all notes there are; fails once, to find its checkpoint again."""
    if job.checkpoint is None:
        await job.update_progress({"half": job.data["n"]})
        await job.log("half way", "warn")
        await job.save_checkpoint({"from": job.data["n"]})
        raise ConnectionError("half way")
    await asyncio.sleep(0)
    return [job.checkpoint, current_job().id]


def until_called_off(job: RunningJob) -> Any:
    """Begin, says so, and wait: politely, until it is interrupted, or without ever listening."""
    _note_down(job)
    job.update_progress("begun")
    while not (job.data["manners"] == "polite" and job.cancelled):
        try:
            time.sleep(0.02)  # noqa: TID251  # waits for its cancellation
        except KeyboardInterrupt:
            if job.data["manners"] != "deaf":
                raise
    return job.complete("in order")


@harbor.task(executor="spark", queue="rows")
def measure(name: str, sizes: list[int], scale: float = 1.0) -> dict[str, float]:
    """A task with arguments."""
    return {name: sum(sizes) * scale}


@harbor.task(executor="spark", queue="rows", attempts=2)
async def measure_later(name: str) -> str:
    """One that is async."""
    await asyncio.sleep(0)
    if current_job().executions == 1:
        raise ConnectionError(name)
    return name.upper()
