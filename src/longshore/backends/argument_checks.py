"""Checks of the operations' arguments: every backend rejects invalid values with the same error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from longshore.backends.base import UNCHANGED, Outcome, Unchanged, WorkerInfo
from longshore.core import validation
from longshore.core.errors import InvalidArgument
from longshore.core.job import Lease
from longshore.core.times import check_datetime, check_duration

LEVELS = ("debug", "info", "warn", "error")
WORKER_EVENTS = ("worker.error", "worker.drained")


def limit(value: object, field: str = "limit") -> int:
    """Check a maximum: an integer of at least 1."""
    return validation.check_number(field, value, least=1)


class ClaimTerms(NamedTuple):
    """The checked arguments of a claim."""

    assignee_id: str
    tags: tuple[str, ...]
    limit: int
    queues: tuple[str, ...] | None
    lease: int | None
    types: tuple[str, ...] | None = None


def claim_terms(
    assignee_id: object, tags: object, limit: object, queues: object, lease: object, types: object, *, least: int = 1
) -> ClaimTerms:
    """Check the arguments of a claim."""
    return ClaimTerms(
        validation.check_name("assignee_id", assignee_id),
        validation.check_tags("tags", tags),
        validation.check_number("limit", limit, least=least),
        None if queues is None else validation.check_names("queues", queues),
        None if lease is None else check_duration("lease", lease),
        None if types is None else tuple(sorted(validation.check_names("types", types))),
    )


def lease(value: object, field: str = "lease") -> Lease | None:
    """Check for a lease from `dequeue_jobs`, or None for a write that is not fenced."""
    if value is None or isinstance(value, Lease):
        return value
    raise InvalidArgument(field, f"must be the Lease of a claimed job, or None; got {type(value).__name__}")


def leases(value: object) -> Mapping[str, Lease]:
    """Check leases by job id."""
    if not isinstance(value, Mapping):
        raise InvalidArgument("leases", f"must map job ids to leases, not {type(value).__name__}")
    for job_id, held in value.items():
        validation.check_name("leases", job_id)
        if not isinstance(held, Lease):
            raise InvalidArgument("leases", f"must map job ids to leases; {job_id!r} has a {type(held).__name__}")
    return value


def error_text(value: object, *, required: bool = False) -> str:
    """Check the text of an error."""
    text = validation.clean_text("error", value)
    if required and not text:
        raise InvalidArgument("error", "must say what went wrong; got empty text")
    return text


def result(value: object) -> bytes | None:
    """Check a result: bytes, or None."""
    return None if value is None else validation.check_bytes("result", value)


def selection(tags: object, job_ids: object, queue: object) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Check the selection of jobs to cancel or delete: it must not be empty, which would mean all jobs."""
    checked_tags, checked_ids = validation.check_tags("tags", tags), validation.check_names("job_ids", job_ids)
    if not checked_tags and not checked_ids:
        raise InvalidArgument("tags, job_ids", "are both empty, which would mean every job; name at least one")
    return checked_tags, checked_ids, optional_queue(queue)


def optional_queue(value: object) -> str | None:
    """Check a queue's name; None is all queues."""
    return None if value is None else validation.check_name("queue", value)


def outcomes(value: object) -> Sequence[Outcome]:
    """Check for a list of outcomes with valid job ids; their contents are checked one by one later."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgument("outcomes", f"must be a list of Outcome, not {type(value).__name__}")
    for outcome in value:
        if not isinstance(outcome, Outcome):
            raise InvalidArgument("outcomes", f"must be a list of Outcome; got a {type(outcome).__name__}")
        validation.check_name("job_id", outcome.job_id)
    return value


def jobs(value: object) -> Sequence[Any]:
    """Check for a list; each job is checked when it is stored."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgument("jobs", f"must be a list of Job, not {type(value).__name__}")
    return value


def level(value: object) -> str:
    """Check the level of a log line."""
    return _one_of("level", value, LEVELS)


def flag(field: str, value: object) -> bool:
    """Check for True or False; reject other truthy values."""
    if not isinstance(value, bool):
        raise InvalidArgument(field, f"must be True or False, not {type(value).__name__}")
    return value


def actor(value: object) -> str:
    """Check the name of the actor; it may be empty."""
    return "" if value == "" else validation.check_name("actor", value)


def keep(field: str, value: object) -> int | Unchanged | None:
    """Check a retention: a duration, None for no end, or unchanged."""
    if value is UNCHANGED:
        return UNCHANGED
    return None if value is None else check_duration(field, value, positive=False)


def worker(value: object) -> WorkerInfo:
    """Check the report of a worker."""
    if not isinstance(value, WorkerInfo):
        raise InvalidArgument("worker", f"must be a WorkerInfo, not {type(value).__name__}")
    validation.check_name("worker.id", value.id)
    for name in ("concurrency", "running", "pid"):
        validation.check_number(f"worker.{name}", getattr(value, name))
    if not isinstance(value.detail, Mapping):
        raise InvalidArgument("worker.detail", f"must be a mapping, not {type(value.detail).__name__}")
    validation.check_json("worker.detail", dict(value.detail), limit=validation.LARGEST_NOTE)
    if value.started_at is not None:
        check_datetime("worker.started_at", value.started_at)
    return dataclasses.replace(
        value,
        queues=validation.check_names("worker.queues", value.queues),
        tags=validation.check_tags("worker.tags", value.tags),
        host=validation.clean_text("worker.host", value.host),
        version=validation.clean_text("worker.version", value.version),
        state=validation.clean_text("worker.state", value.state),
        detail=dict(value.detail),
        types=None if value.types is None else validation.check_names("worker.types", value.types),
    )


def worker_event(value: object) -> str:
    """Check an event that a worker may write to the event log."""
    return _one_of("event", value, WORKER_EVENTS)


def _one_of(field: str, value: object, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidArgument(field, f"must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def detail(value: object) -> str | None:
    """Encode the detail of an event. Long or invalid text is cut and cleaned, so that no error is lost."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidArgument("detail", f"must be a mapping, not {type(value).__name__}")
    cleaned = {
        key: validation.clean_text("detail", inner, longest=validation.LONGEST_DETAIL_TEXT)
        if isinstance(inner, str)
        else inner
        for key, inner in value.items()
    }
    return validation.check_json("detail", cleaned, limit=validation.LARGEST_DETAIL).decode()
