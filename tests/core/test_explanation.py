"""Why a job is not running, from facts alone: each reason by kind, as text with advice, and as JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from longshore.cli.inspect import remedy_command
from longshore.core.explain import (
    Dependency,
    Explanation,
    Facts,
    Holder,
    Usage,
    WorkerSeen,
    explanation_of,
    no_job_but_a_schedule,
)
from longshore.core.job import Job, Lease
from longshore.core.limits import Rate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from tests.core.staging import NOON

S = JobStatus
MINUTE = timedelta(minutes=1)


def worker(name: str = "w", **known: Any) -> WorkerSeen:
    usual: dict[str, Any] = {
        "queues": (), "tags": (), "concurrency": 2, "running": 0, "state": "running", "seen_at": NOON
    }  # fmt: skip
    return WorkerSeen(name, **usual | known)


def explained(
    status: JobStatus = S.INITIAL_PENDING, /, *, about: dict[str, Any] | None = None, **facts: Any
) -> Explanation:
    job = Job(id="j", type="t", status=status, queue="mail", **about or {})
    usual: dict[str, Any] = {"eligible_at": NOON, "workers": (worker(),)}
    explanation = explanation_of(Facts(now=NOON, job=job, **usual | facts))
    reported = json.loads(json.dumps(explanation.as_json()))
    assert [reason["kind"] for reason in reported["reasons"]] == list(explanation.kinds)
    assert str(explanation).startswith(f"job j is {status}: ")
    return explanation


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (S.COMPLETED, "completed", "It completed at 2026-01-01 12:00:00 UTC."),
        (S.STOPPED, "stopped", "It was stopped after it had been started: no wind; add it again to run it."),
        (S.UNSCHEDULED, "unscheduled", "It was cancelled before it started: no wind; add it again to run it."),
        (S.UNKNOWN_STOPPED, "unknown_stopped", "it is unknown how far it got: no wind; see its log."),
        (S.DEAD, "dead", "It failed permanently at execution 3: no wind; retry it with retry_job."),
    ],
)
def test_an_ended_job_is_explained_with_its_end_and_the_first_line_of_its_error(
    status: JobStatus, kind: str, text: str
) -> None:
    about = {"finalized_at": NOON, "error_message": "no wind\nTraceback", "executions": 3}
    explanation = explained(status, about=about)
    assert explanation.kinds == (kind,)
    assert text in str(explanation)
    assert "Traceback" not in str(explanation)


def test_a_held_job_is_explained_with_its_worker_and_the_end_of_its_lease() -> None:
    held = {"assignee_id": "w", "assigned_at": NOON - MINUTE, "lease": Lease("token", 1, NOON)}
    assert str(explained(S.RUNNING, about=held)) == (
        "job j is RUNNING: It has been running since 2026-01-01 11:59:00 UTC, held by w. "
        "Its lease has expired: the next sweep ends this attempt."
    )
    held["lease"] = Lease("token", 1, NOON + MINUTE)  # A2
    assert "Its lease expires at 2026-01-01 12:01:00 UTC, unless it is renewed." in str(
        explained(S.RUNNING, about=held)
    )
    assert "by an unknown worker" in str(explained(S.RUNNING, about={"assigned_at": NOON}))
    asked = explained(S.CANCELLING, about=held | {"lease": Lease("token", 1, None)})
    assert asked.kinds == ("cancelling",)
    assert "the worker has not acknowledged it." in str(asked)


def test_a_job_that_was_not_accepted_says_how() -> None:
    assert "Accept it with accept_jobs" in str(explained(S.CREATED))


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (None, "Add a job with the unknown id"),
        (S.DEAD, "Retry the dead job with retry_job"),
        (S.STOPPED, "A cancelled dependency never completes"),
        (S.RUNNING, "It waits for 12 jobs: other (RUNNING) and 11 more."),
    ],
)
def test_what_is_waited_for_is_named_with_what_can_be_done(status: JobStatus | None, advice: str) -> None:
    explanation = explained(S.WAITING_CHILDREN, waits_for=(Dependency("other", status),), deps_left=12)
    assert explanation.kinds == ("waiting_for_dependencies",)
    assert advice in str(explanation)
    assert explanation.reasons[0].details["left"] == 12
    named = explained(S.WAITING_CHILDREN, waits_for=(Dependency("f.1", S.DEAD, "page 1"),), deps_left=1)
    assert "It waits for 1 job: f.1 (step page 1 of its flow, DEAD)." in str(named)


def test_all_reasons_are_reported_together_the_most_important_first() -> None:
    holder = Holder("k", "other", NOON)
    explanation = explained(
        about={"expires_at": NOON, "concurrency_key": "tenant", "tags": ("gpu",)},
        eligible_at=NOON + MINUTE,
        paused=True,
        queue=Usage(1, 1, (holder,), Rate(5, 60), 5, NOON + MINUTE),
        key=Usage(2, 3, (holder,), Rate(1, 1), 1, NOON + MINUTE),
        workers=(),
    )
    assert explanation.kinds == (
        "expired", "not_due", "queue_paused", "queue_full", "queue_rate_used_up", "key_full", "key_rate_used_up",
        "no_worker",
    )  # fmt: skip
    text = str(explanation)
    assert "Its queue mail is full (1 running, limit 1): k (by other). Wait" in text
    assert "Its concurrency key tenant is full (3 running, limit 2): k (by other) and 2 more." in text
    assert "The rate limit of its queue mail is used up (5 starts every 60 s): the next may start at 2026-" in text
    assert "No live worker claims jobs of the queue mail and the tags gpu. Start a worker with a harbor" in text


def test_a_released_job_shows_the_reason_and_no_advice_to_promote_it() -> None:
    why = "no task of this worker is named 'emial', but email; the tasks it knows: email"
    explanation = explained(S.UNKNOWN_RETRY, eligible_at=NOON + MINUTE, given_back=why)
    assert explanation.kinds == ("given_back",)
    assert f"A worker released it: {why}." in str(explanation)
    assert "tried again at 2026-01-01 12:01:00 UTC" in str(explanation)
    assert "promote" not in str(explanation)
    assert remedy_command("given_back", "j", explanation.reasons[0].details) == ""
    assert explained(S.UNKNOWN_RETRY, given_back=why).kinds == ("about_to_start",)


def test_workers_that_do_not_claim_the_job_are_listed_with_the_reason() -> None:
    others = (
        worker("elsewhere", queues=("post",)),
        worker("choosy", tags=("gpu",)),
        worker("silent", seen_at=NOON - 2 * MINUTE),
        worker("gone", state="stopped"),
    )
    explanation = explained(workers=others)
    assert explanation.kinds == ("no_worker",)
    assert "elsewhere works for post; choosy takes only jobs tagged gpu; 2 have stopped" in str(explanation)
    assert explanation.reasons[0].details["silent"] == 2


def test_a_job_with_nothing_in_its_way_waits_for_a_busy_worker_for_others_or_for_the_next_claim() -> None:
    assert explained(workers=(worker(running=2),), ahead=3).kinds == ("workers_busy", "behind_others")  # M7
    assert "behind 1 other of its queue" in str(explained(ahead=1))
    assert "behind at least 1,000 others" in str(explained(ahead=1_000))
    assert explained().kinds == ("about_to_start",)


@pytest.mark.parametrize(
    ("known", "reported"),
    [
        ({"next_run_at": NOON + MINUTE}, "It fires next at 2026-01-01 12:01:00 UTC"),
        ({"next_run_at": NOON - 2 * MINUTE}, "and has not fired: no scheduler is running. Start one"),
        ({"next_run_at": None}, "It has ended"),
        ({"paused": True, "error": "no such zone"}, "It is paused by itself (no such zone); resume it with"),
    ],
)
def test_a_schedule_is_no_job_and_says_when_it_makes_one(known: dict[str, Any], reported: str) -> None:
    schedule = Schedule(id="s", job=Job(id="s", type="t"), repeat=Repeat(every=60), **known)
    assert reported in no_job_but_a_schedule("s", schedule, NOON)
    assert no_job_but_a_schedule("s", schedule, NOON).startswith("'s' is a schedule, not a job")
    assert no_job_but_a_schedule("s@x", schedule, NOON).startswith("no job has the id 's@x': the schedule 's' has not")


def test_the_start_is_estimated_as_a_range_from_recent_completions() -> None:
    # M7
    ends = tuple(NOON - timedelta(seconds=6 * n) for n in range(1, 101))
    [found] = explained(ahead=20, recent_ends=ends).reasons
    assert (found.details["position"], found.details["ahead"]) == (21, 20)
    reported = found.details["estimated_start"]
    assert (reported["completed"], reported["window_seconds"], reported["jobs_per_second"]) == (
        100,
        600,
        round(1 / 6, 6),
    )
    assert reported["earliest"] == (NOON + timedelta(seconds=100)).isoformat()
    assert reported["latest"] == (NOON + timedelta(seconds=150)).isoformat()
    assert "10 jobs a minute" in found.text


def test_too_few_completions_give_no_estimate_and_the_text_says_so() -> None:
    # M7
    [found] = explained(ahead=20, recent_ends=(NOON - timedelta(seconds=1),) * 9).reasons
    assert found.details["estimated_start"] is None
    assert "cannot be estimated: fewer than 10 jobs of its queue completed recently" in found.text


def test_a_position_beyond_the_count_is_more_than_1000() -> None:
    # M7
    ends = tuple(NOON - timedelta(seconds=n) for n in range(1, 101))
    [found] = explained(ahead=1_000, recent_ends=ends).reasons
    assert found.details["position"] is None
    assert "position over 1,000" in found.text
    assert found.details["estimated_start"]["latest"] is None
