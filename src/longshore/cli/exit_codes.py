"""Exit codes: one table from each error to the number a script sees."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Self

from longshore.core import errors


class Exit(IntEnum):
    """The code with which the command ends, and what it means."""

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> Self:
        made = int.__new__(cls, value)
        made._value_, made.meaning = value, meaning
        return made

    OK = 0, "done"
    FAILED = 1, "a job that was waited for failed or was cancelled, or a check found something wrong"
    USAGE = 2, "wrong use: an option, an address or a value was refused, and nothing was changed"
    UNREACHABLE = 3, "the store or server cannot be reached or used"
    NOT_FOUND = 4, "no such job, schedule, token or place in the log"
    CONFLICT = 5, "refused as things are: not possible from the status of the job, an id in use, something missing"
    TOO_LATE = 6, "what was waited for did not happen in time; the job continues"
    NOT_ALLOWED = 7, "a server does not know who is calling, or does not let them; `LONGSHORE_TOKEN` has the token"
    INTERNAL = 70, "a defect of Longshore; `longshore --traceback …` shows where"
    INTERRUPTED = 130, "stopped with Ctrl-C"
    PIPE_CLOSED = 141, "the reader of the output closed the pipe, as `head` does"


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
"""The nearest ancestor that stands here decides."""


def exit_code_of(error: type[BaseException]) -> Exit:
    """The code for an error of this kind."""
    return next((TABLE[ancestor] for ancestor in error.__mro__ if ancestor in TABLE), Exit.INTERNAL)


def gravest(codes: list[Exit]) -> Exit:
    """Of several things that went wrong, the one to end with: that which is least about the state of a job."""
    order = (Exit.UNREACHABLE, Exit.NOT_ALLOWED, Exit.USAGE, Exit.NOT_FOUND, Exit.CONFLICT)
    return next((code for code in order if code in codes), codes[0] if codes else Exit.OK)
