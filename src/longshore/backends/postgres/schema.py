"""Migrates the schema under a lock, each step in one transaction."""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

from psycopg import sql

from longshore.backends.postgres.connection import OLDEST_SERVER, Connection, Server
from longshore.backends.postgres.locks import lock_number
from longshore.backends.sql.statements import Migration, load_migrations, refuse_newer
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.validation import check_name

MIGRATIONS = load_migrations("longshore.backends.postgres")

_LONGEST = 63

_HOME = """
    SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
        (SELECT pg_class.oid FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
         WHERE nspname = %s AND relname = 'jobs'),
        CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END
    FROM pg_control_system()
"""
"""Identifies an incarnation of the store: server and database, jobs table, and the server's timeline."""

_log = logging.getLogger("longshore.postgres")


class Schema(NamedTuple):
    """What a connection finds: the number of its last migration, and its event log."""

    version: int
    log: str


def check_schema(value: object) -> str:
    """The name of a schema, if PostgreSQL can keep it as it is."""
    name = check_name("schema", value)
    if len(name.encode()) > _LONGEST:  # it would cut the name without a word, and two schemas might become one
        raise InvalidArgument("schema", f"must have at most {_LONGEST} bytes; it has {len(name.encode())}")
    if name.startswith("pg_"):
        raise InvalidArgument("schema", "must not begin with pg_: such names are PostgreSQL's own")
    return name


def quoted(schema: str) -> str:
    """The schema's name as SQL writes it."""
    return sql.Identifier(schema).as_string()


def _beside_values(name: str) -> str:
    """The quoted name in a statement whose values psycopg looks for by their percent signs."""
    return name.replace("%", "%%")


def prepare(server: Server, schema: str, *, create: bool = True, even_half_moved: bool = False) -> Schema:
    """Makes the schema if there is none, and brings it up to date; two at once do no harm."""
    with server.connect() as connection:
        if connection.info.server_version < OLDEST_SERVER:
            raise BackendUnavailable(
                f"{server.name} runs PostgreSQL {connection.info.server_version // 10_000}; Longshore needs 13 or newer"
            )
        with server.watching(connection):
            version = _version(connection, schema)
        refuse_newer(version, MIGRATIONS, f"schema {schema} at {server.name}")
        if version == 0 and not create:
            raise BackendUnavailable(
                f"there is no schema {schema} of Longshore at {server.name}; look at the address, or make it with "
                "longshore migrate"
            )
        for migration in MIGRATIONS[version:]:
            _apply(connection, schema, migration)
        if not even_half_moved:
            _refuse_half_moved(connection, server, schema)
        return Schema(len(MIGRATIONS), _at_home(connection, server, schema))


def check(connection: Connection, server: Server, schema: str) -> None:
    """A new connection may find a schema that was upgraded meanwhile: an old process must not write to it.

    Or a copy in the place of the database that was there, with a log that begins anew.
    """
    with server.watching(connection):
        version = _version(connection, schema)
    refuse_newer(version, MIGRATIONS, f"schema {schema} at {server.name}")
    if version == 0:
        raise _incomplete(server, schema)
    if version < len(MIGRATIONS):
        raise BackendUnavailable(
            f"schema {schema} at {server.name} was replaced by a copy of an older release; run longshore migrate"
        )
    _refuse_half_moved(connection, server, schema)
    _at_home(connection, server, schema)


def _incomplete(server: Server, schema: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"schema {schema} at {server.name} is missing or incomplete. If a dump is being restored, wait for its end; "
        "otherwise look at the address and the schema"
    )


def _refuse_half_moved(connection: Connection, server: Server, schema: str) -> None:
    """Workers refuse to open a partly copied schema."""
    with server.watching(connection):
        (copy_state,) = connection.execute(f"SELECT copy_state FROM {quoted(schema)}.meta").fetchone() or (None,)
    move = json.loads(copy_state or '{"finished": true}')
    if not move.get("finished"):
        raise BackendUnavailable(
            f"the move from {move['from']} into schema {schema} at {server.name} was not finished; "
            "run longshore migrate-data again, and it goes on"
        )


def _version(connection: Connection, schema: str) -> int:
    """0 where there is nothing of ours.

    Asked of the catalog's tables: to_regclass may answer from what the session knew before it waited for the lock.
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
        version = _version(connection, schema)  # another process may have been here first
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
            f"INSERT INTO {_beside_values(name)}.migrations (number, name) VALUES (%s, %s)",
            (migration.number, migration.name),
        )


def _lock(connection: Connection, schema: str) -> None:
    connection.execute(
        "SELECT pg_advisory_xact_lock(%s, %s)", (lock_number("longshore migrations"), lock_number(schema))
    )


def _at_home(connection: Connection, server: Server, schema: str) -> str:
    """The event log's name. A store that was restored, in another database or in place, gets a new log.

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
            replaced = known not in (home, database, "")  # "" is new; an older release kept the database alone
            set_back = log == server.log and following <= server.committed
            if replaced or set_back:
                _begin_log(connection, name)
            connection.execute(f"UPDATE {_beside_values(name)}.meta SET home = %s", (home,))
            _, log, _, _ = _found(connection, server, schema)
    if server.log not in (None, log):
        _log.error(
            "PostgreSQL at %s was replaced by an older copy%s. A new event log %s was started: older cursors, and "
            "leases given after the copy was made, are refused. Data stored after that is gone. Run longshore doctor",
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
    """The oid of the meta table, the log's name, the incarnation it was written in, and the next transaction id."""
    row = connection.execute(
        "SELECT tableoid::bigint, log, home, pg_snapshot_xmax(pg_current_snapshot())::text::bigint "
        f"FROM {quoted(schema)}.meta"
    ).fetchone()
    if row is None:
        raise _incomplete(server, schema)
    table, log, home, following = row
    return int(table), str(log), str(home), int(following)


def _begin_log(connection: Connection, name: str) -> None:
    for statement in (
        "UPDATE {}.meta SET log = left(gen_random_uuid()::text, 8), restored_at = clock_timestamp()",
        "UPDATE {}.job_events SET xid = '3'",
        "UPDATE {}.jobs SET last_event_xid = '3'",
        "DELETE FROM {}.pruned_events",
        "UPDATE {}.queues SET changed = pg_current_xact_id()",
        "UPDATE {}.schedules SET changed = pg_current_xact_id()",
    ):
        connection.execute(statement.format(name))
