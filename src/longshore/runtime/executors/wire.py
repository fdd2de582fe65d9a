"""JSON frames between a worker and its child processes, and the errors sent in them."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import struct
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, BinaryIO

from longshore.core import errors
from longshore.core.errors import Fatal, LongshoreError, Snooze
from longshore.core.job import Job, Lease
from longshore.core.status import JobStatus
from longshore.core.times import from_micros, to_micros
from longshore.core.validation import LARGEST_PAYLOAD, unpack
from longshore.runtime.error_text import ProcessDied, RemoteFailure, describe
from longshore.runtime.running_job import RunningJob

Frame = tuple[dict[str, Any], bytes]

_SIZES = struct.Struct("!II")
_LARGEST_HEADER = 2 * 1024 * 1024
"""The largest header of a child, for its longest escaped texts. Bytes that a job wrote are not read as a size."""


class Unreadable(Exception):
    """The received bytes are not a frame."""


def frame(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a message as bytes: JSON, then a large value unchanged."""
    header = json.dumps(message, separators=(",", ":")).encode()
    return b"".join((_SIZES.pack(len(header), len(body)), header, body))


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Return the next message of a child, which is not trusted."""
    header, body = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    if header > _LARGEST_HEADER or body > LARGEST_PAYLOAD:
        raise Unreadable(f"a frame of {header} and {body} bytes")
    try:
        message = json.loads(await reader.readexactly(header))
    except ValueError as error:
        raise Unreadable(str(error)) from None
    if not isinstance(message, dict):
        raise Unreadable(f"a frame with a {type(message).__name__}")
    return message, await reader.readexactly(body)


def next_frame(channel: BinaryIO) -> Frame | None:
    """Wait for the next message of the parent; return None at the end."""
    sizes = channel.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    header, body = _SIZES.unpack(sizes)
    message, value = channel.read(header), channel.read(body)
    return (json.loads(message), value) if len(message) == header and len(value) == body else None


# -- a job, field by field; its payload follows


def job_fields(record: Job) -> dict[str, list[Any]]:
    """Return a job's fields, each with its kind, so that no value is read as another kind."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(Job) if field.name != "payload"}
    return {name: _with_kind(value) for name, value in fields.items() if value is not None}


def job_from(sent: Mapping[str, list[Any]], payload: bytes) -> Job:
    """Return the job with these fields."""
    fields = {name: _read(kind, value) for name, (kind, value) in sent.items()}
    fields["status"] = JobStatus(fields["status"])
    return Job(payload=payload, **fields)


def run_name(record: Job) -> str:
    """Return the name of the attempt that sends a note: a thread that outlives its job may still send some."""
    return f"{record.id} {record.epoch}"


def _with_kind(value: Any) -> list[Any]:
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, datetime):
        return ["moment", to_micros(value)]
    if isinstance(value, timedelta):
        return ["span", value // timedelta(microseconds=1)]
    if isinstance(value, Lease):
        end = None if value.expires_at is None else to_micros(value.expires_at)
        return ["lease", [value.token, value.epoch, end, value.cancel_requested]]
    return ["json", dict(value) if isinstance(value, Mapping) else value]


def _read(kind: str, value: Any) -> Any:
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "moment":
        return from_micros(value)
    if kind == "span":
        return timedelta(microseconds=value)
    if kind == "lease":
        token, epoch, end, cancel_requested = value
        return Lease(token, epoch, None if end is None else from_micros(end), cancel_requested)
    return value


# -- a refusal, so that a task can catch LeaseLost in any process


def refusal_fields(error: Exception) -> dict[str, Any]:
    """Return one of our own errors with its fields; any other as its text."""
    if isinstance(error, LongshoreError) and getattr(errors, type(error).__name__, None) is type(error):
        plain = {"name": type(error).__name__, "args": error.args, "fields": vars(error)}
        fields: dict[str, Any] = json.loads(json.dumps(plain, default=str))
        return fields
    return {"name": LongshoreError.__name__, "args": [describe(error)], "fields": {}}


def refusal_from(sent: Mapping[str, Any]) -> LongshoreError:
    """Return the error with these fields, to raise it here."""
    kind: type[LongshoreError] = getattr(errors, sent["name"])
    error = kind.__new__(kind)
    error.args = tuple(sent["args"])
    for name, value in sent["fields"].items():
        setattr(error, name, JobStatus(value) if name in ("status", "target") and value in set(JobStatus) else value)
    return error


def failure_from(message: dict[str, Any]) -> Exception:
    """Return the failure that a message reports; Fatal, Snooze and ProcessDied keep their meaning."""
    if "died" in message:  # a further process that the job needs, such as Spark's
        return ProcessDied(str(message["died"]))
    remote = RemoteFailure(str(message["failed"]), tuple(map(str, message.get("types", ()))))
    failure: Exception
    if "fatal" in message:
        failure = Fatal(message["fatal"])
    elif "snooze" in message:
        failure = Snooze(float(message["snooze"]), str(message["reason"]))
    else:
        return remote
    failure.__cause__ = remote
    return failure


async def answer_to_note(job: RunningJob, message: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Write what a running job sent, and return the answer; a refusal is an answer, too."""
    answer: dict[str, Any] = {"answer": message["question"], "value": None}
    try:
        if message["for"] != run_name(job.record):
            raise RuntimeError("this attempt at the job has ended; its process runs another job now")
        answer["value"] = await _written(job, message, body)
    except Exception as error:
        answer = {"answer": message["question"], "refused": refusal_fields(error)}
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
