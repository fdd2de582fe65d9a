"""The checks that a run must pass before it becomes the next version of the lake. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from longshore.spark.lake.manifest import LakeError, Manifest, Receipt
from longshore.spark.lake.tables import ATTEMPTS, EVENTS, THROUGHPUT

_AHEAD = timedelta(days=1)
"""An event further in the future than this was written by a clock that is wrong."""


def stop(reason: str, way_out: str) -> LakeError:
    """The error of a run that did not pass a check."""
    return LakeError(f"the run was stopped, and the lake is as it was: {reason}; {way_out}")


def check_nulls(batches: Sequence[Receipt]) -> None:
    """Every event has what makes it one."""
    for batch in batches:
        for column, count in batch.nulls.items():
            raise stop(
                f"{count} of the {batch.rows} events of batch {batch.batch} have no {column}",
                "something wrote to the log beside Longshore; look at these rows in the store",
            )


def check_order(batches: Sequence[Receipt], reached: Sequence[int]) -> None:
    """A batch begins after the one before it, and the first after what the lake holds: no event comes twice."""
    before = reached
    for batch in batches:
        if batch.first and list(batch.first) <= list(before):
            raise stop(
                f"batch {batch.batch} begins at {list(batch.first)}, before the end {list(before)} of the one before",
                "the log was set back to an older copy; make a new lake in another folder",
            )
        before = batch.last or before


def check_all_came(batch: int, given: int, landed: int) -> None:
    """As many rows are on disk as the store gave."""
    if given != landed:
        raise stop(
            f"the store gave {given} events for batch {batch} and {landed} are on disk",
            "look at the disk, and make the lake anew in another folder",
        )


def check_reached(reached: Sequence[int], wanted: Sequence[int]) -> None:
    """The lake goes as far as the log did when the run began."""
    if list(reached) < list(wanted):
        raise stop(
            f"the log went to {list(wanted)} when the run began and what has landed ends at {list(reached)}", _KEEP
        )


def check_nothing_was_pruned(pruned: Sequence[int], landed_before: Sequence[int]) -> None:
    """What was removed from the log while the run read it had landed before it began."""
    if list(pruned) > list(landed_before):
        raise stop(
            f"the store removed events up to {list(pruned)} while they were read, after {list(landed_before)}", _KEEP
        )


def check_fresh(newest: datetime | None, now: datetime, within: timedelta | None) -> None:
    """The newest event is of today and not of tomorrow."""
    if newest is None:
        return
    if newest > now + _AHEAD:
        raise stop(f"an event is dated {newest:%Y-%m-%d %H:%M} and it is {now:%Y-%m-%d %H:%M}", "a clock is wrong")
    if within is not None and now - newest > within:
        raise stop(
            f"the newest event is of {newest:%Y-%m-%d %H:%M}, longer ago than {within}",
            "nothing happens in this queue any more, or it is the wrong one; leave --fresh-within out to go on",
        )


def check_conservation(manifest: Manifest, days: Sequence[str]) -> None:
    """Every event in, every event out: nothing is lost or doubled between the layers."""
    totals = manifest.totals
    _same("events that landed", totals.get("events", 0), f"rows of {EVENTS}", manifest.rows(EVENTS))
    _same("claims that landed", totals.get("claims", 0), f"rows of {ATTEMPTS}", manifest.rows(ATTEMPTS))
    there, counted = manifest.days(EVENTS), manifest.days(THROUGHPUT)
    for day in days:
        if there.get(day) and not counted.get(day):
            raise stop(f"{THROUGHPUT} has nothing of {day}, which has {there[day]} events", _OURS)


def check_counted(day: str, events: int, counted: int) -> None:
    """Gold counts every event of a day once."""
    _same(f"events of {day}", events, f"events counted in {THROUGHPUT}", counted)


_KEEP = "let the store keep events longer (set_retention), or run more often"
_OURS = "this is a fault of Longshore or of the disk: keep the folder, and rebuild with --from"


def _same(what: str, one: int, other_what: str, other: int) -> None:
    if one != other:
        raise stop(f"{one} {what}, {other} {other_what}", _OURS)
