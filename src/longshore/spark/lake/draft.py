"""The next version of a lake while it is being made: its tables are what is listed, with what was written since."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from longshore.core.validation import new_id
from longshore.spark.lake.lake import Lake
from longshore.spark.lake.manifest import Manifest, Piece, with_pieces, without_days
from longshore.spark.lake.writing import write_piece


class Draft:
    """Nothing of it is seen by anybody until it is committed."""

    def __init__(self, spark: SparkSession, lake: Lake, form: str) -> None:
        self._spark = spark
        self._lake = lake
        self._numbers = count()
        self._token = new_id()[-12:]
        self._changing = Lock()
        self.manifest: Manifest = replace(lake.manifest, version=lake.version + 1, format=form)

    def read(self, table: str, days: Collection[str] | None = None) -> DataFrame:
        """A table, or some days of it, as it will be."""
        return Lake(self._lake.files, self.manifest).table(self._spark, table, days)

    def read_pieces(self, table: str, pieces: Iterable[Piece]) -> DataFrame:
        """Some pieces of a table."""
        return Lake(self._lake.files, self.manifest).pieces(self._spark, table, list(pieces))

    def add(self, table: str, *pieces: Piece) -> None:
        """More rows for a table."""
        self.replace_days(table, (), *pieces)

    def replace_days(self, table: str, days: Collection[str], *pieces: Piece) -> None:
        """Other rows for some days of a table, or none."""
        with self._changing:  # several tables are written side by side
            left = without_days(self.manifest.pieces(table), days)
            tables = {**self.manifest.tables, table: with_pieces(left, pieces)}
            self.manifest = replace(self.manifest, tables=tables)

    def write(self, table: str, rows: DataFrame) -> Piece:
        """Rows that are on disk, and not yet in the table."""
        name = f"v={self.manifest.version:08}-{self._token}-{next(self._numbers):02}"
        return write_piece(rows, table, self._lake.files, name, self.manifest.format)

    def state(self, **facts: Any) -> None:
        """What the version says of itself beside its tables: fields of a manifest, by name."""
        self.manifest = replace(self.manifest, **facts)

    def commit(self) -> Lake:
        """Makes it the lake."""
        return self._lake.commit(self.manifest)
