"""The store that a command uses, and shell completion from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from longshore.backends.base import Backend
    from longshore.runtime.queue import Queue

_COMPLETION_TIMEOUT = 1.0
"""Seconds after which completion gives up, so that a slow store does not block typing."""
_JOBS_READ = 200
"""The newest jobs that completion reads for ids and types."""
_MOST_COMPLETIONS = 50

Look = Callable[["Queue"], Awaitable[Iterable[str]]]


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of queues that have jobs or settings."""

    async def names(queue: Queue) -> list[str]:
        return [one.name for one in await queue.list_queues()]

    return _complete(ctx, incomplete, names)


def complete_type(ctx: typer.Context, incomplete: str) -> list[str]:
    """Types of the newest jobs."""
    return _complete(ctx, incomplete, lambda queue: _newest(queue, "type"))


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest jobs."""
    return _complete(ctx, incomplete, lambda queue: _newest(queue, "id"))


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of schedules."""

    async def ids(queue: Queue) -> list[str]:
        return [schedule.id for schedule in await queue.get_schedules()]

    return _complete(ctx, incomplete, ids)


async def _newest(queue: Queue, field: str) -> list[str]:
    from longshore.core.filters import JobFilter

    page = await queue.list_jobs(JobFilter(), limit=_JOBS_READ)
    return list(dict.fromkeys(str(getattr(job, field)) for job in page.items))


def _complete(ctx: typer.Context, incomplete: str, look: Look) -> list[str]:
    """Return the names that begin as typed; any error means no completions."""
    import asyncio

    async def in_time(queue: Queue) -> list[str]:
        async with asyncio.timeout(_COMPLETION_TIMEOUT):
            return list(await look(queue))

    try:
        store = Store(ctx.params.get("url") or DEFAULT_URL, ctx.params.get("schema"), short_timeouts=True)
        found = store.within(in_time)
    except Exception:  # an error message would end up in the command line being typed
        return []
    return [name for name in found if name.startswith(incomplete) and name.isprintable()][:_MOST_COMPLETIONS]


R = TypeVar("R")

DEFAULT_URL = "sqlite:///longshore.db"
"""The default store, which `longshore up` creates."""

_SERVER_TIMEOUTS: dict[str, Any] = {"wait_seconds": 3}
"""Interactive commands give up on a silent server sooner than workers do."""
_MIN_CONNECT_TIMEOUT = 2
"""Seconds; libpq treats smaller values as this."""
_SHORT_TIMEOUTS: dict[str, dict[str, Any]] = {
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
        help="The store: sqlite:///jobs.db, postgresql://user@host/database, or a server, https://host.",
    ),
]
Schema = Annotated[
    str | None, typer.Option(envvar="LONGSHORE_SCHEMA", help="The PostgreSQL schema. Default: longshore.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only, one per line.")]
OneQueue = Annotated[
    str | None, typer.Option("--queue", autocompletion=complete_queue, help="Only this queue. Default: all queues.")
]


@dataclass(frozen=True, slots=True)
class Store:
    """The store that a command names."""

    url: str = field(repr=False)
    schema: str | None = None
    short_timeouts: bool = False
    """Whether to give up early on a store that does not answer."""

    def backend(self, *, create: bool = False) -> Backend:
        """Return the backend, not yet open. Without `create`, a mistyped address creates no empty store."""
        from longshore.backends.connect import connect

        options: dict[str, Any] = {}
        if self.url.startswith(("sqlite:", "postgres")):
            options["create"] = create
        elif not create:
            options |= _SERVER_TIMEOUTS if self.url.startswith("http") else {}
        if self.schema is not None:
            options["schema"] = self.schema
        if self.short_timeouts:
            options |= next((haste for kind, haste in _SHORT_TIMEOUTS.items() if self.url.startswith(kind)), {})
        return connect(self._address, **options)

    def refuse_unusable_file(self) -> None:
        """Raise if the SQLite file is unusable. Creates no file, because a later check may still refuse the command."""
        if not self.url.startswith("sqlite:///"):
            return
        from pathlib import Path
        from urllib.parse import unquote

        file = Path(unquote(self.url.removeprefix("sqlite:///")))
        if file.exists() or not file.parent.exists():
            self.within(lambda queue: queue.backend.list_queues())

    @property
    def _address(self) -> str:
        if not (self.short_timeouts and self.url.startswith("postgres")):
            return self.url
        return f"{self.url}{'&' if '?' in self.url else '?'}connect_timeout={_MIN_CONNECT_TIMEOUT}"

    def within(self, use: Callable[[Queue], Awaitable[R]], *, queue: str | None = None, create: bool = False) -> R:
        """Open the store, call `use` with the named queue (or a queue of all jobs), and close the store."""

        async def opened() -> R:
            from longshore.runtime import logs
            from longshore.runtime.queue import Queue

            logs.escape_unconfigured_logs()
            async with Queue(self.backend(create=create), queue) as found:
                return await use(found)

        import asyncio

        from longshore.core.actor import acting

        with acting(actor()):
            return asyncio.run(opened())


def actor() -> str:
    """Return the actor that events record."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # in a container the user may have no name
        return "cli"


def store_options(url: Url = DEFAULT_URL, schema: Schema = None) -> Store:
    """The options that name the store."""
    return Store(url, schema)


def warn_of_password(ctx: typer.Context, url: str | None) -> None:
    """Warn about a password in --url of a long-running command: process lists show command lines."""
    from longshore.cli.output import print_stderr

    if url is None or str(getattr(ctx.get_parameter_source("url"), "name", "")) != "COMMANDLINE":
        return
    if re.search(r"://[^/]*:.*@|[?&]password=", url, re.DOTALL):
        print_stderr(
            "longshore: process lists on this machine show the password in --url; "
            "set LONGSHORE_URL to the address instead"
        )
