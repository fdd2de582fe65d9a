"""Migrates the schema under a lock, each step in one transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from psycopg import sql

from longshore.backends.postgres.connection import OLDEST_SERVER, Connection, OwnSession, Server, Watchdog
from longshore.backends.postgres.locks import lock_number
from longshore.backends.sql.statements import Migration, load_migrations, refuse_newer, refuse_other_lineage
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.validation import check_name

MIGRATIONS = load_migrations("longshore.backends.postgres")

_LONGEST = 63
_STATEMENT_SECONDS = 3600.0
"""The timeout of one statement of a copy or an export: a block of the largest payloads takes minutes."""

_HOME = """
    SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
        (SELECT pg_class.oid FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
         WHERE nspname = %s AND relname = 'jobs'),
        CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END
    FROM pg_control_system()
"""
"""The identity of a store: server and database, jobs table, and the server's timeline."""

_log = logging.getLogger("longshore.postgres")


class Schema(NamedTuple):
    """The number of the last migration, and the name of the event log."""

    version: int
    log: str


def check_schema(value: object) -> str:
    """Return the name of a schema, if PostgreSQL stores it unchanged."""
    name = check_name("schema", value)
    if len(name.encode()) > _LONGEST:  # PostgreSQL would cut the name, and two schemas might become one
        raise InvalidArgument("schema", f"must have at most {_LONGEST} bytes; it has {len(name.encode())}")
    if name.startswith("pg_"):
        raise InvalidArgument("schema", "must not begin with pg_, which PostgreSQL reserves; choose another name")
    return name


def quoted(schema: str) -> str:
    """Return the schema's name as an SQL identifier."""
    return sql.Identifier(schema).as_string()


def _escaped(name: str) -> str:
    """Return the quoted name for a statement with values, in which psycopg gives percent signs a meaning."""
    return name.replace("%", "%%")


def prepare(server: Server, schema: str, *, create: bool = True, allow_unfinished_copy: bool = False) -> Schema:
    """Create the schema if it does not exist, and migrate it; processes may do this at the same time."""
    with server.connect() as connection:
        if connection.info.server_version < OLDEST_SERVER:
            raise BackendUnavailable(
                f"{server.name} runs PostgreSQL {connection.info.server_version // 10_000}; Longshore needs 13 or newer"
            )
        version = _checked_version(connection, server, schema, allow_unfinished_copy=allow_unfinished_copy)
        if version == 0 and not create:
            raise BackendUnavailable(
                f"{server.name} has no Longshore schema {schema}; check the address, or create it with "
                "longshore migrate"
            )
        for migration in MIGRATIONS[version:]:
            _apply(connection, schema, migration)
        return Schema(len(MIGRATIONS), _current_log(connection, server, schema))


@contextmanager
def long_sessions(
    server: Server, schema: str, count: int, *, create: bool = False, allow_unfinished_copy: bool = False
) -> Iterator[list[OwnSession]]:
    """Open the schema on separate connections for long statements, and close them at the end."""
    watchdog = Watchdog(_STATEMENT_SECONDS)
    try:
        with server.explained(), ExitStack() as stack:
            prepare(server, schema, create=create, allow_unfinished_copy=allow_unfinished_copy)
            yield [OwnSession(stack.enter_context(server.connect()), watchdog) for _ in range(count)]
    finally:
        watchdog.close()


def check(connection: Connection, server: Server, schema: str) -> None:
    """Check the schema on a new connection: since the last one it may have been upgraded, or replaced by a copy."""
    version = _checked_version(connection, server, schema)
    if version == 0:
        raise _incomplete(server, schema)
    if version < len(MIGRATIONS):
        raise BackendUnavailable(
            f"schema {schema} at {server.name} was replaced by a copy of an older release; run longshore migrate"
        )
    _current_log(connection, server, schema)


def _incomplete(server: Server, schema: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"schema {schema} at {server.name} is missing or incomplete. If a dump is being restored, wait until it has "
        "finished; otherwise check the address and the schema"
    )


def _checked_version(
    connection: Connection, server: Server, schema: str, *, allow_unfinished_copy: bool = False
) -> int:
    """Return the version of a schema that this code may open, or 0 if there is none."""
    where = f"schema {schema} at {server.name}"
    with server.watching(connection):
        version = _version(connection, schema)
        # as JSON, because a schema of another lineage may lack columns
        rows = connection.execute(f"SELECT to_json(meta) FROM {quoted(schema)}.meta").fetchall() if version else []
    copy = {"finished": True}
    for (meta,) in rows:
        refuse_other_lineage(meta.get("lineage"), where)
        copy = json.loads(meta["copy_state"]) if meta["copy_state"] else copy
    refuse_newer(version, MIGRATIONS, where)
    if not copy.get("finished") and not allow_unfinished_copy:
        raise BackendUnavailable(
            f"the copy from {copy['from']} into {where} was not finished; run longshore migrate-data again to finish it"
        )
    return version


