"""`cancel`, `retry`, `promote`, `delete` and `dlq`: operations on jobs given by id or by a filter."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exit_codes import Exit, exit_code_of, most_severe
from longshore.cli.inspect import Listing, show_jobs
from longshore.cli.open_store import AsJson, Quiet, actor, complete_job
from longshore.cli.options import filter_options, on_store
from longshore.cli.output import ask, is_interactive, print_id, print_line, print_model, print_stderr, progress
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound, LongshoreError
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus
from longshore.core.validation import check_names, counted

if TYPE_CHECKING:
    from longshore.runtime.bulk_operations import Act
    from longshore.runtime.queue import Queue

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", autocompletion=complete_job, help="Ids of jobs.")]
AllJobs = Annotated[bool, typer.Option("--all", help="Every job; needed if there is no id and no filter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the matching jobs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_DONE = {"cancel": "cancelled", "retry": "returned to the queue", "promote": "made due", "delete": "deleted"}


@dataclass(frozen=True, slots=True)
class Targets:
    """The options of all bulk commands except the filter."""

    ids: Ids = None
    everything: AllJobs = False
    dry_run: DryRun = False
    yes: Yes = False
    as_json: AsJson = False
    quiet: Quiet = False


async def act(
    what: Act, queue: Queue, how: Targets, where: JobFilter, *, reset: bool = True, dead_only: bool = False
) -> None:
    """Apply the action to the given ids or to all matching jobs; with `dead_only`, to dead jobs only."""
    filtered, ids = where != JobFilter(), how.ids or []
    if ids and (filtered or how.everything):
        raise InvalidArgument("id", "cannot be combined with filters or --all; give ids or filters")
    if not ids and not filtered and not how.everything:
        raise InvalidArgument("id", "give ids, filters (--queue, --type, --tag …) or --all")
    check_names("id", ids)  # before the first job is changed
    if dead_only and (filtered or how.everything):
        where = _dead(where)
    if ids and not how.dry_run:
        await _act_on_named(queue, what, how, ids, reset, dead_only)
    else:
        await _act_on_matching(queue, what, how, dataclasses.replace(where, ids=tuple(ids)), reset)


# -- by id


async def _act_on_named(
    queue: Queue, what: Act, how: Targets, ids: Sequence[str], reset: bool, dead_only: bool
) -> None:
    one = _verb(queue, what, reset)
    done: list[str] = []
    refused: dict[str, LongshoreError] = {}
    for job_id in dict.fromkeys(ids):
        try:
            if dead_only:
                await _check_dead(queue, job_id)
            await one(job_id)
        except (JobNotFound, InvalidTransition) as error:
            refused[job_id] = error
            continue
        except LongshoreError as error:  # the store failed: the remaining ids would fail too
            refused[job_id] = error
            break
        done.append(job_id)
    if how.as_json:
        _print_report(what, how, len(ids), len(done), done, refused)
    else:
        for job_id in done:
            if how.quiet:
                print_id(job_id)
            else:
                print_line(f"{job_id} {_DONE[what]}")
    for refusal in refused.values():
        print_stderr(f"longshore: {refusal}")
    if refused:
        raise typer.Exit(most_severe([exit_code_of(type(refusal)) for refusal in refused.values()]))


async def _check_dead(queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    if job.status is not JobStatus.DEAD:
        raise InvalidTransition(job_id, job.status, "requeued or purged", "it is not a dead letter")


def _verb(queue: Queue, what: Act, reset: bool) -> Callable[[str], Awaitable[object]]:
    from longshore.runtime.bulk_operations import cancel_one, delete_one

    verbs: dict[Act, Callable[[str], Awaitable[object]]] = {
        "cancel": partial(cancel_one, queue),
        "delete": partial(delete_one, queue),
        "retry": partial(queue.retry_job, reset=reset, actor=actor()),
        "promote": queue.promote_job,
    }
    return verbs[what]


# -- by filter


async def _act_on_matching(queue: Queue, what: Act, how: Targets, where: JobFilter, reset: bool) -> None:
    from longshore.runtime.bulk_operations import act_on_all

    matched = await _count(queue, what, where)
    if how.dry_run or not matched:
        _print_summary(what, how, matched, 0)
        return
    if not how.yes:
        _confirm(what, matched)
    with progress("job") as report:
        done = await act_on_all(
            queue,
            what,
            where,
            most=sys.maxsize,
            dry_run=False,
            actor=actor(),
            reset=reset,
            on_progress=lambda so_far: report(what, so_far.changed, max(matched, so_far.changed)),
        )
    _print_summary(what, how, done.matched, done.changed)


async def _count(queue: Queue, what: Act, where: JobFilter) -> int:
    """Count the jobs the action applies to; a filter by status and queue alone needs no scan."""
    from longshore.runtime.bulk_operations import APPLIES_TO, act_on_all

    if what == "promote" or where != JobFilter(statuses=where.statuses, queues=where.queues):
        return (await act_on_all(queue, what, where, most=sys.maxsize, dry_run=True, actor="")).matched
    statuses = APPLIES_TO[what] & frozenset(where.statuses or APPLIES_TO[what])
    counts = [await queue.count_jobs(name) for name in dict.fromkeys(where.queues) or (None,)]
    return sum(jobs for counted in counts for status, jobs in counted.items() if status in statuses)


def _confirm(what: Act, matched: int) -> None:
    if not is_interactive():
        remedy = f"add --yes to {what} {counted(matched, 'job')}, or --dry-run to only count"
        raise InvalidArgument("yes", f"no terminal to confirm on, so nothing was changed; {remedy}")
    if not ask(f"{what} {counted(matched, 'job')}?"):
        print_stderr("longshore: nothing was changed")
        raise typer.Exit(Exit.FAILED)


def _print_summary(what: Act, how: Targets, matched: int, changed: int) -> None:
    if how.as_json:
        _print_report(what, how, matched, changed, None, {})
    elif how.dry_run:
        print_line(f"{counted(matched, 'job')} {'matches' if matched == 1 else 'match'}; nothing was changed")
    else:
        print_line(f"{counted(changed, 'job')} {_DONE[what]}")


def _print_report(
    what: Act, how: Targets, matched: int, changed: int, ids: list[str] | None, refused: dict[str, LongshoreError]
) -> None:
    from longshore.cli.json_output import ActReport

    reasons = {job_id: str(error) for job_id, error in refused.items()}
    print_model(
        ActReport(action=what, dry_run=how.dry_run, matched=matched, changed=changed, job_ids=ids, refused=reasons)
    )


Keep = Annotated[bool, typer.Option("--keep-counters", help="Keep the counts of failures and crashes.")]


@on_store(how=Targets, where=filter_options)
async def cancel(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Cancel jobs by id, or all that match the filters. A running job is asked to stop."""
    await act("cancel", queue, how, where)


