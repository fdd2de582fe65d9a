"""Enqueue in the caller's own transaction, on any supported kind of connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8Dumper

from longshore.backends.port import Operation, Reader, Transaction
from longshore.backends.postgres.connection import Server, Session
from longshore.backends.postgres.locks import RestartTransaction
from longshore.backends.postgres.reads import array_text
from longshore.backends.postgres.transaction import PostgresTransaction
from longshore.backends.postgres.transaction_runner import MOST_TRIES, TransactionRunner
from longshore.backends.sql.rows import Row
from longshore.backends.sql.statements import Statements
from longshore.core.clock import Clock
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument
from longshore.core.job import Job
from longshore.core.times import to_micros

R = TypeVar("R")

# Savepoints are a stack: if two calls use one connection at once, a rollback of one would undo the other.
_thread_locks: WeakKeyDictionary[psycopg.Connection[Any], threading.Lock] = WeakKeyDictionary()
_task_locks: WeakKeyDictionary[psycopg.AsyncConnection[Any], asyncio.Lock] = WeakKeyDictionary()
_KINDS = "a psycopg connection (sync or async), or a SQLAlchemy connection or session on psycopg"


async def join(connection: object, work: Callable[[Session], R]) -> R:
    """Run the work on the caller's connection: in the caller's thread, or for an async one in another thread."""
    driver = await _driver_of(connection)
    if isinstance(driver, psycopg.Connection):
        with _thread_locks.setdefault(driver, threading.Lock()):
            _refuse_unready(driver)
            return work(_CallersSession(driver))
    async with _task_locks.setdefault(driver, asyncio.Lock()):
        _refuse_unready(driver)
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(None, work, _CallersAsyncSession(driver, loop))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:  # the caller gets the connection back when the work has ended
            await asyncio.wait([working])
            raise


async def _driver_of(connection: object) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
    """Return the psycopg connection inside a SQLAlchemy object."""
    found: Any = connection
    if type(connection).__module__.startswith("sqlalchemy."):
        found = await _inside_sqlalchemy(connection)
    if isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
        return found
    if found is not connection:
        raise InvalidArgument(
            "connection", f"uses the driver {type(found).__module__}; use the driver psycopg: postgresql+psycopg://…"
        )
    raise InvalidArgument("connection", f"must be {_KINDS}, not {type(connection).__name__}")


async def _inside_sqlalchemy(connection: Any) -> Any:
    """Begin SQLAlchemy's transaction: without it, its commit would do nothing and the jobs would be lost."""
    if hasattr(connection, "sync_session"):  # an AsyncSession
        connection = await connection.connection()
    elif hasattr(connection, "get_bind"):  # a Session
        connection = connection.connection()
    if hasattr(connection, "get_raw_connection"):  # an AsyncConnection
        if not connection.in_transaction():
            await connection.begin()
        return (await connection.get_raw_connection()).driver_connection
    if not hasattr(connection, "exec_driver_sql"):
        return connection
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


