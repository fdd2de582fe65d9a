"""The same queries on the same files, by Spark and by DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import duckdb
from pyspark.sql import SparkSession

from longshore.spark.lake.lake import Lake
from longshore.spark.lake.tables import ATTEMPTS, EVENTS, JOBS

_PERCENTILES = """
SELECT queue, type, count(*), {percentile}(waited_seconds, {which}), {percentile}(ran_seconds, {which})
FROM attempts WHERE ended_at IS NOT NULL GROUP BY queue, type"""
_ROUNDS = 2
"""The first round warms up and is discarded."""


class Question(NamedTuple):
    """One query in two dialects."""

    name: str
    of_spark: str
    of_duckdb: str


_MINUTES = "SELECT queue, date_trunc('minute', occurred_at) AS minute, count(*) FROM events GROUP BY queue, minute"
_TRIES = "SELECT type, attempts, count(*) FROM jobs GROUP BY type, attempts"
_BUSY = """
SELECT worker, date_trunc('hour', started_at) AS hour, count(*), sum(ran_seconds) FROM attempts
WHERE ended_at IS NOT NULL GROUP BY worker, hour"""
QUESTIONS = (
    Question("events per queue and minute", _MINUTES, _MINUTES),
    Question(
        "exact percentiles of waiting and running",
        _PERCENTILES.format(percentile="percentile", which="array(0.5, 0.95, 0.99)"),
        _PERCENTILES.format(percentile="quantile_cont", which="[0.5, 0.95, 0.99]"),
    ),
    Question("number of attempts per job", _TRIES, _TRIES),
    Question("hours of workers", _BUSY, _BUSY),
)


def asked(spark: SparkSession, folder: str) -> dict[str, tuple[float, float]]:
    """The seconds of Spark and DuckDB for each query; both must return the same number of rows."""
    lake = Lake.open(folder, spark)
    with duckdb.connect() as duck:
        for name, table in (("events", EVENTS), ("attempts", ATTEMPTS), ("jobs", JOBS)):
            lake.table(spark, table).createOrReplaceTempView(name)
            paths = [str(file) for piece in lake.manifest.pieces(table) for file in _files(Path(folder) / piece.path)]
            duck.read_parquet(paths).create_view(name)
        return {question.name: _timed(spark, duck, question) for question in QUESTIONS}


def _files(piece: Path) -> list[Path]:
    return sorted(piece.glob("day=*/*.parquet"))


def _timed(spark: SparkSession, duck: duckdb.DuckDBPyConnection, question: Question) -> tuple[float, float]:
    for _ in range(_ROUNDS):
        by_spark = _seconds(lambda: len(spark.sql(question.of_spark).collect()))
        by_duck = _seconds(lambda: len(duck.execute(question.of_duckdb).fetchall()))
        if by_spark[1] != by_duck[1]:
            raise RuntimeError(f"{question.name}: Spark found {by_spark[1]} rows and DuckDB {by_duck[1]}")
    return by_spark[0], by_duck[0]


def _seconds(ask: Callable[[], int]) -> tuple[float, int]:
    began = perf_counter()
    rows = ask()
    return perf_counter() - began, rows
