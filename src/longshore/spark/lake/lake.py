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
"""Formats that are files and nothing else: a day is read by its folder."""
RECEIPTS = "receipts"
"""What has landed, batch by batch, for the run that lists it."""
_NUMBERED = re.compile(r"([0-9]{8})\.json")
_BATCH = re.compile(r"batch=([0-9]{8})\.json")


@dataclass(frozen=True)
class Lake:
    """One version of a lake; it does not change while it is held."""

    files: Files
    manifest: Manifest

    @classmethod
    def open(cls, path: str, spark: SparkSession | None = None) -> Lake:
        """The newest version; LakeError if there is none."""
        lake = cls.open_or_new(path, spark)
        if lake.version == 0:
            raise LakeError(f"there is no lake at {path}: longshore pipeline run makes one")
        return lake

    @classmethod
    def open_or_new(cls, path: str, spark: SparkSession | None = None) -> Lake:
        """The newest version, or one that has nothing in it yet."""
        files = files_at(path, spark)
        versions = versions_in(files)
        return cls(files, manifest_of(files, versions[-1]) if versions else Manifest())

    @property
    def version(self) -> int:
        """Its number; 0 is a lake that was never written to."""
        return self.manifest.version

    def days(self, table: str) -> list[str]:
        """The days on which a table has rows."""
        return list(self.manifest.days(check_table(table)))

    def table(self, spark: SparkSession, name: str, days: Collection[str] | None = None) -> DataFrame:
        """A table as a DataFrame, or only these days of it."""
        return self.pieces(spark, name, self.manifest.pieces(check_table(name)), days)

    def pieces(
        self, spark: SparkSession, name: str, pieces: Sequence[Piece], days: Collection[str] | None = None
    ) -> DataFrame:
        """Some pieces of a table, listed or not yet."""
        wanted = [
            (piece.path, [day for day in piece.days if days is None or day in days])
            for piece in pieces
            if days is None or any(day in days for day in piece.days)
        ]
        schema = schema_of(name)
        kind = self.manifest.format
        if not wanted:
            # made by Java alone: an empty list of Python's would start workers of Python's
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
        """A temporary view for every table, for SQL: gold.throughput is gold_throughput."""
        names = [name for name in COLUMNS if not name.startswith("state.")]
        for name in names:
            self.table(spark, name).createOrReplaceTempView(name.replace(".", "_"))
        return [name.replace(".", "_") for name in names]

    def commit(self, manifest: Manifest) -> Lake:
        """Commits the next version atomically; LakeError if another run committed first."""
        if manifest.version != self.version + 1:
            raise AssertionError("a version follows the one it was made from")
        if not self.files.put_new(f"{MANIFESTS}/{manifest.version:08}.json", to_text(manifest)):
            raise LakeError("another run committed meanwhile, so this one changed nothing: run it again")
        return Lake(self.files, manifest)


def _one_of(days: Sequence[str]) -> str:
    return f"day IN ({', '.join(repr(day) for day in days)})"


def numbered_batch(name: str) -> int | None:
    """The batch that a receipt is for."""
    found = _BATCH.fullmatch(name)
    return None if found is None else int(found[1])


def versions_in(files: Files) -> list[int]:
    """The numbers of all versions that are kept."""
    return sorted(int(found[1]) for name in files.names(MANIFESTS) if (found := _NUMBERED.fullmatch(name)))


def manifest_of(files: Files, version: int) -> Manifest:
    """One version."""
    name = f"{MANIFESTS}/{version:08}.json"
    text = files.read(name)
    if text is None:
        raise LakeError(f"version {version} of the lake is gone: open it anew")
    return from_text(text, f"{files.root}/{name}")


def check_format(lake: Lake, wanted: str | None) -> str:
    """The format of a lake is chosen once."""
    if lake.version and wanted not in (None, lake.manifest.format):
        raise InvalidArgument(
            "format", f"this lake is of {lake.manifest.format}; make another lake for {wanted}, in a folder of its own"
        )
    return lake.manifest.format if lake.version else wanted or "parquet"


def refuse_another_log(lake: Lake, log: str) -> None:
    """A lake is the history of one log."""
    if lake.manifest.log and lake.manifest.log != log:
        raise LakeError(
            f"the lake at {lake.files.root} is the history of another log (of another store, or of this one before it "
            "was restored from a copy): use a lake of its own for this one"
        )


def clear_away(lake: Lake) -> int:
    """Removes pieces that no kept version names, and versions that are not kept; says how many pieces went.

    Call it after a commit, while no other run is active: files that no version lists are leftovers.
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
