"""The dead-letter queue: jobs that failed for good, listed, sent back, or removed."""

from __future__ import annotations

import dataclasses

import typer

from longshore.cli.acting import Keep
from longshore.cli.acts import Asked, act, asked
from longshore.cli.filters import a_filter
from longshore.cli.gathering import gathered
from longshore.cli.looking import All, Cursor, Limit, show_jobs
from longshore.cli.store import AsJson, Quiet, Store, a_store
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus

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
