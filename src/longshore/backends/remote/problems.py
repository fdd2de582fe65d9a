"""Errors as problem details, both ways: what a server refuses is raised on the other side as the very same error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.core import errors
from longshore.core.errors import LongshoreError
from longshore.core.status import JobStatus

PREFIX = "urn:longshore:"

KNOWN: Mapping[str, type[LongshoreError]] = {
    "job-not-found": errors.JobNotFound,
    "schedule-not-found": errors.ScheduleNotFound,
    "token-not-found": errors.TokenNotFound,
    "duplicate-job": errors.DuplicateJob,
    "idempotency-key-reused": errors.KeyReused,
    "invalid-transition": errors.InvalidTransition,
    "job-not-inflight": errors.JobNotInflight,
    "lease-lost": errors.LeaseLost,
    "move-refused": errors.MoveRefused,
    "cursor-expired": errors.CursorExpired,
    "invalid-argument": errors.InvalidArgument,
    "store-unavailable": errors.BackendUnavailable,
    "unauthenticated": errors.Unauthenticated,
    "forbidden": errors.Forbidden,
}
"""The errors that are the same on both sides, by the name in a problem's type."""

_NAMES = {kind: name for name, kind in KNOWN.items()}
_CARRIED = ("field", "problem", "job_id", "job_ids", "schedule_id", "token_id", "reason")


def told_of(error: LongshoreError) -> dict[str, Any]:
    """The error as a problem within an answer."""
    name = next((_NAMES[kind] for kind in type(error).__mro__ if kind in _NAMES), "internal")
    return {"type": f"{PREFIX}{name}", "detail": str(error), **carried(error)}


def carried(error: LongshoreError) -> dict[str, Any]:
    """What an error carries besides its words."""
    told: dict[str, Any] = {name: value for name in _CARRIED if (value := getattr(error, name, None)) is not None}
    if isinstance(error, errors.InvalidTransition):
        told |= {"status_of_job": str(error.status), "target": str(error.target)}
    return told


def error_in(problem: Mapping[str, Any]) -> LongshoreError:
    """The error that a problem tells of: its class, its words and what it carries."""
    kind = KNOWN.get(str(problem.get("type", "")).removeprefix(PREFIX), errors.BackendUnavailable)
    words = str(problem.get("detail", ""))
    error = kind.__new__(kind, words)
    error.args = (words,)
    if issubclass(kind, errors.InvalidTransition):
        error.__dict__.update(
            job_id=problem.get("job_id", ""),
            status=_status(problem.get("status_of_job")),
            target=_status(problem.get("target")),
        )
        return error
    for name in _CARRIED:
        if name in problem:
            setattr(error, name, problem[name])
    if isinstance(error, errors.InvalidArgument):
        error.field = str(problem.get("field", ""))
        error.problem = str(problem.get("problem", words.removeprefix(f"{error.field}: ")))
    return error


def _status(word: object) -> Any:
    return JobStatus[word] if isinstance(word, str) and word in JobStatus.__members__ else word
