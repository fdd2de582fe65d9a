"""The backend for many machines: each verb is a transaction on a pooled connection, tried again where that is safe."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg import errors

from longshore.backends import looking
from longshore.backends.bell import Bell
from longshore.backends.contract import Capabilities
from longshore.backends.postgres.connecting import Server, Watchdog, is_busy
from longshore.backends.postgres.joining import join
from longshore.backends.postgres.line import BeginAnew, lock_number
from longshore.backends.postgres.marks import Marks
from longshore.backends.postgres.moving import EnteredSchema, enter
from longshore.backends.postgres.pool import Pool
from longshore.backends.postgres.preparing import Schema, check_schema, prepare, quoted
from longshore.backends.postgres.session import OwnSession, Session
from longshore.backends.postgres.transaction import PostgresTransaction
from longshore.backends.postgres.view import PostgresView, array_text, find_horizon
from longshore.backends.postgres.wakeups import Hints, Listener
from longshore.backends.sql.view import Seen
from longshore.backends.statements import Statements
from longshore.backends.stored import StoredBackend
from longshore.backends.transaction import Transaction
from longshore.backends.verbs import submission
from longshore.backends.view import View
from longshore.core.clock import Clock
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument, LongshoreError, QueueClosed
from longshore.core.job import Job
from longshore.core.moments import SECOND, check_duration, to_micros
from longshore.core.numbers import check_number

P = ParamSpec("P")
R = TypeVar("R")

_LOOK = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_FOLLOWING: tuple[Callable[..., Any], ...] = (looking.read_events, looking.goes_on_after)
_MOST_TRIES = 20
"""How often a transaction that met another one is tried again before its caller hears of it."""
_GATHERED_AFTER = 1_000
"""Rows this process adds to the counts before it puts them together."""
_GATHERED_AT_ONCE = 20_000
_ASKED_AGAIN = 0.2
"""Seconds after which a server that is just starting is asked again."""

_log = logging.getLogger("longshore.postgres")


class PostgresBackend(StoredBackend):
    """Jobs in one schema of a PostgreSQL database, shared by any number of processes on any number of machines."""

    capabilities = Capabilities(durable=True, shared=True, joins_transactions=True)

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        schema: str = "longshore",
        pool_size: int = 10,
        wait_seconds: float = 10,
        answer_seconds: float = 60,
        poll_seconds: float = 0.5,
        create: bool = True,
    ) -> None:
        self.schema = check_schema(schema)
        answer = check_duration("answer_seconds", answer_seconds)
        self._watchdog = Watchdog(answer / SECOND)
        # a session whose process froze or was cut off holds its locks and its snapshot until the server hears of it,
        # which may take hours; said in each transaction, for behind a pooler no session is ours
        self._not_for_ever = f"SET LOCAL idle_in_transaction_session_timeout = {_in_milliseconds(answer)}"
        self._server = Server(url, self._watchdog)
        self._create = create
        self._clock = clock
        self._wait_seconds = check_duration("wait_seconds", wait_seconds) / SECOND
        threads = check_number("pool_size", pool_size, least=1)
        self._sql = Statements("longshore.backends.postgres", schema=quoted(schema))
        self._channel = f"longshore {lock_number(schema)}"
        self._bell = Bell()
        self._marks = Marks()
        self._limited: set[str] = set()
        self._seen: Seen = {}
        self._known_queues: frozenset[str] = frozenset()
        self._counted = 0
        self._closed = False
        self._process = os.getpid()
        self._preparing = threading.Lock()
        self._found: Schema | None = None
        self._releasing = threading.Lock()
        self._released = False
        self._pool = Pool(self._server, self._watchdog, schema, threads + 2)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="longshore-postgres")
        # a renewal must not wait behind verbs that wait for locks
        self._urgent_threads = ThreadPoolExecutor(1, thread_name_prefix="longshore-postgres-urgent")
        poll = check_duration("poll_seconds", poll_seconds) / SECOND
        self._listener = Listener(self._server, self._watchdog, self._sql, self._channel, self._bell, poll)
        self._hints = Hints(self._send_hints)

    # -- verbs and looks, each in a thread of ours

    async def _write(self, verb: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._write_in(self._threads, lambda tx: verb(tx, *args, **kwargs))

    async def _write_urgently(
        self, verb: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self._write_in(self._urgent_threads, lambda tx: verb(tx, *args, **kwargs))

    async def _write_in(self, threads: ThreadPoolExecutor, verb: Callable[[PostgresTransaction], R]) -> R:
        abandoned = threading.Event()
        try:
            return await self._in_thread(threads, lambda: self._perform(verb, abandoned))
        except asyncio.CancelledError:
            abandoned.set()  # what is not committed yet never will be
            raise

    async def _read(self, look: Callable[Concatenate[View, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        follows = look in _FOLLOWING
        return await self._in_thread(
            self._threads, lambda: self._look(lambda view: look(view, *args, **kwargs), follows=follows)
        )

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], R]) -> R:
        self._refuse_if_closed()
        try:
            working = asyncio.get_running_loop().run_in_executor(threads, self._explained, work)
        except RuntimeError:  # the threads were let go between the two lines
            self._refuse_if_closed()
            raise
        return await working

    def _explained(self, work: Callable[[], R]) -> R:
        with self._server.explained():
            self._open()
            return work()

    def _open(self) -> Schema:
        with self._preparing:
            if self._found is None:
                self._found = self._prepare()
                self._pool.open()
            return self._found

    def _prepare(self) -> Schema:
        """Waits for a server that is busy or just starting; one that is not there at all is told of at once."""
        until = monotonic() + self._wait_seconds
        while True:
            try:
                return prepare(self._server, self.schema, create=self._create)
            except psycopg.OperationalError as error:
                if not is_busy(error) or monotonic() > until:
                    raise
                threading.Event().wait(_ASKED_AGAIN)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise QueueClosed("this backend was closed; open a new one with connect(url)")
        if os.getpid() != self._process:
            raise BackendUnavailable(
                "this backend was made before a fork, and its threads and connections stayed behind; "
                "call connect(url) anew"
            )

    # -- one verb, one transaction

    def _perform(self, verb: Callable[[PostgresTransaction], R], abandoned: threading.Event | None = None) -> R:
        """Tries again where nothing was stored for certain: a conflict with others, or a connection found dead."""
        until = monotonic() + self._wait_seconds
        careful = False
        tries = 0
        while True:
            tries += 1
            attempt = _Attempt(careful, abandoned)
            try:
                return self._attempt(verb, attempt, until)
            except errors.UniqueViolation:
                careful = True  # a COPY met an id or key in use; the careful way tells which
                if tries == _MOST_TRIES:
                    raise
            except (errors.SerializationFailure, errors.DeadlockDetected, BeginAnew) as error:
                if tries == _MOST_TRIES:
                    raise BackendUnavailable(
                        f"PostgreSQL at {self._server.name}: others were in the way {tries} times; try again"
                    ) from error
                threading.Event().wait(random.uniform(0, 0.002 * 2 ** min(tries, 6)))
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
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
            try:
                transaction = self._begin(session, careful=attempt.careful)
                answer = verb(transaction)
                attempt.begin_to_commit()
                session.run("COMMIT")
            except BaseException:
                taken.roll_back()
                attempt.lost = taken.lost
                raise
        self._committed(transaction)
        return answer

    def _begin(self, session: OwnSession, *, careful: bool) -> PostgresTransaction:
        transaction = PostgresTransaction(
            session,
            self._sql,
            self.schema,
            self._marks,
            self._limited,
            careful=careful,
            known_queues=self._known_queues,
        )
        ((transaction.now,),) = session.simply(f"BEGIN; {self._not_for_ever}; {self._sql.now}")
        if self._clock is not None:
            transaction.now = to_micros(self._clock.now())
        return transaction

    def _committed(self, transaction: PostgresTransaction) -> None:
        self._known_queues |= transaction.new_queues
        if transaction.news:
            self._bell.ring()
            self._hints.tell(transaction.queues)
        self._counted += transaction.counted
        if self._counted >= _GATHERED_AFTER and not self._closed:
            self._counted = 0
            self._threads.submit(self._gather_counts)

    def _gather_counts(self) -> None:
        try:
            with self._pool.taken(monotonic() + self._wait_seconds) as taken:
                taken.session.run(self._sql.gather_counts, (_GATHERED_AT_ONCE,))
        except (psycopg.Error, LongshoreError) as error:  # the sums are right as they are; the next one tries again
            _log.warning("counts were not put together: %s", self._server.explain(error))

    def _look(self, look: Callable[[View], R], *, follows: bool) -> R:
        """On one snapshot. Whoever follows the log reads no further than what is certain before that is taken."""
        until = monotonic() + self._wait_seconds
        while True:
            stale = False
            try:
                with self._pool.taken(until) as taken:
                    try:
                        horizon = find_horizon(taken.session, self._sql) if follows else None
                        taken.session.simply(f"{_LOOK}; {self._not_for_ever}")
                        return look(PostgresView(taken.session, self._sql, self._seen, horizon))
                    finally:
                        taken.roll_back()
                        stale = taken.reused and taken.lost
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if not stale or monotonic() > until:
                    raise

    # -- inside the caller's transaction

    async def _enqueue_within(self, jobs: Sequence[Job], connection: object) -> list[str]:
        """In the caller's transaction, whose end decides; it locks nothing that others need."""
        schema = await self._in_thread(self._threads, self._open)
        return await join(connection, partial(self._enqueue_in, schema, jobs))

    def _enqueue_in(self, schema: Schema, jobs: Sequence[Job], session: Session) -> list[str]:
        unseen: dict[tuple[str, str], str] = {}
        with self._server.explained():
            while True:
                session.run("SAVEPOINT longshore_enqueue")
                try:
                    ids = self._enqueue_once(schema, jobs, session, unseen)
                except BaseException as error:
                    session.run("ROLLBACK TO SAVEPOINT longshore_enqueue")
                    session.run("RELEASE SAVEPOINT longshore_enqueue")
                    met_unseen = isinstance(error, errors.SerializationFailure) and self._look_for_them(jobs, unseen)
                    if not met_unseen and not isinstance(error, BeginAnew):
                        raise
                else:
                    session.run("RELEASE SAVEPOINT longshore_enqueue")
                    return ids

    def _look_for_them(self, jobs: Sequence[Job], unseen: dict[tuple[str, str], str]) -> bool:
        """Finds the keys' jobs that a transaction with an older snapshot meets and cannot see; refuses ids in use."""
        keys = [(job.queue, job.idempotency_key) for job in jobs if job.idempotency_key is not None]
        found = self._perform(lambda tx: tx.jobs_by_key(keys)) if keys else {}
        fresh = [job.id for job in jobs if (job.queue, job.idempotency_key) not in found]
        taken = self._perform(lambda tx: tx.ids_taken(fresh))
        if taken:
            raise DuplicateJob([job_id for job_id in fresh if job_id in taken])
        known = len(unseen)
        unseen |= found
        return len(unseen) > known

    def _enqueue_once(
        self, schema: Schema, jobs: Sequence[Job], session: Session, known_keys: dict[tuple[str, str], str]
    ) -> list[str]:
        try:
            ((log, _),) = session.rows(self._sql.meta)
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            log = None
        if log != schema.log:
            raise InvalidArgument(
                "connection", f"is open on another database than {self._server.name}, or has no schema {self.schema}"
            )
        transaction = PostgresTransaction(
            session,
            self._sql,
            self.schema,
            self._marks,
            self._limited,
            careful=True,
            shares_locks=False,
            known_keys=known_keys,
        )
        if self._clock is None:
            ((transaction.now,),) = session.rows(self._sql.now)
        else:
            transaction.now = to_micros(self._clock.now())
        ids = submission.enqueue_jobs(transaction, jobs)
        session.rows(self._sql.notify, (self._channel, array_text(sorted(transaction.queues) or [""])))
        return ids

    # -- waking and being woken

    async def _listen(self) -> None:
        self._refuse_if_closed()
        if not self._listener.listening:
            await self._in_thread(self._threads, self._listener.listen)

    def _send_hints(self, queues: list[str]) -> None:
        with self._pool.taken(monotonic() + 1) as taken:
            taken.session.rows(self._sql.hint, (self._channel, array_text(queues)))

    # -- moving house

    def moving_in(self) -> AbstractContextManager[EnteredSchema]:
        """The schema, to be moved into by `longshore.backends.moving.move`."""
        self._refuse_if_closed()
        return enter(self._server, self.schema, self._sql)

    # -- the end

    async def close(self) -> None:
        self._closed = True
        if os.getpid() != self._process:  # the threads, locks and connections are those of the process that forked
            return
        self._bell.ring()
        await asyncio.get_running_loop().run_in_executor(None, self._release)

    def _release(self) -> None:
        with self._releasing:
            if not self._released:
                self._let_go()
            self._released = True

    def _let_go(self) -> None:
        self._threads.shutdown()
        self._urgent_threads.shutdown()
        self._hints.close()
        self._listener.close()
        self._pool.close()
        self._watchdog.close()


class _Attempt:
    """How far one try of a transaction has come."""

    def __init__(self, careful: bool, abandoned: threading.Event | None) -> None:
        self.careful = careful
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
