"""What gold says of a few events that one can count by hand."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.spark.lake import error_fingerprints as lake_errors
from longshore.spark.lake import gold
from longshore.spark.lake.silver import as_steps, date_of, made_of, together, with_course
from longshore.spark.lake.tables import DEPTH, EVENTS, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def events(spark: "SparkSession", *told: dict[str, Any]) -> "DataFrame":
    """Events of job 1 unless they say otherwise, numbered as they come; `at` is in seconds after noon."""
    rows, seqs = [], dict[int, int]()
    for number, given in enumerate(told):
        uid = given.get("uid", 1)
        seqs[uid] = given.get("seq", seqs.get(uid, 0) + 1)
        when = NOON + timedelta(seconds=given["at"])
        source, _, target = given.get("move", "").partition(">")
        rows.append(
            (
                None, number, uid, f"job-{uid}", seqs[uid], "mails", "send", given["event"], source or None,
                target or None, given.get("epoch", 0), given.get("epoch", 0), given.get("worker"), "", when,
                given.get("detail"), when.date(), 0,
            )
        )  # fmt: skip
    return spark.createDataFrame(rows, schema_of(EVENTS))


def added(at: float, uid: int = 1) -> dict[str, Any]:
    detail = '{"key": "acme"}' if uid == 1 else None
    return {"event": "job.added", "move": ">INITIAL_PENDING", "at": at, "uid": uid, "detail": detail}


def begun(at: float, source: str = "INITIAL_PENDING", uid: int = 1, epoch: int = 1) -> dict[str, Any]:
    return {"event": "job.active", "move": f"{source}>RUNNING", "at": at, "uid": uid, "epoch": epoch, "worker": "w"}


def completed(at: float, uid: int = 1, epoch: int = 1) -> dict[str, Any]:
    return {"event": "job.completed", "move": "RUNNING>COMPLETED", "at": at, "uid": uid, "epoch": epoch}


def failed(at: float, epoch: int = 1, error: str = "ValueError: row 17") -> dict[str, Any]:
    detail = f'{{"error": "{error}", "final": false}}'
    return {"event": "job.failed", "move": "RUNNING>FAILED_RETRY", "at": at, "epoch": epoch, "detail": detail}


def until(at: float, due: float) -> dict[str, Any]:
    micros = int((NOON + timedelta(seconds=due)).timestamp() * 1_000_000)
    return {"event": "job.delayed", "at": at, "detail": f'{{"until": {micros}}}'}


class Made:
    """Silver of some events."""

    def __init__(self, log: "DataFrame") -> None:
        steps = as_steps(log)
        made = made_of(with_course(together(steps.limit(0), steps)))
        self.attempts = made.ended.unionByName(made.running)
        self.ended = made.ended
        self.finished = made.finished
        self.jobs = made.finished.unionByName(made.unfinished)

    def shown(self) -> list["Row"]:
        return self.attempts.orderBy("job_uid", "started_seq").collect()


def test_an_attempt_waits_from_when_it_could_begin_and_runs_until_it_ends(spark: "SparkSession") -> None:
    made = Made(
        events(
            spark, added(0), until(0, 60), begun(65), failed(75), {"event": "job.promoted", "at": 75},
            begun(80, "FAILED_RETRY", epoch=2), completed(100, epoch=2),
            added(10, uid=2), begun(40, uid=2),
        )
    )  # fmt: skip
    rows = made.shown()
    assert [(row.job_uid, row.epoch, row.outcome, row.waited_seconds, row.ran_seconds) for row in rows] == [
        (1, 1, "failed", 5.0, 10.0),
        (1, 2, "completed", 5.0, 20.0),
        (2, 1, None, 30.0, None),
    ]
    assert [row.key for row in rows] == ["acme", "acme", None]
    first, second = made.jobs.orderBy("job_uid").collect()
    assert (first.status, first.attempts, first.failures, first.waited_seconds, first.ran_seconds) == (
        "COMPLETED", 2, 1, 10.0, 30.0,
    )  # fmt: skip
    assert (first.lifetime_seconds, first.error, second.status, second.finalized_at) == (100.0, None, "RUNNING", None)


def test_a_job_is_ordered_by_its_own_sequence_and_never_by_time(spark: "SparkSession") -> None:
    """All at one instant, and the clock was set back in between."""
    log = events(spark, added(0), begun(0), failed(0), begun(-5, "FAILED_RETRY", epoch=2), completed(-5, epoch=2))
    made = Made(log.orderBy(F.desc("number")))
    assert [(row.epoch, row.outcome) for row in made.shown()] == [(1, "failed"), (2, "completed")]


def test_every_claim_is_an_attempt_even_where_the_log_is_broken(spark: "SparkSession") -> None:
    """A second claim without an end of the first, and an end without a claim."""
    made = Made(
        events(
            spark, added(0), begun(1), begun(5, "RUNNING", epoch=2), completed(9, epoch=2),
            {"uid": 2, "seq": 7, "event": "job.completed", "move": "RUNNING>COMPLETED", "at": 3},
        )
    )  # fmt: skip
    assert [(row.job_uid, row.epoch, row.outcome) for row in made.shown()] == [(1, 1, "unknown"), (1, 2, "completed")]
    assert {row.job_uid: (row.status, row.first_seq) for row in made.jobs.collect()} == {
        1: ("COMPLETED", 1),
        2: ("COMPLETED", 7),
    }


def test_throughput_counts_every_event_once_and_depth_sums_the_changes(spark: "SparkSession") -> None:
    log = events(
        spark, added(0), added(1, uid=2), begun(2), {"event": "job.log_added", "at": 3}, completed(70),
        {"uid": 3, "seq": 5, "event": "job.active", "move": "INITIAL_PENDING>RUNNING", "at": 71},
    )  # fmt: skip
    unknown = spark.createDataFrame([(3,)], "job_uid bigint")
    minutes = gold.throughput_per_minute(log, unknown).orderBy("at").collect()
    assert [(row.events, row.added, row.started, row.completed) for row in minutes] == [(4, 2, 1, 0), (2, 0, 1, 1)]
    opening = spark.createDataFrame([(NOON.date(), NOON, "mails", "send", 10, 0, 0)], schema_of(DEPTH))
    rows = (
        gold.depth_over_time(gold.throughput_per_minute(log, unknown), gold.closing_depth(opening))
        .orderBy("at")
        .collect()
    )
    assert [(row["at"].hour, row.waiting, row.held, row.running) for row in rows] == [
        (0, 10, 0, 0),
        (12, 11, 0, 1),
        (12, 11, 0, 0),
    ]


def test_percentiles_are_within_one_percent_and_combine(spark: "SparkSession") -> None:
    at = F.lit(NOON)
    times = spark.range(1, 1001).select(
        F.lit(NOON.date()).alias("event_date"), at.alias("at"), F.lit("q").alias("queue"), F.lit("t").alias("type"),
        F.concat(F.lit("k"), F.col("id") % 2).alias("key"), F.lit("running").alias("measure"),
        (F.col("id") * 1_000_000).alias("micros"),
    )  # fmt: skip
    hourly = gold.duration_histogram(times)
    assert hourly.agg(F.sum("count")).first()[0] == 1000  # type: ignore[index]  # an aggregate has one row
    rows = {(row.period, row.level, row.key): row for row in gold.duration_percentiles(times, hourly).collect()}
    assert set(rows) == {
        ("hour", "queue", None), ("hour", "type", None), ("day", "queue", None), ("day", "type", None),
        ("day", "key", "k0"), ("day", "key", "k1"),
    }  # fmt: skip
    day = rows["day", "queue", None]
    assert (day["count"], day.least, day.most) == (1000, 1.0, 1000.0)
    assert day["mean"] == pytest.approx(500.5)
    for name, true in (("p50", 500), ("p90", 900), ("p99", 990)):
        assert day[name] == pytest.approx(true, rel=0.011)


def test_the_same_error_with_other_numbers_is_one_kind_of_error(spark: "SparkSession") -> None:
    made = Made(
        events(
            spark, added(0), begun(1), failed(2, error="ValueError: row 17 of '/data/a.csv'"),
            begun(3, "FAILED_RETRY", epoch=2), failed(4, epoch=2, error="ValueError: row 9 of '/data/b.csv'"),
            begun(5, "FAILED_RETRY", epoch=3), failed(6, epoch=3, error="TimeoutError"),
        )
    )  # fmt: skip
    rows = sorted(gold.errors_per_day(made.ended).collect(), key=lambda row: -row["count"])
    assert [(row.error_type, row["count"], row.jobs, row.key) for row in rows] == [
        ("ValueError", 2, 1, "acme"),
        ("TimeoutError", 1, 1, "acme"),
    ]
    assert rows[0].sample == "ValueError: row 17 of '/data/a.csv'"
    (hour,) = gold.outcomes_per_hour(made.ended, made.finished).collect()
    assert (hour.attempts, hour.failed, hour.retries, hour.failure_rate) == (3, 3, 2, 1.0)


def test_a_worker_is_busy_in_every_hour_it_reaches_into(spark: "SparkSession") -> None:
    made = Made(
        events(
            spark, added(0), begun(1800), completed(5400),
            added(0, uid=2), begun(1800, uid=2), completed(2700, uid=2),
            added(0, uid=3), begun(2700, uid=3), completed(3600, uid=3),
        )
    )  # fmt: skip
    rows = gold.workers_per_hour(made.ended).orderBy("at").collect()
    assert [(row["at"].hour, row.attempts, row.busy_seconds, row.most_at_once) for row in rows] == [
        (12, 1, 3600.0, 2),
        (13, 2, 1800.0, 1),
    ]
    assert rows[0].utilisation == 0.5


def test_the_lateness_of_a_schedule_is_counted_from_the_time_in_its_runs_id(spark: "SparkSession") -> None:
    planned = "concat('nightly@', '2026-05-01T11:59:30Z')"
    jobs = Made(events(spark, added(0), begun(10), completed(20))).jobs
    run = jobs.withColumns({"schedule_id": F.lit("nightly"), "job_id": F.expr(planned)})
    run = run.withColumn("planned_at", F.expr("timestamp '2026-05-01 11:59:30Z'"))
    (row,) = gold.schedules_per_day(run).collect()
    assert (row.runs, row.made_late_p50, row.late_p95, row.completed) == (1, 30.0, 40.0, 1)


def test_dates_are_in_utc_in_any_session_time_zone(spark: "SparkSession") -> None:
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        row = spark.range(1).select(date_of(F.lit(NOON + timedelta(hours=11))).cast("string").alias("day")).first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert row is not None
    assert row.day == "2026-05-01"


def test_the_pattern_of_an_error_omits_its_variable_parts(spark: "SparkSession") -> None:
    texts = ["KeyError: 'a'\\nmore", "OSError: [Errno 2] at 0x7f01 in /srv/data/x.txt", None]
    frame = spark.createDataFrame([(text,) for text in texts], "error string")
    rows = frame.select(lake_errors.pattern_of(F.col("error")), lake_errors.fingerprint_of(F.col("error"))).collect()
    assert rows[1][0] == "OSError: [Errno <n>] at <address> in <path>"
    assert rows[2][1] is None
