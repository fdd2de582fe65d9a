"""Changes of one job: legal transitions only, one event for each, and the fence before them."""

from __future__ import annotations

import itertools
import json

import pytest

from longshore.core.errors import InvalidTransition, JobNotInflight, LeaseLost
from longshore.core.job import Lease
from longshore.core.job_record import copy_of
from longshore.core.status import JobStatus
from longshore.core.times import SECOND
from longshore.core.transitions import Change, check_lease
from tests.core.staging import BORN, FINAL, IN_FLIGHT, NOW, PAIRS, STATUSES, new_record, record_in

S = JobStatus
LEGAL = [(S(source), S(target)) for source, target in sorted(PAIRS)]
ILLEGAL = [pair for pair in itertools.product(STATUSES, STATUSES) if pair not in PAIRS]


@pytest.mark.parametrize(("source", "target"), LEGAL)
def test_a_legal_move_sets_the_status_and_the_time_and_writes_one_event(source: S, target: S) -> None:
    # M-SCH-14
    change = Change(record_in(source), NOW)
    change.move(target, "job.test", {"why": "ü"}, actor="ada")
    assert (change.record.status, change.record.updated_at) == (target, NOW)
    (event,) = change.events
    assert (event.from_status, event.to_status, event.event, event.actor) == (source, target, "job.test", "ada")
    assert (event.job_uid, event.job_id, event.queue, event.type) == (7, "j1", "default", "email")
    assert (event.job_seq, event.occurred_at) == (2, NOW)
    assert (event.epoch, event.execution) == (change.record.epoch, change.record.executions)
    assert event.assignee_id == change.record.assignee_id
    assert event.detail is not None
    assert json.loads(event.detail) == {"why": "ü"}


@pytest.mark.parametrize(("source", "target"), ILLEGAL)
def test_an_illegal_move_is_refused_and_changes_nothing(source: S, target: S) -> None:
    # O-SM-02 B-ERR-02
    record = record_in(source)
    before = copy_of(record)
    change = Change(record, NOW)
    with pytest.raises(InvalidTransition) as refusal:
        change.move(target, "job.test")
    assert (refusal.value.job_id, refusal.value.status, refusal.value.target) == ("j1", source, target)
    assert record == before
    assert change.events == []


@pytest.mark.parametrize(("source", "target"), LEGAL)
def test_a_job_without_a_worker_has_no_lease_and_keeps_its_last_assignee(source: S, target: S) -> None:
    # B-CON-08 X-114
    record = record_in(source)
    history = (record.assignee_id, record.assigned_at)
    Change(record, NOW).move(target, "job.test")
    if target not in IN_FLIGHT:
        assert (record.lease_owner, record.lease_token, record.lease_expires_at) == (None, None, None)
    assert (record.assignee_id, record.assigned_at) == history


def test_a_running_job_that_is_cancelled_stays_under_its_lease() -> None:
    # Q-CAN-03
    record = record_in(S.RUNNING)
    Change(record, NOW).move(S.CANCELLING, "job.cancelling")
    assert (record.lease_owner, record.lease_token, record.lease_expires_at) == (
        "worker-1",
        "token-1",
        NOW + 30 * SECOND,
    )


@pytest.mark.parametrize(("source", "target"), LEGAL)
def test_a_slot_is_released_exactly_when_a_job_leaves_running_and_cancelling(source: S, target: S) -> None:
    # B-CON-05 B-FREE-02 X-05
    change = Change(record_in(source), NOW)
    change.move(target, "job.test")
    leaves = source in IN_FLIGHT and target not in IN_FLIGHT
    assert change.freed == ("worker-1" if leaves else None)


def test_the_one_who_is_freed_is_the_present_holder_and_not_the_last_assignee() -> None:
    #
    change = Change(record_in(S.RUNNING, lease_owner="worker-2"), NOW)
    change.move(S.COMPLETED, "job.completed")
    assert change.freed == "worker-2"


def test_a_held_job_without_an_owner_releases_no_slot() -> None:
    change = Change(record_in(S.RUNNING, lease_owner=None), NOW)
    change.move(S.COMPLETED, "job.completed")
    assert change.freed is None


@pytest.mark.parametrize(("source", "target"), [pair for pair in LEGAL if pair[1] in FINAL])
def test_the_end_time_is_set_on_every_way_into_a_final_status_and_only_if_unset(source: S, target: S) -> None:
    # Q-JOB-08 X-15
    record = record_in(source, finalized_at=None, blocked=True)
    Change(record, NOW).move(target, "job.test")
    assert record.finalized_at == NOW
    assert not record.blocked
    again = record_in(source, finalized_at=BORN)
    Change(again, NOW).move(target, "job.test")
    assert again.finalized_at == BORN


@pytest.mark.parametrize(("source", "target"), [pair for pair in LEGAL if pair[1] not in FINAL])
def test_a_status_that_is_not_final_sets_no_end_time(source: S, target: S) -> None:
    #
    record = record_in(source, finalized_at=None)
    Change(record, NOW).move(target, "job.test")
    assert record.finalized_at is None


