"""Acting on jobs: `cancel`, `retry`, `promote` and `delete`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from longshore.cli.acts import Asked, act, asked
from longshore.cli.filters import a_filter
from longshore.cli.gathering import gathered
from longshore.cli.store import Store, a_store
from longshore.core.filters import JobFilter

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
