"""Writing a piece of a table: one file for each day where it fits, and what is on disk afterwards is counted."""

from __future__ import annotations

from pathlib import Path

from pyarrow.parquet import read_metadata
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake.files import Files
from longshore.spark.lake.manifest import OPEN, LakeError, Piece
from longshore.spark.lake.tables import folder_of, schema_of


def write_piece(rows: DataFrame, table: str, files: Files, name: str, form: str, *, compact: bool = True) -> Piece:
    """Writes rows as a piece of a table; what it holds is told by the files, not by what was sent.

    A stream's batch cannot be compacted on the way: Spark plans those without looking at sizes.
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
    """Each file says how many rows it has; asking Spark would be a job of its own for every table."""
    days: dict[str, int] = {}
    for file in folder.glob("day=*/*.parquet"):
        day = file.parent.name.removeprefix("day=")
        days[day] = days.get(day, 0) + int(read_metadata(file).num_rows)
    return dict(sorted(days.items()))


def _rows_on_disk(rows: DataFrame, path: str, form: str) -> dict[str, int]:
    try:
        found = rows.sparkSession.read.format(form).load(path).groupBy("day").count().collect()
    except Exception as error:
        if "UNABLE_TO_INFER_SCHEMA" in str(error):  # there was nothing to write, so there are no files
            return {}
        raise LakeError(f"{path} was written and cannot be read: {str(error).splitlines()[0]}") from error
    return dict(sorted((str(row["day"]), int(row["count"])) for row in found))
