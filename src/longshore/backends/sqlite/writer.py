"""The one thread that writes: it commits everything that waits in one transaction, lease renewals first."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import apsw

from longshore.backends.sql.writes import ChangedUnderneath
from longshore.backends.sqlite.connection import Opener, close_quietly, explain
from longshore.backends.sqlite.transaction import SQLiteTransaction
from longshore.backends.sqlite.unclean_close import checkpoint
from longshore.core.errors import BackendUnavailable, LongshoreError, QueueClosed

LONGEST_BATCH = 0.05
"""Seconds of work one commit may gather: whoever comes next waits no longer than this and one verb."""

Operation = Callable[[SQLiteTransaction], Any]


class _Request(NamedTuple):
    operation: Operation
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class _Outcome(NamedTuple):
    request: _Request
    value: Any
    error: BaseException | None


class Writer:
    """Takes operations from any event loop and answers each once its commit is on the disk.

    An operation decides before it writes, so one that raises a LongshoreError has written nothing and the others of
    its batch stand. Anything else rolls the batch back, and each operation is tried again on its own.
    """

    def __init__(
        self,
        path: Path,
        open_writing: Opener,
        clock: Callable[[SQLiteTransaction], Callable[[], int]],
        on_commit: Callable[[], None],
        check_commit: Callable[[apsw.Connection], None] = lambda _: None,
        check_index: Callable[[apsw.Connection], None] = lambda _: None,
    ) -> None:
        """`clock` is called at the start of each transaction, and returns the time for its operations.

        `check_index` is called before anything is written, `check_commit` before it is acknowledged.
        """
        self._path = path
        self._open = open_writing
        self._clock = clock
        self._on_commit = on_commit
        self._check_commit = check_commit
        self._check_index = check_index
        self._urgent: deque[_Request] = deque()
        self._waiting: deque[_Request] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._news = False
        self._connection: apsw.Connection | None = None
        self._transaction: SQLiteTransaction | None = None

    async def run(self, operation: Operation, *, urgent: bool = False) -> Any:
        """The operation's answer, once it is durable."""
        loop = asyncio.get_running_loop()
        request = _Request(operation, loop, loop.create_future())
        with self._wake:
            if self._closing:
                raise QueueClosed("this backend was closed; open a new one with connect(url)")
            (self._urgent if urgent else self._waiting).append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="longshore-sqlite-writer", daemon=True)
                self._thread.start()
            self._wake.notify()
        return await request.answer

    def close(self) -> None:
        """Writes what was handed in already, then ends."""
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
                outcomes = self._commit_batch(begun)
            except BaseException as error:  # whatever it is, whoever waits must hear of it, and the next ones be served
                told = self._explained(error)
                self._close_connection()
                outcomes = [_Outcome(request, None, copy.copy(told)) for request in begun or self._take_all()]
            self._deliver(outcomes)
            if self._news:  # a claim that found nothing, or a renewal, must not wake whoever waits to claim
                self._news = False
                self._on_commit()
        if self._connection is not None:  # if the log was removed, only this process can read it: keep its commits
            with contextlib.suppress(BackendUnavailable):
                self._check_index(self._connection)
                checkpoint(self._connection)
        self._close_connection()

    def _opened(self) -> tuple[apsw.Connection, SQLiteTransaction]:
        if self._connection is None:
            self._connection = self._open()
            self._transaction = SQLiteTransaction(self._connection)
        assert self._transaction is not None  # made together with the connection
        return self._connection, self._transaction

    def _close_connection(self) -> None:
        """After an error nobody expected the next batch begins on a new connection."""
        connection, self._connection, self._transaction = self._connection, None, None
        if connection is not None:
            close_quietly(connection)

    def _take_all(self) -> list[_Request]:
        with self._wake:
            taken = [*self._urgent, *self._waiting]
            self._urgent.clear()
            self._waiting.clear()
        return taken

    def _take(self) -> _Request | None:
        with self._wake:
            if self._urgent:
                return self._urgent.popleft()
            return self._waiting.popleft() if self._waiting else None

    def _commit_batch(self, begun: list[_Request]) -> list[_Outcome]:
        """One commit for what waits; `begun` tells what it took, should it raise."""
        connection, transaction = self._opened()
        self._check_index(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction.begin()
            clock = self._clock(transaction)
            outcomes = []
            ends = monotonic() + LONGEST_BATCH
            while monotonic() <= ends and (request := self._take()) is not None:
                if not (request.answer.cancelled() or request.loop.is_closed()):
                    begun.append(request)
                    outcomes.append(self._perform(transaction, request, clock))
            transaction.finish()
            self._check_index(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(begun) > 1:
                return [self._commit_alone(request) for request in begun]
            raise
        self._check_commit(connection)
        self._news = self._news or transaction.news
        return outcomes

    def _commit_alone(self, request: _Request) -> _Outcome:
        """One operation of a batch that failed, in a transaction of its own: only the culprit fails again."""
        try:
            connection, transaction = self._opened()
            self._check_index(connection)
            connection.execute("BEGIN IMMEDIATE")
            transaction.begin()
            outcome = self._perform(transaction, request, self._clock(transaction))
            transaction.finish()
            connection.execute("COMMIT")
            self._check_commit(connection)
        except BaseException as error:
            told = self._explained(error)
            self._close_connection()  # which takes back what it began
            return _Outcome(request, None, told)
        self._news = self._news or transaction.news
        return outcome

    def _perform(self, transaction: SQLiteTransaction, request: _Request, clock: Callable[[], int]) -> _Outcome:
        transaction.now = clock()
        try:
            return _Outcome(request, request.operation(transaction), None)
        except LongshoreError as error:
            return _Outcome(request, None, error)

    def _explained(self, error: BaseException) -> BaseException:
        if isinstance(error, ChangedUnderneath):
            return BackendUnavailable(f"{self._path}: {error}")
        return explain(self._path, error, self._connection)

    def _deliver(self, outcomes: list[_Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = defaultdict(list)
        for outcome in outcomes:
            by_loop[outcome.request.loop].append(outcome)
        for loop, group in by_loop.items():
            try:
                loop.call_soon_threadsafe(_answer, group)
            except RuntimeError:  # its loop has closed: nobody is left to hear the answer
                continue


def _answer(outcomes: list[_Outcome]) -> None:
    for request, value, error in outcomes:
        if request.answer.done():
            continue
        if error is None:
            request.answer.set_result(value)
        else:
            request.answer.set_exception(error)
