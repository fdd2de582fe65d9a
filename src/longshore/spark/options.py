"""The options of `.option(…)`, checked before Spark does any work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.backends.export import COLUMNS, BulkReader, SupportsExport
from longshore.backends.port import LogEnds
from longshore.core.errors import InvalidArgument
from longshore.core.validation import shown_address

R = TypeVar("R")

_MOST_PARTS = 10_000


def answer(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in another thread: this one may have a running event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="longshore-spark") as thread:
        return thread.submit(asyncio.run, coroutine).result()


class Address(NamedTuple):
    """The address of a store. Spark sends it to other processes, and each opens the store."""

    url: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Address({shown_address(self.url)!r})"

    @contextmanager
    def opened(self) -> Iterator[Backend]:
        """Open the store and close it at the end; a missing store is not created."""
        backend = connect(self.url, create=False, **self.options)
        try:
            yield backend
        finally:
            answer(backend.close())

    @contextmanager
    def reading(self) -> Iterator[BulkReader]:
        """Open the store for bulk reads."""
        with self.opened() as backend:
            assert isinstance(backend, SupportsExport)  # true for every store with a URL
            with backend.bulk_reader() as reader:
                yield reader

    def log_ends(self) -> LogEnds:
        """Where the event log begins and ends now."""
        with self.reading() as reader:
            return reader.log_ends()


def address(options: Mapping[str, str]) -> Address:
    """The store that `url` and `schema` name."""
    url = options.get("url")
    if not url:
        raise InvalidArgument("url", 'is missing: .option("url", "sqlite:////data/jobs.db") or a postgresql:// address')
    if url.startswith("memory:"):
        raise InvalidArgument("url", "memory:// exists in one process only; Spark's tasks run in others: use a file")
    schema = options.get("schema")
    return Address(url, {} if schema is None else {"schema": schema})


def table(options: Mapping[str, str]) -> str:
    """Return the table to read: the argument of `load`."""
    name = options.get("path", "")
    if name not in COLUMNS:
        wanted = " or ".join(f'load("{known}")' for known in COLUMNS)
        raise InvalidArgument("path", f"{name!r} is not a table of a queue; use {wanted}")
    return name


def columns(options: Mapping[str, str], of: str) -> list[str]:
    """Return the columns that `columns` names, or all."""
    named = options.get("columns")
    if named is None:
        return list(COLUMNS[of])
    wanted = [name.strip() for name in named.split(",")]
    for name in wanted:
        if name not in COLUMNS[of]:
            raise InvalidArgument("columns", f"{name!r} is not a column of {of}, which has {', '.join(COLUMNS[of])}")
    return wanted


def number(options: Mapping[str, str], name: str, default: int, most: int = _MOST_PARTS) -> int:
    """Return a whole number of at least 1."""
    given = options.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= most:
        raise InvalidArgument(name, f"must be a whole number from 1 to {most}, not {given!r}")
    return int(given)
