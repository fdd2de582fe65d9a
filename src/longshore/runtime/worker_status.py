"""A worker's reports: one log line per ended job, and errors in the event log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from longshore.backends.base import Backend, Outcome, SettleReport
from longshore.core.job import DEFAULT_QUEUE, Job
from longshore.core.status import JobStatus
from longshore.runtime.error_text import user_traceback
from longshore.runtime.job_tasks import Attempt
from longshore.safe_logging import logger

_log = logger("longshore.worker")


async def record_error(backend: Backend, worker_id: str, error: str, *, queue: str = "") -> bool:
    """Write worker.error to the event log; return False if the store refuses it."""
    with suppress(Exception):  # the store that failed may fail again
        await backend.record_worker_event("worker.error", worker_id, queue=queue, detail={"error": error})
        return True
    return False


def log_outcomes(outcomes: Sequence[Outcome], report: SettleReport, attempts: dict[str, Attempt]) -> None:
    """Log a line for each settled job: INFO, WARNING for a retry, ERROR for a final failure.

    Logged jobs are removed from `attempts`.
    """
    for outcome in outcomes if attempts else ():
        attempt = attempts.pop(outcome.job_id, None)
        status = report.settled.get(outcome.job_id)
        if attempt is not None and status is not None:
            _log_outcome(attempt, outcome, status)
    for refusal in report.refused.values():
        _log.warning("the store refused an outcome, because the job belongs to another claim: %s", refusal)


def _log_outcome(attempt: Attempt, outcome: Outcome, status: JobStatus) -> None:
    job, delay = attempt.record, outcome.retry_at
    later = f"{delay:g} s" if isinstance(delay, int | float) else "" if delay is None else str(delay)
    level, error = logging.INFO, None
    if outcome.verb == "complete":
        what = "completed in"
    elif status is JobStatus.DEAD:
        what, level, error = "failed permanently after", logging.ERROR, attempt.error
    elif outcome.verb in ("fail", "crash") and not status.final:
        what, level = ("failed after" if outcome.verb == "fail" else "crashed after"), logging.WARNING
    elif outcome.verb == "release":
        what = f"released for {later} after" if later else "released after"
    else:
        what = "stopped after"
    if not _log.isEnabledFor(level):
        return
    again = f"; retrying{' in ' + later if later else ''}" if level == logging.WARNING else ""
    text = "" if outcome.verb == "complete" else outcome.error.partition("\n")[0] or outcome.verb
    _log.log(
        level,
        "%s[%s] %s %d ms%s%s%s",
        job.type,
        job.id,
        what,
        round(attempt.seconds * 1000),
        again,
        _where(job),
        f": {text}" if text else "",
        exc_info=None if error is None else (type(error), error, user_traceback(error)),
        extra={
            "job_id": job.id,
            "job_type": job.type,
            "queue": str(job.queue),
            "execution": job.executions,
            "seconds": round(attempt.seconds, 6),
        },
    )


def _where(job: Job) -> str:
    """Return the queue if it is not the default one, and the attempt if there may be several."""
    parts = [] if job.queue == DEFAULT_QUEUE else [f"queue {job.queue}"]
    if job.max_attempts != 1:
        of = f" of {job.max_attempts}" if job.max_attempts else ""
        parts.append(f"attempt {job.retry_count + 1}{of}")
    return f" ({', '.join(parts)})" if parts else ""
