"""Copy data into a schema, which stays locked until both sides agree, and out of one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from longshore.backends.data_migration import BLOCK, LONGEST_SILENCE, Begun, Settings, Source, describe_activity
from longshore.backends.postgres.connection import OwnSession, Server
from longshore.backends.postgres.schema import long_sessions
from longshore.backends.sql.rows import Row
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.writes import SQLCopySide
from longshore.core.clock import Clock
from longshore.core.errors import MoveRefused
from longshore.core.times import to_micros

_MOVED_XID = "3"


@contextmanager
def open_target(server: Server, schema: str, sql: Statements) -> Iterator[SchemaTarget]:
    """Provide the schema, created if needed, with its own connection, and close it at the end."""
    with long_sessions(server, schema, 1, create=True, allow_unfinished_copy=True) as (session,):
        session.connection.prepare_threshold = None  # a plan for an empty table would stay in use as it fills
        yield SchemaTarget(f"{server.name}, schema {schema}", session, sql)


class SchemaTarget(SQLCopySide):
    """A schema that data is copied into. Every transaction checks that no later run has taken over."""

    def __init__(self, name: str, session: OwnSession, sql: Statements) -> None:
        self.name = name
        self._session = session
        self._sql = sql
        self._move: dict[str, Any] = {}

    def _rows(self, statement: str, *values: Any) -> list[Row]:
        return self._session.rows(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[dict[str, Any] | None]:
        """Provide the stored state of a copy into this schema."""
        with self._session.connection.transaction():
            self._rows(self._sql.allow_copy)
            (known,) = self._one(self._sql.copy_state)
            yield None if known is None else json.loads(known)

    @contextmanager
    def _our_transaction(self) -> Iterator[None]:
        with self._transaction() as known:
            if known != self._move:
                raise MoveRefused(f"another run of this copy into {self.name} was started later; this one stops")
            yield

    def _note(self, **facts: Any) -> None:
        self._move = {**self._move, **facts}
        self._session.run(self._sql.put_copy_state, (json.dumps(self._move),))

    def begin(self, old: Source) -> Begun:
        with self._transaction() as known:
            if known is None:
                self._session.connection.execute(self._sql.lock_schema)
                if self._one(self._sql.any_rows) == (True,):
                    raise MoveRefused(
                        f"{self.name} has other jobs, schedules or settings; name an empty database, or another "
                        "schema with --schema"
                    )
            elif known["log"] != old.log:
                state = "all data of" if known.get("finished") else "an unfinished copy from"
                raise MoveRefused(
                    f"{self.name} has {state} {known['from']}; name an empty database, or another schema with --schema"
                )
            elif known.get("finished"):
                if known["next_event"] != old.next_event:
                    raise MoveRefused(
                        f"{old.name} was copied to {self.name} before and has changed since: "
                        f"{old.next_event - known['next_event']} events are not in the copy"
                    )
                return Begun.FINISHED
            # an earlier run that is still alive must not write at the same time
            self._note(**{"from": old.name, "log": old.log, "run": secrets.token_hex(8)})
            return Begun.FRESH if known is None else Begun.RESUMED

    def replace(self, table: str, block: range, rows: Iterator[Row]) -> None:
        if table == "job_events":
            rows = ((_MOVED_XID, *row) for row in rows)
        bounds = (block.start, block.stop)
        with self._our_transaction():
            # a crash may lose this block; then the digests differ and it is copied again. The last commit is durable
            self._session.run("SET LOCAL synchronous_commit = off")
            self._session.run(self._named("clear", table), bounds)
            self._session.copy(self._named("fill", table), rows)
            if table == "jobs":
                self._session.run(self._sql.clear_job_tags, bounds)
                self._session.run(self._sql.fill_job_tags, bounds)

    @contextmanager
    def finishing(self, settings: Settings) -> Iterator[None]:
        with self._our_transaction():
            self._session.run(self._sql.analyze_tables)
        with self._our_transaction():
            self._session.copy(self._sql.fill_queues, settings.queues)
            self._session.copy(self._sql.fill_concurrency_keys, settings.concurrency_keys)
            self._session.copy(self._sql.fill_schedules, settings.schedules)
            self._session.copy(self._sql.fill_api_tokens, settings.api_tokens)
            self._session.run(self._sql.fill_counts)
            self._session.run(self._sql.remember_queues, (settings.queue_names,))
            self._rows(self._sql.set_sequences, settings.next_uid, settings.next_event)
            yield
            self._session.run(self._sql.unlock_schema)
            self._note(finished=True, next_event=settings.next_event)


@contextmanager
def open_source(server: Server, schema: str, sql: Statements, clock: Clock | None) -> Iterator[SchemaSource]:
    """Open a snapshot of the schema on two connections, and close them at the end."""
    with long_sessions(server, schema, 2) as (session, latest):
        yield SchemaSource(f"{server.name}, schema {schema}", session, latest, sql, clock)


class SchemaSource(SQLCopySide):
    """The schema to copy from: one transaction reads everything, and a second connection sees new events."""

    def __init__(
        self, name: str, session: OwnSession, latest: OwnSession, sql: Statements, clock: Clock | None
    ) -> None:
        self.name = name
        self._session = session
        self._latest = latest
        self._sql = sql
        self._clock = clock
        self._events: dict[int, tuple[str, str]] = {}
        """The first and last transaction of each block of events."""
        self._begin()

    def _begin(self) -> None:
        self._session.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._session.rows("SELECT set_config('statement_timeout', '0', true)")
        self.log, self._next_uid, self.next_event, self._snapshot = self._one(self._sql.state_to_copy)

    def _rows(self, statement: str, *values: Any) -> list[Row]:
        return self._session.rows(statement, values)

    def span(self, table: str) -> tuple[int, int] | None:
        if table != "job_events":
            return super().span(table)
        found = self._rows(self._sql.blocks_of_events, BLOCK)
        self._events = {number: (str(first), str(last)) for number, _, _, first, last in found}
        return (min(row[1] for row in found), max(row[2] for row in found)) if found else None

    def digest(self, table: str, block: range) -> Row:
        if table != "job_events":
            return super().digest(table, block)
        return self._one(self._sql.digest_of_block_of_events, *self._bounds(table, block))

    def _bounds(self, table: str, block: range) -> tuple[Any, ...]:
        """Return the parameters of a block: its numbers and, for events, the range of their transactions."""
        numbers = (block.start, block.stop)
        return numbers if table != "job_events" else (*numbers, *self._events.get(block.start // BLOCK, ("0", "0")))

    def activity(self) -> list[str]:
        now = to_micros(self._clock.now()) if self._clock is not None else self._one(self._sql.now)[0]
        heard = self._rows(self._sql.workers_heard_since, now - LONGEST_SILENCE)
        return describe_activity(heard, self._rows(self._sql.leases_in_force, now), now)

    def rows(self, table: str, block: range) -> Iterator[Row]:
        """Stream the rows, so that a block of large payloads is not held in memory."""
        with psycopg.RawServerCursor(self._session.connection, "longshore_moving") as cursor:
            cursor.itersize = 100
            yield from cursor.execute(self._named("rows_of", table), self._bounds(table, block), binary=True)

    def settings(self) -> Settings:
        (undecided,) = self._one(self._sql.undecided_edges)
        if undecided:
            raise MoveRefused(
                f"{self.name} has {undecided} dependencies that are not verified yet; run a scheduler on it "
                "briefly, then run this again"
            )
        return Settings(
            self._rows(self._sql.queues),
            self._rows(self._sql.rows_of_concurrency_keys),
            self._rows(self._sql.rows_of_schedules),
            self._rows(self._sql.tokens),
            [name for (name,) in self._rows(self._sql.known_queues)],
            self._next_uid,
            self.next_event,
        )

    def events_since(self) -> int:
        ((events,),) = self._latest.rows(self._sql.events_outside, (self._snapshot,))
        return int(events)

    def refresh(self) -> None:
        self._session.run("COMMIT")
        self._begin()
