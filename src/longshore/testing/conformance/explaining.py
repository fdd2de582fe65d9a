"""Why a job is not running now: what one look at the store finds in its way."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from longshore.backends.base import Backend, WorkerInfo
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotFound
from longshore.core.explain import Explanation, Reason, explanation_of
from longshore.core.limits import Rate
from longshore.core.status import JobStatus
from longshore.testing.conformance.limits import fill, take
from longshore.testing.conformance.staging import S, claim, enqueue, job_in, lease_of, new_job, seconds


async def explained(backend: Backend, job_id: str) -> Explanation:
    """What is in the way of a job; all of it can be told in JSON."""
    explanation = explanation_of(await backend.facts_about(job_id))
    assert json.loads(json.dumps(explanation.as_json()))["job_id"] == job_id
    return explanation


async def reason(backend: Backend, job_id: str, kind: str) -> Reason:
    """The one reason of this kind."""
    [found] = [reason for reason in (await explained(backend, job_id)).reasons if reason.kind == kind]
    return found


async def hire(backend: Backend, worker_id: str = "w", **fields: object) -> None:
    """A worker that has just told of itself."""
    await backend.heartbeat_worker(WorkerInfo(id=worker_id, concurrency=10, **fields))  # type: ignore[arg-type]  # fields of WorkerInfo


ENDED = {
    S.COMPLETED: "completed",
    S.STOPPED: "stopped",
    S.UNSCHEDULED: "unscheduled",
    S.UNKNOWN_STOPPED: "unknown_stopped",
    S.DEAD: "dead",
}


class TestExplaining:
    """`facts_about`, and what follows from it."""

    async def test_an_unknown_job_is_not_found(self, backend: Backend) -> None:
        with pytest.raises(JobNotFound):
            await backend.facts_about("nobody")

    async def test_a_job_with_nothing_in_its_way_is_about_to_start(self, backend: Backend) -> None:
        await hire(backend)
        await enqueue(backend, "j")
        assert (await explained(backend, "j")).kinds == ("about_to_start",)

    async def test_a_job_behind_others_is_told_behind_how_many(self, backend: Backend) -> None:
        await hire(backend)
        await fill(backend, 5)
        await enqueue(backend, "j")
        await enqueue(backend, "first of all", priority=-1)
        await enqueue(backend, "elsewhere", queue="mail")
        await enqueue(backend, "not yet", run_at=60)
        assert (await reason(backend, "j", "behind_others")).details["ahead"] == 6
        assert (await explained(backend, "first of all")).kinds == ("about_to_start",)

    @pytest.mark.parametrize("status", ENDED)
    async def test_a_job_that_is_over_says_how_it_ended(self, backend: Backend, status: JobStatus) -> None:
        job = await job_in(backend, status)
        explanation = await explained(backend, job.id)
        assert explanation.kinds == (ENDED[status],)
        assert explanation.reasons[0].details["error"] == job.error_message.partition("\n")[0]

    @pytest.mark.parametrize(("status", "kind"), [(S.RUNNING, "running"), (S.CANCELLING, "cancelling")])
    async def test_a_job_that_somebody_holds_names_who_and_since_when(
        self, backend: Backend, status: JobStatus, kind: str
    ) -> None:
        job = await job_in(backend, status)
        found = await reason(backend, job.id, kind)
        assert job.assigned_at is not None
        assert (found.details["worker"], found.details["since"]) == (job.assignee_id, job.assigned_at.isoformat())

    async def test_a_job_that_was_not_accepted_says_so(self, backend: Backend) -> None:
        job = await job_in(backend, S.CREATED)
        assert (await explained(backend, job.id)).kinds == ("not_accepted",)

    async def test_a_job_that_waits_for_others_names_them_and_how_they_stand(self, backend: Backend) -> None:
        await job_in(backend, S.DEAD, "dead")
        await job_in(backend, S.COMPLETED, "done")
        await enqueue(backend, "in line")
        await enqueue(backend, "j", depends_on=["dead", "in line", "nobody", "done"])
        found = await reason(backend, "j", "waiting_for_dependencies")
        assert found.details["left"] == 3
        assert {each["job_id"]: each["status"] for each in found.details["waiting_for"]} == {
            "dead": "DEAD",
            "in line": "INITIAL_PENDING",
            "nobody": None,
        }
        assert "retry_job" in found.text

    async def test_of_many_dependencies_a_few_are_named(self, backend: Backend) -> None:
        await enqueue(backend, "j", depends_on=[f"part {number}" for number in range(50)])
        found = await reason(backend, "j", "waiting_for_dependencies")
        assert (found.details["left"], len(found.details["waiting_for"])) == (50, 10)
        assert "and 40 more" in found.text

    async def test_a_job_that_is_not_due_says_until_when(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "j", run_at=90)
        found = await reason(backend, "j", "not_due")
        assert found.details["seconds"] == 90
        clock.advance(90)
        assert "not_due" not in (await explained(backend, "j")).kinds

    async def test_a_job_that_was_given_back_says_why_and_until_when(self, backend: Backend, clock: HeldClock) -> None:
        await hire(backend)
        await enqueue(backend, "j")
        for why in ("the mail server rests", "no task of this worker is named 'emial', but email"):
            job = await claim(backend)
            await backend.release_lease("j", lease_of(job), run_at=20, reason=why)
            assert (await explained(backend, "j")).kinds == ("given_back",)
            found = await reason(backend, "j", "given_back")
            assert (found.details["reason"], found.details["seconds"]) == (why, 20)
            assert why in found.text
            clock.advance(20)
        assert (await explained(backend, "j")).kinds == ("about_to_start",)
        job = await claim(backend)
        await backend.release_lease("j", lease_of(job), run_at=20)
        assert (await explained(backend, "j")).kinds == ("not_due",)

    async def test_a_job_past_its_time_says_that_it_will_be_ended(self, backend: Backend, clock: HeldClock) -> None:
        await enqueue(backend, "j", expires_at=10)
        clock.advance(10)
        assert "expired" in (await explained(backend, "j")).kinds

    async def test_a_paused_queue_is_a_reason_beside_others(self, backend: Backend) -> None:
        await hire(backend)
        await enqueue(backend, "j", run_at=90)
        await backend.pause_queue("default")
        assert (await explained(backend, "j")).kinds == ("not_due", "queue_paused")

    async def test_a_full_queue_names_who_holds_its_room(self, backend: Backend) -> None:
        await hire(backend)
        await backend.set_limits("default", running=2)
        await fill(backend, 3)
        await take(backend)
        found = await reason(backend, "job 2", "queue_full")
        assert (found.details["limit"], found.details["running"]) == (2, 2)
        assert [(each["job_id"], each["worker"]) for each in found.details["held_by"]] == [
            ("job 0", "worker-1"),
            ("job 1", "worker-1"),
        ]
        await backend.complete_job("job 0")
        assert (await explained(backend, "job 2")).kinds == ("about_to_start",)

    async def test_a_full_key_names_who_holds_it_and_another_key_is_free(self, backend: Backend) -> None:
        # M-FUT-07
        await hire(backend)
        await backend.set_limits("default", per_key=1)
        for key in ("acme", "zenith"):
            await fill(backend, 2, key)
        await take(backend, limit=1)
        found = await reason(backend, "acme 1", "key_full")
        assert [each["job_id"] for each in found.details["held_by"]] == ["acme 0"]
        assert "key_full" not in (await explained(backend, "zenith 1")).kinds

    async def test_of_many_holders_a_few_are_named(self, backend: Backend) -> None:
        await backend.set_limits("default", running=30)
        await fill(backend, 31)
        await take(backend)
        found = await reason(backend, "job 30", "queue_full")
        assert (found.details["running"], len(found.details["held_by"])) == (30, 10)
        assert "and 20 more" in found.text

    async def test_a_rate_that_is_used_up_says_until_when(self, backend: Backend, clock: HeldClock) -> None:
        # M-FUT-08
        await hire(backend)
        clock.set(datetime(2026, 1, 1, 12, 0, 50, tzinfo=UTC))
        await hire(backend)
        await backend.set_limits("default", rate=Rate(1, 60), rate_per_key=Rate(1, 30))
        await fill(backend, 2, "k")
        await take(backend)
        assert (await explained(backend, "k 1")).kinds == ("queue_rate_used_up", "key_rate_used_up")
        for kind in ("queue_rate_used_up", "key_rate_used_up"):
            found = await reason(backend, "k 1", kind)
            assert found.details["until"] == datetime(2026, 1, 1, 12, 1, tzinfo=UTC).isoformat()
        clock.advance(10)
        assert (await explained(backend, "k 1")).kinds == ("about_to_start",)

    async def test_a_job_that_no_live_worker_takes_says_what_the_workers_lack(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        await enqueue(backend, "j", queue="mail", tags=["eu"])
        assert (await explained(backend, "j")).kinds == ("no_worker",)
        await hire(backend, "other queue", queues=("images",))
        await hire(backend, "other tag", tags=("us",))
        await hire(backend, "stopped", state="stopped")
        found = await reason(backend, "j", "no_worker")
        assert found.details["silent"] == 1
        assert "images" in found.details["workers"]["other queue"]
        assert "us" in found.details["workers"]["other tag"]
        await hire(backend, "fits", queues=("images", "mail"), tags=("eu",))
        assert (await explained(backend, "j")).kinds == ("about_to_start",)
        clock.advance(61)
        assert (await explained(backend, "j")).kinds == ("no_worker",)

    async def test_a_job_whose_workers_are_all_busy_says_so(self, backend: Backend) -> None:
        await enqueue(backend, "j")
        await hire(backend, "busy", running=10)
        assert (await explained(backend, "j")).kinds == ("workers_busy",)
        await hire(backend, "idle")
        assert (await explained(backend, "j")).kinds == ("about_to_start",)

    async def test_looking_changes_nothing(self, backend: Backend) -> None:
        await backend.set_limits("default", per_key=1)
        await fill(backend, 3, "k")
        await take(backend)
        before = [await backend.get_job(f"k {number}") for number in range(3)]
        events = await backend.read_events()
        for number in range(3):
            await explained(backend, f"k {number}")
        assert [await backend.get_job(f"k {number}") for number in range(3)] == before
        assert await backend.read_events() == events

    async def test_explain_gives_all_reasons_the_position_and_an_estimated_start(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        # M7
        await backend.heartbeat_worker(WorkerInfo(id="w", concurrency=1, running=1))
        for number in range(20):
            await enqueue(backend, f"done {number}")
            job = await claim(backend)
            clock.advance(seconds(3))
            await backend.complete_job(job.id, lease=job.lease)
        await backend.heartbeat_worker(WorkerInfo(id="w", concurrency=1, running=1))
        await backend.enqueue_jobs([new_job(f"ahead {number}") for number in range(30)])
        await enqueue(backend, "j")
        told = await explained(backend, "j")
        assert told.kinds == ("workers_busy", "behind_others")
        details = told.reasons[1].details
        assert (details["ahead"], details["position"]) == (30, 31)
        estimate = details["estimated_start"]
        assert (estimate["completed"], estimate["window_seconds"]) == (20, 57)
        assert clock.now().isoformat() < estimate["earliest"] < estimate["latest"]
