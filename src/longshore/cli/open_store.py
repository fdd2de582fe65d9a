"""Opens the store that a command names, and completes names of queues, types and jobs from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.runtime.queue import Queue

_PATIENCE = 1.0
"""Seconds after which completion gives up, so that typing never waits for a distant store."""
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
    import asyncio

    async def in_time(queue: Queue) -> list[str]:
        async with asyncio.timeout(_PATIENCE):
            return list(await look(queue))

    try:
        found = Store(ctx.params.get("url") or HERE, ctx.params.get("schema"), hurried=True).within(in_time)
    except Exception:  # no error may end up on the command line being completed
        return []
    # a name that a terminal cannot show is no help as a completion
    return [name for name in found if name.startswith(incomplete) and name.isprintable()][:_OFFERED]


R = TypeVar("R")

HERE = "sqlite:///longshore.db"
"""Where the jobs are if nothing is said: where `longshore up` puts them."""

_AT_A_SERVER: dict[str, Any] = {"wait_seconds": 3}
"""A person should soon see that a server does not answer; a worker waits longer."""
_SHORTEST_TIMEOUT = 2
"""Seconds: PostgreSQL's library takes anything less for this."""
_HASTE: dict[str, dict[str, Any]] = {
    "sqlite:": {"busy_seconds": 0.5},
    "postgres": {"wait_seconds": 1, "answer_seconds": 1},
    "http": {"wait_seconds": 1, "answer_seconds": 1},
}

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="LONGSHORE_URL",
        show_default=True,
        help="Where the jobs are: sqlite:///jobs.db, postgresql://user@host/database or a server, https://host.",
    ),
]
Schema = Annotated[
    str | None, typer.Option(envvar="LONGSHORE_SCHEMA", help="On PostgreSQL, the schema; longshore if left out.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only, one on each line.")]
OneQueue = Annotated[
    str | None, typer.Option("--queue", autocompletion=complete_queue, help="Only this queue; all if left out.")
]


@dataclass(frozen=True, slots=True)
class Store:
    """The store that a command names."""

    url: str = field(repr=False)
    schema: str | None = None
    hurried: bool = False
    """Whether a store that does not answer soon is not waited for."""

    def backend(self, *, create: bool = False) -> Backend:
        """The backend, not opened yet. Unless `create`, a mistyped address makes no empty store to report on."""
        from longshore.backends.connect import connect

        options: dict[str, Any] = {}
        if self.url.startswith(("sqlite:", "postgres")):
            options["create"] = create
        elif not create:
            options |= _AT_A_SERVER if self.url.startswith("http") else {}
        if self.schema is not None:
            options["schema"] = self.schema
        if self.hurried:
            options |= next((haste for kind, haste in _HASTE.items() if self.url.startswith(kind)), {})
        return connect(self._address, **options)

    def refuse_unusable_file(self) -> None:
        """Refuses to serve a file that cannot be used; a server that does not answer yet is waited for.

        It creates no file: the command may still be refused for another reason.
        """
        if not self.url.startswith("sqlite:///"):
            return
        from pathlib import Path
        from urllib.parse import unquote

        file = Path(unquote(self.url.removeprefix("sqlite:///")))
        if file.exists() or not file.parent.exists():
            self.within(lambda queue: queue.backend.list_queues())

    @property
    def _address(self) -> str:
        if not (self.hurried and self.url.startswith("postgres")):
            return self.url
        return f"{self.url}{'&' if '?' in self.url else '?'}connect_timeout={_SHORTEST_TIMEOUT}"

    def within(self, use: Callable[[Queue], Awaitable[R]], *, queue: str | None = None, create: bool = False) -> R:
        """Runs it with a queue of this name, or of all jobs, and closes everything behind it."""

        async def opened() -> R:
            from longshore.runtime import logs
            from longshore.runtime.queue import Queue

            logs.make_inert()
            async with Queue(self.backend(create=create), queue) as found:
                return await use(found)

        import asyncio

        from longshore.core.actor import acting

        with acting(actor()):
            return asyncio.run(opened())


def actor() -> str:
    """Who acts, for the record."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name, as containers have them
        return "cli"


def a_store(url: Url = HERE, schema: Schema = None) -> Store:
    """The options that name the store."""
    return Store(url, schema)


def warn_of_password(ctx: typer.Context, url: str | None) -> None:
    """For commands that run for long: every user who lists processes sees their command lines."""
    from longshore.cli.output import complain

    if url is None or str(getattr(ctx.get_parameter_source("url"), "name", "")) != "COMMANDLINE":
        return
    if re.search(r"://[^/]*:.*@|[?&]password=", url, re.DOTALL):
        complain(
            "longshore: everybody on this machine who lists processes sees the password in --url; "
            "put the address into LONGSHORE_URL instead"
        )
