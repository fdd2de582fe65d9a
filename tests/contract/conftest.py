"""The stores that the conformance kit runs on here, and how their work is counted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.postgres.connection import OwnSession
from longshore.backends.sql.rows import Row
from longshore.testing.conformance.fixtures import BreakableClock, WorkDone, backend, clock, open_backend
from tests.conftest import STORES
from tests.postgres_server import connect as connect_to
from tests.remote_server import RemoteServer

__all__ = ["backend", "clock", "connect_store", "open_backend", "remote_server", "work_done"]

STEPS_PER_COUNT = 10
ROWS_TOUCHED = """
SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)), 0)::bigint
FROM pg_class WHERE relnamespace = 'longshore'::regnamespace
"""


@pytest.fixture(params=STORES)
def connect_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: BreakableClock
) -> Iterator[Callable[[], Backend]]:
    """Open one more backend on the test's store; each memory:// is a separate store."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param == "remote":  # the server's store has the clock
        server: RemoteServer = request.getfixturevalue("remote_server")
        with server.serving(connect(file, clock=clock)) as address:
            yield lambda: connect(address)
        return
    url = {"memory": "memory://", "sqlite": file}.get(request.param) or str(request.getfixturevalue("postgres_url"))
    yield lambda: connect(url, clock=clock)


@pytest.fixture(scope="session")
def remote_server() -> Iterator[RemoteServer]:
    """One server for all tests of this process; each brings its own store."""
    server = RemoteServer()
    yield server
    server.close()


@pytest.fixture
def work_done(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkDone]:
    """The store's count of its work, in its own unit."""
    if "postgres" in request.node.name:
        counting = _rows_touched(monkeypatch, request.getfixturevalue("postgres_url"))
    else:
        counting = _steps_made()
    with counting as work:
        if "remote" in request.node.name:
            server: RemoteServer = request.getfixturevalue("remote_server")

            def at_rest() -> int:
                server.comes_to_rest()
                return work()

            yield at_rest
        else:
            yield work


@contextmanager
def _steps_made() -> Iterator[WorkDone]:
    """Steps of SQLite's virtual machine, over all connections opened from now on."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += STEPS_PER_COUNT
        return False

    def watch(connection: Any) -> None:
        connection.set_progress_handler(count, STEPS_PER_COUNT)

    apsw.connection_hooks.append(watch)
    yield lambda: steps
    apsw.connection_hooks.remove(watch)


@contextmanager
def _rows_touched(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[WorkDone]:
    """Transactions of PostgreSQL, and the rows and index entries they visited, read before and after.

    Each reading does the work of autovacuum first, so that remains of earlier data are not counted, and the planner
    knows the size of the tables.
    """
    rows = 0
    run, simply = OwnSession.run, OwnSession.simply

    def noting_the_end(session: OwnSession, statement: str, values: Sequence[Any] = ()) -> int:
        nonlocal rows
        if statement in ("COMMIT", "ROLLBACK"):
            rows += 1 + session.rows(ROWS_TOUCHED)[0][0]
        answer = run(session, statement, values)
        if statement.startswith("BEGIN"):
            deduct_what_was(session)
        return answer

    def noting_the_beginning(session: OwnSession, statements: str) -> Iterator[Row]:
        answer = simply(session, statements)
        if statements.startswith("BEGIN"):
            deduct_what_was(session)
        return answer

    def deduct_what_was(session: OwnSession) -> None:
        """Read again until the server has recorded what earlier transactions did."""
        nonlocal rows
        rows -= session.rows(ROWS_TOUCHED)[0][0]

    def reading() -> int:
        with connect_to(url) as connection:
            connection.execute("VACUUM (ANALYZE)")
        return rows

    monkeypatch.setattr(OwnSession, "run", noting_the_end)
    monkeypatch.setattr(OwnSession, "simply", noting_the_beginning)
    yield reading
