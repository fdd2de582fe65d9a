"""The benchmarks compare the product with plain SQL that leaves the same rows; otherwise they refuse to run."""

from contextlib import closing
from pathlib import Path

from benchmarks.agreement import check_agreement
from benchmarks.databases import Databases
from benchmarks.postgres_agreement import check_postgres_agreement
from benchmarks.scale import QUICK


def test_bare_sql_leaves_the_same_rows_on_sqlite(tmp_path: Path) -> None:
    with closing(Databases(tmp_path, QUICK)) as databases:
        check_agreement(databases)


def test_bare_sql_leaves_the_same_rows_on_postgres(tmp_path: Path) -> None:
    with closing(Databases(tmp_path, QUICK)) as databases:
        check_postgres_agreement(databases.postgres)
