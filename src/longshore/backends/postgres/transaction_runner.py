"""Runs one operation in one transaction, and retries where that is safe."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from longshore.backends.argument_checks import ClaimTerms
from longshore.backends.base import ClaimFailed, Outcome, SettleReport
from longshore.backends.operations.claim import Claim
from longshore.backends.operations.settle import complete_first, settle_and_dequeue
from longshore.backends.port import Reader
from longshore.backends.postgres.claim_low_water import LowWaterMarks
from longshore.backends.postgres.connection import OwnSession, Server, Session
from longshore.backends.postgres.locks import BeginAnew, Hold, HoldFirst, LockSpaces, Wanted
from longshore.backends.postgres.pool import Pool
from longshore.backends.postgres.reads import PostgresReader, find_horizon
from longshore.backends.postgres.transaction import PostgresTransaction
from longshore.backends.sql.reads import Seen
from longshore.backends.sql.statements import Statements
from longshore.core.clock import Clock
from longshore.core.errors import BackendUnavailable, LongshoreError
from longshore.core.times import to_micros

R = TypeVar("R")

_LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.IdleInTransactionSessionTimeout)
_NUMBERED_EVERY = 1.0
"""Seconds between two queries of the transaction id, which detects a restored copy."""
MOST_TRIES = 20
"""How often a transaction that met another one is tried again before its caller hears of it."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# A claim is planned once: its plan is right for any values, and to plan it costs more than to claim ten jobs. It may be
# planned while a table is empty and used when it is not, so reading a whole table is never the plan.
_BEGIN_TO_CLAIM = f"{_BEGIN}; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off"
_LOOK = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class TransactionRunner:
    """Performs verbs and looks on connections of the pool."""

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
        # a session whose process froze or was cut off holds its locks and its snapshot until the server hears of it,
        # which may take hours; said in each transaction, for behind a pooler no session is ours
        self._not_for_ever = (
            f"SET LOCAL idle_in_transaction_session_timeout = {_in_milliseconds(answer_micros)}; "
            "SET LOCAL jit = off"  # our statements are short: compiling one takes longer than running it
        )
        self._marks = LowWaterMarks()
        self._limited: set[str] = set()
        self._locks = LockSpaces(schema)
        self._known_queues: frozenset[str] = frozenset()
        self._all_queues: frozenset[str] = frozenset()
        """As the last claim from all of them found."""
        self._seen: Seen = {}
        self._log: str | None = None
        """The event log that all of this was read from."""
        self._numbered_next = 0.0

    def perform(
        self,
        verb: Callable[[PostgresTransaction], R],
        abandoned: threading.Event | None = None,
        holds: Sequence[str] | None = (),
        *,
        uses_slots: bool = True,
    ) -> R:
        """Tries again where nothing was stored for certain: a conflict with others, or a connection found dead.

        `holds` are the queues that the verb claims from, or None for all: they are held from the start; only shared
        if it uses no free slot that their limits leave.
        """
        until = monotonic() + self._wait_seconds
        careful = False
        first: Wanted = {}
        tries = 0
        while True:
            tries += 1
            attempt = _Attempt(careful, abandoned, holds, uses_slots, first)
            try:
                return self._attempt(verb, attempt, until)
            except errors.UniqueViolation:
                careful = True  # a COPY met an id or key in use; the careful way tells which
                if tries == MOST_TRIES:
                    raise
            except (errors.SerializationFailure, errors.DeadlockDetected, BeginAnew) as error:
                if tries == MOST_TRIES:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name}: others were in the way {tries} times; try again"
                    ) from error
                if isinstance(error, HoldFirst):
                    first = {**first, **error.wanted}
                    continue
                threading.Event().wait(random.uniform(0, 0.002 * 2 ** min(tries, 6)))
            except _LOST as error:
                if attempt.committing:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name} was lost while it stored this: it may be stored or not. "
                        "Ask before you try again, or use an idempotency key"
                    ) from error
                if not (attempt.reused and attempt.lost) or monotonic() > until:
                    raise

    def _attempt(self, verb: Callable[[PostgresTransaction], R], attempt: _Attempt, until: float) -> R:
        with self._pool.taken(until) as taken:
            attempt.reused = taken.reused
            session = taken.session
            self._forget_another_log()
            log = self._log
            try:
                transaction = self._begin(session, attempt)
                answer = verb(transaction)
                number = self._number(session)
                attempt.begin_to_commit()
                session.run("COMMIT")
            except BaseException:
                taken.roll_back()
                attempt.lost = taken.lost
                raise
        self._server.committed = max(self._server.committed, number)
        if log == self._log:
            self._known_queues |= transaction.new_queues
        self._on_commit(transaction)
        return answer

    def _number(self, session: OwnSession) -> int:
        """The transaction id, queried once a second; 0 if there is none or it was not queried.

        Restoring a dump in place closes no connection, so the event log is compared, too.
        """
        if monotonic() < self._numbered_next:
            return 0
        self._numbered_next = monotonic() + _NUMBERED_EVERY
        server = self._server
        ((number, same_log),) = session.rows(self._sql.same_log, (server.log, server.table)) or ((0, False),)
        if not same_log:
            self._pool.check_all_again()
            self._numbered_next = 0.0
            raise BeginAnew("another copy of the schema is in its place")
        return int(number)

    def _forget_another_log(self) -> None:
        """What was read from the store before an older copy replaced it is no longer true."""
        if self._log == self._server.log:
            return
        self._log = self._server.log
        self._marks = LowWaterMarks()
        self._limited = set()
        self._known_queues = self._all_queues = frozenset()
        self._seen = {}

    def _begin(self, session: OwnSession, attempt: _Attempt) -> PostgresTransaction:
        """Begins, locks queues and then reads their settings: each statement sees what was there after the one before,
        and all go in one message."""
        transaction = self.transaction_on(session, careful=attempt.careful, known_queues=self._known_queues)
        transaction.tells_time = self._clock is None
        if self._clock is not None:
            transaction.now = to_micros(self._clock.now())
        holds, first = attempt.holds, attempt.first
        begin = f"{_BEGIN if holds == () else _BEGIN_TO_CLAIM}; {self._not_for_ever}; "
        if holds == () and not first:
            ((now,),) = session.simply(begin + self._sql.now)
            transaction.now = now if self._clock is None else transaction.now
            return transaction
        names = dict.fromkeys([*(self._all_queues if holds is None else holds), *first])
        locked = {**dict.fromkeys(names, Hold.SHARED), **first}
        if attempt.uses_slots:
            locked |= {name: max(locked[name], Hold.SLOTS) for name in self._limited.intersection(names)}
        settings = transaction.settings_of(session, locked, and_all_others=holds is None)
        rows = session.simply(begin + self._locks.taken_in_order(locked) + settings)
        found = transaction.now_held(rows, locked)
        if holds is None:
            self._all_queues = found
            transaction.holds_all = found <= names.keys()
        return transaction

    def explain(self, error: Exception) -> Exception:
        """The error in one plain sentence that names the server."""
        return self._server.explain(error)

    def any_limited(self, queues: Sequence[str] | None) -> bool:
        """Whether claims from these queues, or from all, wait for each other, as far as this process knows."""
        return bool(self._limited) if queues is None else not self._limited.isdisjoint(queues)

    def transaction_on(self, session: Session, **how: Any) -> PostgresTransaction:
        """A transaction with all that this process remembers of the store."""
        return PostgresTransaction(session, self._sql, self._schema, self._marks, self._limited, **how)

    def look(self, look: Callable[[Reader], R], *, follows: bool) -> R:
        """On one snapshot. Whoever follows the log reads no further than what is certain before that is taken."""
        until = monotonic() + self._wait_seconds
        while True:
            stale = False
            try:
                with self._pool.taken(until) as taken:
                    try:
                        horizon = find_horizon(taken.session, self._sql) if follows else None
                        taken.session.simply(f"{_LOOK}; {self._not_for_ever}")
                        answer = look(PostgresReader(taken.session, self._sql, self._seen, horizon, self._clock))
                    except BaseException:
                        taken.roll_back()
                        stale = taken.reused and taken.lost
                        raise
                    taken.end_look()
                    return answer
            except _LOST:
                if not stale or monotonic() > until:
                    raise


