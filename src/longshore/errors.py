"""The errors that Longshore raises; import them from here."""

from asyncio import CancelledError

from longshore.core.errors import (
    BackendUnavailable,
    CursorExpired,
    DuplicateJob,
    Fatal,
    Forbidden,
    InvalidArgument,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobNotInflight,
    KeyReused,
    LeaseLost,
    LongshoreError,
    MissingExtra,
    MoveRefused,
    QueueClosed,
    ScheduleNotFound,
    Snooze,
    TokenNotFound,
    Unauthenticated,
)

__all__ = [
    "BackendUnavailable",
    "CursorExpired",
    "DuplicateJob",
    "Fatal",
    "Forbidden",
    "InvalidArgument",
    "InvalidTransition",
    "JobCancelled",
    "JobFailed",
    "JobInterrupted",
    "JobNotFound",
    "JobNotInflight",
    "KeyReused",
    "LeaseLost",
    "LongshoreError",
    "MissingExtra",
    "MoveRefused",
    "QueueClosed",
    "ScheduleNotFound",
    "Snooze",
    "TokenNotFound",
    "Unauthenticated",
]


class JobInterrupted(CancelledError):
    """Raised by `job.raise_if_cancelled()` in a task that should end; let it propagate.

    It is a CancelledError, not an Exception: `except Exception` around a step of the work does not catch it, and
    cleanup code for `asyncio.CancelledError` handles it too.
    """
