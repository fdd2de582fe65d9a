"""`cancel`, `retry`, `promote`, `delete` and `dead-letters`: operations on named jobs or on all that match a filter."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exit_codes import Exit, exit_code_of, gravest
from longshore.cli.inspect import Listing, show_jobs
from longshore.cli.open_store import AsJson, Quiet, actor, complete_job
from longshore.cli.options import a_filter, on_store
from longshore.cli.output import ask, complain, progress, say, say_id, say_model, somebody_is_there
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound, LongshoreError
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus
from longshore.core.validation import check_names

if TYPE_CHECKING:
    from longshore.runtime.bulk_operations import Act
    from longshore.runtime.queue import Queue

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", autocompletion=complete_job, help="The jobs.")]
AllJobs = Annotated[bool, typer.Option("--all", help="Every job there is, if no condition is given.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count those that match.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_DONE = {"cancel": "cancelled", "retry": "sent back to the queue", "promote": "may run now", "delete": "deleted"}


@dataclass(frozen=True, slots=True)
class Targets:
    """The options of all bulk commands but the filter: which jobs, whether to ask, and what to print."""

    ids: Ids = None
    everything: AllJobs = False
    dry_run: DryRun = False
    yes: Yes = False
    as_json: AsJson = False
    quiet: Quiet = False


async def act(
    what: Act, queue: Queue, how: Targets, where: JobFilter, *, reset: bool = True, dead_only: bool = False
) -> None:
    """Does it to the ids given, or to all that match; with `dead_only`, to dead jobs and no others."""
    filtered, ids = where != JobFilter(), how.ids or []
    if ids and (filtered or how.everything):
        raise InvalidArgument("id", "stands alone: give ids, or conditions that jobs must match")
    if not ids and not filtered and not how.everything:
        raise InvalidArgument("id", "give ids, or conditions that jobs must match (--queue, --type, --tag …), or --all")
    check_names("id", ids)  # before the first of them is touched
    if dead_only and (filtered or how.everything):
        where = _dead(where)
    if ids and not how.dry_run:
        await _to_named(queue, what, how, ids, reset, dead_only)
    else:
        await _to_all(queue, what, how, dataclasses.replace(where, ids=tuple(ids)), reset)


# -- by id


async def _to_named(queue: Queue, what: Act, how: Targets, ids: Sequence[str], reset: bool, dead_only: bool) -> None:
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
        except LongshoreError as error:  # the others would fail too; report what was done before it
            refused[job_id] = error
            break
        done.append(job_id)
    if how.as_json:
        _tell_json(what, how, len(ids), len(done), done, refused)
    else:
        for job_id in done:
            if how.quiet:
                say_id(job_id)
            else:
                say(f"{job_id} {_DONE[what]}")
    for refusal in refused.values():
        complain(f"longshore: {refusal}")
    if refused:
        raise typer.Exit(gravest([exit_code_of(type(refusal)) for refusal in refused.values()]))


async def _check_dead(queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    if job.status is not JobStatus.DEAD:
        raise InvalidTransition(job_id, job.status, "taken from the dead letters", "it is none of them")


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


async def _to_all(queue: Queue, what: Act, how: Targets, where: JobFilter, reset: bool) -> None:
    from longshore.runtime.bulk_operations import act_on_all

    matched = await _count(queue, what, where)
    if how.dry_run or not matched:
        _tell_all(what, how, matched, 0)
        return
    if not how.yes:
        _confirm(what, matched)
    with progress("jobs") as tell:
        done = await act_on_all(
            queue,
            what,
            where,
            most=sys.maxsize,
            dry_run=False,
            actor=actor(),
            reset=reset,
            told=lambda so_far: tell(what, so_far.changed, max(matched, so_far.changed)),
        )
    _tell_all(what, how, done.matched, done.changed)


async def _count(queue: Queue, what: Act, where: JobFilter) -> int:
    """How many it would be done to; by status and queue alone that is known without a look at any job."""
    from longshore.runtime.bulk_operations import APPLIES_TO, act_on_all

    if what == "promote" or where != JobFilter(statuses=where.statuses, queues=where.queues):
        return (await act_on_all(queue, what, where, most=sys.maxsize, dry_run=True, actor="")).matched
    statuses = APPLIES_TO[what] & frozenset(where.statuses or APPLIES_TO[what])
    counts = [await queue.count_jobs(name) for name in dict.fromkeys(where.queues) or (None,)]
    return sum(jobs for counted in counts for status, jobs in counted.items() if status in statuses)


def _confirm(what: Act, matched: int) -> None:
    if not somebody_is_there():
        raise InvalidArgument("yes", f"{matched:,} jobs match, and there is no terminal to ask at: give --yes")
    if not ask(f"{what} {matched:,} jobs?"):
        complain("longshore: nothing was changed")
        raise typer.Exit(Exit.FAILED)


def _tell_all(what: Act, how: Targets, matched: int, changed: int) -> None:
    if how.as_json:
        _tell_json(what, how, matched, changed, None, {})
    elif how.dry_run:
        say(f"{matched:,} jobs match; nothing was changed")
    else:
        say(f"{changed:,} jobs {_DONE[what]}")


def _tell_json(
    what: Act, how: Targets, matched: int, changed: int, ids: list[str] | None, refused: dict[str, LongshoreError]
) -> None:
    from longshore.cli.json_output import ActReport

    reasons = {job_id: str(error) for job_id, error in refused.items()}
    say_model(
        ActReport(action=what, dry_run=how.dry_run, matched=matched, changed=changed, job_ids=ids, refused=reasons)
    )


Keep = Annotated[bool, typer.Option("--keep-counters", help="Do not reset the counts of failures and crashes.")]


@on_store(how=Targets, where=a_filter)
async def cancel(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Cancels jobs: by id, or all that match. A running job is asked to stop."""
    await act("cancel", queue, how, where)


