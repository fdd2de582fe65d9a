"""Detect commits of other processes: NOTIFY gives a quick hint, and polling finds what a hint missed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic

import psycopg

from longshore.backends.change_signal import ChangeSignal
from longshore.backends.postgres.connection import Connection, OwnSession, Server, Watchdog
from longshore.backends.postgres.reads import find_horizon
from longshore.backends.sql.statements import Statements
from longshore.core.errors import LongshoreError
from longshore.safe_logging import logger

_HINTS_APART = 0.01
"""Seconds between two hints of one process; the next hint covers all commits in between."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_CLOSE_CHECK_SECONDS = 0.25

_log = logger("longshore.postgres")


class Listener:
    """Notifies waiting callers of commits by other processes."""

    def __init__(
        self,
        server: Server,
        watchdog: Watchdog,
        sql: Statements,
        channel: str,
        signal: ChangeSignal,
        poll_seconds: float,
    ) -> None:
        self._server = server
        self._watchdog = watchdog
        self._sql = sql
        self._channel = channel
        self._signal = signal
        self._poll_seconds = poll_seconds
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._snapshot = ""
        self._last: object = None

    @property
    def listening(self) -> bool:
        """Whether it listens."""
        return self._thread is not None

    def listen(self) -> None:
        """Start to listen: it notices every commit after this call returns."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._connect()
                self._thread = threading.Thread(target=self._work, name="longshore-postgres-listener", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and close the connection."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _connect(self) -> Connection:
        connection = self._server.connect()
        with self._watchdog.watching(connection):
            connection.execute(f'LISTEN "{self._channel}"')
        self._connection = connection
        if not self._snapshot:  # after a lost connection the old snapshot finds what was missed
            session = OwnSession(connection, self._watchdog)
            ((self._snapshot,),) = session.rows(self._sql.snapshot)
            self._last = self._last_event(session)
        return connection

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                connection = self._connection or self._connect()
                self._poll(connection)  # first, because commits before LISTEN gave no hint
                self._wait(connection)
                pause = _FIRST_PAUSE
            except (psycopg.Error, LongshoreError, OSError) as error:
                if pause == _FIRST_PAUSE:
                    _log.warning("%s", self._server.explain(error))
                self._disconnect()
                self._signal.notify()  # waiting callers read the store and get the error
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._disconnect()

    def _wait(self, connection: Connection) -> None:
        """Wait for hints for one poll interval, and notify the callers."""
        until = monotonic() + self._poll_seconds
        while (left := until - monotonic()) > 0 and not self._closed.is_set():
            if list(connection.notifies(timeout=min(left, _CLOSE_CHECK_SECONDS), stop_after=1)):
                self._signal.notify()

    def _poll(self, connection: Connection) -> None:
        """Notify the callers if anything was committed since the last poll, with or without a hint."""
        session = OwnSession(connection, self._watchdog)
        ((self._snapshot, changed),) = session.rows(self._sql.changes_since, (self._snapshot,))
        before, self._last = self._last, self._last_event(session)
        if changed or self._last != before:
            self._signal.notify()

    def _last_event(self, session: OwnSession) -> object:
        """The last event that may be read: an old transaction that ends may make later events readable."""
        return session.rows(self._sql.last_event, (str(find_horizon(session, self._sql)),))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Hints:
    """Notify other processes of queues with changes, after the commit, and many commits in one hint.

    A NOTIFY inside each transaction would make all commits of the server wait for each other.
    """

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self._send = send
        self._queues: set[str] = set()
        self._wake = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def send_soon(self, queues: Iterable[str]) -> None:
        """Send a hint soon, from a separate thread; the caller does not wait."""
        with self._wake:
            if self._closed:
                return
            self._queues.update(queues or [""])
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="longshore-postgres-hints", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Send the last hint, then end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            with self._wake:
                while not self._queues and not self._closed:
                    self._wake.wait()
                queues, self._queues = sorted(self._queues), set()
                if not queues:
                    return
            try:
                self._send(queues)
            except (psycopg.Error, LongshoreError) as error:  # a lost hint does no harm: listeners also poll
                _log.debug("a hint was not sent: %s", error)
            pause.wait(_HINTS_APART)
