"""How much a worker takes on at a time, decided by numbers alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from longshore import Job, Lease
from longshore.runtime.worker_loop import a_second_turn_pays, free_slots, most_in_a_turn, still_leased, too_much_goes_on

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(("held", "left"), [(0, 10), (9, 1), (10, 0), (12, 0)])
def test_there_is_room_for_what_is_not_held_and_never_less_than_none(held: int, left: int) -> None:
    assert free_slots(10, held) == left


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (2, 1), (3, 2), (100, 50), (1_000, 500), (10_000, 500)])
def test_a_turn_is_half_of_what_may_run_and_bounded(concurrency: int, most: int) -> None:
    assert most_in_a_turn(concurrency) == most


@pytest.mark.parametrize(
    ("concurrency", "ended", "claimable", "pays"),
    [
        (100, 24, 24, False),
        (100, 25, 0, True),
        (100, 0, 25, True),
        (400, 99, 99, False),
        (400, 100, 0, True),
        (10, 10, 10, False),
    ],
)
def test_a_second_turn_pays_for_a_quarter_of_what_may_run_but_not_for_a_few(
    concurrency: int, ended: int, claimable: int, pays: bool
) -> None:
    assert a_second_turn_pays(concurrency, ended=ended, claimable=claimable) is pays


@pytest.mark.parametrize(("left_behind", "too_much"), [(0, False), (29, False), (30, True)])
def test_ten_runs_left_behind_for_each_that_may_run_are_too_much(left_behind: int, too_much: bool) -> None:
    assert too_much_goes_on(3, left_behind) is too_much


def test_of_jobs_whose_claim_was_not_heard_of_only_those_are_run_whose_lease_still_holds() -> None:
    def held(job_id: str, seconds: float | None) -> Job:
        ends = None if seconds is None else NOW + timedelta(seconds=seconds)
        return Job(id=job_id, type="x", payload=b"", tags=(), lease=Lease(token="t", epoch=1, expires_at=ends))

    jobs = [held("good", 12.5), held("over", 0), held("long over", -1), held("without an end", None)]
    jobs.append(Job(id="without a lease", type="x", payload=b"", tags=()))
    assert [(claim.job.id, claim.seconds_left) for claim in still_leased(jobs, NOW)] == [("good", 12.5)]
