"""What each operation does to a job: its target, counters and events; and what it rejects."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core import transitions
from longshore.core.errors import InvalidTransition, JobNotInflight
from longshore.core.job_record import Record, copy_of, job_of
from longshore.core.status import JobStatus, Verb
from longshore.core.times import LATEST, SECOND
from longshore.core.transitions import Change, EventRow, added
from tests.core.staging import BORN, FINAL, IN_FLIGHT, NOW, PAIRS, STATUSES, arrow, new_record, record_in

S = JobStatus
Act = Callable[[Change], None]

VERBS: dict[str, Act] = {
    "ACCEPT": transitions.accept,
    "CLAIM": lambda change: transitions.claim(change, "worker-2", "token-2", NOW + 60 * SECOND),
    "COMPLETE": lambda change: transitions.complete(change, b"done"),
    "FAIL": lambda change: transitions.fail(change, "broken", None),
    "BURY": lambda change: transitions.bury(change, "broken beyond repair"),
    "STOP": lambda change: transitions.stop(change, "stopped"),
    "STOP_WITH_RETRY": lambda change: transitions.stop_with_retry(change, "failed while stopping"),
    "MARK_UNKNOWN_STOPPED": lambda change: transitions.stop(change, "lost", Verb.MARK_UNKNOWN_STOPPED),
    "RELEASE": lambda change: transitions.release(change, None, "closing"),
    "CANCEL": transitions.cancel,
    "EXPIRE": transitions.expire,
    "ACKNOWLEDGE": lambda change: transitions.acknowledge(change, was_executing=True),
    "DISOWN": lambda change: transitions.acknowledge(change, was_executing=False),
    "CRASH": lambda change: transitions.crash(change, "its lease ran out"),
    "RETRY": lambda change: transitions.retry(change, reset=True, actor="ada"),
    "DEPENDENCIES_COMPLETED": transitions.dependencies_completed,
    "DEPENDENCY_FAILED": lambda change: transitions.dependency_failed(change, "j0"),
}


def where(status: S, verb: str) -> list[S]:
    """The transitions of an operation by the hand-written table; burying a running job takes two."""
    if (status, verb) == (S.RUNNING, "BURY"):
        return [S.FAILED_RETRY, S.DEAD]
    if (status, verb) == (S.CREATED, "ACCEPT"):
        return [S.INITIAL_PENDING]
    target = arrow(status, verb)
    return [] if target is None else [S(target)]


EVERY_QUESTION = [(status, verb) for status in STATUSES for verb in VERBS]
LEGAL = [question for question in EVERY_QUESTION if where(*question)]
ILLEGAL = [question for question in EVERY_QUESTION if not where(*question)]


def done(record: Record, verb: str | Act, now: int = NOW) -> Change:
    change = Change(record, now)
    (VERBS[verb] if isinstance(verb, str) else verb)(change)
    return change


def names(change: Change) -> list[str]:
    return [event.event for event in change.events]


def detail(event: EventRow) -> dict[str, Any]:
    assert event.detail is not None
    found = json.loads(event.detail)
    assert isinstance(found, dict)
    return found


# -- the whole table


@pytest.mark.parametrize(("status", "verb"), LEGAL)
def test_a_verb_moves_a_job_along_the_table_and_records_each_step(status: S, verb: str) -> None:
    # B-COMP-02 B-COMP-03 B-COMP-04 B-COMP-05 B-FAIL-03 B-FAIL-04 B-STOP-02 B-STOP-03 B-STOP-04 B-SWR-02 B-MUS-02
    # B-MUS-03 B-MUS-04 B-CAN-03 B-CAN-04 B-CAN-05 B-CAN-06 B-ACK-02 B-ACK-03 B-MWU-02 B-MWU-03 O-TR-01 O-TR-02
    # O-TR-03 O-TR-04 O-TR-06 X-60
    change = done(record_in(status), verb)
    steps = where(status, verb)
    assert change.record.status is steps[-1]
    moves = [(event.from_status, event.to_status) for event in change.events if event.to_status is not None]
    assert moves == list(zip([status, *steps], steps, strict=False))


@pytest.mark.parametrize(("status", "verb"), ILLEGAL)
def test_a_rejected_operation_changes_no_record_and_records_no_event(status: S, verb: str) -> None:
    # B-ERR-02 O-SM-02 X-07
    record = record_in(status)
    before = copy_of(record)
    change = Change(record, NOW)
    with pytest.raises(InvalidTransition) as refusal:
        VERBS[verb](change)
    assert (refusal.value.job_id, refusal.value.status) == ("j1", status)
    assert record == before
    assert change.events == []


# verb: how executions, retry_count, crashes and epoch grow
COUNTED = {
    "CLAIM": (1, 0, 0, 1),
    "FAIL": (0, 1, 0, 0),
    "STOP_WITH_RETRY": (0, 1, 0, 0),
    "CRASH": (0, 0, 1, 0),
}


@pytest.mark.parametrize(("status", "verb"), [(status, verb) for status, verb in LEGAL if verb != "RETRY"])
def test_each_counter_grows_by_its_own_verb_and_by_no_other(status: S, verb: str) -> None:
    # B-FAIL-05 B-SWR-03 X-62 X-70 X-115 O-DM-03 T-REC-07 X-46
    record = record_in(status, executions=5, retry_count=3, crashes=2, epoch=8)
    done(record, verb)
    expected = (0, 1, 0, 0) if (status, verb) == (S.RUNNING, "BURY") else COUNTED.get(verb, (0, 0, 0, 0))
    grown = (record.executions - 5, record.retry_count - 3, record.crashes - 2, record.epoch - 8)
    assert grown == expected


@pytest.mark.parametrize(("status", "verb"), [(status, verb) for status, verb in LEGAL if verb != "CLAIM"])
def test_the_last_assignee_and_the_first_start_are_never_forgotten(status: S, verb: str) -> None:
    # B-CON-08 B-COMP-08 B-FAIL-07 B-STOP-05 B-SWR-03 B-MUS-05 B-ACK-04 B-MWU-04 B-RST-03 Q-JOB-13 Q-JOB-14
    record = record_in(status)
    before = (record.assignee_id, record.assigned_at, record.started_at)
    done(record, verb)
    assert (record.assignee_id, record.assigned_at, record.started_at) == before


# -- enqueue and accept


def arrived(record: Record) -> list[EventRow]:
    more: list[EventRow] = []
    transitions.arrive(record, NOW, more)
    return [added(record, NOW), *more]


def test_a_new_job_gets_its_sort_key_and_an_event_without_a_previous_status() -> None:
    # M-TR-01 M-QUE-02
    record = new_record(eligible_at=0, sort_key=0)
    (event,) = arrived(record)
    assert (event.event, event.from_status, event.to_status) == ("job.added", None, S.INITIAL_PENDING)
    assert (event.job_seq, event.occurred_at, record.job_seq) == (1, NOW, 1)
    assert (record.eligible_at, record.sort_key) == (BORN, BORN)


@pytest.mark.parametrize(
    ("status", "deps_left", "run_at", "lands_in", "reported"),
    [
        (S.INITIAL_PENDING, 0, NOW, S.INITIAL_PENDING, ["job.added"]),
        (S.INITIAL_PENDING, 0, NOW + 1, S.INITIAL_PENDING, ["job.added", "job.delayed"]),
        (S.INITIAL_PENDING, 2, None, S.WAITING_CHILDREN, ["job.added", "job.waiting_children"]),
        (S.INITIAL_PENDING, 2, NOW + 1, S.WAITING_CHILDREN, ["job.added", "job.waiting_children"]),
        (S.CREATED, 0, None, S.CREATED, ["job.added"]),
        (S.CREATED, 0, NOW + 1, S.CREATED, ["job.added"]),
        (S.CREATED, 2, None, S.CREATED, ["job.added"]),
    ],
)
def test_a_new_job_lands_where_its_dependencies_and_its_time_say(
    status: S, deps_left: int, run_at: int | None, lands_in: S, reported: list[str]
) -> None:
    # M-TR-02 M-TR-03 M-EV-08 O-ST-01
    record = new_record(status=status, deps_left=deps_left, run_at=run_at)
    events = arrived(record)
    assert record.status is lands_in
    assert [event.event for event in events] == reported
    assert [event.job_seq for event in events] == list(range(1, len(reported) + 1))
    assert events[0].to_status is lands_in
    if reported[-1] == "job.waiting_children":
        assert detail(events[1]) == {"waiting_for": 2}
    if reported[-1] == "job.delayed":
        assert detail(events[1]) == {"until": run_at}


def test_an_accepted_job_with_open_dependencies_waits_for_them() -> None:
    # O-TR-01 M-TR-03
    change = done(record_in(S.CREATED, deps_left=2), "ACCEPT")
    assert change.record.status is S.WAITING_CHILDREN
    assert names(change) == ["job.accepted", "job.waiting_children"]
    assert detail(change.events[1]) == {"waiting_for": 2}


@pytest.mark.parametrize(
    ("run_at", "reported"),
    [(None, ["job.accepted"]), (NOW, ["job.accepted"]), (NOW + 1, ["job.accepted", "job.delayed"])],
)
def test_an_accepted_job_is_recorded_as_delayed_only_if_its_run_at_is_in_the_future(
    run_at: int | None, reported: list[str]
) -> None:
    # M-TR-02 M-EV-08
    change = done(record_in(S.CREATED, run_at=run_at), "ACCEPT")
    assert change.record.status is S.INITIAL_PENDING
    assert names(change) == reported


def test_a_job_whose_dependencies_are_complete_joins_the_line_or_waits_for_its_time() -> None:
    # M-TR-06 X-91
    now = done(record_in(S.WAITING_CHILDREN), "DEPENDENCIES_COMPLETED")
    assert names(now) == ["job.dependencies_completed", "job.promoted"]
    later = done(record_in(S.WAITING_CHILDREN, run_at=NOW + 1), "DEPENDENCIES_COMPLETED")
    assert names(later) == ["job.dependencies_completed", "job.delayed"]


def test_a_job_whose_dependency_failed_says_which_one() -> None:
    change = done(record_in(S.WAITING_CHILDREN), "DEPENDENCY_FAILED")
    assert "j0" in change.record.error_message
    assert detail(change.events[0])["dependency"] == "j0"
    assert change.record.finalized_at == NOW


# -- claim


def test_a_claim_gives_the_job_its_owner_a_lease_and_a_new_epoch() -> None:
    # B-DEQ-07 B-DEQ-08 T-M4-01 M-TR-04 Q-JOB-07
    record = record_in(S.INITIAL_PENDING)
    change = done(record, "CLAIM")
    assert (record.assignee_id, record.assigned_at, record.started_at) == ("worker-2", NOW, NOW)
    assert (record.lease_owner, record.lease_token, record.lease_expires_at) == (
        "worker-2",
        "token-2",
        NOW + 60 * SECOND,
    )
    (event,) = change.events
    assert (event.event, event.epoch, event.execution, event.assignee_id) == ("job.active", 1, 1, "worker-2")


def test_a_second_claim_keeps_the_first_start() -> None:
    # B-DEQ-08 Q-JOB-07
    record = record_in(S.FAILED_RETRY)
    done(record, "CLAIM")
    assert (record.started_at, record.assigned_at) == (BORN + 5 * SECOND, NOW)
    assert (record.assignee_id, record.epoch, record.executions) == ("worker-2", 2, 2)


# -- settle


@pytest.mark.parametrize("status", [S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED])
def test_a_completed_job_keeps_its_result_and_its_end_and_no_error(status: S) -> None:
    # B-COMP-06 X-08 X-76
    record = record_in(status, error_message="an earlier one")
    done(record, "COMPLETE")
    assert (record.result, record.error_message, record.finalized_at) == (b"done", "", NOW)


def test_a_completed_job_that_was_never_seen_to_start_started_now() -> None:
    # B-COMP-07
    record = record_in(S.UNKNOWN_RETRY, started_at=None)
    done(record, "COMPLETE")
    assert record.started_at == NOW


@pytest.mark.parametrize("status", [S.RUNNING, S.UNKNOWN_RETRY])
def test_a_failed_job_is_eligible_at_once_and_goes_to_the_back_of_the_line(status: S) -> None:
    # B-FAIL-05 B-FAIL-06 Q-FAIL-03 X-04 X-110 M-TR-09
    record = record_in(status, run_at=BORN)
    change = done(record, "FAIL")
    assert (record.error_message, record.last_retry_at, record.run_at) == ("broken", NOW, None)
    assert (record.eligible_at, record.finalized_at) == (NOW, None)
    assert names(change) == ["job.failed", "job.promoted"]
    assert detail(change.events[0]) == {"error": "broken", "final": False, "failures": 1}


def test_a_failed_job_with_a_time_waits_for_it() -> None:
    # T-RTY-01 T-RTY-02 M-TR-08 M-RTY-06 X-65
    record = record_in(S.RUNNING)
    change = done(record, lambda change: transitions.fail(change, "broken", NOW + 9))
    assert (record.run_at, record.eligible_at) == (NOW + 9, NOW + 9)
    assert names(change) == ["job.failed", "job.delayed"]


def test_the_log_keeps_the_beginning_of_a_long_error_and_the_job_keeps_it_whole() -> None:
    record = record_in(S.RUNNING)
    error = "e" * 10_000
    change = done(record, lambda change: transitions.fail(change, error, None))
    assert record.error_message == error
    assert error.startswith(detail(change.events[0])["error"])
    assert len(detail(change.events[0])["error"]) < 1000


def test_burying_a_running_job_is_a_failure_and_a_death_both_in_the_history() -> None:
    # X-60 X-41 T-FAIL-01 M-TR-10 M-RTY-07 X-89
    record = record_in(S.RUNNING)
    change = done(record, "BURY")
    assert names(change) == ["job.failed", "job.dead"]
    assert [(event.from_status, event.to_status) for event in change.events] == [
        (S.RUNNING, S.FAILED_RETRY),
        (S.FAILED_RETRY, S.DEAD),
    ]
    assert detail(change.events[0])["final"] is True
    assert (record.retry_count, record.last_retry_at, record.error_message) == (1, NOW, "broken beyond repair")
    assert record.finalized_at == NOW
    assert change.freed == "worker-1"


@pytest.mark.parametrize("status", [S.FAILED_RETRY, S.UNKNOWN_RETRY])
def test_burying_a_job_that_waits_counts_no_failure_and_needs_no_new_error(status: S) -> None:
    record = record_in(status, retry_count=2, error_message="the last failure")
    change = done(record, lambda change: transitions.bury(change, ""))
    assert (record.status, record.retry_count, record.error_message) == (S.DEAD, 2, "the last failure")
    assert names(change) == ["job.dead"]


@pytest.mark.parametrize("verb", ["STOP", "MARK_UNKNOWN_STOPPED"])
@pytest.mark.parametrize("status", [S.RUNNING, S.CANCELLING, S.UNKNOWN_RETRY])
def test_a_stopped_job_has_the_error_it_was_stopped_with_and_no_failure_counted(status: S, verb: str) -> None:
    # B-STOP-05 B-MUS-05
    record = record_in(status, error_message="old")
    change = done(record, verb)
    assert record.error_message == {"STOP": "stopped", "MARK_UNKNOWN_STOPPED": "lost"}[verb]
    assert (record.retry_count, record.last_retry_at, record.finalized_at) == (0, None, NOW)
    assert names(change) == ["job.stopped"]


def test_stopping_without_an_error_leaves_none() -> None:
    # B-STOP-01 B-STOP-05
    record = record_in(S.RUNNING, error_message="old")
    change = done(record, lambda change: transitions.stop(change, ""))
    assert record.error_message == ""
    assert change.events[0].detail is None


def test_a_job_that_fails_while_it_is_cancelled_is_stopped_and_its_failure_counted() -> None:
    # B-SWR-02 B-SWR-03 Q-SWR-01
    record = record_in(S.CANCELLING)
    change = done(record, "STOP_WITH_RETRY")
    assert (record.status, record.retry_count, record.last_retry_at) == (S.STOPPED, 1, NOW)
    assert (record.error_message, record.finalized_at) == ("failed while stopping", NOW)
    (event,) = change.events
    assert (event.event, detail(event)["final"]) == ("job.stopped", True)
    assert change.freed == "worker-1"


def test_an_acknowledged_cancellation_keeps_the_error_of_an_earlier_try() -> None:
    record = record_in(S.CANCELLING, error_message="the try before")
    change = done(record, "ACKNOWLEDGE")
    assert (record.error_message, record.finalized_at) == ("the try before", NOW)
    assert detail(change.events[0]) == {"was_executing": True}


# -- release and crash


def test_a_released_job_counts_no_failure_and_keeps_its_sort_key() -> None:
    # X-14
    record = record_in(S.RUNNING)
    change = done(record, "RELEASE")
    assert (record.status, record.crashes, record.retry_count, record.last_retry_at) == (S.UNKNOWN_RETRY, 0, 0, None)
    assert record.eligible_at == BORN
    assert names(change) == ["job.released"]
    assert detail(change.events[0]) == {"reason": "closing"}


def test_a_job_may_be_released_until_later() -> None:
    record = record_in(S.RUNNING)
    change = done(record, lambda change: transitions.release(change, NOW + 60 * SECOND, ""))
    assert (record.run_at, record.eligible_at) == (NOW + 60 * SECOND, NOW + 60 * SECOND)
    assert names(change) == ["job.released", "job.delayed"]


def test_a_cancelled_job_cannot_be_released_and_must_be_acknowledged() -> None:
    with pytest.raises(InvalidTransition, match="acknowledge a cancelled job") as refusal:
        done(record_in(S.CANCELLING), "RELEASE")
    assert not isinstance(refusal.value, JobNotInflight)
    assert refusal.value.target is S.UNKNOWN_RETRY


@pytest.mark.parametrize(
    ("crashes_before", "max_crashes", "buried"),
    [(0, None, False), (1000, None, False), (0, 0, True), (0, 1, False), (1, 1, True), (2, 3, False), (3, 3, True)],
)
def test_a_crash_sends_the_job_back_until_its_own_limit_is_passed(
    crashes_before: int, max_crashes: int | None, buried: bool
) -> None:
    # X-62 M-TR-11 M-TR-12 M-SCHED-04 M-SCHED-05 O-FAIL-02
    record = record_in(S.RUNNING, crashes=crashes_before, max_crashes=max_crashes, retry_count=2, max_attempts=1)
    change = done(record, "CRASH")
    assert record.crashes == crashes_before + 1
    assert (record.retry_count, record.last_retry_at) == (2, None)
    moves = [(event.from_status, event.to_status) for event in change.events if event.to_status]
    if buried:
        assert moves == [(S.RUNNING, S.UNKNOWN_RETRY), (S.UNKNOWN_RETRY, S.DEAD)]
        assert names(change) == ["job.stalled", "job.failed", "job.dead"]
        assert detail(change.events[1])["final"] is True
        assert "its lease ran out" in record.error_message
        assert record.finalized_at == NOW
    else:
        assert moves == [(S.RUNNING, S.UNKNOWN_RETRY)]
        assert names(change) == ["job.stalled", "job.promoted"]
        assert record.eligible_at == BORN
    assert change.freed == "worker-1"


def test_a_crash_waits_for_the_backoff_if_the_job_has_one() -> None:
    # X-71
    options = json.dumps({"backoff": {"type": "exponential", "delay": 10}})
    record = record_in(S.RUNNING, options=options, crashes=2)
    change = done(record, "CRASH")
    assert record.run_at == record.eligible_at == NOW + 40 * SECOND
    assert names(change) == ["job.stalled", "job.delayed"]


@pytest.mark.parametrize(
    ("backoff", "crashes"),
    [({"type": "fixed", "delay": 2.53e11}, 0), ({"type": "exponential", "delay": 1}, 60)],
    ids=["a wait of 8000 years", "the sixtieth doubling"],
)
def test_a_crash_whose_backoff_reaches_beyond_all_time_leaves_a_job_that_can_still_be_read(
    backoff: dict[str, object], crashes: int
) -> None:
    record = record_in(S.RUNNING, options=json.dumps({"backoff": backoff}), crashes=crashes)
    done(record, "CRASH")
    assert record.run_at is not None
    assert NOW < record.run_at <= LATEST
    assert isinstance(job_of(record).run_at, datetime)


def test_a_cancelled_job_whose_owner_vanishes_is_over_whatever_its_limit() -> None:
    # B-MWU-03 X-01 X-23
    record = record_in(S.CANCELLING, max_crashes=None)
    change = done(record, "CRASH")
    assert (record.status, record.crashes, record.finalized_at) == (S.UNKNOWN_STOPPED, 1, NOW)
    assert (names(change), change.freed) == (["job.stopped"], "worker-1")


# -- cancellation and expiry


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (S.CREATED, "job.stopped"),
        (S.WAITING_CHILDREN, "job.stopped"),
        (S.INITIAL_PENDING, "job.stopped"),
        (S.FAILED_RETRY, "job.stopped"),
        (S.UNKNOWN_RETRY, "job.stopped"),
        (S.RUNNING, "job.cancelling"),
    ],
)
def test_cancelling_ends_a_waiting_job_and_requests_the_cancellation_of_a_running_one(status: S, event: str) -> None:
    # B-CAN-03 B-CAN-04 B-CAN-05 B-CAN-06 X-15
    change = done(record_in(status), "CANCEL")
    assert names(change) == [event]
    assert change.record.finalized_at == (None if status is S.RUNNING else NOW)
    assert change.freed is None


@pytest.mark.parametrize("status", [S.WAITING_CHILDREN, S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY])
def test_a_job_past_its_time_ends_as_a_cancelled_one_would_and_says_why(status: S) -> None:
    change = done(record_in(status), "EXPIRE")
    cancelled = done(record_in(status), "CANCEL")
    assert change.record.status is cancelled.record.status
    assert "expires_at" in change.record.error_message
    assert detail(change.events[0]) == {"reason": "expired"}


# -- retry and promote


@pytest.mark.parametrize("reset", [True, False])
def test_a_dead_job_is_retried_with_an_actor_and_its_counters_restart_unless_kept(reset: bool) -> None:
    # X-69 X-94 M-RTY-09 O-ST-09
    record = record_in(
        S.DEAD, executions=5, retry_count=3, crashes=2, epoch=5, error_message="why it died", run_at=BORN
    )
    change = done(record, lambda change: transitions.retry(change, reset=reset, actor="ada"))
    assert record.status is S.FAILED_RETRY
    assert (record.retry_count, record.crashes) == ((0, 0) if reset else (3, 2))
    assert (record.executions, record.epoch) == (5, 5)
    assert (record.error_message, record.finalized_at, record.run_at) == ("", None, None)
    (event,) = change.events
    assert (event.event, event.actor, detail(event)) == ("job.retried", "ada", {"reset": reset})


@pytest.mark.parametrize("status", [S.INITIAL_PENDING, S.FAILED_RETRY, S.UNKNOWN_RETRY])
def test_a_promoted_job_may_run_now_and_keeps_its_status(status: S) -> None:
    # M-JM-05
    record = record_in(status, run_at=NOW + SECOND, eligible_at=NOW + SECOND, blocked=False)
    change = done(record, transitions.promote)
    assert (record.status, record.run_at, record.updated_at) == (status, None, NOW)
    assert record.eligible_at <= NOW
    assert names(change) == ["job.promoted"]


@pytest.mark.parametrize("run_at", [None, NOW - 1])
def test_a_job_that_came_while_the_clock_was_ahead_can_be_promoted(run_at: int | None) -> None:
    ahead = NOW + 3600 * SECOND
    record = record_in(S.FAILED_RETRY, run_at=run_at, last_retry_at=ahead, eligible_at=ahead, sort_key=ahead)
    change = done(record, transitions.promote)
    assert record.eligible_at == record.sort_key == NOW
    assert names(change) == ["job.promoted"]


@pytest.mark.parametrize("run_at", [None, NOW - 1, NOW])
def test_promoting_a_job_that_may_run_already_changes_nothing(run_at: int | None) -> None:
    record = record_in(S.FAILED_RETRY, run_at=run_at)
    before = copy_of(record)
    assert done(record, transitions.promote).events == []
    assert record == before


@pytest.mark.parametrize("status", [status for status in STATUSES if not status.eligible])
def test_a_job_that_does_not_wait_for_its_time_cannot_be_promoted(status: S) -> None:
    record = record_in(status, run_at=NOW + SECOND)
    before = copy_of(record)
    with pytest.raises(InvalidTransition):
        done(record, transitions.promote)
    assert record == before


# -- update_job_status


def moved(record: Record, target: S, result: bytes | None = None, error: str = "") -> Change:
    return done(record, lambda change: transitions.update(change, target, result, error, "by-hand"))


BY_OWN_VERB_ONLY = {
    (S.WAITING_CHILDREN, S.INITIAL_PENDING),
    (S.DEAD, S.FAILED_RETRY),
    (S.CREATED, S.INITIAL_PENDING),
    (S.CREATED, S.WAITING_CHILDREN),
}


@pytest.mark.parametrize("target", STATUSES)
@pytest.mark.parametrize("source", STATUSES)
def test_a_move_by_hand_follows_the_table_less_its_exceptions_and_touches_no_counter(source: S, target: S) -> None:
    # B-UPD-01 B-UPD-04 B-UPD-06 B-UPD-08 X-10
    record = record_in(source, executions=5, retry_count=3, crashes=2, epoch=8, last_retry_at=BORN)
    before = copy_of(record)
    if (source, target) not in PAIRS or (source, target) in BY_OWN_VERB_ONLY:
        with pytest.raises(InvalidTransition) as refusal:
            moved(record, target, b"r", "e")
        assert (refusal.value.status, refusal.value.target) == (source, target)
        assert record == before
        return
    change = moved(record, target)
    assert record.status is target
    assert (record.executions, record.retry_count, record.crashes, record.last_retry_at) == (5, 3, 2, BORN)
    assert (record.assignee_id, record.assigned_at) == (before.assignee_id, before.assigned_at)
    assert names(change) == ["job.updated"]


def test_a_job_moved_to_running_by_hand_has_a_new_epoch_a_short_lease_and_no_owner() -> None:
    # B-UPD-03 X-10
    record = record_in(S.INITIAL_PENDING)
    moved(record, S.RUNNING)
    assert (record.epoch, record.executions) == (1, 0)
    assert (record.lease_owner, record.lease_token, record.lease_expires_at) == (None, "by-hand", NOW + 30 * SECOND)
    assert record.started_at == NOW
    later = record_in(S.FAILED_RETRY)
    moved(later, S.RUNNING)
    assert (later.started_at, later.assignee_id) == (BORN + 5 * SECOND, "worker-1")


def test_a_move_by_hand_writes_a_result_and_an_error_only_where_they_are_given() -> None:
    # B-UPD-02
    record = record_in(S.RUNNING, result=b"old", error_message="old")
    moved(record, S.STOPPED)
    assert (record.result, record.error_message) == (b"old", "old")
    again = record_in(S.RUNNING, result=b"old", error_message="old")
    moved(again, S.STOPPED, b"", "new")
    assert (again.result, again.error_message) == (b"", "new")


def test_a_move_by_hand_to_an_end_sets_the_end_time_only_if_unset() -> None:
    # B-UPD-03 X-08
    record = record_in(S.RUNNING)
    moved(record, S.UNKNOWN_STOPPED)
    assert record.finalized_at == NOW
    late = record_in(S.UNKNOWN_STOPPED)
    moved(late, S.COMPLETED)
    assert late.finalized_at == BORN + 10 * SECOND


# -- random histories


@given(
    st.lists(st.tuples(st.sampled_from(sorted(VERBS)), st.integers(0, 5)), max_size=40), st.sampled_from([None, 0, 2])
)
def test_whatever_is_tried_a_jobs_history_is_legal_and_its_record_agrees_with_it(
    attempts: list[tuple[str, int]], max_crashes: int | None
) -> None:
    # O-SM-01 O-SM-02 B-INV-03
    record = new_record(max_crashes=max_crashes)
    events: list[EventRow] = []
    now = BORN
    for verb, passed in attempts:
        now += passed * SECOND
        change = Change(copy_of(record), now)
        try:
            VERBS[verb](change)
        except InvalidTransition:
            continue
        record = change.record
        events += change.events
        assert (record.lease_token is not None) == (record.status in IN_FLIGHT)
        assert (record.finalized_at is not None) == (record.status in FINAL)
        assert record.eligible_at <= now or record.status not in (S.FAILED_RETRY, S.UNKNOWN_RETRY)
        assert record.retry_count + record.crashes <= record.executions * 2
    assert [event.job_seq for event in events] == list(range(1, len(events) + 1))
    steps = [event for event in events if event.to_status is not None]
    assert not steps or (steps[0].from_status, steps[-1].to_status) == (S.INITIAL_PENDING, record.status)
    assert all((step.from_status, step.to_status) in PAIRS for step in steps)
    assert all(step.to_status is not S.INITIAL_PENDING for step in steps)
    for before, after in pairwise(steps):
        assert after.from_status is before.to_status
        assert after.epoch >= before.epoch
    assert record.epoch == sum(event.event == "job.active" for event in events)