def _refuse_unready(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    status = driver.info.transaction_status
    if driver.closed:
        raise InvalidArgument("connection", "is closed; pass an open connection")
    if status is TransactionStatus.INERROR:
        raise InvalidArgument("connection", "is in a transaction that has failed; roll it back first")
    if driver.info.pipeline_status is not PipelineStatus.OFF:  # answers arrive late in a pipeline
        raise InvalidArgument("connection", "is in pipeline mode; enqueue before the pipeline starts or after it ends")
    if status is TransactionStatus.IDLE and driver.autocommit:
        raise InvalidArgument("connection", "has no transaction open; begin one first: with connection.transaction():")


class _CallersSession:
    """A session on the caller's psycopg connection, in the caller's thread."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._cursor.adapters.register_dumper(int, Int8Dumper)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._cursor.execute(statement, values, prepare=False, binary=True).fetchall()

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._cursor.execute(statement, values, prepare=False).rowcount

    def many(self, statement: str, rows: Sequence[Row]) -> int:
        return sum(self.run(statement, row) for row in rows)

    def copy(self, statement: str, rows: Iterable[Row]) -> None:
        with self._cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


class _CallersAsyncSession:
    """A session on the caller's async connection; another thread uses it and sends statements through the loop."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor.adapters.register_dumper(int, Int8Dumper)
        self._loop = loop

    def _wait_for(self, call: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._wait_for(self._rows(statement, values))

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Row]:
        await self._cursor.execute(statement, values, prepare=False, binary=True)
        return await self._cursor.fetchall()

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self.many(statement, [values])

    def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        return self._wait_for(self._many(statement, rows))

    async def _many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        changed = 0
        for values in rows:
            await self._cursor.execute(statement, values, prepare=False)
            changed += self._cursor.rowcount
        return changed

    def copy(self, statement: str, rows: Iterable[Row]) -> None:
        self._wait_for(self._copy(statement, rows))

    async def _copy(self, statement: str, rows: Iterable[Row]) -> None:
        async with self._cursor.copy(statement) as copy:
            for row in rows:
                await copy.write_row(row)


class JoinedEnqueue(Generic[R]):
    """One batch of jobs in the caller's transaction. It takes no lock that other transactions wait for."""

    def __init__(
        self,
        jobs: Sequence[Job],
        verb: Callable[[PostgresTransaction], R],
        runner: TransactionRunner,
        server: Server,
        sql: Statements,
        schema: str,
        channel: str,
        clock: Clock | None,
    ) -> None:
        self._jobs = jobs
        self._verb = verb
        self._runner = runner
        self._server = server
        self._sql = sql
        self._schema = schema
        self._channel = channel
        self._clock = clock
        self._unseen: dict[tuple[str, str], str] = {}
        """The jobs of idempotency keys that the caller's snapshot is too old to see."""

    def enqueue(self, session: Session) -> R:
        """Return the operation's answer; after an error the caller's transaction is as it was before."""
        with self._server.explained():
            for _ in range(MOST_TRIES):
                session.run("SAVEPOINT longshore_enqueue")
                try:
                    answer = self._enqueue_once(session)
                except BaseException as error:
                    session.run("ROLLBACK TO SAVEPOINT longshore_enqueue")
                    session.run("RELEASE SAVEPOINT longshore_enqueue")
                    met_unseen = isinstance(error, errors.SerializationFailure) and self._find_unseen(session)
                    if not met_unseen and not isinstance(error, RestartTransaction):
                        raise
                else:
                    session.run("RELEASE SAVEPOINT longshore_enqueue")
                    return answer
            raise BackendUnavailable(
                f"PostgreSQL at {self._server.name}: conflicts with other transactions persist; try again"
            )

    def _find_unseen(self, session: Session) -> bool:
        """Find jobs of these keys that the caller's older snapshot cannot see; reject ids in use."""
        keys = [(job.queue, job.idempotency_key) for job in self._jobs if job.idempotency_key is not None]
        found = self._runner.perform(Operation(_jobs_by_key), (keys,)) if keys else {}
        known = len(self._unseen)
        self._unseen |= found
        if len(self._unseen) > known:
            return True
        fresh = [job.id for job in self._jobs if (job.queue, job.idempotency_key) not in found]
        taken = self._runner.perform(Operation(_ids_taken), (fresh,))
        if taken:  # and the caller's uncommitted jobs, which only its session sees
            taken |= {job_id for (job_id,) in session.rows(self._sql.ids_taken, (array_text(fresh), array_text([])))}
            raise DuplicateJob([job_id for job_id in dict.fromkeys(fresh) if job_id in taken])
        return False

    def _enqueue_once(self, session: Session) -> R:
        self._refuse_other_database(session)
        transaction = self._runner.transaction_on(
            session, careful=True, shares_locks=False, known_keys=self._unseen, read_elsewhere=self._read_elsewhere
        )
        if self._clock is None:
            ((transaction.now,),) = session.rows(self._sql.now)
        else:
            transaction.now = to_micros(self._clock.now())
        answer = self._verb(transaction)
        session.rows(self._sql.notify, (self._channel, array_text(sorted(transaction.queues) or [""])))
        return answer

    def _read_elsewhere(self, read: Callable[[Reader], Any]) -> Any:
        return self._runner.read(Operation(read))

    def _refuse_other_database(self, session: Session) -> None:
        """Reject a connection to another database or schema; the name of the event log identifies ours."""
        try:
            ((theirs, _),) = session.rows(self._sql.meta)
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            theirs = None
        if theirs is None or theirs != self._runner.read(Operation(_log_of)):
            raise InvalidArgument(
                "connection",
                f"is open on another database than {self._server.name}, or lacks the schema {self._schema}",
            )


def _jobs_by_key(tx: Transaction, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    return tx.jobs_by_key(keys)


def _ids_taken(tx: Transaction, job_ids: Sequence[str]) -> set[str]:
    return tx.ids_taken(job_ids)


def _log_of(view: Reader) -> str:
    return view.log_ends(None).log
