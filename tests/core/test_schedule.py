"""A schedule: its checks, and what putting, pausing, resuming and firing do to it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from longshore.core import schedule as plans
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.job_record import record_like, record_of
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule, check_schedule
from longshore.core.times import SECOND, from_micros, to_micros
from tests.core.staging import NOON, NOW


def schedule(**fields: Any) -> Schedule:
    usual: dict[str, Any] = {"id": "nightly", "job": Job(type="report"), "repeat": Repeat(every=60)}
    return Schedule(**(usual | fields))


def test_the_pattern_of_a_schedule_keeps_what_every_run_shares_and_nothing_else() -> None:
    # M-SCHED-07
    job = Job(
        type="report",
        payload=b"[1]",
        queue="slow",
        tags=("a", "b", "a"),
        priority=3,
        lifo=True,
        delay=5,
        expires_at=timedelta(hours=1),
        timeout=2.5,
        max_attempts=4,
        max_crashes=2,
        concurrency_key="k",
        parent_id="p",
        options={"note": 1},
        executions=9,
        retry_count=9,
        assignee_id="somebody",
        result=b"old",
        error_message="old",
        schedule_id="other",
    )
    pattern = check_schedule(schedule(job=job), NOW).job
    assert pattern == Job(
        id="nightly",
        type="report",
        payload=b"[1]",
        queue="slow",
        tags=("a", "b"),
        priority=3,
        lifo=True,
        delay=timedelta(seconds=5),
        expires_at=timedelta(hours=1),
        timeout=timedelta(seconds=2.5),
        max_attempts=4,
        max_crashes=2,
        concurrency_key="k",
        parent_id="p",
        options={"note": 1},
    )


def test_a_schedule_put_twice_with_its_durations_written_differently_is_the_same_schedule() -> None:
    # X-93
    in_seconds = schedule(job=Job(type="t", delay=5, timeout=60), repeat=Repeat(every=3600))
    in_words = schedule(
        job=Job(type="t", delay=timedelta(seconds=5), timeout=timedelta(minutes=1)),
        repeat=Repeat(every=timedelta(hours=1)),
    )
    assert check_schedule(in_seconds, NOW) == check_schedule(in_words, NOW)


ODD_SCHEDULES: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "schedule.id"),
    ({"id": "x" * 201}, "schedule.id"),
    ({"paused": "yes"}, "schedule.paused"),
    ({"repeat": None}, "schedule.repeat"),
    ({"repeat": {"every": 60}}, "schedule.repeat"),
    ({"job": Job(type="t", depends_on=("a",))}, "schedule.job.depends_on"),
    ({"job": Job(type="t", idempotency_key="k")}, "schedule.job.idempotency_key"),
    ({"job": Job(type="t", run_at=NOON)}, "schedule.job.run_at"),
    ({"job": Job(type="t", expires_at=NOON)}, "schedule.job.expires_at"),
    ({"job": Job(type="")}, "schedule.job.type"),
    ({"job": None}, "schedule.job"),
]


@pytest.mark.parametrize(("odd", "field"), ODD_SCHEDULES)
def test_an_odd_schedule_is_refused_by_name(odd: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_schedule(schedule(**odd), NOW)
    assert refusal.value.field == field


@pytest.mark.parametrize("thing", [None, "nightly", Repeat(every=60)])
def test_only_a_schedule_can_be_stored(thing: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_schedule(thing, NOW)
    assert refusal.value.field == "schedule"


def test_the_longest_schedule_id_leaves_space_for_the_time_in_a_job_id() -> None:
    longest = "x" * 200
    assert check_schedule(schedule(id=longest), NOW).id == longest
    assert len(f"{longest}@{NOON.isoformat(timespec='microseconds')}") <= 255


# -- changes

HOUR = 3600 * SECOND


def stored(**fields: Any) -> Schedule:
    """A schedule stored an hour ago that ran once half an hour ago; it is due in half an hour."""
    made = plans.put(schedule(repeat=Repeat(every=1800)), None, NOW - HOUR, keep_pause=False)
    due = plans.firing(made, NOW - HOUR // 2)
    ran = plans.fired(made, due, 1, NOW - HOUR // 2)
    assert (ran.run_count, ran.next_run_at) == (1, NOON)
    return dataclasses.replace(ran, next_run_at=NOON + timedelta(seconds=1800), **fields)


def test_a_new_schedule_has_no_history_whatever_its_caller_says() -> None:
    given = schedule(run_count=9, last_run_at=NOON, last_job_id="x", created_at=NOON, error="old", next_run_at=NOON)
    fresh = plans.put(given, None, NOW, keep_pause=True)
    assert (fresh.run_count, fresh.last_run_at, fresh.last_job_id, fresh.error) == (0, None, None, "")
    assert (fresh.created_at, fresh.next_run_at) == (NOON, NOON + timedelta(seconds=60))


@pytest.mark.parametrize(
    ("paused", "keep_pause", "then"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_schedule_stored_again_keeps_its_pause_only_with_keep_pause(
    paused: bool, keep_pause: bool, then: bool
) -> None:
    known = stored(paused=paused)
    again = plans.put(schedule(repeat=known.repeat), known, NOW, keep_pause=keep_pause)
    assert again.paused is then
    assert (again.run_count, again.last_run_at, again.created_at) == (1, known.last_run_at, known.created_at)
    assert again.next_run_at == NOON + timedelta(seconds=1800)


def test_other_times_are_planned_from_now_on_and_nothing_before_is_made_up_for() -> None:
    # X-93
    known = stored()
    often = plans.put(schedule(repeat=Repeat(every=60, catch_up="all")), known, NOW + SECOND, keep_pause=False)
    assert often.next_run_at == NOON + timedelta(seconds=60)
    daily = plans.put(schedule(repeat=Repeat(cron="0 0 * * *", catch_up="all")), known, NOW, keep_pause=False)
    assert daily.next_run_at == NOON + timedelta(hours=12)


@pytest.mark.parametrize(
    "changed",
    [
        {"catch_up": "all"},
        {"limit": 50},
        {"end": NOON + timedelta(days=90)},
        {"on_gap": "skip"},
        {"on_overlap": "both"},
        {"cron": " 0  0 * * * "},
    ],
    ids=str,
)
def test_what_is_due_is_still_made_when_only_how_it_is_repeated_changes(changed: dict[str, Any]) -> None:
    # X-93
    known = plans.put(schedule(repeat=Repeat(cron="@daily")), None, NOW, keep_pause=False)
    given = Repeat(**{"cron": "@daily", **changed})
    missed = plans.put(schedule(repeat=given), known, NOW + 50 * HOUR, keep_pause=False)
    assert missed.next_run_at == known.next_run_at == NOON + timedelta(hours=12)
    soon = plans.put(schedule(repeat=given), known, NOW + HOUR, keep_pause=False)
    assert soon.next_run_at == known.next_run_at


def test_a_new_limit_or_end_that_has_passed_ends_it_and_times_that_were_over_go_on_from_now() -> None:
    # M-OPT-12 M-OPT-13
    known = stored()
    assert plans.put(schedule(repeat=Repeat(every=1800, limit=1)), known, NOW, keep_pause=False).next_run_at is None
    over = plans.put(schedule(repeat=Repeat(every=1800, end=NOON)), known, NOW, keep_pause=False)
    assert over.next_run_at is None
    on = plans.put(schedule(repeat=Repeat(every=1800)), over, NOW + 10 * HOUR, keep_pause=False)
    assert on.next_run_at == NOON + timedelta(hours=10, seconds=1800)


def test_another_policy_for_the_change_of_clocks_moves_a_run_that_is_still_to_come() -> None:
    # M-OPT-14
    spring = from_micros(NOW).replace(month=3, day=28)
    times: dict[str, Any] = {"cron": "30 2 * * *", "tz": "Europe/Berlin"}
    known = plans.put(schedule(repeat=Repeat(**times)), None, to_micros(spring), keep_pause=False)
    skipping = Repeat(**times, on_gap="skip")
    moved = plans.put(schedule(repeat=skipping), known, to_micros(spring), keep_pause=False)
    assert known.next_run_at is not None
    assert moved.next_run_at is not None
    assert (known.next_run_at.day, moved.next_run_at.day) == (29, 30)


def test_a_schedule_that_paused_itself_resumes_when_it_is_stored_again() -> None:
    # X-93
    bad = plans.paused(stored(), NOW, "its zone is not known")
    again = plans.put(schedule(repeat=bad.repeat), bad, NOW, keep_pause=True)
    assert (again.paused, again.error, again.next_run_at) == (False, "", bad.next_run_at)
    by_hand = plans.paused(stored(), NOW)
    assert plans.put(schedule(repeat=by_hand.repeat), by_hand, NOW, keep_pause=True).paused


def test_raising_a_reached_limit_continues_from_now() -> None:
    # M-OPT-12
    ended = dataclasses.replace(stored(), repeat=Repeat(every=1800, limit=1), next_run_at=None)
    same = plans.put(schedule(repeat=Repeat(every=1800, limit=1)), ended, NOW, keep_pause=False)
    assert same.next_run_at is None
    assert plans.resumed(ended, NOW).next_run_at is None
    later = NOW + 100 * HOUR
    raised = plans.put(schedule(repeat=Repeat(every=1800, limit=5)), ended, later, keep_pause=False)
    assert raised.next_run_at == from_micros(later + HOUR // 2)


def test_what_fell_into_a_pause_is_not_made_up_for_and_the_times_are_those_they_were() -> None:
    known = stored(paused=True, repeat=Repeat(every=1800, catch_up="all"))
    later = NOW + 10 * HOUR + SECOND
    on = plans.resumed(known, later)
    assert (on.paused, on.next_run_at) == (False, NOON + timedelta(hours=10, seconds=1800))
    assert plans.put(schedule(repeat=known.repeat), known, later, keep_pause=False).next_run_at == on.next_run_at


def test_resuming_finds_the_way_back_when_the_clock_had_been_far_ahead() -> None:
    stuck = stored(paused=True)
    stuck = dataclasses.replace(stuck, next_run_at=NOON + timedelta(days=3650, seconds=30))
    assert plans.resumed(stuck, NOW).next_run_at == NOON + timedelta(seconds=30)


def test_a_run_that_exists_already_is_not_counted_again() -> None:
    # X-93
    known = stored(repeat=Repeat(every=1800, limit=2))
    due = NOW + HOUR // 2
    fire = plans.firing(known, due)
    assert [job.id for job in fire.jobs] == ["nightly@2026-01-01T12:30:00Z"]
    assert plans.fired(known, fire, 1, due).next_run_at is None
    again = plans.fired(known, fire, 0, due)
    assert (again.run_count, again.next_run_at) == (1, NOON + timedelta(hours=1))


def test_a_run_by_hand_is_like_any_other_but_for_its_id() -> None:
    known = stored()
    one, two = plans.run_by_hand(known), plans.run_by_hand(known)
    assert one.id != two.id
    assert (one.schedule_id, one.type, one.payload) == ("nightly", known.job.type, known.job.payload)


def test_a_preview_shows_what_will_come_within_limit_and_end() -> None:
    known = stored()
    half = timedelta(minutes=30)
    assert plans.preview(known, 2, NOW) == [NOON + half, NOON + 2 * half]
    assert plans.preview(known, 2, to_micros(NOON + 3.5 * half)) == [NOON + 4 * half, NOON + 5 * half]
    limited = dataclasses.replace(known, repeat=Repeat(every=1800, limit=3))
    assert plans.preview(limited, 9, NOW) == [NOON + half, NOON + 2 * half]
    assert plans.preview(limited, 9, NOW + HOUR // 2) == [NOON + 2 * half], "one of the two left is due now"
    bounded = dataclasses.replace(known, repeat=Repeat(every=1800, end=NOON + half))
    assert plans.preview(bounded, 9, NOW) == [NOON + half]
    assert plans.preview(dataclasses.replace(known, next_run_at=None), 9, NOW) == []


def test_a_preview_of_a_paused_schedule_shows_what_would_come_if_it_were_resumed_now() -> None:
    known = stored(paused=True)
    later = NOW + 10 * HOUR
    assert plans.preview(known, 1, later) == [plans.resumed(known, later).next_run_at]


def test_a_run_is_recorded_as_any_job_like_its_pattern_would_be() -> None:
    pattern = Job(
        id="p", type="t", payload=b"1", queue="q", tags=("a",), priority=-3, lifo=True, delay=5, expires_at=60,
        timeout=7, max_attempts=2, max_crashes=1, concurrency_key="k", parent_id="f", options={"remove_on_fail": True},
    )  # fmt: skip
    for job in (pattern, Job(id="p", type="t")):
        kept = check_schedule(Schedule(id="s", job=job, repeat=Repeat(every=60)), NOW).job
        copy = kept.replace(id="s@x", schedule_id="s", created_at=None)
        assert record_like(kept, "s@x", "s", NOW) == record_of(copy, NOW)
