"""Where an audit reads: a store, events that were kept elsewhere, or both beside one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark calls it

from longshore.backends.export import Place, place_of
from longshore.backends.port import LogEnds
from longshore.core.errors import InvalidArgument
from longshore.spark.audit.certainty import SWEPT_WITHIN, Certainty
from longshore.spark.audit.lives import EVENT_COLUMNS, JOB_COLUMNS
from longshore.spark.options import Address, address, answer

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

WAITS_FOR_WRITERS = 10.0
"""Seconds for transactions that were open when the jobs were read; one that is held for longer is told of."""
_LOOKS_EVERY = 0.2


@dataclass(frozen=True)
class Material:
    """What is audited."""

    events: DataFrame
    jobs: DataFrame | None = None
    certain: Certainty = field(default_factory=Certainty)
    pruned: bool = False
    """Whether old events may have been removed, so that a life may begin anywhere."""


class History(NamedTuple):
    """Events of a store that were kept elsewhere, all of them up to one place of its log."""

    events: DataFrame
    reached: Place
    log: str
    """Which log it is; a store that was restored from a copy has begun a new one."""


def from_history(events: DataFrame) -> Material:
    """Events that were kept elsewhere, as a lake does; of the jobs nothing is known but what these tell."""
    return Material(events.select(*EVENT_COLUMNS), pruned=True)


def from_store(
    spark: SparkSession,
    url: str,
    *,
    schema: str | None = None,
    history: History | None = None,
    swept_within: timedelta = SWEPT_WITHIN,
    wait: float = WAITS_FOR_WRITERS,
) -> Material:
    """Events and jobs of a store that may be in full use; with a history, what was pruned of its events is known too.

    The jobs are read first, in one snapshot, and kept while the log is read: so the log has all that happened to them,
    up to where each stood.
    """
    options = {"url": url} | ({} if schema is None else {"schema": schema})
    where = address(options)
    with where.opened() as backend:
        now = answer(backend.now())
    before = _log_ends(where)
    if history is not None and history.log != before.log:
        raise InvalidArgument(
            "lake", "is the history of another log: of another store, or of this one before it was restored from a copy"
        )
    jobs = _read(spark, "jobs", JOB_COLUMNS, options).localCheckpoint(eager=True)
    covered = _covers(where, _log_ends(where).end, within=wait)
    events = _read(spark, "events", EVENT_COLUMNS, options)
    if history is not None:
        events = _continued(history, events)
    certain = Certainty(place_of(before.last), covered, now, swept_within)
    return Material(events, jobs, certain, pruned=_log_ends(where).pruned_anywhere > 0)


def _read(spark: SparkSession, table: str, columns: tuple[str, ...], options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("longshore").options(**options).option("columns", ",".join(columns)).load(table)


def _continued(history: History, events: DataFrame) -> DataFrame:
    """What was kept, and what the store has beyond that."""
    xid, number = history.reached
    if xid:
        later = events.where(F.col("xid") >= xid).where(f"xid > {xid:d} OR number > {number:d}")
    else:
        later = events.where(F.col("number") > number)
    return history.events.select(*EVENT_COLUMNS).unionByName(later)


def _log_ends(where: Address) -> LogEnds:
    with where.reading() as store:
        return store.log_ends()


def _covers(where: Address, position: int, within: float) -> bool:
    """Whether everything up to there can be read, once those who were writing have had their time."""
    began = perf_counter()
    while _log_ends(where).certain < position:
        if perf_counter() - began > within:
            return False
        with where.opened() as backend:
            answer(backend.wait_for_change(_LOOKS_EVERY))
    return True
