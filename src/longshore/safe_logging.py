"""Our loggers: what comes from jobs is made printable before any handler gets it, whoever set the handlers up."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from longshore.core.payload import printable

_LONGEST_TRACEBACK = 32 * 1024
_PLAIN = (int, float, type(None))


def logger(name: str) -> logging.Logger:
    """The logger of this name, with texts in its messages and tracebacks made printable."""
    found = logging.getLogger(name)
    found.addFilter(_make_printable)  # once: the logger knows the filters it has
    return found


def _make_printable(record: logging.LogRecord) -> bool:
    """A filter that keeps every record.

    `exc_info` stays as it is, for error trackers; formatters take the text of the traceback from `exc_text`.
    """
    if isinstance(record.args, Mapping):
        record.args = {name: _shown(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(_shown(value) for value in record.args)
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(record.exc_info[1]))
        if len(text) > _LONGEST_TRACEBACK:
            text = f"[the beginning is left out]\n{text[-_LONGEST_TRACEBACK:]}"
        # set in, so that no line of a message can be taken for a line of the log
        record.exc_text = "\n".join(f"    {printable(line)}" for line in text.rstrip("\n").split("\n"))
    return True


def _shown(value: object) -> Any:
    if isinstance(value, str):
        return printable(value)
    return value if isinstance(value, _PLAIN) else _Printable(value)


class _Printable:
    """Stands for a value in a message; nothing is written before a handler asks for it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))
