"""Logs that can be searched: each line knows the job and the request it was written for, and holds no token."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from longshore.core.tokens import without_secrets
from longshore.core.validation import printable
from longshore.runtime.running_job import job_of_the_caller

LogFormat = Literal["text", "json"]

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the HTTP request that is being served, if one is."""

_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"})


def context() -> dict[str, Any]:
    """What is being worked on where this is called: the job, the request, or nothing."""
    told: dict[str, Any] = {}
    job = job_of_the_caller()
    if job is not None:
        record = job.record
        told = {
            "job_id": record.id,
            "job_type": record.type,
            "queue": str(record.queue),
            "execution": record.executions,
            "epoch": record.epoch,
        }
    if request_id.get():
        told["request_id"] = request_id.get()
    return told


class JsonLines(logging.Formatter):
    """One JSON object for each line, whatever is in the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **context(),
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(told, default=str))


class TextLines(logging.Formatter):
    """For people; line ends and other control characters inside a message are shown, not sent to the terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: ", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it, set in so that none of its lines can be taken for one of the log's."""
        record.asctime = self.formatTime(record, self.datefmt)
        told = "".join(f" {name}={value}" for name, value in context().items())
        line = f"{record.asctime} {record.levelname} {record.name}: {record.getMessage()}{told}"
        below = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return without_secrets("\n".join([printable(line), *(f"    {printable(one)}" for one in below)]))


def make_inert() -> None:
    """Has what a process logs that set up nothing go to its standard error as people can read it."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TextLines())


def set_up_logging(form: LogFormat, level: int = logging.INFO) -> None:
    """Has this process log so, to its standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
