"""Log formatters: each line carries the ids of its job and request, and no token."""

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
"""The id of the HTTP request that is served, or an empty string."""

_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"})


def context() -> dict[str, Any]:
    """Return the ids of the current job and request, for a log line."""
    fields: dict[str, Any] = {}
    job = job_of_the_caller()
    if job is not None:
        record = job.record
        fields = {
            "job_id": record.id,
            "job_type": record.type,
            "queue": str(record.queue),
            "execution": record.executions,
            "epoch": record.epoch,
        }
    if request_id.get():
        fields["request_id"] = request_id.get()
    return fields


class JsonLines(logging.Formatter):
    """Format each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **context(),
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(fields, default=str))


class TextLines(logging.Formatter):
    """Format records for people; control characters inside a message are escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: ", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with an indented traceback below it: no line of it looks like a line of the log."""
        record.asctime = self.formatTime(record, self.datefmt)
        fields = "".join(f" {name}={value}" for name, value in context().items())
        line = f"{record.asctime} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        below = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return without_secrets("\n".join([printable(line), *(f"    {printable(one)}" for one in below)]))


def escape_unconfigured_logs() -> None:
    """Escape control characters also in the logs of a process that has no logging configured."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TextLines())


def set_up_logging(form: LogFormat, level: int = logging.INFO) -> None:
    """Log to standard error as text or JSON lines: `set_up_logging("json")`. See docs/operations.md."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
