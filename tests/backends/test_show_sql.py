"""Every statement, as `make sql` prints it, parses alone on SQLite and on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import apsw
import psycopg
import pytest

from longshore.backends.sql.statements import Statements
from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.backend import SQLiteBackend
from tests.postgres_run import Clones
from tests.show_sql import plans_of_sqlite, printed

IN_SQLITE, IN_POSTGRES = dict(printed("sqlite")), dict(printed("postgres"))
FIRST = {"unlock_schema": "lock_schema"}
"""Statements that need an object that another one creates."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    with closing(SQLiteBackend(tmp_path_factory.mktemp("sql") / "jobs.db").new_connection()) as connection:
        connection.execute(SQL.create_copy_state)
        yield connection


@pytest.fixture(scope="module")
def server(postgres_clones: Clones) -> Iterator[psycopg.Connection]:
    url = postgres_clones.add()
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
    postgres_clones.drop(url)


@pytest.mark.parametrize("name", IN_SQLITE)
def test_a_statement_parses_alone_in_sqlite3(name: str, file: apsw.Connection) -> None:
    text = IN_SQLITE[name]
    assert "?" not in text
    assert "{" not in text.replace("{}", "")
    file.execute(f"EXPLAIN {text}", dict.fromkeys(SQL.parameters[name])).fetchall()


@pytest.mark.parametrize("name", IN_POSTGRES)
def test_a_statement_parses_alone_in_psql(name: str, server: psycopg.Connection) -> None:
    text = IN_POSTGRES[name]
    with server.transaction(force_rollback=True):
        if name in FIRST:
            server.execute(IN_POSTGRES[FIRST[name]].encode())
        if text.endswith("\\.\n"):  # psql sends the rows up to this mark
            with server.cursor().copy(text.removesuffix("\\.\n").encode()):
                pass
        else:
            server.execute(text.encode())
    server.execute("DEALLOCATE ALL")


def test_every_statement_is_printed() -> None:
    assert IN_SQLITE.keys() == SQL.names()
    assert IN_POSTGRES.keys() == Statements("longshore.backends.postgres", schema="longshore").names()


def test_a_statement_is_printed_with_its_plan() -> None:
    (text,) = plans_of_sqlite(["first_claimable"])
    assert text.startswith("-- sqlite, claim.sql: first_claimable\n")
    assert "SEARCH jobs USING INDEX jobs_claimable" in text
