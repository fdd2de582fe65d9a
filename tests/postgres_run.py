"""The PostgreSQL of one test run: one server and one template for all processes, a clone for each test."""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import NamedTuple
from urllib.parse import urlsplit

from longshore.backends.postgres import connection as backends
from longshore.backends.postgres.schema import prepare
from tests.postgres_server import Server, at_database, connect, create_database, drop_database

RunAddress = tuple[str, int, bytes]
"""The controller that gives the template to other processes of the run: host, port and password."""


def prepare_template(url: str) -> None:
    """Prepare the empty database at this address as the template of every clone."""
    prepare(backends.Server(url), "longshore")


class Template(NamedTuple):
    """A database that refuses connections, so that it can be cloned at any moment."""

    server_url: str
    name: str


class PostgresRun:
    """Runs in the controller process, and starts the server when the first test needs a database.

    Other processes ask the controller. So the server ends with the run, not with the process that needed it first, and
    a run that needs none starts none.
    """

    def __init__(self, given_url: str | None, version: int | None = None) -> None:
        self._given_url = given_url
        self._version = version
        self._prefix = f"longshore_test_{secrets.token_hex(4)}"
        self._server: Server | None = None
        self._until_closed = ExitStack()
        self._template: Template | None = None
        self._one_at_a_time = threading.Lock()
        self._listener: Listener | None = None
        self._password = secrets.token_bytes(16)
        self._attendant = threading.Thread(target=self._attend, name="postgres-template", daemon=True)

    def template(self) -> Template:
        """Return the template; the first call creates it and starts the server."""
        with self._one_at_a_time:
            if self._template is None:
                self._template = self._make_template()
            return self._template

    def address(self) -> RunAddress:
        """Return the controller's address; the first call opens it."""
        if self._listener is None:
            self._listener = Listener(("127.0.0.1", 0), authkey=self._password)
            self._attendant.start()
        host, port = self._listener.address
        return str(host), int(port), self._password

    def close(self) -> None:
        """End the server; on a given server, only remove what the run created."""
        if self._listener is not None:
            _ask(self.address(), "close")
            self._attendant.join()
            self._listener.close()
        self._until_closed.close()
        if self._server is None and self._template is not None:
            with connect(self._template.server_url) as connection:
                rows = connection.execute("SELECT datname FROM pg_database").fetchall()
                for name in (row[0] for row in rows if row[0].startswith(self._prefix)):
                    drop_database(connection, name)

    def _make_template(self) -> Template:
        if self._given_url is None and self._server is None:
            self._server = self._until_closed.enter_context(Server(version=self._version))
        server_url = self._server.url() if self._server else self._given_url
        assert server_url is not None
        template = Template(server_url, f"{self._prefix}_template")
        with connect(server_url) as connection:
            # an earlier attempt may have failed half-way
            drop_database(connection, template.name)
            create_database(connection, template.name)
            prepare_template(at_database(server_url, template.name))
            connection.execute(f"ALTER DATABASE {template.name} WITH ALLOW_CONNECTIONS false")
        return template

    def _attend(self) -> None:
        assert self._listener is not None
        asked = None
        while asked != "close":
            # an unknown client at the port, or a process that died during its request, must not close the controller
            with suppress(AuthenticationError, EOFError, OSError), self._listener.accept() as caller:
                asked = caller.recv()
                caller.send(self._answer(asked))

    def _answer(self, asked: object) -> object:
        try:
            return self.template() if asked == "template" else None
        except Exception as error:
            # the test that asked must get any error
            return f"{type(error).__name__}: {error}"


def template_from(address: RunAddress) -> Template:
    """Return the run's template to a process that is not the controller."""
    answer = _ask(address, "template")
    if not isinstance(answer, Template):
        raise RuntimeError(f"the run has no PostgreSQL server: {answer}")
    return answer


def _ask(address: RunAddress, question: str) -> object:
    host, port, password = address
    with Client((host, port), authkey=password) as connection:
        connection.send(question)
        answer: object = connection.recv()
        return answer


class Clones:
    """Creates and removes clones of the template, over one connection."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._connection = connect(template.server_url)

    def add(self) -> str:
        """Create a clone and return its address."""
        name = f"{self._template.name.removesuffix('_template')}_{secrets.token_hex(6)}"
        create_database(self._connection, name, self._template.name)
        return at_database(self._template.server_url, name)

    def drop(self, url: str) -> None:
        """Remove a clone, even with open connections."""
        drop_database(self._connection, urlsplit(url).path.removeprefix("/"))

    def close(self) -> None:
        """Close the connection; the run removes the clones."""
        self._connection.close()
