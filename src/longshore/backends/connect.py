"""`connect(url)`: opens the backend for a URL."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from longshore import settings
from longshore.backends.base import Backend
from longshore.core.clock import Clock
from longshore.core.errors import InvalidArgument, MissingExtra
from longshore.core.times import SECOND, check_duration
from longshore.core.validation import check_number, shown_address

_KNOWN = (
    "sqlite:///jobs.db (sqlite:////… for an absolute path), postgresql://user@host/database, https://host of a "
    "Longshore server, or memory://"
)

_REMOTE_OPTIONS = ("token", "ca_file", "wait_seconds", "answer_seconds", "connections")
_POSTGRES_OPTIONS = ("schema", "pool_size", "wait_seconds", "answer_seconds", "poll_seconds", "create")


def connect(url: str, *, clock: Clock | None = None, **options: Any) -> Backend:
    """Return the backend for a URL. Nothing is opened before its first use.

    `clock` replaces the store's clock, for tests. Options of SQLite: `busy_seconds=30` (how long to wait for other
    writers), `create=True` (create a missing file) and `allow_network_file_system=False` (or
    LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM=1 in the environment; allow NFS, SMB and 9p). Options of PostgreSQL:
    `schema="longshore"`, `pool_size=10`, `wait_seconds=10` (for a connection), `answer_seconds=60` (for one statement),
    `poll_seconds=0.5` (between reads for changes, if no notification arrives) and `create=True`. Options of a server:
    `token` (or LONGSHORE_TOKEN in the environment), `ca_file` (instead of the system's certificates), `wait_seconds=10`
    (how long to retry a server that does not answer), `answer_seconds=60` (for one answer) and `connections=10`.
    """
    if not isinstance(url, str):
        raise InvalidArgument("url", f"must be text like {_KNOWN}, not {type(url).__name__}")
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        if rest:
            raise InvalidArgument("url", "must be memory:// and nothing more: each memory:// is a separate store")
        _refuse_unknown(options, ())
        from longshore.backends.memory import MemoryBackend

        return MemoryBackend(clock)
    if scheme == "sqlite":
        parts = urlsplit(url) if rest.startswith("/") else None
        if rest and parts is None:
            raise InvalidArgument("url", "needs three slashes: sqlite:///jobs.db")
        if parts is None or parts.query or parts.fragment or len(parts.path) < 2:
            raise InvalidArgument("url", f"must name a file, like sqlite:///jobs.db; got {shown_address(url)!r}")
        from longshore.backends.sqlite.backend import SQLiteBackend

        _refuse_unknown(options, ("busy_seconds", "create", "allow_network_file_system", "vfs"))
        options.setdefault("allow_network_file_system", settings.allow_network_file_system())
        return SQLiteBackend(unquote(parts.path[1:]), clock=clock, **options)
    if scheme in ("postgresql", "postgres"):
        _refuse_unknown(options, _POSTGRES_OPTIONS)
        try:
            from longshore.backends.postgres.backend import PostgresBackend
        except ModuleNotFoundError as error:
            if error.name not in ("psycopg", "psycopg_pool"):
                raise
            raise MissingExtra("PostgreSQL", "postgres") from error
        return PostgresBackend(url, clock=clock, **options)
    if scheme in ("http", "https"):
        _refuse_unknown(options, _REMOTE_OPTIONS)
        return _remote(url, clock, **options)
    # without a scheme, this part may be a user name or a password
    may_be_shown = re.fullmatch(r"[\w+.-]+", scheme) if "://" in url else not re.search("[:@]", url)
    if url and may_be_shown and "://" not in url:
        raise InvalidArgument("url", f"{url!r} has no scheme; did you mean sqlite:///{url}?")
    kind = repr(scheme) if may_be_shown else "this"
    raise InvalidArgument("url", f"{kind} is not a known backend; use {_KNOWN}")


def _remote(
    url: str,
    clock: Clock | None,
    token: str | None = None,
    ca_file: str | None = None,
    wait_seconds: float = 10,
    answer_seconds: float = 60,
    connections: int = 10,
) -> Backend:
    if "@" in url:  # also after a "/", which a password may contain; the message does not repeat it
        raise InvalidArgument("url", "must not contain a user or password; pass token=… or set LONGSHORE_TOKEN")
    parts = _split(url)
    if parts is None or not _is_address(url, parts) or parts.query or parts.fragment:
        raise InvalidArgument("url", "must be the address of a server, like https://jobs.example.org")
    if clock is not None:
        raise InvalidArgument("clock", "cannot be set for a server; set it on the store that the server uses")
    shown = settings.token() if token is None else token
    if shown is not None and (
        not isinstance(shown, str) or not shown.isascii() or not shown.isprintable() or not shown
    ):  # a line end would start another header
        raise InvalidArgument("token", "must be an API token: printable ASCII text without line ends")
    from longshore.backends.remote.backend import open_remote
    from longshore.backends.remote.client import Server

    server = Server(
        f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}",
        shown,
        ca_file,
        check_duration("wait_seconds", wait_seconds, positive=False) / SECOND,
        check_duration("answer_seconds", answer_seconds) / SECOND,
        check_number("connections", connections, least=2),
    )
    return open_remote(server)


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # its message repeats the address
        return None


def _is_address(url: str, parts: SplitResult) -> bool:
    """Whether the address is valid in a request line."""
    try:
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and port != 0 and url.isascii() and url.isprintable() and " " not in url


def _refuse_unknown(options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise InvalidArgument(name, f"is not an option of this backend; it has {', '.join(known) or 'none'}")
