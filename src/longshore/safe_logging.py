"""Loggers that escape unprintable text of jobs before any handler receives it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from longshore.core.validation import printable

_LONGEST_TRACEBACK = 32 * 1024
_PLAIN = (int, float, type(None))


def logger(name: str) -> logging.Logger:
    """Return the logger of this name, with unprintable text in messages and tracebacks escaped."""
    found = logging.getLogger(name)
    found.addFilter(_make_printable)  # a logger adds the same filter only once
    return found


def _make_printable(record: logging.LogRecord) -> bool:
    """Escape a record; as a filter it keeps every record.

    `exc_info` is unchanged, for error trackers; formatters take the traceback from `exc_text`.
    """
    if isinstance(record.args, Mapping):
        record.args = {name: _shown(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(_shown(value) for value in record.args)
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(*record.exc_info))
        if len(text) > _LONGEST_TRACEBACK:
            text = f"[the beginning is omitted]\n{text[-_LONGEST_TRACEBACK:]}"
        # indented, so that no line of a message looks like a line of the log
        record.exc_text = "\n".join(f"    {printable(line)}" for line in text.rstrip("\n").split("\n"))
    return True


def _shown(value: object) -> Any:
    if isinstance(value, str):
        return printable(value)
    return value if isinstance(value, _PLAIN) else _Printable(value)


class _Printable:
    """A value in a message that is formatted only when a handler needs it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))
