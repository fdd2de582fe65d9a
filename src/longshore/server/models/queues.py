"""Queues over HTTP: their settings and counts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from longshore.backends.base import QueueInfo
from longshore.core.limits import Rate
from longshore.core.status import JobStatus
from longshore.server.models.fields import Limit, SomeSeconds


class RateView(BaseModel):
    """At most `count` starts in every window of `per` seconds."""

    model_config = ConfigDict(extra="forbid")

    count: Limit
    per: SomeSeconds

    def rate(self) -> Rate:
        """As a queue takes it."""
        return Rate(self.count, self.per)


class LimitsChange(BaseModel):
    """Limits to set; null takes a limit away, and one that is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"running": 5, "rate": None}]})

    running: Limit | None = Field(None, description="Jobs that may run at once.")
    per_key: Limit | None = Field(None, description="Jobs of one concurrency key that may run at once.")
    rate: RateView | None = None
    rate_per_key: RateView | None = None

    def told(self) -> dict[str, Any]:
        """Only what was said."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value.rate() if isinstance(value, RateView) else value for name, value in given.items()}


class LimitsView(BaseModel):
    """The limits of a queue; null means unlimited."""

    running: int | None
    per_key: int | None
    rate: RateView | None
    rate_per_key: RateView | None


class QueueView(BaseModel):
    """A queue with its settings and exact counts."""

    name: str
    paused: bool
    limits: LimitsView
    counts: dict[JobStatus, int]
    waiting: int = Field(description="Jobs in a status from which they can be started, due or not.")


class QueueList(BaseModel):
    """All queues the caller may see, sorted by name."""

    items: list[QueueView]


def queue_view(info: QueueInfo) -> QueueView:
    """From the record."""
    return QueueView(
        name=info.name,
        paused=info.paused,
        limits=LimitsView(
            running=info.running, per_key=info.per_key, rate=_rate(info.rate), rate_per_key=_rate(info.rate_per_key)
        ),
        counts={status: info.counts.get(status, 0) for status in JobStatus},
        waiting=info.waiting,
    )


def empty_queue(name: str) -> QueueInfo:
    """A queue that nobody has used yet: there is nothing that it could not be."""
    return QueueInfo(name, False, None, None, None, None, {})


def _rate(rate: Rate | None) -> RateView | None:
    return None if rate is None else RateView(count=rate.count, per=rate.per_micros / 1_000_000)
