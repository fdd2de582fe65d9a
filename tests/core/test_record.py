"""A job as a store keeps it: what a new one may set, its claim order, and its conversion back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.job import Job, Lease
from longshore.core.job_record import Record, claim_order, copy_of, job_of, record_of
from longshore.core.status import JobStatus
from longshore.core.times import SECOND, from_micros
from tests.core.staging import BORN, IN_FLIGHT, NOON, NOW, STATUSES, new_record, record_in

S = JobStatus


def job(**fields: Any) -> Job:
    """A valid job except for the given fields; typed loosely, because callers may pass anything."""
    return Job(**({"id": "j1", "type": "email"} | fields))


# -- conversion from a Job


def test_what_a_caller_says_of_a_new_job_is_kept_as_given() -> None:
    # B-ENQ-06 X-12 T-REC-01 T-REC-02 T-REC-03 T-REC-04 T-REC-05 T-REC-06 T-REC-08
    given_job = job(
        queue="mail",
        payload=b"\x00\xff",
        tags=("b", "a"),
        priority=-3,
        lifo=True,
        run_at=NOON + timedelta(seconds=5),
        expires_at=NOON + timedelta(hours=1),
        timeout=2.5,
        max_attempts=3,
        max_crashes=0,
        idempotency_key="k",
        concurrency_key="c",
        parent_id="p",
        depends_on=("x", "y"),
        on_dependency_failure="ignore",
        options={"backoff": {"type": "fixed", "delay": 1}, "note": "ü"},
        created_at=NOON - timedelta(days=1),
    )
    kept = job_of(record_of(given_job, NOW))
    wanted = given_job.replace(timeout=timedelta(seconds=2.5), updated_at=NOON)
    assert kept == wanted


HISTORY: dict[str, Any] = {
    "uid": 99,
    "executions": 4,
    "retry_count": 3,
    "crashes": 2,
    "epoch": 4,
    "started_at": NOON,
    "finalized_at": NOON,
    "last_retry_at": NOON,
    "assigned_at": NOON,
    "assignee_id": "somebody",
    "lease": Lease("token", 4, None),
    "result": b"result",
    "error_message": "broken",
    "progress": 50,
    "checkpoint": b"half",
}


def test_a_new_record_begins_with_nothing_counted_and_nothing_happened() -> None:
    record = record_of(job(), NOW)
    counters = (record.executions, record.retry_count, record.crashes, record.epoch, record.job_seq)
    assert counters == (0, 0, 0, 0, 0)
    assert (record.deps_total, record.deps_left, record.uid, record.blocked) == (0, 0, 0, False)
    assert (record.result, record.error_message, record.progress, record.checkpoint) == (None, "", None, None)
    assert (record.assignee_id, record.lease_owner, record.lease_token, record.lease_expires_at) == (None,) * 4
    assert (record.started_at, record.finalized_at, record.last_retry_at, record.assigned_at) == (None,) * 4
    assert record_of(job(depends_on=("x", "y", "x")), NOW).deps_total == 2


def test_a_delay_is_remembered_as_it_was_given() -> None:
    # M-JOB-14
    assert job_of(record_of(job(delay=5), NOW)).delay == timedelta(seconds=5)
    assert job_of(record_of(job(delay=5, run_at=NOON), NOW)).delay == timedelta(seconds=5)


@pytest.mark.parametrize("field", HISTORY)
def test_a_new_job_has_no_history_whatever_its_caller_says(field: str) -> None:
    # X-12
    fresh = job_of(record_of(job(), NOW))
    reported = job_of(record_of(job(**{field: HISTORY[field]}), NOW))
    assert reported == fresh


def test_a_job_without_a_time_of_creation_was_created_now() -> None:
    # X-12
    assert record_of(job(), NOW).created_at == NOW


def test_the_tags_of_a_job_collapse_and_keep_their_order() -> None:
    # X-12 B-INV-04
    assert record_of(job(tags=["b", "a", "b"]), NOW).tags == ("b", "a")
    assert record_of(job(tags=("A", "a", "a")), NOW).tags == ("A", "a")


@pytest.mark.parametrize("status", STATUSES)
def test_a_new_job_is_pending_or_created_and_no_other_status_is_bent_into_one(status: S) -> None:
    # B-ENQ-03 X-12
    if status in (S.INITIAL_PENDING, S.CREATED):
        assert record_of(job(status=status), NOW).status is status
        return
    with pytest.raises(InvalidArgument, match=status) as refusal:
        record_of(job(status=status), NOW)
    assert refusal.value.field == "status"


def test_a_status_given_as_text_is_taken_by_its_name_or_refused_in_words_that_do_not_contradict_themselves() -> None:
    refused = ""
    try:
        assert record_of(job(status="INITIAL_PENDING"), NOW).status is S.INITIAL_PENDING
    except InvalidArgument as refusal:
        refused = refusal.problem
    assert not refused.endswith("not INITIAL_PENDING")


@pytest.mark.parametrize(
    ("run_at", "delay", "expected"),
    [
        (None, None, None),
        (None, 0, None),
        (None, 5, NOW + 5 * SECOND),
        (None, timedelta(milliseconds=1), NOW + 1000),
        (5, None, NOW + 5 * SECOND),
        (0, None, NOW),
        (timedelta(minutes=1), None, NOW + 60 * SECOND),
        (NOON - timedelta(days=1), None, NOW - 86_400 * SECOND),
        (NOON + timedelta(days=1), 5, NOW + 86_400 * SECOND),
    ],
)
def test_a_job_runs_at_its_time_or_after_its_delay_and_the_time_wins(
    run_at: Any, delay: Any, expected: int | None
) -> None:
    # M-OPT-02 M-JOB-14 X-87 T-REC-05
    assert record_of(job(run_at=run_at, delay=delay), NOW).run_at == expected


ODD_FIELDS: list[tuple[str, object]] = [
    ("id", ""),
    ("id", None),
    ("id", "a\n"),
    ("id", "x" * 256),
    ("type", ""),
    ("type", 5),
    ("queue", ""),
    ("queue", None),
    ("queue", "\x7f"),
    ("payload", "text"),
    ("payload", None),
    ("payload", {"a": 1}),
    ("tags", "abc"),
    ("tags", [""]),
    ("tags", [None]),
    ("tags", 5),
    ("tags", ""),
    ("tags", 0),
    ("depends_on", "j0"),
    ("depends_on", [5]),
    ("depends_on", ""),
    ("depends_on", ["j1"]),
    ("on_dependency_failure", "explode"),
    ("on_dependency_failure", None),
    ("priority", 1.5),
    ("priority", True),
    ("priority", None),
    ("priority", 2**31),
    ("priority", -(2**31) - 1),
    ("lifo", 1),
    ("lifo", None),
    ("run_at", "tomorrow"),
    ("run_at", -1),
    ("run_at", datetime(2026, 1, 1)),  # noqa: DTZ001  # naive on purpose: it must be refused
    ("delay", -1),
    ("delay", float("nan")),
    ("delay", float("inf")),
    ("delay", 8000 * 366 * 86_400.0),
    ("expires_at", "soon"),
    ("expires_at", -1),
    ("timeout", 0),
    ("timeout", -5),
    ("timeout", "5"),
    ("max_attempts", -1),
    ("max_attempts", None),
    ("max_attempts", 2**31),
    ("max_crashes", -1),
    ("max_crashes", 0.5),
    ("idempotency_key", ""),
    ("concurrency_key", "\x00"),
    ("parent_id", 7),
    ("schedule_id", ""),
    ("created_at", 5),
    ("created_at", datetime(2026, 1, 1)),  # noqa: DTZ001  # naive on purpose: it must be refused
    ("options", []),
    ("options", "{}"),
    ("options", 0),
]


@pytest.mark.parametrize(("field", "value"), ODD_FIELDS, ids=lambda value: repr(value)[:30])
def test_an_odd_field_is_refused_under_its_own_name(field: str, value: object) -> None:
    # B-ENQ-02 B-ERR-05
    with pytest.raises(InvalidArgument) as refusal:
        record_of(job(**{field: value}), NOW)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"a": float("nan")}, "options.a"),
        ({"a": {"b": [1, datetime(2026, 1, 1, tzinfo=UTC)]}}, "options.a.b[1]"),
        ({5: 1}, "options"),
        ({"backoff": 5}, "options.backoff"),
        ({"backoff": {"type": "fixed"}}, "options.backoff"),
        ({"backoff": {"type": "linear", "delay": 1}}, "backoff.type"),
        ({"backoff": {"type": "fixed", "delay": -1}}, "backoff.delay"),
    ],
)
def test_odd_options_are_refused_where_they_are_odd(options: Mapping[Any, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        record_of(job(options=options), NOW)
    assert refusal.value.field == field


@pytest.mark.parametrize("thing", [None, "j1", {"id": "j1"}, object()])
def test_only_a_job_can_be_enqueued(thing: object) -> None:
    # B-ENQ-01 B-ERR-05
    with pytest.raises(InvalidArgument) as refusal:
        record_of(thing, NOW)
    assert refusal.value.field == "job"


def test_a_job_cannot_depend_on_itself() -> None:
    # X-88
    with pytest.raises(InvalidArgument, match="j1 -> j1"):
        record_of(job(depends_on=["j0", "j1"]), NOW)


# -- the sort key


def test_a_job_without_a_time_stands_where_it_came_in() -> None:
    # B-DEQ-05
    record = new_record(now=BORN)
    assert (record.eligible_at, record.sort_key) == (BORN, BORN)


def test_a_job_that_failed_stands_where_it_failed() -> None:
    # B-DEQ-05 X-14
    record = new_record(last_retry_at=NOW)
    record.set_sort_key(NOW)
    assert record.eligible_at == NOW


@pytest.mark.parametrize("run_at", [BORN - SECOND, BORN, NOW + SECOND])
def test_a_job_stands_at_the_later_of_its_time_and_its_coming(run_at: int) -> None:
    record = new_record(run_at=run_at)
    record.set_sort_key(NOW)
    assert record.eligible_at == record.sort_key == max(run_at, BORN)


def test_a_job_from_a_clock_ahead_of_ours_is_still_claimable_now() -> None:
    record = new_record(job(created_at=NOON + timedelta(days=1)), now=NOW)
    assert record.created_at == NOW + 86_400 * SECOND
    assert record.eligible_at == NOW


def test_a_new_sort_key_unblocks_the_job() -> None:
    record = new_record(blocked=True)
    record.set_sort_key(NOW)
    assert not record.blocked


JOBS_IN_LINE = st.lists(
    st.tuples(st.integers(-2, 2), st.booleans(), st.integers(0, 3), st.none() | st.integers(0, 3)), max_size=12
)


@given(JOBS_IN_LINE)
def test_the_line_is_by_priority_then_lifo_newest_first_then_oldest_then_insertion(
    jobs: list[tuple[int, bool, int, int | None]],
) -> None:
    # B-DEQ-05 B-INV-06 M-OPT-01 M-OPT-06 M-QUE-14 X-14 X-85 X-86
    records = []
    for uid, (priority, lifo, created, retried) in enumerate(jobs, start=1):
        record = new_record(job(priority=priority, lifo=lifo), uid=uid, now=BORN + created)
        record.last_retry_at = None if retried is None else BORN + retried
        record.set_sort_key(NOW)
        records.append(record)

    def by_the_documents(record: Record) -> tuple[int, int, int, int]:
        came = record.created_at if record.last_retry_at is None else record.last_retry_at
        if record.lifo:
            return (record.priority, 0, -record.uid, 0)
        return (record.priority, 1, came, record.uid)

    assert sorted(records, key=claim_order) == sorted(records, key=by_the_documents)


@given(st.integers(-(2**55), 2**55), st.integers(1, 2**55))
def test_no_time_of_creation_brings_an_ordinary_job_before_a_lifo_one(created: int, uid: int) -> None:
    # X-86
    ordinary = new_record(created_at=created, uid=1)
    ordinary.set_sort_key(created)
    last_in = new_record(job(lifo=True), uid=uid)
    assert claim_order(last_in) < claim_order(ordinary)


# -- conversion to a Job


@pytest.mark.parametrize("status", STATUSES)
def test_a_job_has_a_lease_exactly_while_a_worker_holds_it(status: S) -> None:
    # B-CON-09 X-06 X-114
    shown = job_of(record_in(status))
    if status in IN_FLIGHT:
        expires = from_micros(NOW + 30 * SECOND)
        assert shown.lease == Lease("token-1", 1, expires, cancel_requested=status is S.CANCELLING)
    else:
        assert shown.lease is None


def test_a_lease_without_an_end_is_shown_without_one() -> None:
    # X-48
    shown = job_of(record_in(S.RUNNING, lease_expires_at=None)).lease
    assert shown is not None
    assert shown.expires_at is None


def test_what_a_job_wrote_is_shown_as_it_wrote_it() -> None:
    # M-JOB-07 X-77
    record = record_in(S.RUNNING, progress='{"share":0.5}', checkpoint=b'[1,"a"]', options='{"note":"x"}')
    shown = job_of(record)
    assert (shown.progress, shown.checkpoint, shown.options) == ({"share": 0.5}, [1, "a"], {"note": "x"})
    assert job_of(record_in(S.RUNNING, checkpoint=b"\x00raw")).checkpoint == b"raw"
    assert job_of(record_in(S.RUNNING)).checkpoint is None


def test_a_job_that_comes_out_is_as_frozen_as_one_that_was_made() -> None:
    shown = job_of(record_in(S.RUNNING))
    assert type(shown) is Job
    with pytest.raises(dataclasses.FrozenInstanceError):
        cast(Any, shown).status = S.COMPLETED
    made = Job(**{spec.name: getattr(shown, spec.name) for spec in dataclasses.fields(Job)})
    assert shown == made
    assert shown.replace(priority=5).priority == 5


def test_every_field_of_a_public_job_comes_from_the_record() -> None:
    # B-GET-01 B-OBS-01
    times = {
        name: BORN + number
        for number, name in enumerate(
            ["created_at", "updated_at", "started_at", "finalized_at", "last_retry_at", "assigned_at", "run_at"]
        )
    }
    numbers: dict[str, Any] = {"uid": 3, "executions": 4, "retry_count": 5, "crashes": 6, "epoch": 7, "priority": 8}
    texts: dict[str, Any] = {"assignee_id": "w", "error_message": "e", "result": b"r", "schedule_id": "s"}
    shown = job_of(record_in(S.RUNNING, **times, **numbers, **texts, timeout=9, delay=10, expires_at=BORN + 11))
    assert {name: getattr(shown, name) for name in times} == {name: from_micros(at) for name, at in times.items()}
    assert {name: getattr(shown, name) for name in numbers} == numbers
    assert {name: getattr(shown, name) for name in texts} == texts
    assert (shown.timeout, shown.delay) == (timedelta(microseconds=9), timedelta(microseconds=10))
    assert shown.expires_at == from_micros(BORN + 11)


def test_a_copy_is_equal_and_apart() -> None:
    record = record_in(S.RUNNING)
    copy = copy_of(record)
    assert copy == record
    copy.status = S.COMPLETED
    assert record.status is S.RUNNING
