"""The draft of a lake's next version, and writes of tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from pyarrow.parquet import read_metadata
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.validation import new_id
from longshore.spark.lake.files import Files
from longshore.spark.lake.lake import Lake
from longshore.spark.lake.manifest import OPEN, LakeError, Manifest, Piece, with_other_days
from longshore.spark.lake.tables import folder_of, schema_of


def write_piece(rows: DataFrame, table: str, files: Files, name: str, form: str, *, compact: bool = True) -> Piece:
    """Write rows as a piece of a table; the counts come from the files, not from the input.

    A batch of a stream cannot be compacted here, because Spark plans it without sizes.
    """
    path = f"{folder_of(table)}/{name}"
    columns = schema_of(table).fieldNames()
    shown = rows.select(*columns, F.coalesce(F.col("event_date").cast("string"), F.lit(OPEN)).alias("day"))
    if compact:
        shown = shown.hint("rebalance", F.col("day"))
    shown.write.format(form).mode("overwrite").partitionBy("day").save(f"{files.root}/{path}")
    folder = files.local(path)
    if form == "parquet" and folder is not None:
        return Piece(path, _rows_in_footers(folder))
    return Piece(path, _rows_on_disk(rows, f"{files.root}/{path}", form))


def _rows_in_footers(folder: Path) -> dict[str, int]:
    """Count rows by the footers of the files; counting with Spark would need a Spark job per table."""
    days: dict[str, int] = {}
    for file in folder.glob("day=*/*.parquet"):
        day = file.parent.name.removeprefix("day=")
        days[day] = days.get(day, 0) + int(read_metadata(file).num_rows)
    return dict(sorted(days.items()))


def _rows_on_disk(rows: DataFrame, path: str, form: str) -> dict[str, int]:
    try:
        found = rows.sparkSession.read.format(form).load(path).groupBy("day").count().collect()
    except Exception as error:
        if "UNABLE_TO_INFER_SCHEMA" in str(error):  # no rows, so there are no files
            return {}
        raise LakeError(f"cannot read {path} after writing it: {str(error).splitlines()[0]}") from error
    return dict(sorted((str(row["day"]), int(row["count"])) for row in found))


class Draft:
    """The next version of a lake; readers do not see it before the commit."""

    def __init__(self, spark: SparkSession, lake: Lake, form: str) -> None:
        self._spark = spark
        self._lake = lake
        self._numbers = count()
        self._token = new_id()[-12:]
        self._changing = Lock()
        self.manifest: Manifest = replace(lake.manifest, version=lake.version + 1, format=form)

    def read(self, table: str, days: Collection[str] | None = None) -> DataFrame:
        """Return a table of the draft, or some days of it."""
        return Lake(self._lake.files, self.manifest).table(self._spark, table, days)

    def read_pieces(self, table: str, pieces: Iterable[Piece]) -> DataFrame:
        """Return some pieces of a table."""
        return Lake(self._lake.files, self.manifest).pieces(self._spark, table, list(pieces))

    def add(self, table: str, *pieces: Piece) -> None:
        """Add pieces to a table."""
        self.replace_days(table, (), *pieces)

    def replace_days(self, table: str, days: Collection[str], *pieces: Piece) -> None:
        """Replace the rows of some days of a table."""
        with self._changing:  # several tables are written in parallel
            replaced = with_other_days(self.manifest.pieces(table), days, pieces)
            self.manifest = replace(self.manifest, tables={**self.manifest.tables, table: replaced})

    def write(self, table: str, rows: DataFrame) -> Piece:
        """Write rows to disk; the table does not list them yet."""
        name = f"v={self.manifest.version:08}-{self._token}-{next(self._numbers):02}"
        return write_piece(rows, table, self._lake.files, name, self.manifest.format)

    def state(self, **facts: Any) -> None:
        """Set other fields of the manifest."""
        self.manifest = replace(self.manifest, **facts)

    def commit(self) -> Lake:
        """Make the draft the newest version."""
        return self._lake.commit(self.manifest)
