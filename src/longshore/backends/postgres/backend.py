"""The PostgreSQL backend: each operation is a transaction on a pooled connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg

from longshore.backends.archive import SupportsArchive
from longshore.backends.base import Capabilities
from longshore.backends.bulk_insert import SupportsBulkInsert
from longshore.backends.change_signal import ChangeSignal
from longshore.backends.engine import TransactionalBackend
from longshore.backends.export import BulkReader
from longshore.backends.port import Operation, Reader, Transaction
from longshore.backends.postgres.caller_transaction import JoinedEnqueue, join
from longshore.backends.postgres.change_notifier import Hints, Listener
from longshore.backends.postgres.connection import OwnSession, Server, Watchdog, is_busy
from longshore.backends.postgres.data_migration import SchemaSource, SchemaTarget, open_source, open_target
from longshore.backends.postgres.locks import lock_number
from longshore.backends.postgres.pool import Pool
from longshore.backends.postgres.reads import array_text
from longshore.backends.postgres.schema import Schema, check_schema, prepare, quoted
from longshore.backends.postgres.transaction import PostgresTransaction
from longshore.backends.postgres.transaction_runner import TransactionRunner
from longshore.backends.process_guard import ProcessGuard
from longshore.backends.sql.statements import Statements
from longshore.backends.token_store import SupportsTokens
from longshore.core.actor import actor
from longshore.core.clock import Clock
from longshore.core.errors import LongshoreError
from longshore.core.health import Condition, Rows
from longshore.core.job import Job
from longshore.core.times import SECOND, check_duration, from_micros
from longshore.core.validation import check_number
from longshore.safe_logging import logger

_THEIRS = "another session, which this user may not see"


def condition_of(session: OwnSession, sql: Statements, schema: str, schema_version: int) -> Condition:
    """The facts about the store; of other sessions only what this user may see."""
    settings = {str(name): str(said) for name, said in session.rows(sql.durability)}
    number = session.connection.info.server_version
    ((size,),) = session.rows(sql.size_of_schema, (schema,))
    held = session.rows(sql.oldest_snapshot)
    ((newest,),) = session.rows(sql.newest_time)
    restored = session.rows(sql.restored_lately)
    return Condition(
        engine="PostgreSQL",
        version=(number // 10_000, number % 10_000),
        schema_version=schema_version,
        settings=settings,
        size=int(size),
        tables={str(name): Rows(int(live), int(dead)) for name, live, dead in session.rows(sql.dead_rows, (schema,))},
        held_for=timedelta(microseconds=int(held[0][0])) if held else None,
        held_by=str(held[0][1] or _THEIRS) if held else "",
        restored_at=from_micros(int(restored[0][0])) if restored else None,
        newest=None if newest is None else from_micros(int(newest)),
    )


P = ParamSpec("P")
R = TypeVar("R")

_MERGE_COUNTS_AFTER = 1_000
"""The rows of counts that this process adds before it merges them."""
_MERGE_AT_ONCE = 20_000
_RETRY_SECONDS = 0.2
"""Seconds until the next try of a server that is starting."""

_log = logger("longshore.postgres")


class PostgresBackend(ProcessGuard, SupportsTokens, SupportsBulkInsert, SupportsArchive, TransactionalBackend):
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
        super().__init__()
        self.schema = check_schema(schema)
        answer = check_duration("answer_seconds", answer_seconds)
        self._watchdog = Watchdog(answer / SECOND)
        self._server = Server(url, self._watchdog)
        self._create = create
        self._clock = clock
        self._wait_seconds = check_duration("wait_seconds", wait_seconds) / SECOND
        threads = check_number("pool_size", pool_size, least=1)
        self._sql = Statements("longshore.backends.postgres", schema=quoted(schema))
        self._channel = f"longshore {lock_number(schema)}"
        self._signal = ChangeSignal()
        self._counted = 0
        self._preparing = threading.Lock()
        self._found: Schema | None = None
        self._pool = Pool(self._server, self._watchdog, schema, threads + 2)
        self._runner = TransactionRunner(
            self._server,
            self._pool,
            self._sql,
            schema,
            clock,
            wait_seconds=self._wait_seconds,
            answer_micros=answer,
            on_commit=self._committed,
        )
        self._any_limited = self._runner.any_limited
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="longshore-postgres")
        # a renewal must not wait behind operations that wait for locks
        self._urgent_threads = ThreadPoolExecutor(1, thread_name_prefix="longshore-postgres-urgent")
        poll = check_duration("poll_seconds", poll_seconds) / SECOND
        self._listener = Listener(self._server, self._watchdog, self._sql, self._channel, self._signal, poll)
        self._hints = Hints(self._send_hints)

    # -- operations, each in a thread of the pool

    async def _write(self, operation: Operation[Transaction, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        threads = self._urgent_threads if operation.urgent else self._threads
        abandoned = threading.Event()
        try:
            return await self._in_thread(
                threads, self._explained, self._runner.perform, operation, args, kwargs, actor(), abandoned
            )
        except asyncio.CancelledError:
            abandoned.set()  # an uncommitted transaction is rolled back
            raise

    async def _read(self, operation: Operation[Reader, P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._in_thread(self._threads, self._explained, self._runner.read, operation, args, kwargs)

    def _explained(self, work: Callable[..., R], *args: Any) -> R:
        try:
            if self._found is None:
                self._open()
            return work(*args)
        except Exception as error:
            explanation = self._server.explain(error)
            if explanation is error:
                raise
            raise explanation from error

    def _open(self) -> Schema:
        with self._preparing:
            if self._found is None:
                self._found = self._prepare()
                self._pool.open()
            return self._found

    def _prepare(self) -> Schema:
        """Wait for a server that is busy or starting; raise at once if there is none."""
        until = monotonic() + self._wait_seconds
        while True:
            try:
                return prepare(self._server, self.schema, create=self._create)
            except psycopg.OperationalError as error:
                if not is_busy(error) or monotonic() > until:
                    raise
                threading.Event().wait(_RETRY_SECONDS)

    # -- after a commit

    def _committed(self, transaction: PostgresTransaction) -> None:
        if transaction.changed:
            self._signal.notify()
            self._hints.send_soon(transaction.queues)
        self._counted += transaction.counted
        if self._counted >= _MERGE_COUNTS_AFTER and not self._closed:
            self._counted = 0
            with contextlib.suppress(RuntimeError):  # closed meanwhile; the next process merges them
                self._threads.submit(self._merge_counts)

    def _merge_counts(self) -> None:
        try:
            with self._pool.checkout(monotonic() + self._wait_seconds) as checkout:
                checkout.session.run(self._sql.merge_counts, (_MERGE_AT_ONCE,))
        except (psycopg.Error, LongshoreError) as error:  # the sums are correct without it; the next merge tries again
            _log.warning("counts were not merged: %s", self._server.explain(error))

    # -- inside the caller's transaction

    async def _store_within(
        self,
        connection: object,
        jobs: Sequence[Job],
        operation: Operation[Transaction, Concatenate[Sequence[Job], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run in the caller's transaction, whose end decides. It locks nothing that other transactions need."""
        await self._in_thread(self._threads, self._explained, self._open)
        batch = JoinedEnqueue(
            jobs,
            lambda tx: operation.run(tx, jobs, *args, **kwargs),
            self._runner,
            self._server,
            self._sql,
            self.schema,
            self._channel,
            self._clock,
        )
        return await join(connection, batch.enqueue)

    # -- notifications

    async def _listen(self) -> None:
        self._refuse_if_closed()
        if not self._listener.listening:
            await self._in_thread(self._threads, self._explained, self._listener.listen)

    def _send_hints(self, queues: list[str]) -> None:
        with self._pool.checkout(monotonic() + 1) as checkout:
            checkout.session.rows(self._sql.hint, (self._channel, array_text(queues)))

    # -- state

    async def schema_version(self) -> int:
        """The number of the last applied migration."""
        found: Schema = await self._in_thread(self._threads, self._explained, self._open)
        return found.version

    async def condition(self) -> Condition:
        """The server's settings, the schema's size and dead rows, and the session that keeps them from being
        vacuumed."""
        return await self._in_thread(self._threads, self._explained, self._condition)

    def _condition(self) -> Condition:
        with self._pool.checkout(monotonic() + self._wait_seconds) as checkout:
            return condition_of(checkout.session, self._sql, self.schema, self._open().version)

    # -- data migration

    def copy_in(self) -> contextlib.AbstractContextManager[SchemaTarget]:
        """The schema, as the target of `longshore.backends.data_migration.move`."""
        self._refuse_if_closed()
        return open_target(self._server, self.schema, self._sql)

    def copy_out(self) -> contextlib.AbstractContextManager[SchemaSource]:
        """A snapshot of the schema, as the source of `longshore.backends.data_migration.move`."""
        self._refuse_if_closed()
        return open_source(self._server, self.schema, self._sql, self._clock)

    # -- export

    def bulk_reader(self) -> contextlib.AbstractContextManager[BulkReader]:
        """The schema, read in bulk; needs the packages of `longshore[spark]`."""
        from longshore.backends.postgres import export

        self._refuse_if_closed()
        return export.read(self._server, self.schema, self._sql)

    # -- close

    def _release_resources(self) -> None:
        self._threads.shutdown()
        self._urgent_threads.shutdown()
        self._hints.close()
        self._listener.close()
        self._pool.close()
        self._watchdog.close()