@pytest.mark.parametrize(("source", "target"), [pair for pair in LEGAL if pair[1].eligible])
def test_a_job_that_becomes_eligible_gets_its_sort_key(source: S, target: S) -> None:
    record = record_in(source, blocked=True, eligible_at=0, sort_key=0, run_at=NOW + 9 * SECOND)
    Change(record, NOW).move(target, "job.test")
    assert (record.eligible_at, record.sort_key, record.blocked) == (NOW + 9 * SECOND, NOW + 9 * SECOND, False)


def test_a_change_remembers_where_the_job_was() -> None:
    change = Change(record_in(S.RUNNING, retry_count=3, blocked=True), NOW)
    change.move(S.FAILED_RETRY, "job.failed")
    change.record.retry_count += 1
    assert (change.was, change.was_retries, change.was_owner) == (S.RUNNING, 3, "worker-1")


def test_one_jobs_events_are_numbered_without_a_gap_across_changes() -> None:
    record = new_record()
    first = Change(record, NOW)
    first.add_event("job.delayed")
    first.move(S.RUNNING, "job.active")
    second = Change(record, NOW + 1)
    second.add_event("job.progress")
    second.move(S.COMPLETED, "job.completed")
    numbers = [event.job_seq for event in [*first.events, *second.events]]
    assert numbers == [1, 2, 3, 4]
    assert record.job_seq == 4


def test_an_event_that_is_no_transition_has_no_statuses_and_changes_no_status() -> None:
    record = record_in(S.RUNNING)
    before = copy_of(record)
    change = Change(record, NOW)
    change.add_event("job.progress", {"share": 0.5})
    (event,) = change.events
    assert (event.from_status, event.to_status) == (None, None)
    before.job_seq += 1
    assert record == before


@pytest.mark.parametrize(
    ("run_at", "reported"),
    [(None, "job.promoted"), (NOW - 1, "job.promoted"), (NOW, "job.promoted"), (NOW + 1, "job.delayed")],
)
def test_an_eligible_job_is_recorded_as_delayed_if_it_must_wait_and_as_promoted_if_not(
    run_at: int | None, reported: str
) -> None:
    # M-EV-08 M-EV-09 X-90
    change = Change(record_in(S.FAILED_RETRY, run_at=run_at), NOW)
    change.add_delayed_or_promoted()
    assert [event.event for event in change.events] == [reported]
    if reported == "job.delayed":
        assert change.events[0].detail == json.dumps({"until": run_at})


# -- the fence

HELD = Lease("token-1", 1, None)


@pytest.mark.parametrize("status", STATUSES)
def test_a_caller_without_a_lease_passes_the_fence_in_every_status(status: S) -> None:
    # Q-FAIL-06 X-111
    check_lease(record_in(status, lease_expires_at=NOW - 1), None, NOW, S.COMPLETED)


@pytest.mark.parametrize("status", STATUSES)
def test_a_lease_on_a_job_without_a_worker_is_rejected_as_not_in_flight_first(status: S) -> None:
    # T-ERR-02 X-45 T-M4-02
    record = record_in(status)
    if status in IN_FLIGHT:
        check_lease(record, HELD, NOW, S.COMPLETED)
        return
    record.lease_expires_at = NOW - 1
    with pytest.raises(JobNotInflight) as refusal:
        check_lease(record, HELD, NOW, S.COMPLETED)
    assert (refusal.value.job_id, refusal.value.status, refusal.value.target) == ("j1", status, S.COMPLETED)


STALE_LEASES = {
    "another token": Lease("token-2", 1, None),
    "an older epoch": Lease("token-1", 0, None),
    "a later epoch": Lease("token-1", 2, None),
    "nothing right": Lease("", 99, None),
}


@pytest.mark.parametrize("lease", STALE_LEASES.values(), ids=STALE_LEASES)
def test_a_lease_that_is_not_the_jobs_is_a_mismatch(lease: Lease) -> None:
    # X-45 X-61
    with pytest.raises(LeaseLost) as refusal:
        check_lease(record_in(S.RUNNING), lease, NOW, S.COMPLETED)
    assert (refusal.value.job_id, refusal.value.reason) == ("j1", "mismatch")


@pytest.mark.parametrize("lease", [HELD, *STALE_LEASES.values()], ids=["its own", *STALE_LEASES])
def test_a_lease_that_has_ended_is_expired_even_if_it_is_also_not_the_jobs(lease: Lease) -> None:
    #
    with pytest.raises(LeaseLost) as refusal:
        check_lease(record_in(S.RUNNING, lease_expires_at=NOW - 1), lease, NOW, S.COMPLETED)
    assert refusal.value.reason == "expired"


def test_a_lease_ends_at_its_instant_and_not_a_microsecond_before() -> None:
    #
    record = record_in(S.RUNNING, lease_expires_at=NOW)
    check_lease(record, HELD, NOW - 1, S.COMPLETED)
    with pytest.raises(LeaseLost, match="expired before this call"):
        check_lease(record, HELD, NOW, S.COMPLETED)


def test_a_lease_without_an_end_never_expires() -> None:
    #
    check_lease(record_in(S.RUNNING, lease_expires_at=None), HELD, NOW * 2, S.COMPLETED)


def test_the_stored_end_counts_and_not_the_one_the_caller_remembers() -> None:
    remembered = Lease("token-1", 1, None)
    with pytest.raises(LeaseLost, match="expired before this call"):
        check_lease(record_in(S.RUNNING, lease_expires_at=NOW - 1), remembered, NOW, S.COMPLETED)
