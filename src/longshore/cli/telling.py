"""A job told to people: its record line by line, the attempts at it, and the command that is the way out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from longshore.cli.output import readable_json, say, say_id, say_lines, say_model, show_rows
from longshore.cli.rows import ago, clock, compact, shortened, span
from longshore.cli.tables import Column
from longshore.core.errors import InvalidArgument
from longshore.core.explain import attempts_of
from longshore.core.validation import read_json

if TYPE_CHECKING:
    from longshore.core.job import Job, JobEvent
    from longshore.runtime.queue import Queue

_INDENT = "  "
_ATTEMPTS = (
    Column("TRY", whole=True, right=True),
    Column("STARTED", whole=True),
    Column("TOOK", whole=True, right=True),
    Column("WORKER"),
    Column("OUTCOME", whole=True),
    Column("ERROR"),
)


async def tell_new_job(found: Queue, job: Job, *, as_json: bool, quiet: bool) -> None:
    """A job that was stored just now."""
    if as_json:
        from longshore.server.models.jobs import view

        say_model(view(job, await found.backend.now()))
    elif quiet:
        say_id(job.id)
    else:
        say(f"{job.id} is {job.status} in the queue {job.queue}")


def tell_job(job: Job, events: Sequence[JobEvent], now: datetime) -> None:
    """All that is known of it."""
    fields = list(_fields(job, now))
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        say(f"{name:<{width}}  {value}")
    for name, stored in (("data", job.payload), ("result", job.result)):
        if stored is not None:
            say(f"{name}:")
            say_lines(content(stored), _INDENT)
    if job.error_message:
        say("error:")
        say_lines(job.error_message, _INDENT)
    _tell_attempts(events)
    lines = sum(event.event == "job.log_added" for event in events)
    if lines:
        say(f"log: {lines:,} lines, read with: longshore logs {shlex.quote(job.id)}")
    if not job.status.final:
        say(f"why it is where it is: longshore explain {shlex.quote(job.id)}")


def _fields(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    yield "id", job.id
    yield "status", job.status.value
    yield "type", job.type
    yield "queue", str(job.queue)
    from longshore.server.models.jobs import shown_options

    options = shown_options(job)
    optional: tuple[tuple[str, object], ...] = (
        ("tags", ", ".join(job.tags)),
        ("priority", job.priority or ""),
        ("attempts", f"{job.executions} run, {job.retry_count} failed, {job.crashes} crashed"),
        ("allowed", f"{job.max_attempts or 'any number of'} attempts"),
        ("progress", "" if job.progress is None else compact(job.progress)),
        ("worker", job.assignee_id),
        ("idempotency key", job.idempotency_key),
        ("concurrency key", job.concurrency_key),
        ("parent", job.parent_id),
        ("schedule", job.schedule_id),
        ("depends on", ", ".join(job.depends_on)),
        ("timeout", span(job.timeout.total_seconds()) if isinstance(job.timeout, timedelta) else ""),
        ("options", compact(options) if options else ""),
    )
    yield from ((name, str(value)) for name, value in optional if value)
    for name in ("created_at", "run_at", "expires_at", "started_at", "finalized_at"):
        moment = getattr(job, name)
        if isinstance(moment, datetime):
            yield name.removesuffix("_at").replace("_", " "), f"{clock(moment)} ({ago(moment, now)})"
    if job.lease is not None and job.lease.expires_at is not None:
        yield "lease", f"until {clock(job.lease.expires_at)} ({ago(job.lease.expires_at, now)})"


def _tell_attempts(events: Sequence[JobEvent]) -> None:
    attempts = attempts_of(events)
    if not attempts:
        return
    say("attempts:")
    rows = [
        [
            str(attempt.execution),
            clock(attempt.started_at),
            "" if attempt.ended_at is None else span((attempt.ended_at - attempt.started_at).total_seconds()),
            attempt.worker or "",
            attempt.outcome.removeprefix("job."),
            shortened(attempt.error.partition("\n")[0]),
        ]
        for attempt in attempts
    ]
    show_rows(_ATTEMPTS, rows)


def content(stored: bytes) -> str:
    """What a job carries, for people: JSON on several lines, or how many bytes it is of something else."""
    try:
        return readable_json(read_json("data", stored))
    except InvalidArgument:
        return f"{len(stored):,} bytes that are no JSON"


def way_out(kind: str, job_id: str, details: Mapping[str, Any]) -> str:
    """The command that does something about a reason; nothing if there is none."""
    quoted = shlex.quote(job_id)
    queue = shlex.quote(str(details.get("queue", "")))
    commands = {
        "dead": f"longshore retry {quoted}",
        "not_due": f"longshore promote {quoted}",
        "queue_paused": f"longshore resume {queue}",
        "no_worker": f"longshore worker --queue {queue} --harbor MODULE:NAME",
        "running": f"longshore logs -f {quoted}",
        "completed": f"longshore show {quoted}",
    }
    return commands.get(kind, "")
