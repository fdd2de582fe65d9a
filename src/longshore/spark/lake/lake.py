"""A lake: its versions, and its tables as DataFrames."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from longshore.core.errors import InvalidArgument
from longshore.spark.lake.files import Files, files_at
from longshore.spark.lake.manifest import LakeError, Manifest, Piece, from_text, to_text
from longshore.spark.lake.tables import COLUMNS, check_table, folder_of, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFESTS = "manifests"
KEPT_VERSIONS = 3
"""Versions whose pieces are kept, so that readers of an older version can finish."""
PLAIN_FILES = ("parquet", "orc")
"""Formats without their own metadata; a day is read by its folder."""
RECEIPTS = "receipts"
"""The landed batches that no version lists yet."""
_NUMBERED = re.compile(r"([0-9]{8})\.json")
_BATCH = re.compile(r"batch=([0-9]{8})\.json")


@dataclass(frozen=True)
class Lake:
    """One version of a lake; it does not change while it is held. See docs/pipeline.md."""

    files: Files
    manifest: Manifest

    @classmethod
    def open(cls, path: str, spark: SparkSession | None = None) -> Lake:
        """Return the newest version; raise LakeError if there is no lake."""
        lake = cls.open_or_new(path, spark)
        if lake.version == 0:
            raise LakeError(f"there is no lake at {path}; create one with: longshore pipeline run")
        return lake

    @classmethod
    def open_or_new(cls, path: str, spark: SparkSession | None = None) -> Lake:
        """Return the newest version, or an empty lake."""
        files = files_at(path, spark)
        versions = versions_in(files)
        return cls(files, manifest_of(files, versions[-1]) if versions else Manifest())

    @property
    def version(self) -> int:
        """The version number; 0 if the lake was never written."""
        return self.manifest.version

    def days(self, table: str) -> list[str]:
        """The days on which a table has rows."""
        return list(self.manifest.days(check_table(table)))

    def table(self, spark: SparkSession, name: str, days: Collection[str] | None = None) -> DataFrame:
        """Return a table as a DataFrame, or only these days."""
        return self.pieces(spark, name, self.manifest.pieces(check_table(name)), days)

    def pieces(
        self, spark: SparkSession, name: str, pieces: Sequence[Piece], days: Collection[str] | None = None
    ) -> DataFrame:
        """Return some pieces of a table, whether or not this version lists them."""
        wanted = [
            (piece.path, [day for day in piece.days if days is None or day in days])
            for piece in pieces
            if days is None or any(day in days for day in piece.days)
        ]
        schema = schema_of(name)
        kind = self.manifest.format
        if not wanted:
            # created in Java: an empty Python list would start Python workers
            nothing = [f"CAST(NULL AS {field.dataType.simpleString()}) AS {field.name}" for field in schema]
            return spark.range(0).selectExpr(*nothing)
        if kind in PLAIN_FILES:
            paths = [f"{self.files.root}/{path}/day={day}" for path, held in wanted for day in held]
            return spark.read.format(kind).schema(schema).load(paths)
        parts = [
            spark.read.format(kind).load(f"{self.files.root}/{path}").where(_one_of(held)).select(*schema.fieldNames())
            for path, held in wanted
        ]
        return reduce(lambda whole, part: whole.unionByName(part), parts)

    def create_views(self, spark: SparkSession) -> list[str]:
        """Create a temporary view for every table, for SQL: gold.throughput becomes gold_throughput."""
        names = [name for name in COLUMNS if not name.startswith("state.")]
        for name in names:
            self.table(spark, name).createOrReplaceTempView(name.replace(".", "_"))
        return [name.replace(".", "_") for name in names]

    def commit(self, manifest: Manifest) -> Lake:
        """Commit the next version atomically; raise LakeError if another run committed first."""
        if manifest.version != self.version + 1:
            raise AssertionError("the new version must follow the current one")
        if not self.files.put_new(f"{MANIFESTS}/{manifest.version:08}.json", to_text(manifest)):
            raise LakeError("another run committed first, so this run changed nothing; run it again")
        return Lake(self.files, manifest)


def _one_of(days: Sequence[str]) -> str:
    return f"day IN ({', '.join(repr(day) for day in days)})"


def numbered_batch(name: str) -> int | None:
    """The batch number of a receipt file."""
    found = _BATCH.fullmatch(name)
    return None if found is None else int(found[1])


def versions_in(files: Files) -> list[int]:
    """The numbers of all kept versions."""
    return sorted(int(found[1]) for name in files.names(MANIFESTS) if (found := _NUMBERED.fullmatch(name)))


def manifest_of(files: Files, version: int) -> Manifest:
    """Read the manifest of one version."""
    name = f"{MANIFESTS}/{version:08}.json"
    text = files.read(name)
    if text is None:
        raise LakeError(f"version {version} of the lake was removed; open the lake again")
    return from_text(text, f"{files.root}/{name}")


def check_format(lake: Lake, wanted: str | None) -> str:
    """Return the format of the lake; raise InvalidArgument if another one is requested."""
    if lake.version and wanted not in (None, lake.manifest.format):
        raise InvalidArgument(
            "format", f"this lake uses {lake.manifest.format}; create a lake in another folder for {wanted}"
        )
    return lake.manifest.format if lake.version else wanted or "parquet"


def refuse_another_log(lake: Lake, log: str) -> None:
    """Raise LakeError if the lake has the history of another log."""
    if lake.manifest.log and lake.manifest.log != log:
        raise LakeError(
            f"the lake at {lake.files.root} has the history of another log: of another store, or of this store before "
            "it was restored from a copy; use another folder"
        )


def clear_away(lake: Lake) -> int:
    """Remove old versions and the pieces that no kept version lists; return the number of removed pieces.

    Call it after a commit, while no other run is active: pieces that no version lists are then leftovers.
    """
    files = lake.files
    versions = versions_in(files)
    kept = versions[-KEPT_VERSIONS:]
    named: set[str] = set().union(*(manifest_of(files, version).paths for version in kept))
    removed = 0
    for table in COLUMNS:
        folder = folder_of(table)
        for name in files.names(folder):
            if f"{folder}/{name}" not in named:
                files.remove(f"{folder}/{name}")
                removed += 1
    for name in files.names(RECEIPTS):
        if (number := numbered_batch(name)) is not None and number <= lake.manifest.last_batch:
            files.remove(f"{RECEIPTS}/{name}")
    for version in versions[:-KEPT_VERSIONS]:
        files.remove(f"{MANIFESTS}/{version:08}.json")
    return removed
