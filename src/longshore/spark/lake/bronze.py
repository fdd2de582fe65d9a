"""Bronze: unchanged events in batches; a batch lands once, even if it is tried several times."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.validation import new_id
from longshore.spark.lake.checks import check_all_came
from longshore.spark.lake.draft import write_piece
from longshore.spark.lake.files import Files
from longshore.spark.lake.lake import RECEIPTS, numbered_batch
from longshore.spark.lake.manifest import LakeError, Piece, Receipt
from longshore.spark.lake.silver import date_of
from longshore.spark.lake.tables import EVENTS, schema_of
from longshore.spark.options import Address

CHECKPOINT = "checkpoint"
_NEEDED = ("number", "queue", "event", "occurred_at")
_NEEDED_OF_A_JOB = ("job_id", "job_seq")


def with_date(events: DataFrame, batch: int) -> DataFrame:
    """Add the date in UTC and the batch number to events."""
    return events.withColumn("event_date", date_of(F.col("occurred_at"))).withColumn("batch", F.lit(batch))


def tallied(events: DataFrame) -> DataFrame:
    """One row with the figures of a batch's receipt."""
    place = F.struct(F.coalesce("xid", F.lit(0)).alias("xid"), "number")
    of_a_job = F.col("event").startswith("job.")
    nulls = {name: F.count_if(F.col(name).isNull()) for name in _NEEDED}
    nulls |= {name: F.count_if(of_a_job & F.col(name).isNull()) for name in (*_NEEDED_OF_A_JOB, "job_uid", "type")}
    return events.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("event") == "job.added").alias("added"),
        F.count_if(F.col("to_status") == "RUNNING").alias("claims"),
        F.struct(*(count.alias(name) for name, count in nulls.items())).alias("nulls"),
        F.min(place).alias("first"),
        F.max(place).alias("last"),
        F.unix_micros(F.max("occurred_at")).alias("newest"),
    )


class Landing:
    """Writes the events since the last run to the lake's folder; a commit lists them."""

    def __init__(self, spark: SparkSession, address: Address, files: Files, form: str) -> None:
        self._spark = spark
        self._address = address
        self._files = files
        self._form = form

    def run(self, at_most: int, partitions: int) -> int:
        """Land all events that are readable now; return their number."""
        reader = self._spark.readStream.format("longshore").options(**self._options())
        stream = reader.options(maxEventsPerBatch=str(at_most), partitions=str(partitions)).load("events")
        landed: dict[int, int] = {}
        refused: list[LakeError] = []

        def put(batch: DataFrame, number: int) -> None:
            try:
                landed[number] = self.land(batch, number).rows
            except LakeError as error:
                refused.append(error)
                raise

        query = (
            stream.writeStream.foreachBatch(put)
            .option("checkpointLocation", f"{self._files.root}/{CHECKPOINT}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise refused[0] if refused else LakeError(f"cannot read the event log: {_reason(error)}") from error
        return sum(landed.values())

    def land(self, batch: DataFrame, number: int) -> Receipt:
        """Write one batch, and its receipt last: a batch without a receipt has not landed.

        Each try writes to its own folder, because a Java process may outlive its killed driver.
        """
        name = f"batch={number:08}-{new_id()[-12:]}"
        given = Observation()
        counted = with_date(batch, number).observe(given, F.count(F.lit(1)).alias("rows"))
        events = write_piece(counted, EVENTS, self._files, name, self._form, compact=False)
        check_all_came(number, given.get["rows"], events.rows)
        figures = tallied(self._read(batch.sparkSession, events)).collect()[0] if events.days else Row()
        receipt = _receipt(number, events, figures)
        self._files.put(f"{RECEIPTS}/batch={number:08}.json", json.dumps(asdict(receipt)))
        return receipt

    def _read(self, spark: SparkSession, piece: Piece) -> DataFrame:
        whole = spark.read.format(self._form).load(f"{self._files.root}/{piece.path}")
        return whole.select(*schema_of(EVENTS).fieldNames())

    def _options(self) -> dict[str, str]:
        return {"url": self._address.url, **{name: str(value) for name, value in self._address.options.items()}}


def _reason(error: StreamingQueryException) -> str:
    """Extract the message of a Longshore error from Spark's message; otherwise return its first line."""
    text = str(error)
    ours = re.findall(r"longshore\.\S+\.\w+: (.+)", text)
    return str(ours[-1]) if ours else text.strip().split("\n", 1)[0]


def _receipt(number: int, events: Piece, figures: Row) -> Receipt:
    if not events.days:
        return Receipt(number, 0, events)
    nulls = {name: count for name, count in figures["nulls"].asDict().items() if count}
    counted = {name: figures[name] for name in ("rows", "added", "claims", "newest")}
    first, last = list(figures["first"]), list(figures["last"])
    return Receipt(number, events=events, nulls=nulls, first=first, last=last, **counted)


def receipts_after(files: Files, last: int) -> list[Receipt]:
    """Return the receipts after a batch, in order; raise LakeError if one is missing."""
    numbers = [number for name in files.names(RECEIPTS) if (number := numbered_batch(name)) is not None]
    wanted = sorted(number for number in numbers if number > last)
    if wanted != list(range(last + 1, last + 1 + len(wanted))):
        raise LakeError(
            f"batch {last + 1} was removed from {files.root}/{RECEIPTS}, although later batches exist; "
            "create a new lake in another folder"
        )
    return [_from_text(files.read(f"{RECEIPTS}/batch={number:08}.json")) for number in wanted]


def _from_text(text: str | None) -> Receipt:
    assert text is not None  # the folder listed it
    body: dict[str, Any] = json.loads(text)
    return Receipt(**{**body, "events": Piece(**body["events"])})