@on_store(how=Targets, where=a_filter)
async def retry(queue: Queue, keep_counters: Keep = False, *, how: Targets, where: JobFilter) -> None:
    """Sends dead jobs back to their queues: by id, or all that match."""
    await act("retry", queue, how, where, reset=not keep_counters)


@on_store(how=Targets, where=a_filter)
async def promote(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Makes delayed jobs due now: by id, or all that match."""
    await act("promote", queue, how, where)


@on_store(how=Targets, where=a_filter)
async def delete(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Deletes final jobs: by id, or all that match."""
    await act("delete", queue, how, where)


dlq = typer.Typer(help="Jobs that failed for good.", no_args_is_help=True, rich_markup_mode=None)


def _dead(where: JobFilter) -> JobFilter:
    if where.statuses not in ((), (JobStatus.DEAD,)):
        raise InvalidArgument("status", "is always DEAD here; leave it out")
    return dataclasses.replace(where, statuses=(JobStatus.DEAD,))


@dlq.command("list")
@on_store(how=Listing, where=a_filter)
async def list_dead(queue: Queue, *, how: Listing, where: JobFilter) -> None:
    """Lists dead jobs that match every condition given, newest first."""
    await show_jobs(queue, _dead(where), how)


@dlq.command()
@on_store(how=Targets, where=a_filter)
async def requeue(queue: Queue, keep_counters: Keep = False, *, how: Targets, where: JobFilter) -> None:
    """Sends dead jobs back to their queues: by id, all that match, or --all."""
    await act("retry", queue, how, where, reset=not keep_counters, dead_only=True)


@dlq.command()
@on_store(how=Targets, where=a_filter)
async def purge(queue: Queue, *, how: Targets, where: JobFilter) -> None:
    """Deletes dead jobs: by id, all that match, or --all."""
    await act("delete", queue, how, where, dead_only=True)
