"""Connections to the server: opening them, running statements, and timeouts for answers."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from time import monotonic
from typing import Any, Protocol

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.sql import Literal
from psycopg.types.numeric import Int8Dumper

from longshore.backends.sql.rows import Row
from longshore.core.errors import BackendUnavailable, InvalidArgument, LongshoreError
from longshore.core.validation import USED_UP

OLDEST_SERVER = 130_000

# a dead network is detected in about twenty seconds, instead of the default of two hours
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "longshore",
}

Connection = psycopg.Connection[Any]


class Server:
    """The database's address, and what this process knows about it."""

    def __init__(self, url: str, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog
        _refuse_unescaped(url)
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise InvalidArgument("url", _problem_of(url, str(error))) from None
        if not re.fullmatch("[0-9,]*", str(given.get("port") or "")):
            raise InvalidArgument("url", "the port must be a number, as in postgresql://user@host:5432/database")
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **given})
        self.name = _name(given)
        self.log: str | None = None
        """The event log that this process uses; a restored copy starts a new one."""
        self.table = 0
        """The oid of the table with the log's name; a dump restored in place creates another table."""
        self.committed = 0
        """A transaction id that this process committed. A crash never sets the server's counter back to it."""

    def connect(self) -> Connection:
        """Open a connection in autocommit mode; `explain` rewrites its errors."""
        with without_user():
            connection: Connection = psycopg.connect(self.conninfo, autocommit=True)
        self.settle(connection)
        return connection

    def settle(self, connection: Connection) -> None:
        """Set up a new connection; the network may be dead already."""
        with self.watching(connection):
            settle_preparing(connection)

    def watching(self, connection: Connection) -> AbstractContextManager[None]:
        """Return a context in which an answer must come in time, if there is a watchdog."""
        return nullcontext() if self._watchdog is None else self._watchdog.watching(connection)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Rewrite PostgreSQL's errors as one sentence that names the server."""
        try:
            yield
        except Exception as error:
            explanation = self.explain(error)
            if explanation is error:
                raise
            raise explanation from error

    def explain(self, error: Exception) -> Exception:
        """Return the error as one sentence; errors that are not PostgreSQL's are returned unchanged."""
        if isinstance(error, LongshoreError) or not isinstance(error, psycopg.Error):
            return error
        what = _kind_of(error)
        words = next((words for kind, words in _WORDS if issubclass(what, kind)), "cannot do this")
        return BackendUnavailable(f"PostgreSQL at {self.name} {words} ({_in_one_line(error)})")


def is_busy(error: psycopg.Error) -> bool:
    """Whether the server is up, but accepts no connection right now."""
    return issubclass(_kind_of(error), errors.TooManyConnections | errors.CannotConnectNow)


def _name(given: dict[str, Any]) -> str:
    host, port = given.get("host") or "the local socket", given.get("port")
    database = given.get("dbname") or "the default database"
    return f"{host}{f':{port}' if port else ''}/{database}"


def _problem_of(url: str, message: str) -> str:
    """Say what is wrong with a URL. An `@` in its query may end a password, which must not be shown."""
    unknown = re.search(r'invalid URI query parameter: "(\w+)"', message)
    if unknown and "@" not in url.partition("?")[2]:
        return f"{unknown[1]!r} is not a connection parameter of PostgreSQL; remove it"
    return "must be like postgresql://user:password@host:5432/database"


def _refuse_unescaped(url: str) -> None:
    """Reject an unescaped `/` or `@` in a password, which moves the rest of it into the host or database name.

    PostgreSQL's library ends the user name and password at the first `@` if no `/` comes before it.
    """
    rest = url.partition("://")[2]
    userinfo, at, address = rest.partition("@")
    if "/" in userinfo or not at:
        address = rest
    if "@" in address.partition("?")[0]:
        raise InvalidArgument("url", "has a `/` or `@` in its user or password; percent-encode them as %2F and %40")


_USER = re.compile(r"(?:user|role) (\"[^\"]*\"|'[^']*')")


def hide_user(text: str) -> str:
    """Remove the user name from a message of PostgreSQL."""
    return _USER.sub("this user", text)


@contextmanager
def without_user() -> Iterator[None]:
    """A context in which connection errors do not contain the user name."""
    try:
        yield
    except psycopg.OperationalError as error:
        text = hide_user(str(error))
        if text == str(error):
            raise
        raise type(error)(text) from None


def _kind_of(error: psycopg.Error) -> type[psycopg.Error]:
    """The kind of an error. A refused connection has no error code, so its message decides."""
    if error.sqlstate is None:
        for words, kind in _REFUSALS:
            if re.search(words, str(error)):
                return kind
    return type(error)


def _in_one_line(error: psycopg.Error) -> str:
    return " ".join(hide_user(error.diag.message_primary or str(error) or type(error).__name__).split())


