"""Runs one operation in one transaction, and retries where that is safe."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from longshore.backends.port import Hold, Operation, Reader, Transaction
from longshore.backends.postgres.claim_low_water import LowWaterMarks
from longshore.backends.postgres.connection import OwnSession, Server, Session
from longshore.backends.postgres.locks import LockFirst, LockSpaces, RestartTransaction, Wanted
from longshore.backends.postgres.pool import Pool
from longshore.backends.postgres.reads import PostgresReader, find_horizon
from longshore.backends.postgres.transaction import PostgresTransaction
from longshore.backends.sql.reads import Seen
from longshore.backends.sql.statements import Statements
from longshore.core.actor import acting
from longshore.core.clock import Clock
from longshore.core.errors import BackendUnavailable
from longshore.core.times import to_micros

R = TypeVar("R")
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

_LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.IdleInTransactionSessionTimeout)
_CHECK_XID_SECONDS = 1.0
"""Seconds between two queries of the transaction id, which detects a restored copy."""
MOST_TRIES = 20
"""The most tries of a transaction that conflicts with others, before its caller gets an error."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# A claim is planned once: its plan fits any values, and planning costs more than claiming ten jobs. The plan may be
# made while a table is empty, so sequential scans are disabled.
_BEGIN_TO_CLAIM = f"{_BEGIN}; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off"
_BEGIN_TO_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class TransactionRunner:
    """Runs operations and reads on connections of the pool."""

    def __init__(
        self,
        server: Server,
        pool: Pool,
        sql: Statements,
        schema: str,
        clock: Clock | None,
        *,
        wait_seconds: float,
        answer_micros: int,
        on_commit: Callable[[PostgresTransaction], None],
    ) -> None:
        self._server = server
        self._pool = pool
        self._sql = sql
        self._schema = schema
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._on_commit = on_commit
        # A frozen or disconnected process would hold its locks and its snapshot until the server notices, which may
        # take hours. It is set in each transaction, because behind a pooler no session is ours.
        self._transaction_settings = (
            f"SET LOCAL idle_in_transaction_session_timeout = {_in_milliseconds(answer_micros)}; "
            "SET LOCAL jit = off"  # our statements are short: compiling one takes longer than running it
        )
        self._marks = LowWaterMarks()
        self._limited: set[str] = set()
        self._locks = LockSpaces(schema)
        self._known_queues: frozenset[str] = frozenset()
        self._all_queues: frozenset[str] = frozenset()
        """As the last claim from all queues found."""
        self._seen: Seen = {}
        self._log: str | None = None
        """The event log that all of this was read from."""
        self._next_xid_check = 0.0

    def perform(
        self,
        operation: Operation[Transaction, ..., R],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NO_OPTIONS,
        actor: str = "",
        abandoned: threading.Event | None = None,
    ) -> R:
        """Run the operation, and retry if it is certain that nothing was stored: after a conflict, or on a dead
        connection. Once `abandoned` is set, nothing is committed."""
        holds = () if operation.locks is None else operation.locks(*args, **kwargs)
        until = monotonic() + self._wait_seconds
        careful = False
        first: Wanted = {}
        tries = 0
        while True:
            tries += 1
            attempt = _Attempt(careful, holds, operation.uses_slots, first)
            try:
                with acting(actor) if actor else nullcontext():
                    return self._attempt(operation.run, args, kwargs, attempt, until, abandoned)
            except errors.UniqueViolation:
                careful = True  # a COPY found an id or key in use; the careful way tells which
                if tries == MOST_TRIES:
                    raise
            except (errors.SerializationFailure, errors.DeadlockDetected, RestartTransaction) as error:
                if tries == MOST_TRIES:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name}: {tries} conflicts with other transactions; try again"
                    ) from error
                if isinstance(error, LockFirst):
                    first = {**first, **error.wanted}
                    continue
                threading.Event().wait(random.uniform(0, 0.002 * 2 ** min(tries, 6)))
            except _LOST as error:
                if attempt.committing:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name} was lost during the commit: the change may be stored or "
                        "not. Check before you try again, or use an idempotency key"
                    ) from error
                if not (attempt.reused and attempt.lost) or monotonic() > until:
                    raise

    def _attempt(
        self,
        run: Callable[..., R],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        attempt: _Attempt,
        until: float,
        abandoned: threading.Event | None,
    ) -> R:
        with self._pool.checkout(until) as checkout:
            attempt.reused = checkout.reused
            session = checkout.session
            if self._log != self._server.log:
                self._forget_another_log()
            log = self._log
            try:
                transaction = self._begin(session, attempt)
                answer = run(transaction, *args, **kwargs)
                xid = self._current_xid(session) if monotonic() >= self._next_xid_check else 0
                if abandoned is not None and abandoned.is_set():
                    raise asyncio.CancelledError
                attempt.committing = True  # from here on only the server's answer tells whether it was stored
                session.run("COMMIT")
            except BaseException:
                checkout.roll_back()
                attempt.lost = checkout.lost
                raise
        self._server.committed = max(self._server.committed, xid)
        if log == self._log:
            self._known_queues |= transaction.new_queues
        self._on_commit(transaction)
        return answer

    def _current_xid(self, session: OwnSession) -> int:
        """The transaction id, or 0 if there is none; queried once a second to detect a restored copy.

        Restoring a dump in place closes no connection, so the event log is compared, too.
        """
        self._next_xid_check = monotonic() + _CHECK_XID_SECONDS
        server = self._server
        ((xid, same_log),) = session.rows(self._sql.same_log, (server.log, server.table)) or ((0, False),)
        if not same_log:
            self._pool.check_all_again()
            self._next_xid_check = 0.0
            raise RestartTransaction("the schema was replaced by another copy")
        return int(xid)

    def _forget_another_log(self) -> None:
        """Forget what was read from the store before an older copy replaced it."""
        self._log = self._server.log
        self._marks = LowWaterMarks()
        self._limited = set()
        self._known_queues = self._all_queues = frozenset()
        self._seen = {}

    def _begin(self, session: OwnSession, attempt: _Attempt) -> PostgresTransaction:
        """Begin, lock queues, then read their settings. Each statement sees the state after the one before, and all are
        sent in one message."""
        transaction = self.transaction_on(session, careful=attempt.careful, known_queues=self._known_queues)
        transaction.uses_server_clock = self._clock is None
        if self._clock is not None:
            transaction.now = to_micros(self._clock.now())
        holds, first = attempt.holds, attempt.first
        begin = f"{_BEGIN if holds == () else _BEGIN_TO_CLAIM}; {self._transaction_settings}; "
        if holds == () and not first:
            ((now,),) = session.simply(begin + self._sql.now)
            transaction.now = now if self._clock is None else transaction.now
            return transaction
        names = dict.fromkeys([*(self._all_queues if holds is None else holds), *first])
        locked = {**dict.fromkeys(names, Hold.SHARED), **first}
        if attempt.uses_slots:
            locked |= {name: max(locked[name], Hold.SLOTS) for name in self._limited.intersection(names)}
        settings = transaction.settings_of(session, locked, and_all_others=holds is None)
        rows = session.simply(begin + self._locks.statements(locked) + settings)
        found = transaction.record_held(rows, locked)
        if holds is None:
            self._all_queues = found
            transaction.holds_all = found <= names.keys()
        return transaction

    def any_limited(self, queues: Sequence[str] | None) -> bool:
        """Whether claims from these queues, or from all, wait for each other, as far as this process knows."""
        return bool(self._limited) if queues is None else not self._limited.isdisjoint(queues)

    def transaction_on(self, session: Session, **how: Any) -> PostgresTransaction:
        """A transaction with what this process remembers of the store."""
        token_prefix = f"{self._server.log}-"
        return PostgresTransaction(
            session, self._sql, self._locks, self._marks, self._limited, token_prefix=token_prefix, **how
        )

    def read(
        self, operation: Operation[Reader, ..., R], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NO_OPTIONS
    ) -> R:
        """Run a read on one snapshot. A read of the log goes no further than the horizon found before the snapshot."""
        until = monotonic() + self._wait_seconds
        while True:
            stale = False
            try:
                with self._pool.checkout(until) as checkout:
                    try:
                        horizon = find_horizon(checkout.session, self._sql) if operation.follows_log else None
                        checkout.session.simply(f"{_BEGIN_TO_READ}; {self._transaction_settings}")
                        view = PostgresReader(checkout.session, self._sql, self._seen, horizon, self._clock)
                        answer = operation.run(view, *args, **kwargs)
                    except BaseException:
                        checkout.roll_back()
                        stale = checkout.reused and checkout.lost
                        raise
                    checkout.end_read()
                    return answer
            except _LOST:
                if not stale or monotonic() > until:
                    raise


@dataclass(slots=True)
class _Attempt:
    """The state of one try of a transaction."""

    careful: bool
    holds: Sequence[str] | None
    """The queues that the operation claims from; None for all. They are locked from the start."""
    uses_slots: bool
    """Whether it uses free slots of those queues; otherwise it shares their locks."""
    first: Wanted
    """Queues that an earlier try needed when waiting for them could deadlock."""
    reused: bool = False
    """Whether its connection was used before: then it may have died unnoticed, and another one may work."""
    lost: bool = False
    """Whether its connection broke; False if the server returned an error."""
    committing: bool = False


def _in_milliseconds(micros: int) -> int:
    """Milliseconds for PostgreSQL: not 0, which means no timeout, and at most what it can count."""
    return min(max(micros // 1_000, 1), 2**31 - 1)
