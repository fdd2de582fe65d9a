"""What must hold before a run becomes the lake; each check is a pure function."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.spark.lake import checks
from longshore.spark.lake.manifest import (
    LakeError,
    Manifest,
    Piece,
    Receipt,
    from_text,
    to_text,
    with_other_days,
)
from longshore.spark.lake.tables import ATTEMPTS, EVENTS, THROUGHPUT

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def batch(number: int, *, nulls: dict[str, int] | None = None, first: int = 1, last: int = 9) -> Receipt:
    return Receipt(number, 9, Piece("", {}), nulls=nulls or {}, first=[0, first], last=[0, last])


def test_an_event_without_a_required_column_stops_the_run() -> None:
    checks.check_nulls([batch(0), batch(1)])
    with pytest.raises(
        LakeError, match=r"the lake has not changed: 3 of the 9 events of batch 1 have no job_id; another program"
    ):
        checks.check_nulls([batch(0), batch(1, nulls={"job_id": 3})])


def test_a_batch_that_does_not_begin_after_the_one_before_stops_the_run() -> None:
    checks.check_order([batch(0), batch(1, first=10, last=12), batch(2, first=13, last=20)], [0, 0])
    with pytest.raises(LakeError, match=r"batch 1 begins at \[0, 9\], before the end \[0, 9\] of the previous one"):
        checks.check_order([batch(0), batch(1, first=9, last=12)], [0, 0])
    with pytest.raises(LakeError, match=r"batch 0 begins at \[0, 1\], before the end \[0, 5\]"):
        checks.check_order([batch(0)], [0, 5])


def test_all_events_of_the_store_must_be_on_disk() -> None:
    checks.check_all_came(2, 5, 5)
    with pytest.raises(LakeError, match="the store returned 5 events for batch 2 and 4 are on disk"):
        checks.check_all_came(2, 5, 4)


def test_the_lake_goes_as_far_as_the_log_did() -> None:
    checks.check_reached([7, 3], [7, 3])
    with pytest.raises(LakeError, match=r"the log ended at \[7, 4\] .* end at \[7, 3\]; let the store keep events"):
        checks.check_reached([7, 3], [7, 4])


def test_events_that_were_pruned_while_they_were_read_stop_the_run() -> None:
    checks.check_nothing_was_pruned([0, 5], [0, 5])
    with pytest.raises(LakeError, match=r"removed events up to \[0, 6\] while they were read"):
        checks.check_nothing_was_pruned([0, 6], [0, 5])


def test_events_of_tomorrow_and_feeds_that_dried_up_stop_the_run() -> None:
    checks.check_fresh(None, NOW, timedelta(0))
    checks.check_fresh(NOW - timedelta(hours=2), NOW, timedelta(hours=3))
    with pytest.raises(
        LakeError, match="an event is dated 2026-05-03 12:00 and now is 2026-05-01 12:00; correct the clocks"
    ):
        checks.check_fresh(NOW + timedelta(days=2), NOW, None)
    with pytest.raises(LakeError, match="older than 1:00:00; check that this is the right store"):
        checks.check_fresh(NOW - timedelta(hours=2), NOW, timedelta(hours=1))


def test_nothing_may_be_lost_or_doubled_between_the_layers() -> None:
    tables = {
        EVENTS: (Piece("e", {"2026-05-01": 10}),),
        ATTEMPTS: (Piece("a", {"2026-05-01": 2, "open": 1}),),
        THROUGHPUT: (Piece("t", {"2026-05-01": 4}),),
    }
    checks.check_conservation(Manifest(totals={"events": 10, "claims": 3}, tables=tables), ["2026-05-01"])
    for totals in ({"events": 11, "claims": 3}, {"events": 10, "claims": 2}):
        with pytest.raises(LakeError, match="the lake has not changed"):
            checks.check_conservation(Manifest(totals=totals, tables=tables), [])
    with pytest.raises(LakeError, match=r"gold\.throughput has no rows for 2026-05-01"):
        checks.check_conservation(
            Manifest(totals={"events": 10, "claims": 3}, tables={**tables, THROUGHPUT: ()}), ["2026-05-01"]
        )


def test_a_manifest_is_read_as_it_was_written_and_another_form_is_refused() -> None:
    manifest = Manifest(version=3, log="abc", totals={"events": 1}, tables={EVENTS: (Piece("e", {"open": 1}),)})
    text = to_text(manifest)
    assert to_text(from_text(text, "here")) == text
    with pytest.raises(LakeError, match="has layout 2"):
        from_text(text.replace('"layout": 1', '"layout": 2'), "here")
    with pytest.raises(LakeError, match="cannot read here"):
        from_text(text[:-5], "here")


def test_a_day_that_is_replaced_leaves_the_older_pieces() -> None:
    pieces = (Piece("one", {"d1": 1, "d2": 2}), Piece("two", {"d2": 3}))
    left = with_other_days(pieces, {"d2"}, ())
    assert left == (Piece("one", {"d1": 1}),)
    new = [Piece("three", {"d2": 5}), Piece("empty", {})]
    assert with_other_days(pieces, {"d2"}, new) == (*left, Piece("three", {"d2": 5}))
