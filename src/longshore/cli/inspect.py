"""`list`, `show` and `explain`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.cli import output, rows
from longshore.cli.open_store import AsJson, Quiet, complete_job
from longshore.cli.options import filter_options, on_store
from longshore.cli.rows import ago, clock, compact, span, truncate
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.job import attempts_of
from longshore.core.validation import counted, read_json

if TYPE_CHECKING:
    from longshore.backends.base import Page
    from longshore.core.job import Job, JobEvent
    from longshore.runtime.queue import Queue

_INDENT = "  "
_EXECUTIONS = (
    output.Column("EXECUTION", whole=True, right=True),
    output.Column("STARTED", whole=True),
    output.Column("TOOK", whole=True, right=True),
    output.Column("WORKER"),
    output.Column("OUTCOME", whole=True),
    output.Column("ERROR"),
)

_OUTCOMES = {"job.stalled": "crashed"}


async def print_new_job(found: Queue, job: Job, *, as_json: bool, quiet: bool, replayed: bool | None = None) -> None:
    """Print a job that was just enqueued; `replayed`: it existed before. None: it is certainly new."""
    if as_json:
        from longshore.cli.json_output import NewJob
        from longshore.server.models.jobs import view

        shown = view(job, await found.backend.now())
        output.print_model(shown if replayed is None else NewJob(**dict(shown), replayed=replayed))
    elif quiet:
        output.print_id(job.id)
    elif replayed:
        known = f"{job.id} is the job that already has this key or id ({job.status})"
        output.print_line(f"{known}; nothing was added and its data was not changed")
    else:
        output.print_line(f"{job.id} is {job.status} in queue {job.queue}")


def print_job(job: Job, events: Sequence[JobEvent], now: datetime) -> None:
    """Print the record, data, result, error and executions of a job."""
    fields = list(_fields(job, now))
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        output.print_line(f"{name:<{width}}  {value}")
    for name, stored in (("data", job.payload), ("result", job.result)):
        if stored is not None:
            output.print_line(f"{name}:")
            output.print_lines(content(stored), _INDENT)
    if job.error_message:
        output.print_line("error:")
        output.print_lines(job.error_message, _INDENT)
    _print_executions(events)
    lines = sum(event.event == "job.log_added" for event in events)
    if lines:
        output.print_line(f"log: {counted(lines, 'line')}; read with: longshore logs {shlex.quote(job.id)}")
    if not job.status.final:
        output.print_line(f"explain this status: longshore explain {shlex.quote(job.id)}")


def _fields(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    yield "id", job.id
    yield "status", rows.status_with_meaning(job.status)
    yield "type", job.type
    yield "queue", str(job.queue)
    from longshore.server.models.jobs import shown_options

    options = shown_options(job)
    optional: tuple[tuple[str, object], ...] = (
        ("tags", ", ".join(job.tags)),
        ("priority", job.priority or ""),
        ("executions", f"{job.executions} ({job.retry_count} failed, {job.crashes} crashed)"),
        ("max attempts", job.max_attempts or "unlimited"),
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


def _print_executions(events: Sequence[JobEvent]) -> None:
    attempts = attempts_of(events)
    if not attempts:
        return
    output.print_line("executions:")
    rows = [
        [
            str(attempt.execution),
            clock(attempt.started_at),
            "" if attempt.ended_at is None else span((attempt.ended_at - attempt.started_at).total_seconds()),
            attempt.worker or "",
            _OUTCOMES.get(attempt.outcome, attempt.outcome.removeprefix("job.")),
            truncate(attempt.error.partition("\n")[0]),
        ]
        for attempt in attempts
    ]
    output.print_rows(_EXECUTIONS, rows)


def content(stored: bytes) -> str:
    """Return a payload for people: JSON on several lines, or the size of other bytes."""
    try:
        return output.readable_json(read_json("data", stored))
    except InvalidArgument:
        return f"{counted(len(stored), 'byte')}, not JSON"


def remedy_command(kind: str, job_id: str, details: Mapping[str, Any]) -> str:
    """Return the command that helps with a reason of `explain`, or an empty text."""
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


PAGE = 500
"""Jobs per page with --all."""
_MAX_EVENTS = 10_000
"""The most events of one job that `show` reads."""

JobId = Annotated[str, typer.Argument(metavar="ID", autocompletion=complete_job, help="The job's id.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE, help="Number of jobs to show.")]
Cursor = Annotated[str | None, typer.Option(help="Start after this cursor, which the previous page printed.")]
All = Annotated[bool, typer.Option("--all", help="Show all matching jobs.")]
Ids = Annotated[list[str] | None, typer.Option("--id", autocompletion=complete_job, help="Has this id; repeatable.")]


@dataclass(frozen=True, slots=True)
class Listing:
    """The options of the commands that list jobs, except the filter."""

    limit: Limit = 50
    cursor: Cursor = None
    everything: All = False
    as_json: AsJson = False
    quiet: Quiet = False


@on_store(how=Listing, where=filter_options)
async def list_jobs(queue: Queue, ids: Ids = None, *, how: Listing, where: JobFilter) -> None:
    """List jobs that match all filters, newest first."""
    await show_jobs(queue, dataclasses.replace(where, ids=tuple(ids or ())), how)


async def show_jobs(queue: Queue, where: JobFilter, how: Listing) -> None:
    """Print one page of jobs, or all of them."""
    pages = _pages(queue, where, PAGE if how.everything else how.limit, how.cursor, everything=how.everything)
    if how.as_json:
        await _as_json(queue, pages)
    else:
        await _as_rows(queue, pages, quiet=how.quiet, everything=how.everything)


async def _pages(
    queue: Queue, where: JobFilter, limit: int, cursor: str | None, *, everything: bool
) -> AsyncIterator[Page]:
    while True:
        page = await queue.list_jobs(where, limit=limit, cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None or not everything:
            return


async def _as_json(queue: Queue, pages: AsyncIterator[Page]) -> None:
    """Print one document page by page, because millions of jobs may match."""
    from longshore.server.models.jobs import summary

    now, separator, after = await queue.backend.now(), "", None
    output.print_chunk('{"items": [')
    async for page in pages:
        for job in page.items:
            output.print_chunk(separator + output.json_text(summary(job, now).model_dump(mode="json")))
            separator = ", "
        after = page.next_cursor
    output.print_chunk(f'], "next_cursor": {output.json_text(after)}}}\n')


async def _as_rows(queue: Queue, pages: AsyncIterator[Page], *, quiet: bool, everything: bool) -> None:
    now, first = await queue.backend.now(), True
    async for page in pages:
        if quiet:
            for job in page.items:
                output.print_id(job.id)
        elif page.items:
            output.print_rows(rows.JOBS, [rows.job_row(job, now) for job in page.items], header=first)
        elif first:
            output.print_stderr("no jobs match")
        first = False
        if page.next_cursor is not None and not everything:
            output.print_stderr(f"next page: --cursor {page.next_cursor}")


@on_store()
async def show(queue: Queue, job_id: JobId, *, as_json: AsJson = False) -> None:
    """Show a job: its record, data, result, error and every execution."""
    job = await queue.get_job(job_id)
    events = await events_of(queue, job.id)
    now = await queue.backend.now()
    if as_json:
        from longshore.cli.json_output import job_detail

        output.print_model(job_detail(job, events, now))
    else:
        print_job(job, events, now)


async def events_of(queue: Queue, job_id: str) -> list[JobEvent]:
    """Return the events of a job that the log still has, up to a limit."""
    events: list[JobEvent] = []
    while len(events) < _MAX_EVENTS:
        after = events[-1].cursor if events else None
        more = await queue.read_events(after, PAGE, job_id=job_id)
        events += more
        if len(more) < PAGE:
            break
    return events


@on_store()
async def explain(queue: Queue, job_id: JobId, *, as_json: AsJson = False) -> None:
    """Explain why a job is not running, with a remedy for each reason."""
    found = await queue.explain(job_id)
    if as_json:
        output.print_json(found.as_json())
        return
    output.print_line(f"job {found.job_id} is {rows.status_with_meaning(found.status)}")
    for reason in found.reasons:
        output.print_line(f"  {reason.text}")
        command = remedy_command(reason.kind, job_id, reason.details)
        if command:
            output.print_line(f"    {command}")
