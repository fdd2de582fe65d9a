"""The writer thread: it commits all waiting operations in one transaction, lease renewals first."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import apsw

from longshore.backends.port import Operation, Transaction
from longshore.backends.sql.writes import ChangedUnderneath
from longshore.backends.sqlite.connection import Opener, close_quietly, explain
from longshore.backends.sqlite.files import FileIdentity
from longshore.backends.sqlite.transaction import SQLiteTransaction
from longshore.backends.sqlite.unclean_close import checkpoint
from longshore.core.actor import acting, actor
from longshore.core.clock import StoreClock
from longshore.core.errors import BackendUnavailable, LongshoreError, QueueClosed

LONGEST_BATCH = 0.05
"""Seconds of work in one commit: the next caller waits for at most this long and one operation."""


class _Request(NamedTuple):
    run: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    actor: str
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class _Outcome(NamedTuple):
    request: _Request
    value: Any
    error: BaseException | None


class Writer:
    """Takes operations from any event loop and answers each once its commit is on disk.

    An operation decides before it writes. One that raises a LongshoreError has written nothing, and the rest of its
    batch is committed. Any other error rolls the batch back, and each operation runs again alone.
    """

    def __init__(
        self,
        path: Path,
        open_writing: Opener,
        clock: StoreClock,
        file_identity: FileIdentity,
        on_commit: Callable[[], None],
    ) -> None:
        """`file_identity` checks the files before anything is written, and again before it is acknowledged."""
        self._path = path
        self._open = open_writing
        self._clock = clock
        self._file_identity = file_identity
        self._on_commit = on_commit
        self._urgent: deque[_Request] = deque()
        self._waiting: deque[_Request] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._changed = False
        self._connection: apsw.Connection | None = None
        self._transaction: SQLiteTransaction | None = None

    async def run(
        self, operation: Operation[Transaction, ..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the operation and return its result once it is durable."""
        loop = asyncio.get_running_loop()
        request = _Request(operation.run, args, kwargs, actor(), loop, loop.create_future())
        with self._wake:
            if self._closing:
                raise QueueClosed("this backend was closed; open a new one with connect(url)")
            (self._urgent if operation.urgent else self._waiting).append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="longshore-sqlite-writer", daemon=True)
                self._thread.start()
            self._wake.notify()
        return await request.answer

    def close(self) -> None:
        """Write the pending operations, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._urgent or self._waiting or self._closing):
                    self._wake.wait()
                if not (self._urgent or self._waiting):
                    break
            begun: list[_Request] = []
            try:
                outcomes = self._commit(begun)
            except BaseException as error:  # callers must get every error, and the thread must serve the next ones
                explanation = self._explained(error)
                self._close_connection()
                outcomes = [_Outcome(request, None, copy.copy(explanation)) for request in begun or self._take_all()]
            by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = defaultdict(list)
            for outcome in outcomes:
                by_loop[outcome.request.loop].append(outcome)
            for loop, group in by_loop.items():
                with contextlib.suppress(RuntimeError):  # the event loop is closed, and its callers with it
                    loop.call_soon_threadsafe(_answer, group)
            if self._changed:  # a renewal, or a claim that found nothing, must not wake waiting workers
                self._changed = False
                self._on_commit()
        if self._connection is not None:  # if the log was removed, only this process can read it: keep its commits
            with contextlib.suppress(BackendUnavailable):
                self._file_identity.check_index(self._connection)
                checkpoint(self._connection)
        self._close_connection()

    def _close_connection(self) -> None:
        """After an unexpected error the next batch uses a new connection."""
        connection, self._connection, self._transaction = self._connection, None, None
        if connection is not None:
            close_quietly(connection)

    def _take_all(self) -> list[_Request]:
        with self._wake:
            taken = [*self._urgent, *self._waiting]
            self._urgent.clear()
            self._waiting.clear()
        return taken

    def _commit(self, begun: list[_Request], alone: _Request | None = None) -> list[_Outcome]:
        """Commit the waiting requests (or one alone) in one transaction; `begun` gets those it started, in case it
        raises.

        If the batch fails, each of its requests runs in a separate transaction: only the one with the error fails
        again.
        """
        if self._connection is None or self._transaction is None:
            self._connection = self._open()
            self._transaction = SQLiteTransaction(self._connection, self._clock)
        connection, transaction = self._connection, self._transaction
        self._file_identity.check_index(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction.begin()
            outcomes = []
            ends = monotonic() + LONGEST_BATCH
            while monotonic() <= ends:
                with self._wake:
                    waiting = self._urgent or self._waiting
                    if alone is None and not waiting:
                        break
                    request = alone or waiting.popleft()
                if not (request.answer.cancelled() or request.loop.is_closed()):
                    begun.append(request)
                    outcomes.append(self._perform(transaction, request))
                if alone is not None:
                    break
            transaction.finish()
            self._file_identity.check_index(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(begun) > 1:
                return [self._commit_alone(request) for request in begun]
            raise
        self._file_identity.check_commit(connection)
        self._changed = self._changed or transaction.changed
        return outcomes

    def _commit_alone(self, request: _Request) -> _Outcome:
        try:
            outcomes = self._commit([], request)
        except BaseException as error:
            explanation = self._explained(error)
            self._close_connection()
            return _Outcome(request, None, explanation)
        return outcomes[0] if outcomes else _Outcome(request, None, None)  # its caller was cancelled meanwhile

    def _perform(self, transaction: SQLiteTransaction, request: _Request) -> _Outcome:
        transaction.now = self._clock.now()
        try:
            with acting(request.actor) if request.actor else nullcontext():
                return _Outcome(request, request.run(transaction, *request.args, **request.kwargs), None)
        except LongshoreError as error:
            return _Outcome(request, None, error)

    def _explained(self, error: BaseException) -> BaseException:
        if isinstance(error, ChangedUnderneath):
            return BackendUnavailable(f"{self._path}: {error}")
        return explain(self._path, error, self._connection)


def _answer(outcomes: list[_Outcome]) -> None:
    for request, value, error in outcomes:
        if request.answer.done():
            continue
        if error is None:
            request.answer.set_result(value)
        else:
            request.answer.set_exception(error)
