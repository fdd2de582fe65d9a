"""The checks that a run must pass before it becomes the next version of the lake. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from longshore.spark.lake.manifest import LakeError, Manifest, Receipt
from longshore.spark.lake.tables import ATTEMPTS, EVENTS, THROUGHPUT

_AHEAD = timedelta(days=1)
"""An event further in the future than this means that a clock is wrong."""


def stop(reason: str, remedy: str) -> LakeError:
    """Return the error of a run that failed a check."""
    return LakeError(f"the run was stopped and the lake has not changed: {reason}; {remedy}")


def check_nulls(batches: Sequence[Receipt]) -> None:
    """Check that no event lacks a required column."""
    for batch in batches:
        for column, count in batch.nulls.items():
            raise stop(
                f"{count} of the {batch.rows} events of batch {batch.batch} have no {column}",
                "another program wrote to the event log; inspect these rows in the store",
            )


def check_order(batches: Sequence[Receipt], reached: Sequence[int]) -> None:
    """Check that each batch begins after the previous one, so that no event lands twice."""
    before = reached
    for batch in batches:
        if batch.first and list(batch.first) <= list(before):
            raise stop(
                f"batch {batch.batch} begins at {list(batch.first)}, before the end {list(before)} of the previous one",
                "the log was restored from an older copy; create a new lake in another folder",
            )
        before = batch.last or before


def check_all_came(batch: int, given: int, landed: int) -> None:
    """Check that the files have as many rows as the store returned."""
    if given != landed:
        raise stop(
            f"the store returned {given} events for batch {batch} and {landed} are on disk",
            "check the disk, and create a new lake in another folder",
        )


def check_reached(reached: Sequence[int], wanted: Sequence[int]) -> None:
    """Check that the lake reaches the end that the log had when the run began."""
    if list(reached) < list(wanted):
        raise stop(
            f"the log ended at {list(wanted)} when the run began and the landed events end at {list(reached)}", _KEEP
        )


def check_nothing_was_pruned(pruned: Sequence[int], landed_before: Sequence[int]) -> None:
    """Check that the store removed no events during the run that had not landed before."""
    if list(pruned) > list(landed_before):
        raise stop(
            f"the store removed events up to {list(pruned)} while they were read, after {list(landed_before)}", _KEEP
        )


def check_fresh(newest: datetime | None, now: datetime, within: timedelta | None) -> None:
    """Check that the newest event is recent and not in the future."""
    if newest is None:
        return
    if newest > now + _AHEAD:
        raise stop(f"an event is dated {newest:%Y-%m-%d %H:%M} and now is {now:%Y-%m-%d %H:%M}", "correct the clocks")
    if within is not None and now - newest > within:
        raise stop(
            f"the newest event is of {newest:%Y-%m-%d %H:%M}, older than {within}",
            "check that this is the right store, or leave out --fresh-within",
        )


def check_conservation(manifest: Manifest, days: Sequence[str]) -> None:
    """Check that no event is lost or duplicated between the layers."""
    totals = manifest.totals
    _same("events that landed", totals.get("events", 0), f"rows of {EVENTS}", manifest.rows(EVENTS))
    _same("claims that landed", totals.get("claims", 0), f"rows of {ATTEMPTS}", manifest.rows(ATTEMPTS))
    there, counted = manifest.days(EVENTS), manifest.days(THROUGHPUT)
    for day in days:
        if there.get(day) and not counted.get(day):
            raise stop(f"{THROUGHPUT} has no rows for {day}, which has {there[day]} events", _OURS)


def check_counted(day: str, events: int, counted: int) -> None:
    """Check that gold counts every event of a day once."""
    _same(f"events of {day}", events, f"events counted in {THROUGHPUT}", counted)


_KEEP = "let the store keep events longer (set_retention), or run more often"
_OURS = "this is a bug in Longshore or a fault of the disk; keep the folder, and rebuild with --from"


def _same(what: str, one: int, other_what: str, other: int) -> None:
    if one != other:
        raise stop(f"{one} {what}, {other} {other_what}", _OURS)