@on_store(how=Targets, where=filter_options)
async def retry(queue: Queue, keep_counters: Keep = False, *, how: Targets, where: JobFilter) -> None:
    """Return dead jobs to their queues, by id or all that match the filters."""
    await act("retry", queue, how, where, reset=not keep_counters)


@on_store(how=Targets, where=filter_options)
async def promote(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Make delayed jobs due now, by id or all that match the filters."""
    await act("promote", queue, how, where)


@on_store(how=Targets, where=filter_options)
async def delete(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Delete final jobs, by id or all that match the filters."""
    await act("delete", queue, how, where)


dlq = typer.Typer(help="Dead letters: jobs that failed permanently.", no_args_is_help=True, rich_markup_mode=None)


def _dead(where: JobFilter) -> JobFilter:
    if where.statuses not in ((), (JobStatus.DEAD,)):
        raise InvalidArgument("status", "is always DEAD for this command; leave it out")
    return dataclasses.replace(where, statuses=(JobStatus.DEAD,))


@dlq.command("list")
@on_store(how=Listing, where=filter_options)
async def list_dead(queue: Queue, *, how: Listing, where: JobFilter) -> None:
    """List dead jobs that match all filters, newest first."""
    await show_jobs(queue, _dead(where), how)


@dlq.command()
@on_store(how=Targets, where=filter_options)
async def requeue(queue: Queue, keep_counters: Keep = False, *, how: Targets, where: JobFilter) -> None:
    """Return dead jobs to their queues, by id, filters or --all."""
    await act("retry", queue, how, where, reset=not keep_counters, dead_only=True)


@dlq.command()
@on_store(how=Targets, where=filter_options)
async def purge(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Delete dead jobs, by id, filters or --all."""
    await act("delete", queue, how, where, dead_only=True)
