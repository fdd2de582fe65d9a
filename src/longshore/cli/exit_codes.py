"""Exit codes: one table from each error to the number a script sees."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from longshore.core import errors


class Exit(IntEnum):
    """The code with which the command ends."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    TOO_LATE = 6
    NOT_ALLOWED = 7
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANING: Mapping[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "a job that was waited for failed or was called off, or a check found something wrong",
    Exit.USAGE: "wrong use: an option, an address or a value was refused, and nothing was changed",
    Exit.UNREACHABLE: "the store or server cannot be reached or used",
    Exit.NOT_FOUND: "no such job, schedule, token or place in the log",
    Exit.CONFLICT: "refused as things are: not possible from the status of the job, an id in use, something missing",
    Exit.TOO_LATE: "what was waited for did not happen in time; it goes on without you",
    Exit.NOT_ALLOWED: "a server does not know who is calling, or does not let them; `LONGSHORE_TOKEN` has the token",
    Exit.INTERNAL: "a defect of Longshore; `longshore --traceback …` shows where",
    Exit.INTERRUPTED: "stopped with Ctrl-C",
    Exit.PIPE_CLOSED: "whoever read the output stopped reading, as `head` does",
}

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
