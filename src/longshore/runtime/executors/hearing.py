"""What a worker hears of a job that runs elsewhere: its failure, as an exception here, and what it wants noted."""

from __future__ import annotations

import json
from typing import Any

from longshore.core.errors import Fatal, Snooze
from longshore.core.validation import unpack
from longshore.runtime.executors.wire import run_name, told_refusal
from longshore.runtime.failures import ProcessDied, RemoteFailure
from longshore.runtime.running_job import RunningJob


def failure_from(message: dict[str, Any]) -> Exception:
    """The failure that was told of; Fatal, Snooze and ProcessDied are what they were."""
    if "died" in message:  # another process, that the job's own could not do without
        return ProcessDied(str(message["died"]))
    remote = RemoteFailure(str(message["failed"]), tuple(map(str, message.get("types", ()))))
    meant: Exception
    if "fatal" in message:
        meant = Fatal(message["fatal"])
    elif "snooze" in message:
        meant = Snooze(float(message["snooze"]), str(message["reason"]))
    else:
        return remote
    meant.__cause__ = remote
    return meant


async def answer_to_note(job: RunningJob, message: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Writes what a running job asked for, and gives the answer to be sent; a refusal is one, too."""
    answer: dict[str, Any] = {"answer": message["question"], "value": None}
    try:
        if message["for"] != run_name(job.record):
            raise RuntimeError("this run of the job is over; its process has another one now")
        answer["value"] = await _written(job, message, body)
    except Exception as error:
        answer = {"answer": message["question"], "refused": told_refusal(error)}
    return answer


async def _written(job: RunningJob, message: dict[str, Any], body: bytes) -> Any:
    note = message["note"]
    if note == "progress":
        return await job.update_progress(json.loads(body))
    if note == "log":
        return await job.log(body.decode(), message["level"])
    if note == "checkpoint":
        return await job.save_checkpoint(unpack(body))
    return await job.dependency_results()
