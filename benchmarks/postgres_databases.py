"""A PostgreSQL server with default durability, and one database per side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import psycopg

from benchmarks.scale import Scale
from longshore.backends.postgres.connection import Server as Address
from longshore.backends.postgres.schema import prepare
from tests.postgres_server import DURABLE, Server

SCHEMA = "longshore"
_TEMPLATE = "with_schema"

Connection = psycopg.Connection[Any]


class PostgresDatabases:
    """Starts its server on first use."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self._numbers = itertools.count()
        self._started = ExitStack()

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._started.close()

    @cached_property
    def server(self) -> Server:
        """A server on a disk with `fsync` on and default durability settings."""
        server = self._started.enter_context(Server(DURABLE))
        prepare(Address(server.create_database(_TEMPLATE)), SCHEMA)
        return server

    @cached_property
    def observer(self) -> Connection:
        """A session that is not measured."""
        return self._started.enter_context(psycopg.connect(self.server.url(), autocommit=True))

    @property
    def circumstances(self) -> str:
        """The versions and durability settings, for the report."""
        version = self.observer.info.server_version
        versions = f"PostgreSQL {version // 10_000}.{version % 10_000}, psycopg {psycopg.__version__}"
        buffers, sync = self._setting("shared_buffers"), self._setting("synchronous_commit")
        return (
            f"{versions}; `fsync=on`, `synchronous_commit={sync}`, {buffers} of shared buffers, the event log on, "
            "data on a disk, reached over TCP on the same machine"
        )

    def _setting(self, name: str) -> str:
        (value,) = self.observer.execute(f"SHOW {name}").fetchone() or ("",)
        return str(value)

    @contextmanager
    def new(self, template: str | None = _TEMPLATE) -> Iterator[str]:
        """The address of an empty database with the project's schema, dropped after the block."""
        name = f"queue_{next(self._numbers)}"
        url = self.server.create_database(name, template)
        try:
            yield url
        finally:
            self.server.drop_database(name)
