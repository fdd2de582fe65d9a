"""Prints every statement of both stores, ready to paste into sqlite3 or psql, or its plan: `make sql`, `make explain`.

`python -m tests.show_sql [--explain] [NAME ...]`. It is not in the package, because plans need the tests' filled
stores.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import psycopg

from longshore.backends.sql.statements import Statements
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job
from tests.backends.postgres_plans import make_schema, planned
from tests.conftest import POSTGRES, POSTGRES_VERSION
from tests.postgres_run import Clones, PostgresRun

BACKENDS = Path(__file__).resolve().parents[1] / "src" / "longshore" / "backends"
TOPICS = ("shared", "fragments", "enqueue", "claim", "settle", "schedules", "maintenance", "admin", "reads", "export")
"""The files of a dialect, in the order in which a job meets them."""
_HEADER = re.compile(r"^-- name: (\w+).*\n(?:--     .*\n)*((?:-- (?!name:|fragment:).*\n)*)", re.MULTILINE)
_PLANNED = re.compile("SELECT|INSERT|UPDATE|DELETE|WITH")


def printed(dialect: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the final text of each statement of a dialect."""
    sql = Statements(f"longshore.backends.{dialect}", schema="main" if dialect == "sqlite" else "longshore")
    show = _for_sqlite3 if dialect == "sqlite" else _for_psql
    files = [BACKENDS / "sql" / "shared.sql", *(BACKENDS / dialect / "sql").glob("*.sql")]
    for file in sorted(files, key=lambda path: TOPICS.index(path.stem)):
        for name, reason in _HEADER.findall(file.read_text(encoding="utf-8")):
            text = show(name, getattr(sql, name), sql.parameters[name])
            yield name, f"-- {dialect}, {file.name}: {name}\n{reason}{text}\n"


def _for_sqlite3(_name: str, text: str, parameters: Sequence[str]) -> str:
    return re.sub(r"\?(\d+)", lambda mark: f":{parameters[int(mark[1]) - 1]}", text) + ";"


def _for_psql(name: str, text: str, parameters: Sequence[str]) -> str:
    if text.startswith("COPY"):
        return f"{text};\n\\."
    if not _PLANNED.match(text):
        return f"{text};"
    listed = ", ".join(f"${number} {parameter}" for number, parameter in enumerate(parameters, start=1))
    named = textwrap.fill(listed, 120, initial_indent="-- ", subsequent_indent="-- ")
    return f"{named}\nPREPARE {name} AS\n{text};".lstrip()


def plans_of_sqlite(names: Sequence[str]) -> Iterator[str]:
    """Yield SQLite's plan of each statement; without ANALYZE, which we do not run, plans do not depend on the rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        asyncio.run(_fill(path))
        with closing(SQLiteBackend(path).new_connection()) as connection:
            sql = Statements("longshore.backends.sqlite")
            connection.execute(sql.create_copy_state)
            for name, text in printed("sqlite"):
                if name in names or not names:
                    yield f"{text}{_sqlite_plan(connection, getattr(sql, name), len(sql.parameters[name]))}"


def _sqlite_plan(connection: apsw.Connection, statement: str, parameters: int) -> str:
    rows = list(connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * parameters))
    depth = {0: 0}
    for number, parent, *_ in rows:
        depth[number] = depth[parent] + 1
    return "".join(f"{'    ' * depth[number]}{detail}\n" for number, _, _, detail in rows)


async def _fill(path: Path) -> None:
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_jobs(
            [Job(type=f"t{n % 3}", priority=n % 2, tags=("x",), concurrency_key=f"k{n % 5}") for n in range(1_000)]
        )
        for job in await backend.dequeue_jobs("worker", limit=200):
            await backend.complete_job(job.id, b"1", lease=job.lease)
        await backend.dequeue_jobs("worker", limit=100)


def plans_of_postgres(names: Sequence[str]) -> Iterator[str]:
    """Yield the plan that PostgreSQL uses once it knows a statement, in a schema with 20,000 jobs."""
    run = PostgresRun(POSTGRES, POSTGRES_VERSION)
    try:
        url = Clones(run.template()).add()
        sql = make_schema(url, "analysed")
        with psycopg.connect(url, autocommit=True) as connection:
            for name, text in printed("postgres"):
                statement = getattr(sql, name)
                if (name in names or not names) and _PLANNED.match(statement):
                    with planned(connection, statement) as execute:
                        plan = "".join(f"    {line}\n" for (line,) in connection.execute(f"EXPLAIN {execute}".encode()))
                    yield f"{text}{plan}"
    finally:
        run.close()


def main(arguments: Sequence[str]) -> None:
    """Print the requested statements or plans."""
    names = [argument for argument in arguments if argument != "--explain"]
    if "--explain" in arguments:
        for plans in (plans_of_sqlite, plans_of_postgres):
            for text in plans(names):
                print(text)
    else:
        for dialect in ("sqlite", "postgres"):
            for name, text in printed(dialect):
                if name in names or not names:
                    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
