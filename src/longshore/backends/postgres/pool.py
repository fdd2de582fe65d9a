"""The connections of one process: opened when needed, checked once, returned after use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from longshore.backends.postgres.connection import OwnSession, Server, Watchdog, without_user
from longshore.backends.postgres.schema import check
from longshore.core.errors import BackendUnavailable

_RETRY_SECONDS = 1.0
"""Seconds after which a pool that gave up on the server tries it again."""
_LONGEST_IDLE = 300.0
"""Seconds for which a connection stays in our list; then it goes back to the pool, which may close it."""


class _OurConnection(psycopg.Connection[Any]):
    """A connection with its session, whether it was used before, and since when it is in our list."""

    served = False
    checked = 0
    """The last round of checks that it passed."""
    since = 0.0
    session: OwnSession | None = None

    @classmethod
    def connect(cls, *arguments: Any, **options: Any) -> Self:
        """Connect, and keep the user name out of errors: the pool logs them."""
        with without_user():
            return super().connect(*arguments, **options)


@dataclass(slots=True)
class Checkout:
    """A connection that an operation uses."""

    session: OwnSession
    reused: bool
    """Whether it was used before: then it may have died unnoticed."""
    _connection: _OurConnection

    @property
    def lost(self) -> bool:
        """Whether the connection is closed."""
        return self._connection.closed

    def roll_back(self) -> None:
        """Roll back the open transaction, or close the connection if that fails."""
        self._end("ROLLBACK")
        self.session.forget()

    def end_read(self) -> None:
        """End a read-only transaction by a commit: after a rollback the driver forgets its prepared statements."""
        self._end("COMMIT")

    def _end(self, command: str) -> None:
        if self._connection.info.transaction_status is TransactionStatus.IDLE:
            return
        try:
            self.session.run(command)
        except psycopg.Error:
            self._connection.close()


class Pool:
    """A limited number of connections; an operation waits if all are in use.

    The connection that was returned last is used first: it has prepared our statements, and its caches are warm.
    """

    def __init__(self, server: Server, watchdog: Watchdog, schema: str, most: int) -> None:
        self._server = server
        self._watchdog = watchdog
        self._schema = schema
        self._idle: list[_OurConnection] = []
        self._round = 0
        self._waiting = 0
        """How many operations wait for the pool: a connection returned meanwhile goes to them."""
        self._lock = threading.Lock()
        self._connections = ConnectionPool(
            server.conninfo,
            connection_class=_OurConnection,
            kwargs={"autocommit": True},
            configure=server.settle,
            min_size=0,
            max_size=most,
            open=False,
            num_workers=2,
            reconnect_timeout=3,
            name="longshore-postgres",
        )

    def open(self) -> None:
        """Open the pool before the first use."""
        self._connections.open()

    def close(self) -> None:
        """Close all connections; none may be in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._put(connection)
        self._connections.close()

    @contextmanager
    def checkout(self, until: float) -> Iterator[Checkout]:
        """Provide a connection; if it is lost, it is not used again."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if (
            connection is None
            or connection.session is None
            or not connection.served
            or connection.checked != self._round
        ):
            connection, session = self._checked(connection, until)
        else:
            session = connection.session
        try:
            yield Checkout(session, connection.served, connection)
            connection.served = True
        finally:
            self._return(connection)

    def check_all_again(self) -> None:
        """Check each connection before its next use, as if it were new."""
        self._round += 1

    def _checked(self, connection: _OurConnection | None, until: float) -> tuple[_OurConnection, OwnSession]:
        """Return a connection that works: one that waited in the pool unused may have died there."""
        while True:
            connection = connection or self._take(until)
            now = self._round
            session = connection.session = connection.session or OwnSession(connection, self._watchdog)
            if connection.served and connection.checked == now:
                return connection, session
            try:
                check(connection, self._server, self._schema)
                connection.checked = now
            except BaseException as error:
                died = isinstance(error, psycopg.OperationalError) and connection.closed
                self._return(connection)
                if not died or monotonic() > until:
                    raise
                connection = None
            else:
                return connection, session

    def _return(self, connection: _OurConnection) -> None:
        too_long = monotonic() - _LONGEST_IDLE
        with self._lock:
            keeps = (
                not self._waiting
                and connection.since > too_long
                and connection.info.transaction_status is TransactionStatus.IDLE
            )
            # the first in the list is rarely used
            idle = self._idle.pop(0) if self._idle and self._idle[0].since <= too_long else None
            if keeps:
                self._idle.append(connection)
        for given in (idle, None if keeps else connection):
            if given is not None:
                self._put(given)

    def _put(self, connection: _OurConnection) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connections.putconn(connection)

    def _take(self, until: float) -> _OurConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._waiting += 1
        try:
            connection = self._from_pool(until)
        finally:
            with self._lock:
                self._waiting -= 1
        connection.since = monotonic()
        return connection

    def _from_pool(self, until: float) -> _OurConnection:
        while True:
            left = until - monotonic()
            try:
                return self._connections.getconn(timeout=max(0.01, min(left, _RETRY_SECONDS)))
            except PoolTimeout as error:
                if left <= _RETRY_SECONDS:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name} gave no connection in time. Check that it is reachable and "
                        "has connections left, or raise pool_size if this process uses all of its own"
                    ) from error
