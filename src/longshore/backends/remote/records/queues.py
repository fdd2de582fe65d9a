"""Queues over the wire: their settings and counts."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, cast

from longshore.backends.contract import QueueInfo
from longshore.backends.remote.forms import (
    FLAG,
    NAMES,
    SPAN,
    Form,
    Json,
    an_object,
    list_of,
    only,
    read_span,
    write_span,
)
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.job import JobStats
from longshore.core.limits import Rate, check_rate
from longshore.core.status import JobStatus

COUNTS: Form[dict[JobStatus, int]] = Form(
    lambda _, counts: {status.value: count for status, count in counts.items()},
    lambda _, told: {JobStatus(status): count for status, count in told.items()},
    {"type": "object", "additionalProperties": NUMBER},
)
_STATS_NAMES = tuple(field.name for field in dataclasses.fields(JobStats))
STATS: Form[JobStats] = Form(
    lambda _, stats: {name: getattr(stats, name) for name in _STATS_NAMES},
    lambda _, told: JobStats(**{name: told[name] for name in _STATS_NAMES} | {"tags": tuple(told["tags"])}),
    a_record(
        "StoredStats",
        "Counts over jobs that carry all tags.",
        _STATS_NAMES,
        **{**dict.fromkeys(_STATS_NAMES, NUMBER), "tags": NAMES.schema},
    ),
)

_RATE = a_record(
    "StartRate",
    "At most `count` starts in every window of `per` seconds.",
    ["count", "per"],
    count=NUMBER,
    per=SPAN.schema,
)


def write_rate(rate: Rate | None) -> Json:
    """A limit on starts, or null for none."""
    return None if rate is None else {"count": rate.count, "per": write_span(cast(timedelta, rate.per))}


def read_rate(name: str, value: Json) -> Rate | None:
    """The same; the store judges its numbers."""
    if value is None:
        return None
    told = an_object(name, value)
    only(name, told, {"count": 0, "per": 0})
    return Rate(told.get("count", 0), read_span("rate.per", told.get("per", 0)))


RATE: Form[Rate | None] = Form(lambda name, value: write_rate(check_rate(name, value)), read_rate, or_null(_RATE))


def _write_queue(_: str, info: QueueInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "paused": info.paused,
        "running": info.running,
        "per_key": info.per_key,
        "rate": write_rate(info.rate),
        "rate_per_key": write_rate(info.rate_per_key),
        "counts": COUNTS.write("counts", info.counts),
    }


def _read_queue(_: str, told: Json) -> QueueInfo:
    return QueueInfo(
        told["name"],
        told["paused"],
        told["running"],
        told["per_key"],
        read_rate("rate", told["rate"]),
        read_rate("rate_per_key", told["rate_per_key"]),
        COUNTS.read("counts", told["counts"]),
    )


_QUEUE = a_record(
    "StoredQueue",
    "A queue's settings and its exact counts.",
    ["name", "paused", "running", "per_key", "rate", "rate_per_key", "counts"],
    name=WORD,
    paused=FLAG.schema,
    running=or_null(NUMBER),
    per_key=or_null(NUMBER),
    rate=or_null(_RATE),
    rate_per_key=or_null(_RATE),
    counts=COUNTS.schema,
)
QUEUES: Form[list[QueueInfo]] = list_of(Form(_write_queue, _read_queue, _QUEUE))