def settle_preparing(connection: Connection) -> None:
    """Prepare statements only if the session is ours.

    A transaction pooler may use another session for each transaction, in which a name may mean another statement. It
    also reports its own process ids, which identify it.
    """
    (backend,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
    connection.prepare_threshold = 1 if backend == connection.info.backend_pid else None


_REFUSALS: tuple[tuple[str, type[psycopg.Error]], ...] = (
    ("password authentication failed|no password supplied", errors.InvalidPassword),
    ("too many clients|connection slots are reserved|too many connections", errors.TooManyConnections),
    ("the database system is (starting up|shutting down|in recovery|not yet)", errors.CannotConnectNow),
    ('database ".*" does not exist', errors.InvalidCatalogName),
    ("failed to resolve host|could not translate host name", errors.SqlclientUnableToEstablishSqlconnection),
    ('(role ".*"|this user) does not exist|no pg_hba.conf entry', errors.InvalidAuthorizationSpecification),
)

_WORDS: tuple[tuple[type[psycopg.Error], str], ...] = (
    (
        errors.InvalidPassword,
        "rejects the password of this user; check the user and password in the URL, or PGPASSWORD",
    ),
    (errors.InvalidAuthorizationSpecification, "rejects this user; check the user and the database in the URL"),
    (errors.InvalidCatalogName, "has no such database; create it first"),
    (errors.InsufficientPrivilege, "does not allow this user to do this; grant it, or use the owner of the schema"),
    (errors.UndefinedTable, "has lost the tables of Longshore; check the address and the schema"),
    (errors.InvalidSchemaName, "has lost the schema of Longshore; check the address and the schema"),
    (errors.TooManyConnections, "has no connection left; raise max_connections, or lower pool_size"),
    (errors.CannotConnectNow, "is starting or stopping; try again in a moment"),
    (errors.DiskFull, "cannot grow: its disk is full. Nothing was stored; free some space, then try again"),
    (errors.ReadOnlySqlTransaction, "is read-only: a standby, or one being switched over. Nothing was stored"),
    (errors.SerializationFailure, "met a conflict with another transaction; roll back and try again"),
    (errors.DeadlockDetected, "met a conflict with another transaction; roll back and try again"),
    (errors.SqlclientUnableToEstablishSqlconnection, "cannot be reached: the host name is unknown; check the address"),
    (psycopg.OperationalError, "cannot be reached or does not answer; check that it is running"),
    (psycopg.InterfaceError, "cannot be reached: the connection was lost; try again"),
    (errors.SequenceGeneratorLimitExceeded, USED_UP),
    (psycopg.DataError, "cannot store this value"),
)


class Watchdog:
    """Closes connections that wait too long for an answer: a broken network may keep them open forever."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[int, tuple[float, Connection]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watching(self, connection: Connection) -> Iterator[None]:
        """Return a context in which an answer must arrive in time."""
        number = id(connection)
        with self._changed:
            self._waiting[number] = (monotonic() + self._seconds, connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="longshore-postgres-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait(min(1.0, self._seconds / 4))
                late = [number for number, (until, _) in self._waiting.items() if until < monotonic()]
                for number in late:
                    _, connection = self._waiting.pop(number)
                    _cut(connection)


def _cut(connection: Connection) -> None:
    """Shut down the socket: the thread that waits for an answer gets an error."""
    with suppress(OSError, psycopg.Error):
        duplicate = socket.socket(fileno=socket.dup(connection.fileno()))
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        finally:
            duplicate.close()


class Session(Protocol):
    """What a transaction needs from a connection."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a statement."""
        ...

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Return the number of rows that a statement changed."""
        ...

    def many(self, statement: str, rows: Sequence[Row]) -> int:
        """Run a statement once for each row of values; return the total number of changed rows."""
        ...

    def copy(self, statement: str, rows: Iterable[Row]) -> None:
        """Send rows to a COPY."""
        ...


class OwnSession:
    """A session on a connection of the pool, in autocommit mode: BEGIN and COMMIT are statements like others."""

    def __init__(self, connection: Connection, watchdog: Watchdog) -> None:
        self.connection = connection
        self._watchdog = watchdog
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        # one type for all integers; otherwise each size would be another prepared statement
        self._cursor.adapters.register_dumper(int, Int8Dumper)
        self._kept: dict[str, str] = {}
        self._numbers = itertools.count()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._watchdog.watching(self.connection):
            return self._cursor.execute(statement, values, binary=True).fetchall()

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        with self._watchdog.watching(self.connection):
            return self._cursor.execute(statement, values).rowcount

    def many(self, statement: str, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        if len(rows) == 1:
            return self.run(statement, rows[0])
        with self._watchdog.watching(self.connection):
            self._cursor.executemany(statement, rows)
        return self._cursor.rowcount

    def copy(self, statement: str, rows: Iterable[Row]) -> None:
        with self._watchdog.watching(self.connection), self._cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def called(self, statement: str, *values: str | None) -> str:
        """Return SQL for `simply` that runs a statement with few values: prepared once, if the session is ours."""
        given = [Literal(value).as_string(self.connection) for value in values]
        if self.connection.prepare_threshold is None:
            return re.sub(r"\$(\d)(?=::)", lambda match: given[int(match[1]) - 1], statement)
        name = self._kept.get(statement)
        if name is None:
            name = f"longshore_{next(self._numbers)}"
            self.simply(f"PREPARE {name} AS {statement}")
            self._kept[statement] = name
        return f"EXECUTE {name}({', '.join(given)})" if given else f"EXECUTE {name}"

    def forget(self) -> None:
        """Forget the prepared statements: after a rollback the driver deallocates all of them."""
        self._kept.clear()

    def simply(self, statements: str) -> Iterator[Row]:
        """Run several statements without values in one message; return the rows of the last one."""
        with self._watchdog.watching(self.connection):
            cursor = self.connection.execute(statements)
        while cursor.nextset():
            continue
        return iter(cursor.fetchall() if cursor.description else ())
