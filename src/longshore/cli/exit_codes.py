"""Exit codes, and the table from errors to exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Self

from longshore.core import errors


class Exit(IntEnum):
    """An exit code with its meaning."""

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> Self:
        made = int.__new__(cls, value)
        made._value_, made.meaning = value, meaning
        return made

    OK = 0, "success"
    FAILED = 1, "the awaited job failed or was cancelled, or a check found a problem"
    USAGE = 2, "usage error: an option, an address or a value is invalid; nothing was changed"
    UNREACHABLE = 3, "the store or server cannot be reached or used"
    NOT_FOUND = 4, "no such job, schedule or token, or the cursor has expired"
    CONFLICT = 5, "conflict: the job's status does not allow it, the id is in use, or an extra is missing"
    TOO_LATE = 6, "timed out while waiting; the job keeps running"
    NOT_ALLOWED = 7, "the server rejected the token or its scopes; set `LONGSHORE_TOKEN`"
    INTERNAL = 70, "a bug in Longshore; `longshore --traceback …` shows where"
    INTERRUPTED = 130, "stopped with Ctrl-C"
    PIPE_CLOSED = 141, "the reader closed the pipe, as `head` does"


TABLE: Mapping[type[BaseException], Exit] = {
    errors.InvalidArgument: Exit.USAGE,
    errors.BackendUnavailable: Exit.UNREACHABLE,
    errors.QueueClosed: Exit.UNREACHABLE,
    errors.JobNotFound: Exit.NOT_FOUND,
    errors.ScheduleNotFound: Exit.NOT_FOUND,
    errors.TokenNotFound: Exit.NOT_FOUND,
    errors.CursorExpired: Exit.NOT_FOUND,
    errors.DuplicateJob: Exit.CONFLICT,
    errors.InvalidTransition: Exit.CONFLICT,
    errors.LeaseLost: Exit.CONFLICT,
    errors.Unauthenticated: Exit.NOT_ALLOWED,
    errors.Forbidden: Exit.NOT_ALLOWED,
    errors.JobFailed: Exit.FAILED,
    errors.JobCancelled: Exit.FAILED,
    errors.LongshoreError: Exit.CONFLICT,
    TimeoutError: Exit.TOO_LATE,
    KeyboardInterrupt: Exit.INTERRUPTED,
    BrokenPipeError: Exit.PIPE_CLOSED,
    Exception: Exit.INTERNAL,
}
"""The nearest ancestor of an error's class that is listed here decides."""


def exit_code_of(error: type[BaseException]) -> Exit:
    """Return the exit code for an error class."""
    return next((TABLE[ancestor] for ancestor in error.__mro__ if ancestor in TABLE), Exit.INTERNAL)


def most_severe(codes: list[Exit]) -> Exit:
    """Return the code to exit with after several errors: problems of the store or the caller before those of a job."""
    order = (Exit.UNREACHABLE, Exit.NOT_ALLOWED, Exit.USAGE, Exit.NOT_FOUND, Exit.CONFLICT)
    return next((code for code in order if code in codes), codes[0] if codes else Exit.OK)
