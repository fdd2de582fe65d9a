"""The caller's own connection: which kinds can be joined, and how one that belongs to an event loop is spoken to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8Dumper

from longshore.backends.postgres.session import Session
from longshore.backends.sql.columns import Row
from longshore.core.errors import InvalidArgument

R = TypeVar("R")

# Savepoints are a stack: of two calls at once on one connection, one that is taken back would take the other with it.
_turns_of_threads: WeakKeyDictionary[psycopg.Connection[Any], threading.Lock] = WeakKeyDictionary()
_turns_of_tasks: WeakKeyDictionary[psycopg.AsyncConnection[Any], asyncio.Lock] = WeakKeyDictionary()
_KINDS = "a psycopg connection (sync or async), or a SQLAlchemy connection or session on psycopg"


async def join(connection: object, work: Callable[[Session], R]) -> R:
    """Does the work on the caller's connection: in the caller's thread, or for an async one beside their loop."""
    driver = await _driver_of(connection)
    if isinstance(driver, psycopg.Connection):
        with _turns_of_threads.setdefault(driver, threading.Lock()):
            _refuse_unready(driver)
            return work(_CallersSession(driver))
    async with _turns_of_tasks.setdefault(driver, asyncio.Lock()):
        _refuse_unready(driver)
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(None, work, _CallersAsyncSession(driver, loop))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:  # the connection is given back only when nobody uses it any more
            await asyncio.wait([working])
            raise


async def _driver_of(connection: object) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
    """The psycopg connection inside."""
    found: Any = connection
    if type(connection).__module__.startswith("sqlalchemy."):
        found = await _inside_sqlalchemy(connection)
    if isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
        return found
    if found is not connection:
        raise InvalidArgument(
            "connection", f"is on the driver {type(found).__module__}; use the driver psycopg: postgresql+psycopg://…"
        )
    raise InvalidArgument("connection", f"must be {_KINDS}, not {type(connection).__name__}")


async def _inside_sqlalchemy(connection: Any) -> Any:
    """SQLAlchemy's own object has to know of the transaction, or its commit would do nothing and all would be lost."""
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
        raise InvalidArgument("connection", "is closed")
    if status is TransactionStatus.INERROR:
        raise InvalidArgument("connection", "is in a transaction that has failed; roll it back first")
    if driver.info.pipeline_status is not PipelineStatus.OFF:  # answers come later there, and these are needed at once
        raise InvalidArgument("connection", "is in pipeline mode; enqueue before the pipeline begins or after its end")
    if status is TransactionStatus.IDLE and driver.autocommit:
        raise InvalidArgument("connection", "has no transaction open; begin one first: with connection.transaction():")


class _CallersSession:
    """On a psycopg connection of the caller's, in their thread."""

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
    """On an async connection of the caller's: used in another thread, it sends each statement through their loop."""

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
