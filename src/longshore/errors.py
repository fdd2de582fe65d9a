"""The errors Longshore raises, under the name users import them by."""

from longshore.core.errors import (
    BackendUnavailable,
    CursorExpired,
    DuplicateJob,
    Fatal,
    InvalidArgument,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobNotInflight,
    LeaseLost,
    LongshoreError,
    MoveRefused,
    QueueClosed,
    ScheduleNotFound,
    Snooze,
)

__all__ = [
    "BackendUnavailable",
    "CursorExpired",
    "DuplicateJob",
    "Fatal",
    "InvalidArgument",
    "InvalidTransition",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobNotInflight",
    "LeaseLost",
    "LongshoreError",
    "MoveRefused",
    "QueueClosed",
    "ScheduleNotFound",
    "Snooze",
]
