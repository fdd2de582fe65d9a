"""Gold tables of queues that never were: as many days, queues and odd names as a test asks for."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from longshore.spark.lake.tables import schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 5, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class MadeUp:
    """Tables as they are given, and nothing else."""

    rows: dict[str, Rows]
    version: int = 7

    def table(self, spark: SparkSession, name: str, days: Collection[str] | None = None) -> DataFrame:
        rows = [row for row in self.rows.get(name, []) if days is None or row["event_date"].isoformat() in days]
        schema = schema_of(name)
        return spark.createDataFrame([{field: row.get(field) for field in schema.fieldNames()} for row in rows], schema)


def made_up(
    *,
    hours: int = 72,
    queues: Sequence[str] = ("mail", "images", "billing"),
    types: Sequence[str] = ("send", "resize"),
    workers: int = 6,
    errors: Sequence[tuple[str, str]] = (("TimeoutError", "no answer from smtp.example within 30 s"),),
    minutes: int = 10,
    seed: int = 1,
) -> MadeUp:
    """Days with nights, one queue busier than the next, and an hour in which much goes wrong."""
    chance = Random(seed)
    found: dict[str, Rows] = {}

    def add(table: str, at: datetime, **values: Any) -> None:
        found.setdefault(f"gold.{table}", []).append({"event_date": at.date(), "at": at, **values})

    pairs = [(queue, kind) for queue in queues for kind in types]
    waiting = dict.fromkeys(pairs, 0)
    for hour in range(hours):
        start = START + timedelta(hours=hour)
        busy = 0.35 + 0.65 * max(0.0, math.sin(math.pi * ((start.hour - 5) % 24) / 15))
        bad = 0.35 if hour % 30 == 17 else 0.015
        for place, (queue, kind) in enumerate(pairs):
            size = 900 * busy / (1 + place) ** 0.8
            attempts = done = 0
            for minute in range(0, 60, minutes):
                at = start + timedelta(minutes=minute)
                added = round(size * minutes / 60 * chance.uniform(0.6, 1.4))
                completed = round(added * chance.uniform(0.8, 1.0)) + min(waiting[queue, kind], round(added * 0.2))
                waiting[queue, kind] = max(0, waiting[queue, kind] + added - completed)
                failed = sum(chance.random() < bad for _ in range(completed))
                add(
                    "throughput", at, queue=queue, type=kind, events=3 * added, added=added, started=completed,
                    completed=completed - failed, failed=failed, crashed=0, released=0, stopped=0, dead=failed // 9,
                    retried=0, removed=0,
                )  # fmt: skip
                add("depth", at, queue=queue, type=kind, waiting=waiting[queue, kind], held=0, running=place + 1)
                attempts, done = attempts + completed, done + completed - failed
            crashed = attempts // 400
            add(
                "outcomes", start, queue=queue, type=kind, key="", attempts=attempts, completed=done - crashed,
                failed=attempts - done, crashed=crashed, released=0, stopped=0, unknown=0, retries=attempts - done,
                jobs_finished=done, jobs_completed=done, jobs_dead=(attempts - done) // 9, jobs_cancelled=0,
            )  # fmt: skip
            for measure, middle in (("waiting", 0.4 + 4 * bad), ("running", 0.05 * 4 ** (place % 4))):
                _histogram(add, chance, start, queue, kind, measure, middle * busy, attempts)
        for number in range(workers):
            used = min(1.0, busy * chance.uniform(0.5, 1.1)) * (number < workers * 0.8 or hour % 3 == 0)
            if used:
                add(
                    "workers", start, worker=f"worker-{number}.eu", attempts=round(300 * used),
                    busy_seconds=3600.0 * 4 * used, most_at_once=4, utilisation=used,
                )  # fmt: skip
    for place, (kind, sample) in enumerate(errors):
        add(
            "errors", START, queue=queues[place % len(queues)], type=types[0], key="", outcome="failed",
            fingerprint=f"{place:012x}", error_type=kind, sample=sample, count=round(4000 / (1 + place) ** 1.3),
            jobs=round(2000 / (1 + place)), first_at=START, last_at=START + timedelta(hours=hours),
        )  # fmt: skip
    add(
        "schedules", START, schedule_id="nightly", queue=queues[0], type=types[0], runs=3, started=3, completed=3,
        dead=0, made_late_p50=0.1, made_late_most=0.4, late_p50=0.3, late_p95=1.2, late_most=1.4,
    )  # fmt: skip
    return MadeUp(found)


def _histogram(
    add: Any, chance: Random, at: datetime, queue: str, kind: str, measure: str, middle: float, number: int
) -> None:
    counts: dict[int, list[float]] = {}
    for _ in range(min(number, 60)):
        seconds = max(2e-6, middle * chance.lognormvariate(0, 1))
        counts.setdefault(int(math.log(seconds / 1e-6, 1.02)), []).append(seconds)
    for bucket, held in counts.items():
        add(
            "duration_histogram", at, queue=queue, type=kind, measure=measure, bucket=bucket, count=len(held),
            seconds=sum(held), least=min(held), most=max(held),
        )  # fmt: skip