def _version(connection: Connection, schema: str) -> int:
    """Return the number of the last migration, or 0 without any.

    This reads the catalog's tables: to_regclass may answer from a cache that is older than the wait for the lock.
    """
    there = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'migrations'"
    if connection.execute(there, (schema,)).fetchone() is None:
        return 0
    found = connection.execute(f"SELECT coalesce(max(number), 0) FROM {quoted(schema)}.migrations").fetchone()
    (version,) = found or (0,)
    return int(version)


def _apply(connection: Connection, schema: str, migration: Migration) -> None:
    name = quoted(schema)
    with connection.transaction():
        _lock(connection, schema)
        version = _version(connection, schema)  # another process may have applied it
        refuse_newer(version, MIGRATIONS, f"schema {schema}")
        if version >= migration.number:
            return
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            connection.execute(f"CREATE SCHEMA {name}")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name}.migrations"
            " (number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        connection.execute(migration.text.replace("{schema}", name))
        connection.execute(
            f"INSERT INTO {_escaped(name)}.migrations (number, name) VALUES (%s, %s)",
            (migration.number, migration.name),
        )


def _lock(connection: Connection, schema: str) -> None:
    connection.execute(
        "SELECT pg_advisory_xact_lock(%s, %s)", (lock_number("longshore migrations"), lock_number(schema))
    )


def _current_log(connection: Connection, server: Server, schema: str) -> str:
    """Return the event log's name. A store that was restored, in another database or in place, gets a new log.

    Transaction ids of two databases cannot be compared, so a restored store cannot continue its log. A copy of the
    server's files has the old identity; it is recognised by a transaction counter below what this process committed.
    """
    name = quoted(schema)
    with server.watching(connection):
        database, table, timeline = connection.execute(_HOME, (schema,)).fetchone() or ("", "", None)
        found_table, log, known, following = _found(connection, server, schema)
    if timeline is None:  # a standby cannot be written, and may lag behind
        return log
    home = f"{database}/{table}/{timeline}"
    set_back = log == server.log and following <= server.committed
    if known != home or set_back:
        with connection.transaction():  # without a timeout: rewriting a long log takes time
            _lock(connection, schema)
            found_table, log, known, following = _found(connection, server, schema)
            replaced = known not in (home, "")  # "" is new
            set_back = log == server.log and following <= server.committed
            if replaced or set_back:
                _start_log(connection, name)
            connection.execute(f"UPDATE {_escaped(name)}.meta SET home = %s", (home,))
            _, log, _, _ = _found(connection, server, schema)
    if server.log not in (None, log):
        _log.error(
            "PostgreSQL at %s was replaced by an older copy%s. A new event log %s was started: older cursors, and "
            "leases given after the copy was made, are rejected. Data stored after that is lost. Run longshore doctor",
            server.name,
            f" (this process committed transaction {server.committed}; the next one is {following})"
            if following <= server.committed
            else "",
            log,
        )
        server.committed = 0
    server.log, server.table = log, found_table
    return log


def _found(connection: Connection, server: Server, schema: str) -> tuple[int, str, str, int]:
    """Return the oid of the meta table, the log's name, the store's identity, and the next transaction id."""
    row = connection.execute(
        "SELECT tableoid::bigint, log, home, pg_snapshot_xmax(pg_current_snapshot())::text::bigint "
        f"FROM {quoted(schema)}.meta"
    ).fetchone()
    if row is None:
        raise _incomplete(server, schema)
    table, log, home, following = row
    return int(table), str(log), str(home), int(following)


def _start_log(connection: Connection, name: str) -> None:
    for statement in (
        "UPDATE {}.meta SET log = left(gen_random_uuid()::text, 8), restored_at = clock_timestamp()",
        "UPDATE {}.job_events SET xid = '3'",
        "UPDATE {}.jobs SET last_event_xid = '3'",
        "DELETE FROM {}.pruned_events",
        "UPDATE {}.queues SET changed = pg_current_xact_id()",
        "UPDATE {}.schedules SET changed = pg_current_xact_id()",
    ):
        connection.execute(statement.format(name))
