"""The connections of one process: opened when needed, checked once, returned after use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from longshore.backends.postgres.connection import OwnSession, Server, Watchdog, without_user
from longshore.backends.postgres.schema import check
from longshore.core.errors import BackendUnavailable

_NUDGED_EVERY = 1.0
"""Seconds after which a pool that has given up on the server is asked to try it again."""
_KEPT_AT_HAND = 300.0
"""Seconds for which a connection is kept at hand; then the pool is asked whether it is too old, or one too many."""


class _OurConnection(psycopg.Connection[Any]):
    """A connection that remembers whether it has served before, and since when it is at hand."""

    served = False
    checked = 0
    """Which round of checks it has passed."""
    since = 0.0
    session: OwnSession | None = None

    @classmethod
    def connect(cls, *arguments: Any, **options: Any) -> Self:
        """The pool logs why it failed."""
        with without_user():
            return super().connect(*arguments, **options)


class Taken:
    """A connection while somebody has it."""

    def __init__(self, connection: _OurConnection, watchdog: Watchdog) -> None:
        if connection.session is None:
            connection.session = OwnSession(connection, watchdog)
        self.session = connection.session
        self.reused = connection.served
        self._connection = connection

    @property
    def lost(self) -> bool:
        """Whether the connection is of no use any more."""
        return self._connection.closed

    def roll_back(self) -> None:
        """Takes back whatever is under way; a connection that cannot do even that is given up."""
        self._end("ROLLBACK")
        self.session.forget()

    def end_look(self) -> None:
        """Ends what changed nothing. By a commit: after a rollback the driver forgets all that it has prepared."""
        self._end("COMMIT")

    def _end(self, command: str) -> None:
        if self._connection.info.transaction_status is TransactionStatus.IDLE:
            return
        try:
            self.session.run(command)
        except psycopg.Error:
            self._connection.close()


class Pool:
    """At most so many connections; whoever finds none waits.

    The one that was given back last is taken first: it has planned our statements, and what they read is at hand.
    """

    def __init__(self, server: Server, watchdog: Watchdog, schema: str, most: int) -> None:
        self._server = server
        self._watchdog = watchdog
        self._schema = schema
        self._at_hand: list[_OurConnection] = []
        self._round = 0
        self._waiting = 0
        """How many ask the pool itself: whatever is given back meanwhile goes there."""
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
        """Before the first use."""
        self._connections.open()

    def close(self) -> None:
        """Closes what is not in use; nobody may be using any."""
        with self._lock:
            at_hand, self._at_hand = self._at_hand, []
        for connection in at_hand:
            self._put(connection)
        self._connections.close()

    @contextmanager
    def taken(self, until: float) -> Iterator[Taken]:
        """A connection for a while; one that is lost meanwhile is not used again."""
        connection = self._checked(until)
        try:
            yield Taken(connection, self._watchdog)
            connection.served = True
        finally:
            self._give_back(connection)

    def check_all_again(self) -> None:
        """Before its next use each connection is checked as if it were new."""
        self._round += 1

    def _checked(self, until: float) -> _OurConnection:
        """One that works: what waited in the pool without ever being used may have died there."""
        while True:
            connection = self._take(until)
            now = self._round
            if connection.served and connection.checked == now:
                return connection
            try:
                check(connection, self._server, self._schema)
                connection.checked = now
            except BaseException as error:
                died = isinstance(error, psycopg.OperationalError) and connection.closed
                self._give_back(connection)
                if not died or monotonic() > until:
                    raise
            else:
                return connection

    def _give_back(self, connection: _OurConnection) -> None:
        too_long = monotonic() - _KEPT_AT_HAND
        with self._lock:
            keeps = (
                not self._waiting
                and connection.since > too_long
                and connection.info.transaction_status is TransactionStatus.IDLE
            )
            # those below are hardly ever used
            idle = self._at_hand.pop(0) if self._at_hand and self._at_hand[0].since <= too_long else None
            if keeps:
                self._at_hand.append(connection)
        for given in (idle, None if keeps else connection):
            if given is not None:
                self._put(given)

    def _put(self, connection: _OurConnection) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connections.putconn(connection)

    def _take(self, until: float) -> _OurConnection:
        with self._lock:
            if self._at_hand:
                return self._at_hand.pop()
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
                return self._connections.getconn(timeout=max(0.01, min(left, _NUDGED_EVERY)))
            except PoolTimeout as error:
                if left <= _NUDGED_EVERY:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name} gave no connection in time: it cannot be reached, has none "
                        "left, or all of this process's are in use"
                    ) from error