class _Attempt:
    """How far one try of a transaction has come."""

    def __init__(
        self,
        careful: bool,
        abandoned: threading.Event | None,
        holds: Sequence[str] | None,
        uses_slots: bool,
        first: Wanted,
    ) -> None:
        self.careful = careful
        self.holds = holds
        self.uses_slots = uses_slots
        self.first = first
        """Queues that an earlier try came to need when it was too late to wait for them."""
        self._abandoned = abandoned
        self.reused = False
        """Whether its connection had been used before: then it may have died unnoticed, and another may be well."""
        self.lost = False
        """Whether its connection broke, rather than the server refusing something on it."""
        self.committing = False

    def begin_to_commit(self) -> None:
        """From here on nobody can tell whether it was stored, unless the answer comes. Raises if nobody waits."""
        if self._abandoned is not None and self._abandoned.is_set():
            raise asyncio.CancelledError
        self.committing = True


def _in_milliseconds(micros: int) -> int:
    """As PostgreSQL takes it: not 0, which means never, and not more than it can count."""
    return min(max(micros // 1_000, 1), 2**31 - 1)


def take_turn(
    runner: TransactionRunner,
    outcomes: Sequence[Outcome],
    terms: ClaimTerms,
    named: Callable[[], ClaimTerms],
    abandoned: threading.Event,
) -> tuple[SettleReport, Claim]:
    """In one transaction, or in two where there are limits: then others claim while this one settles.

    `named` returns the terms with the event log's name in the token; it is called once there is a connection.
    """
    queues = terms.queues if terms.limit else ()
    report, left = SettleReport(), outcomes
    if any(outcome.verb == "complete" for outcome in outcomes) and runner.any_limited(queues):
        report, left = runner.perform(
            lambda tx: complete_first(tx, outcomes, terms), abandoned, queues, uses_slots=False
        )
    try:
        rest, claim = runner.perform(lambda tx: settle_and_dequeue(tx, left, named()), abandoned, queues)
    except (psycopg.Error, LongshoreError) as error:
        if not report.settled:
            raise
        raise ClaimFailed(report, runner.explain(error)) from error
    return _both(report, rest) if report.settled else rest, claim


def _both(first: SettleReport, then: SettleReport) -> SettleReport:
    freed = {owner: first.freed.get(owner, 0) + then.freed.get(owner, 0) for owner in first.freed | then.freed}
    return SettleReport(first.settled | then.settled, first.refused | then.refused, freed)
