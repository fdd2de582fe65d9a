"""Outcomes over the wire: how jobs ended, and what became of each."""

from __future__ import annotations

from typing import Any

from longshore.backends import checks
from longshore.backends.contract import Outcome, SettleReport
from longshore.backends.remote.forms import (
    BYTES,
    MOMENT,
    MOST_LISTED,
    NAME,
    STATUS,
    Form,
    Json,
    Schema,
    a_list,
    an_object,
    not_too_many,
    only,
    read_bytes,
    read_moment,
    write_bytes,
    write_moment,
)
from longshore.backends.remote.problems import error_in, told_of
from longshore.backends.remote.records.jobs import JOBS, read_job, write_job
from longshore.backends.remote.records.leases import LEASE, read_lease, write_lease
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.status import JobStatus

_OUTCOME_VERBS = ("complete", "fail", "bury", "stop", "release", "crash")


def write_outcome(outcome: Outcome) -> dict[str, Any]:
    """How a job ended; InvalidArgument if nobody could read it."""
    told: dict[str, Any] = {"job_id": outcome.job_id, "verb": outcome.verb}
    if outcome.verb not in _OUTCOME_VERBS:
        raise InvalidArgument("verb", f"must be one of {', '.join(_OUTCOME_VERBS)}, not {outcome.verb!r}")
    held = checks.lease(outcome.lease)
    if held is not None:
        told["lease"] = write_lease(held)
    if outcome.verb == "complete":
        result = checks.result(outcome.result)
        if result is not None:
            told["result"] = write_bytes(result)
        return told
    error = checks.error_text(outcome.error, required=outcome.verb == "fail")
    if error:
        told["error"] = error
    if outcome.verb in ("fail", "release") and outcome.retry_at is not None:
        told["retry_at"] = write_moment("retry_at", outcome.retry_at)
    return told


_OUTCOME_FIELDS: dict[str, Schema] = {
    "job_id": NAME.schema,
    "lease": LEASE.schema,
    "verb": {"enum": list(_OUTCOME_VERBS), "default": "complete"},
    "result": {"anyOf": [BYTES.schema, {"type": "null"}]},
    "error": WORD,
    "retry_at": {"anyOf": [MOMENT.schema, {"type": "null"}]},
}
_OUTCOME = a_record(
    "JobOutcome",
    "How a job ended: `complete` with a `result`; `fail` with an `error`, to be run again at `retry_at`; `bury` and "
    "`stop` for good; `crash` if its process died; `release` to give it back uncounted.",
    ["job_id"],
    **_OUTCOME_FIELDS,
)


def read_outcome(name: str, value: Json) -> Outcome:
    """How somebody says that a job ended; the store judges it."""
    told = an_object(name, value)
    only(name, told, _OUTCOME_FIELDS)
    if "job_id" not in told:
        raise InvalidArgument(f"{name}.job_id", "is missing")
    lease, result, retry_at = told.get("lease"), told.get("result"), told.get("retry_at")
    return Outcome(
        told["job_id"],
        None if lease is None else read_lease(f"{name}.lease", lease),
        told.get("verb", "complete"),
        None if result is None else read_bytes(f"{name}.result", result),
        told.get("error", ""),
        None if retry_at is None else read_moment(f"{name}.retry_at", retry_at),
    )


def _read_outcomes(name: str, told: Json) -> list[Outcome]:
    given = not_too_many(name, a_list(name, told))
    return [read_outcome(f"{name}[{place}]", one) for place, one in enumerate(given)]


OUTCOMES: Form[list[Outcome]] = Form(
    lambda _, outcomes: [write_outcome(outcome) for outcome in checks.outcomes(outcomes)],
    _read_outcomes,
    {"type": "array", "items": _OUTCOME, "maxItems": MOST_LISTED},
)


def write_report(_: str, report: SettleReport) -> dict[str, Any]:
    """What was settled, refused and freed."""
    return {
        "settled": {job_id: status.value for job_id, status in report.settled.items()},
        "refused": {job_id: told_of(error) for job_id, error in report.refused.items()},
        "freed": report.freed,
    }


def read_report(_: str, told: Json) -> SettleReport:
    """The same."""
    return SettleReport(
        {job_id: JobStatus(status) for job_id, status in told["settled"].items()},
        {job_id: error_in(problem) for job_id, problem in told["refused"].items()},
        told["freed"],
    )


_FREED: Schema = {"type": "object", "additionalProperties": NUMBER}
_REPORT_FIELDS: dict[str, Schema] = {
    "settled": {"type": "object", "additionalProperties": STATUS.schema},
    "refused": {"type": "object", "additionalProperties": {"type": "object"}},
    "freed": _FREED,
}
REPORT: Form[SettleReport] = Form(
    write_report,
    read_report,
    a_record(
        "SettleReport",
        "What became of each outcome, by job id: its new status, or a problem; and which workers got room back.",
        list(_REPORT_FIELDS),
        **_REPORT_FIELDS,
    ),
)
TURN: Form[tuple[SettleReport, list[Job]]] = Form(
    lambda _, turn: {**write_report("", turn[0]), "jobs": [write_job(job) for job in turn[1]]},
    lambda _, told: (read_report("", told), [read_job("", job) for job in told["jobs"]]),
    a_record(
        "SettleAndClaimReport",
        "What became of each outcome, and the jobs that were claimed.",
        [*_REPORT_FIELDS, "jobs"],
        **_REPORT_FIELDS,
        jobs=JOBS.schema,
    ),
)
FREED: Form[dict[str, int]] = Form(lambda _, freed: freed, lambda _, freed: dict(freed), _FREED)
