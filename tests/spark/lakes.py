"""Lakes, compared row for row; their files are read as they are, without Spark."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet

from longshore.spark.lake.lake import Lake
from longshore.spark.lake.tables import COLUMNS

TABLES = [name for name in COLUMNS if not name.startswith("archive.")]


def rows_of(lake: Path, table: str) -> list[str]:
    """Every row of a table that the manifest lists; in which batch an event came is not what it says."""
    rows: list[str] = []
    for piece in Lake.open(str(lake)).manifest.pieces(table):
        for day in piece.days:
            for file in (lake / piece.path / f"day={day}").glob("*.parquet"):
                found = pyarrow.parquet.ParquetFile(file).read()
                columns = sorted(set(found.column_names) - {"batch"})
                rows += map(str, found.select(columns).to_pylist())
    return sorted(rows)


def assert_same(one: Path, other: Path, tables: Iterable[str] = TABLES) -> None:
    """Both hold the same rows in every table."""
    for table in tables:
        left, right = rows_of(one, table), rows_of(other, table)
        assert left == right, f"{table}: {len(left)} and {len(right)} rows; {sorted(set(left) ^ set(right))[:4]}"


def files_below(lake: Path) -> set[str]:
    """What there is on disk, by name."""
    return {str(path.relative_to(lake)) for path in lake.rglob("part-*")}
