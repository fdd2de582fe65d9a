"""Lakes, compared row for row."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from longshore.spark.lake.lake import Lake
from longshore.spark.lake.tables import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = [name for name in COLUMNS if not name.startswith("archive.")]


def rows_of(spark: "SparkSession", lake: Path, table: str) -> list[str]:
    """Every row of a table; in which batch an event came is not what it says."""
    frame = Lake.open(str(lake)).table(spark, table)
    columns = sorted(set(frame.columns) - {"batch"})
    return sorted(str(tuple(row)) for row in frame.select(*columns).collect())


def assert_same(spark: "SparkSession", one: Path, other: Path, tables: Iterable[str] = TABLES) -> None:
    """Both hold the same rows in every table."""
    for table in tables:
        left, right = rows_of(spark, one, table), rows_of(spark, other, table)
        assert left == right, f"{table}: {len(left)} and {len(right)} rows; {sorted(set(left) ^ set(right))[:4]}"


def files_below(lake: Path) -> set[str]:
    """What there is on disk, by name."""
    return {str(path.relative_to(lake)) for path in lake.rglob("*.parquet")}
