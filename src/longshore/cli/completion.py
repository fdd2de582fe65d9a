"""What the shell offers when somebody presses Tab: queues, types and ids, found quickly or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from longshore.runtime.queue import Queue

_PATIENCE = 1.0
"""Seconds after which nothing is offered: whoever types must not wait for a store that is far away."""
_LOOKED_AT = 200
"""Jobs that are looked at for ids and types, the newest first."""
_OFFERED = 50

Look = Callable[["Queue"], Awaitable[Iterable[str]]]


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of queues that have jobs or settings."""

    async def names(queue: Queue) -> list[str]:
        return [one.name for one in await queue.list_queues()]

    return _offered(ctx, incomplete, names)


def complete_type(ctx: typer.Context, incomplete: str) -> list[str]:
    """Types of the newest jobs."""
    return _offered(ctx, incomplete, lambda queue: _of_newest(queue, "type"))


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest jobs."""
    return _offered(ctx, incomplete, lambda queue: _of_newest(queue, "id"))


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of schedules."""

    async def ids(queue: Queue) -> list[str]:
        return [schedule.id for schedule in await queue.get_schedules()]

    return _offered(ctx, incomplete, ids)


async def _of_newest(queue: Queue, field: str) -> list[str]:
    from longshore.core.filters import JobFilter

    page = await queue.list_jobs(JobFilter(), limit=_LOOKED_AT)
    return list(dict.fromkeys(str(getattr(job, field)) for job in page.items))


def _offered(ctx: typer.Context, incomplete: str, look: Look) -> list[str]:
    """What begins as typed. A line half typed may be wrong in any way: then there is nothing to offer."""
    try:
        found = _looked(ctx, look)
    except Exception:  # whatever it is, it must not be written into somebody's command line
        return []
    # what a terminal would not show as it is, is no help to whoever chooses by looking
    return [name for name in found if name.startswith(incomplete) and name.isprintable()][:_OFFERED]


def _looked(ctx: typer.Context, look: Look) -> list[str]:
    import asyncio

    from longshore.cli.store import HERE, Store

    store = Store(ctx.params.get("url") or HERE, ctx.params.get("schema"), hurried=True)

    async def in_time(queue: Queue) -> list[str]:
        async with asyncio.timeout(_PATIENCE):
            return list(await look(queue))

    return store.within(in_time)
