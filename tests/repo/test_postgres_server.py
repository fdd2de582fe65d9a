"""The PostgreSQL the tests run on: clones are strangers to one another, a crash loses nothing, nothing stays behind."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.postgres_run import Clones, PostgresRun, template_from
from tests.postgres_server import DURABLE, Server, ServerFailed, at_database, connect

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30
"""Seconds to wait for a process before something must be wrong."""


def databases(url: str) -> set[str]:
    with connect(url) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


def shown(url: str, setting: str) -> str:
    with connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
        assert row is not None
        return str(row[0])


# --- the run's server ---


def test_two_clones_are_independent(postgres_clones: Clones, postgres_url: str) -> None:
    other_url = postgres_clones.add()
    with connect(postgres_url) as one, connect(other_url) as other:
        one.execute("CREATE TABLE only_here (id int)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            other.execute("SELECT * FROM only_here")
    postgres_clones.drop(other_url)


def test_a_clone_is_dropped_although_a_client_is_connected(postgres_clones: Clones, postgres_url: str) -> None:
    other_url = postgres_clones.add()
    name = urlsplit(other_url).path.removeprefix("/")
    with connect(other_url) as idle:
        assert name in databases(postgres_url)
        postgres_clones.drop(other_url)
        assert name not in databases(postgres_url)
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")


@pytest.fixture
def somebody_elses_server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_a_run_removes_its_databases_from_a_given_server(somebody_elses_server: Server) -> None:
    url = somebody_elses_server.url()
    before = databases(url)
    run = PostgresRun(url)
    template = template_from(run.address())
    assert template == run.template()
    clones = Clones(template)
    clones.add()
    clones.close()
    assert len(databases(url) - before) == 2
    run.close()
    assert databases(url) == before


def test_the_address_of_another_database_keeps_all_else() -> None:
    assert (
        at_database("postgresql://me:pw@host:1/a?sslmode=require", "b") == "postgresql://me:pw@host:1/b?sslmode=require"
    )
    assert at_database("postgresql:///a?host=/sockets", "b") == "postgresql:///b?host=/sockets"


def test_an_unknown_client_does_not_close_the_server(somebody_elses_server: Server) -> None:
    run = PostgresRun(somebody_elses_server.url())
    host, port, password = run.address()
    with pytest.raises(AuthenticationError):
        template_from((host, port, b"a guess"))
    socket.create_connection((host, port)).close()
    assert template_from((host, port, password)) == run.template()
    run.close()


# --- a server of one's own ---


def test_a_crash_and_a_restart_keep_what_was_committed_and_the_address() -> None:
    with Server(DURABLE) as server:
        url = server.create_database("harbour")
        with connect(url) as connection:
            connection.execute("CREATE TABLE ships (name text)")
            connection.execute("INSERT INTO ships VALUES ('Argo')")
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            connect(url)
        server.start()
        assert "was not properly shut down" in server.log
        with connect(url) as connection:
            assert connection.execute("SELECT name FROM ships").fetchall() == [("Argo",)]
        server.drop_database("harbour")
        assert "harbour" not in databases(server.url())


def test_settings_given_win_and_can_change_at_a_restart() -> None:
    with Server({"max_connections": 20, "application_name": "the harbour's"}) as server:
        assert shown(server.url(), "fsync") == "off"
        assert shown(server.socket_url(), "max_connections") == "20"
        assert shown(server.url(), "application_name") == "the harbour's"
        server.stop()
        server.start({**DURABLE, "max_connections": 30})
        assert shown(server.url(), "fsync") == "on"
        assert shown(server.url(), "max_connections") == "30"


def test_a_server_that_does_not_start_reports_the_reason_and_cleans_up() -> None:
    server = Server({"shared_buffers": "much"})
    with pytest.raises(ServerFailed, match="invalid value for parameter"), server:
        pass
    assert not server.folder.exists()


def test_a_dump_can_be_made_and_restored_with_the_servers_own_programs(tmp_path: Path) -> None:
    with Server() as server:
        with connect(server.create_database("old")) as connection:
            connection.execute("CREATE TABLE ships AS SELECT 'Argo' AS name")
        new_url = server.create_database("new")
        dump = tmp_path / "dump"
        subprocess.run([server.program("pg_dump"), "--format=custom", f"--file={dump}", server.url("old")], check=True)
        subprocess.run([server.program("pg_restore"), f"--dbname={new_url}", dump], check=True)
        with connect(new_url) as connection:
            assert connection.execute("SELECT name FROM ships").fetchall() == [("Argo",)]


OWNER = """
import sys
from tests.postgres_server import Server
server = Server()
server.start()
print(server.url(), server.folder, server._keeper.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is not its own child")
def test_neither_server_nor_folder_outlives_an_owner_that_was_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        url, folder, keeper = owner.stdout.readline().split()
        keeper_ended = os.pidfd_open(int(keeper))
        owner.kill()
    assert select.select([keeper_ended], [], [], PATIENCE)[0]
    os.close(keeper_ended)
    assert not Path(folder).exists()
    with pytest.raises(psycopg.OperationalError):
        connect(url)
