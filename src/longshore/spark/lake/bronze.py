"""Bronze: events as they are, landed in batches that come once however often a batch is tried."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.core.names import new_id
from longshore.spark.lake.files import Files
from longshore.spark.lake.manifest import LakeError, Piece
from longshore.spark.lake.steps import date_of
from longshore.spark.lake.tables import EVENTS, KNOWN_JOBS, schema_of
from longshore.spark.lake.writing import write_piece
from longshore.spark.options import Address

CHECKPOINT = "checkpoint"
RECEIPTS = "receipts"
_NUMBERED = re.compile(r"batch=([0-9]{8})\.json")
_NEEDED = ("number", "queue", "event", "occurred_at")
_NEEDED_OF_A_JOB = ("job_id", "job_seq")
_JOB_COLUMNS = "uid,id,queue,type,concurrency_key,schedule_id,parent_id,priority,max_attempts"

Told = Callable[[int, int], None]
"""Called with the number of a batch that has landed, and its rows."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What landed in one batch, counted on disk."""

    batch: int
    rows: int
    events: Piece
    jobs: Piece
    added: int = 0
    claims: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)
    """The place of its first event in the log: transaction (0 where there is none), number."""
    last: list[int] = field(default_factory=list)
    newest: int = 0
    """The time of its newest event, in microseconds."""


def with_date(events: DataFrame, batch: int) -> DataFrame:
    """Events with their date in UTC and the batch they came in."""
    return events.withColumn("event_date", date_of(F.col("occurred_at"))).withColumn("batch", F.lit(batch))


def tallied(events: DataFrame) -> DataFrame:
    """One row that says of a batch what its receipt says."""
    place = F.struct(F.coalesce("xid", F.lit(0)).alias("xid"), "number")
    of_a_job = F.col("event").startswith("job.")
    added = F.when(F.col("event") == "job.added", F.col("job_uid"))
    nulls = {name: F.count_if(F.col(name).isNull()) for name in _NEEDED}
    nulls |= {name: F.count_if(of_a_job & F.col(name).isNull()) for name in (*_NEEDED_OF_A_JOB, "job_uid", "type")}
    return events.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(added).alias("added"),
        F.count_if(F.col("to_status") == "RUNNING").alias("claims"),
        F.struct(*(count.alias(name) for name, count in nulls.items())).alias("nulls"),
        F.min(place).alias("first"),
        F.max(place).alias("last"),
        F.unix_micros(F.max("occurred_at")).alias("newest"),
        F.min(added).alias("first_uid"),
        F.max(added).alias("last_uid"),
    )


class Landing:
    """Brings what the log has gained since the last run to the lake's folder; it is listed by whoever commits."""

    def __init__(self, spark: SparkSession, address: Address, files: Files, form: str) -> None:
        self._spark = spark
        self._address = address
        self._files = files
        self._form = form

    def run(self, at_most: int, partitions: int, told: Told) -> int:
        """Lands all that is certain now; returns how many rows the store gave."""
        reader = self._spark.readStream.format("longshore").options(**self._options())
        stream = reader.options(maxEventsPerBatch=str(at_most), partitions=str(partitions)).load("events")
        given: dict[int, int] = {}

        def put(batch: DataFrame, number: int) -> None:
            receipt = self.land(batch, number)
            told(number, receipt.rows)

        query = (
            stream.writeStream.foreachBatch(put)
            .option("checkpointLocation", f"{self._files.root}/{CHECKPOINT}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for progress in query.recentProgress:
            given[progress["batchId"]] = int(progress["numInputRows"])
        return sum(given.values())

    def land(self, batch: DataFrame, number: int) -> Receipt:
        """Writes one batch; the receipt comes last, and makes it one that has landed.

        Each try has a folder of its own: a Java that outlives its killed driver by a moment writes into nobody's.
        """
        name = f"batch={number:08}-{new_id()[-12:]}"
        events = write_piece(with_date(batch, number), EVENTS, self._files, name, self._form, compact=False)
        jobs = Piece("", {})
        told = Row()
        if events.days:
            landed = self._read(batch.sparkSession, events)
            told = tallied(landed).collect()[0]
            if told["added"]:
                jobs = self._land_jobs(landed, number, name, told)
        receipt = _receipt(number, events, jobs, told)
        self._files.put(f"{RECEIPTS}/batch={number:08}.json", json.dumps(asdict(receipt)))
        return receipt

    def _land_jobs(self, landed: DataFrame, number: int, name: str, told: Row) -> Piece:
        """What never changes of the jobs that were added; one that is gone already is missing."""
        spark = landed.sparkSession
        jobs = spark.read.format("longshore").options(**self._options(), columns=_JOB_COLUMNS).load("jobs")
        added = landed.where(F.col("event") == "job.added").select("job_uid", "event_date").dropDuplicates(["job_uid"])
        known = (
            jobs.where((F.col("uid") >= told["first_uid"]) & (F.col("uid") <= told["last_uid"]))
            .withColumnsRenamed({"uid": "job_uid", "id": "job_id", "concurrency_key": "key"})
            .join(added, "job_uid")
            .withColumn("batch", F.lit(number))
        )
        return write_piece(known, KNOWN_JOBS, self._files, name, self._form, compact=False)

    def _read(self, spark: SparkSession, piece: Piece) -> DataFrame:
        whole = spark.read.format(self._form).load(f"{self._files.root}/{piece.path}")
        return whole.select(*schema_of(EVENTS).fieldNames())

    def _options(self) -> dict[str, str]:
        return {"url": self._address.url, **{name: str(value) for name, value in self._address.options.items()}}


def _receipt(number: int, events: Piece, jobs: Piece, told: Row) -> Receipt:
    if not events.days:
        return Receipt(number, 0, events, jobs)
    nulls = {name: count for name, count in told["nulls"].asDict().items() if count}
    return Receipt(
        number,
        told["rows"],
        events,
        jobs,
        told["added"],
        told["claims"],
        nulls,
        list(told["first"]),
        list(told["last"]),
        told["newest"],
    )


def receipts_after(files: Files, last: int) -> list[Receipt]:
    """What has landed since a batch, in order; LakeError if one is missing."""
    numbers = sorted(int(found[1]) for name in files.names(RECEIPTS) if (found := _NUMBERED.fullmatch(name)))
    wanted = [number for number in numbers if number > last]
    if wanted != list(range(last + 1, last + 1 + len(wanted))):
        raise LakeError(
            f"batch {last + 1} is missing from {files.root}/{RECEIPTS}, and later ones are there: somebody removed it; "
            "make the lake anew in another folder"
        )
    return [_from_text(files.read(f"{RECEIPTS}/batch={number:08}.json")) for number in wanted]


def _from_text(text: str | None) -> Receipt:
    assert text is not None  # it was listed a moment ago
    body: dict[str, Any] = json.loads(text)
    pieces = {name: Piece(**body.pop(name)) for name in ("events", "jobs")}
    return Receipt(**body, **pieces)


def events_in(receipts: Sequence[Receipt]) -> dict[str, int]:
    """Rows for each day of what has landed."""
    days: dict[str, int] = {}
    for receipt in receipts:
        for day, rows in receipt.events.days.items():
            days[day] = days.get(day, 0) + rows
    return dict(sorted(days.items()))
