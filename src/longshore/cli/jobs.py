"""`cancel`, `retry`, `promote`, `delete` and `dead-letters`: operations on named jobs or on all that match a filter."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli.exit_codes import Exit, exit_code_of, gravest
from longshore.cli.inspect import All, Cursor, Limit, show_jobs
from longshore.cli.open_store import AsJson, Quiet, Store, a_store, actor, complete_job
from longshore.cli.options import a_filter, gathered
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
class Asked:
    """How an act is to be done, and told."""

    ids: Sequence[str]
    where: JobFilter
    everything: bool
    dry_run: bool
    yes: bool
    as_json: bool
    quiet: bool
    dead_only: bool = False
    """Whether any other job is out of the question."""


def asked(
    ids: Ids = None,
    everything: AllJobs = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Asked:
    """What all acts are told alike, but for the filter."""
    return Asked(ids or [], JobFilter(), everything, dry_run, yes, as_json, quiet)


def act(what: Act, store: Store, how: Asked, *, reset: bool = True) -> None:
    """Does it to the ids given, or to all that match."""
    filtered = how.where != JobFilter()
    if how.ids and (filtered or how.everything):
        raise InvalidArgument("id", "stands alone: give ids, or conditions that jobs must match")
    if not how.ids and not filtered and not how.everything:
        raise InvalidArgument("id", "give ids, or conditions that jobs must match (--queue, --type, --tag …), or --all")
    check_names("id", how.ids)  # before the first of them is touched
    if how.ids and not how.dry_run:
        store.within(lambda queue: _to_named(queue, what, how, reset))
    else:
        where = dataclasses.replace(how.where, ids=tuple(how.ids))
        store.within(lambda queue: _to_all(queue, what, dataclasses.replace(how, where=where), reset))


# -- by id


async def _to_named(queue: Queue, what: Act, how: Asked, reset: bool) -> None:
    one = _verb(queue, what, reset)
    done: list[str] = []
    refused: dict[str, LongshoreError] = {}
    for job_id in dict.fromkeys(how.ids):
        try:
            if how.dead_only:
                await _check_dead(queue, job_id)
            await one(job_id)
        except (JobNotFound, InvalidTransition) as error:
            refused[job_id] = error
            continue
        except LongshoreError as error:  # the others would meet it, too; what was done before it is told all the same
            refused[job_id] = error
            break
        done.append(job_id)
    if how.as_json:
        _tell_json(what, how, len(how.ids), len(done), done, refused)
    for job_id in [] if how.as_json else done:
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


def _verb(queue: Queue, what: Act, reset: bool) -> Callable[[str], Awaitable[None]]:
    from longshore.runtime.bulk_operations import cancel_one, delete_one

    async def cancel(job_id: str) -> None:
        await cancel_one(queue, job_id)

    async def delete(job_id: str) -> None:
        await delete_one(queue, job_id)

    async def retry(job_id: str) -> None:
        await queue.retry_job(job_id, reset=reset, actor=actor())

    return {"cancel": cancel, "delete": delete, "retry": retry, "promote": queue.promote_job}[what]


# -- by filter


async def _to_all(queue: Queue, what: Act, how: Asked, reset: bool) -> None:
    from longshore.runtime.bulk_operations import act_on_all

    matched = await _count(queue, what, how.where)
    if how.dry_run or not matched:
        _tell_all(what, how, matched, 0)
        return
    if not how.yes:
        _confirm(what, matched)
    with progress("jobs") as tell:
        done = await act_on_all(
            queue,
            what,
            how.where,
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
        raise InvalidArgument("yes", f"{matched:,} jobs match, and nobody is there to be asked: give --yes")
    if not ask(f"{what} {matched:,} jobs?"):
        complain("longshore: nothing was changed")
        raise typer.Exit(Exit.FAILED)


def _tell_all(what: Act, how: Asked, matched: int, changed: int) -> None:
    if how.as_json:
        _tell_json(what, how, matched, changed, None, {})
    elif how.dry_run:
        say(f"{matched:,} jobs match; nothing was changed")
    else:
        say(f"{changed:,} jobs {_DONE[what]}")


def _tell_json(
    what: Act, how: Asked, matched: int, changed: int, ids: list[str] | None, refused: dict[str, LongshoreError]
) -> None:
    from longshore.cli.json_output import ActReport

    reasons = {job_id: str(error) for job_id, error in refused.items()}
    say_model(
        ActReport(action=what, dry_run=how.dry_run, matched=matched, changed=changed, job_ids=ids, refused=reasons)
    )


Keep = Annotated[bool, typer.Option("--keep-counters", help="Do not count failures and crashes anew.")]


@gathered(how=asked, where=a_filter, store=a_store)
def cancel(*, how: Asked, where: JobFilter, store: Store) -> None:
    """Calls jobs off: by id, or all that match. What runs is asked to stop."""
    act("cancel", store, dataclasses.replace(how, where=where))


@gathered(how=asked, where=a_filter, store=a_store)
def retry(*, keep_counters: Keep = False, how: Asked, where: JobFilter, store: Store) -> None:
    """Sends dead jobs back to their queues: by id, or all that match."""
    act("retry", store, dataclasses.replace(how, where=where), reset=not keep_counters)


@gathered(how=asked, where=a_filter, store=a_store)
def promote(*, how: Asked, where: JobFilter, store: Store) -> None:
    """Lets jobs that wait for their time run now: by id, or all that match."""
    act("promote", store, dataclasses.replace(how, where=where))


@gathered(how=asked, where=a_filter, store=a_store)
def delete(*, how: Asked, where: JobFilter, store: Store) -> None:
    """Removes jobs that are over, for good: by id, or all that match."""
    act("delete", store, dataclasses.replace(how, where=where))


dlq = typer.Typer(help="Jobs that failed for good.", no_args_is_help=True, rich_markup_mode=None)


def _dead(where: JobFilter) -> JobFilter:
    if where.statuses not in ((), (JobStatus.DEAD,)):
        raise InvalidArgument("status", "is always DEAD here; leave it out")
    return dataclasses.replace(where, statuses=(JobStatus.DEAD,))


@dlq.command("list")
@gathered(where=a_filter, store=a_store)
def list_dead(
    *,
    limit: Limit = 50,
    cursor: Cursor = None,
    everything: All = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    where: JobFilter,
    store: Store,
) -> None:
    """Lists dead jobs that match every condition given, newest first."""
    show_jobs(store, _dead(where), limit=limit, cursor=cursor, everything=everything, as_json=as_json, quiet=quiet)


@dlq.command()
@gathered(how=asked, where=a_filter, store=a_store)
def requeue(*, keep_counters: Keep = False, how: Asked, where: JobFilter, store: Store) -> None:
    """Sends dead jobs back to their queues: by id, all that match, or --all."""
    act("retry", store, _meant(how, where), reset=not keep_counters)


@dlq.command()
@gathered(how=asked, where=a_filter, store=a_store)
def purge(*, how: Asked, where: JobFilter, store: Store) -> None:
    """Removes dead jobs for good: by id, all that match, or --all."""
    act("delete", store, _meant(how, where))


def _meant(how: Asked, where: JobFilter) -> Asked:
    """That they are dead is no condition of the caller's: without another one, --all must be said."""
    if where == JobFilter() and not how.everything:
        return dataclasses.replace(how, dead_only=True)
    return dataclasses.replace(how, where=_dead(where), dead_only=True, everything=False)
