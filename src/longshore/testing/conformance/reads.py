"""Reads: one job, lists whose filters equal the reference, cursors, counts, and `explain`."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from longshore.backends.base import Backend, WorkerInfo
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotFound
from longshore.core.explain import Explanation, Reason, explanation_of
from longshore.core.filters import JobFilter, matches
from longshore.core.job import Job
from longshore.core.job_record import Record, record_of
from longshore.core.limits import Rate
from longshore.core.status import JobStatus
from longshore.core.times import to_micros
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.limits import fill, take
from longshore.testing.conformance.scenarios import S


async def mixed_jobs(backend: Backend, clock: HeldClock) -> list[Job]:
    """Store jobs that differ in every field of a filter, with text that looks like patterns and like SQL."""
    odd = ["100% sure", "under_score", "back\\slash", "quote ' and \"", "名前 emoji 🐙", "[a-z]*?", "; DROP TABLE jobs"]
    for number, status in enumerate(kit.EVERY_STATUS * 2):
        clock.advance(1)
        payload = {
            "n": number,
            "address": {"city": ["Bergen", "Oslo", "Bergen "][number % 3], "0": "zero"},
            "list": [number % 2, {"deep": None}],
            "flag": number % 2 == 0,
            "text": odd[number % len(odd)],
        }
        encoded = b"not json" if number % 7 == 6 else json.dumps(payload, ensure_ascii=False).encode()
        job = await kit.job_in(
            backend,
            status,
            f"job {number} {odd[number % len(odd)]}",
            type=["email", "Email", "invoice"][number % 3],
            queue=["mail", "bills", "default"][number % 3],
            payload=encoded,
            tags=(*(["eu"] if number % 2 else []), *(["slow"] if number % 3 else [])),
            parent_id=["order-1", "order-2", None][number % 3],
            schedule_id="nightly" if number % 5 == 0 else None,
            concurrency_key=f"customer-{number % 4}" if number % 4 else None,
        )
        if status is S.RUNNING:
            await backend.fail_job(job.id, f"broke: {odd[number % len(odd)]}")
            await kit.claim(backend, f"worker of {number % 2}", tags=[job.id])
    return await kit.all_jobs(backend)


def as_stored(job: Job) -> Record:
    """Return the record of a public job, with every field that a filter reads."""
    record = record_of(job.replace(status=S.INITIAL_PENDING), to_micros(kit.moment(job.created_at)))
    record.status = job.status
    record.assignee_id = job.assignee_id
    record.error_message = job.error_message
    record.uid = job.uid
    return record


FILTERS: dict[str, JobFilter] = {
    "everything": JobFilter(),
    "one status": JobFilter(statuses=[S.RUNNING]),
    "several statuses": JobFilter(statuses=[S.COMPLETED, S.DEAD, S.STOPPED]),
    "a queue": JobFilter(queues=["mail"]),
    "two queues": JobFilter(queues=["mail", "bills"]),
    "no such queue": JobFilter(queues=["Mail"]),
    "a type": JobFilter(types=["email"]),
    "types by case": JobFilter(types=["Email", "invoice"]),
    "a tag": JobFilter(tags=["eu"]),
    "all tags": JobFilter(tags=["slow", "eu"]),
    "no such tag": JobFilter(tags=["eu", "EU"]),
    "ids": JobFilter(ids=["job 3 quote ' and \"", "job 0 100% sure", "unknown"]),
    "text in an id": JobFilter(text="job 1"),
    "text in a type": JobFilter(text="status"),
    "text in a payload": JobFilter(text="Bergen"),
    "text in an error": JobFilter(text="broke: "),
    "text by case": JobFilter(text="bergen"),
    "text with a percent sign": JobFilter(text="0% s"),
    "text with an underscore": JobFilter(text="under_"),
    "an underscore is not a wildcard": JobFilter(text="under score"),
    "a percent sign is not a wildcard": JobFilter(text="%"),
    "text with a backslash": JobFilter(text="k\\s"),
    "text with a quote": JobFilter(text="' and"),
    "text beyond ASCII": JobFilter(text="名前 emoji 🐙"),
    "text like a pattern": JobFilter(text="[a-z]*"),
    "text like SQL": JobFilter(text="'; DROP TABLE jobs"),
    "text of a lone surrogate": JobFilter(text="\ud800"),
    "text with a NUL": JobFilter(text="\x00"),
    "an error": JobFilter(error="under_score"),
    "an error by case": JobFilter(error="BROKE"),
    "data at a path": JobFilter(data={"address.city": "Bergen"}),
    "data at two paths": JobFilter(data={"address.city": "Oslo", "flag": True}),
    "data in a list": JobFilter(data={"list.0": 1}),
    "data that is null": JobFilter(data={"list.1.deep": None}),
    "data at a path that is absent": JobFilter(data={"address.street": None}),
    "data at a key that is a number": JobFilter(data={"address.0": "zero"}),
    "data that is a number": JobFilter(data={"n": 5}),
    "data that is the number as text": JobFilter(data={"n": "5"}),
    "data that is an object": JobFilter(data={"address": {"city": "Oslo", "0": "zero"}}),
    "data at a path like SQL": JobFilter(data={"n') OR 1=1 --": 5}),
    "an assignee": JobFilter(assignee_id="worker of 1"),
    "a parent": JobFilter(parent_id="order-2"),
    "a schedule": JobFilter(schedule_id="nightly"),
    "a concurrency key": JobFilter(concurrency_key="customer-3"),
    "many conditions": JobFilter(queues=["mail", "bills"], tags=["slow"], text="Bergen", statuses=kit.EVERY_STATUS[3:]),
}


class TestLooking:
    """`get_job`, `list_jobs`, `get_job_stats`, `count_jobs`, `list_queues`."""

    # -- one job

    async def test_a_job_is_read_whole_and_reading_leaves_no_trace(self, backend: Backend) -> None:
        # B-GET-01 B-GET-03 B-OBS-01
        await kit.enqueue(backend, "j1", tags=["a", "b", "c"], payload=b"\x00", options={"k": [1]})
        async with kit.nothing_changes(backend):
            job = await backend.get_job("j1")
            await backend.get_job_stats(["a"])
            await backend.count_jobs("default")
            await backend.read_logs("j1")
        assert (job.tags, job.payload, dict(job.options)) == (("a", "b", "c"), b"\x00", {"k": [1]})

    async def test_an_unknown_id_is_not_found(self, backend: Backend) -> None:
        # B-GET-02 B-ERR-03
        with pytest.raises(JobNotFound) as caught:
            await backend.get_job("nobody")
        assert caught.value.job_id == "nobody"

    async def test_committed_changes_are_visible_to_the_next_read(self, backend: Backend) -> None:
        # B-GET-03 B-STAT-09
        job = await kit.job_in(backend, S.RUNNING)
        await backend.set_progress(job.id, {"page": 3})
        assert (await backend.get_job(job.id)).progress == {"page": 3}
        await backend.complete_job(job.id)
        assert (await backend.get_job(job.id)).status is S.COMPLETED
        assert (await backend.get_job_stats()).completed_jobs == 1

    # -- lists

    async def test_every_filter_finds_what_the_reference_finds(self, backend: Backend, clock: HeldClock) -> None:
        # T-M8-01 B-CON-03
        crowd = await mixed_jobs(backend, clock)
        found = {name: [job.id for job in await kit.all_jobs(backend, f, limit=5)] for name, f in FILTERS.items()}
        expected = {name: [job.id for job in crowd if matches(f, as_stored(job))] for name, f in FILTERS.items()}
        assert found == expected
        # otherwise it would compare empty lists
        assert sum(bool(ids) for ids in expected.values()) > 30
        assert len(expected["everything"]) == len(crowd) == 2 * len(kit.EVERY_STATUS)

    async def test_time_bounds_are_exclusive_to_the_microsecond(self, backend: Backend, clock: HeldClock) -> None:
        for name in ("a", "b", "c"):
            await kit.enqueue(backend, name)
            clock.advance(timedelta(microseconds=1))
        created = kit.moment((await backend.get_job("b")).created_at)
        assert [job.id for job in await kit.all_jobs(backend, JobFilter(created_after=created))] == ["c"]
        assert [job.id for job in await kit.all_jobs(backend, JobFilter(created_before=created))] == ["a"]
        span = JobFilter(created_after=created - timedelta(microseconds=1), created_before=created + timedelta(days=1))
        assert [job.id for job in await kit.all_jobs(backend, span)] == ["c", "b"]

    async def test_the_newest_comes_first_and_a_page_holds_no_more_than_its_limit(self, backend: Backend) -> None:
        await backend.enqueue_jobs([kit.new_job(f"j{number}") for number in range(5)])
        page = await backend.list_jobs(JobFilter(), limit=2)
        assert [job.id for job in page.items] == ["j4", "j3"]
        page = await backend.list_jobs(JobFilter(), limit=2, cursor=page.next_cursor)
        assert [job.id for job in page.items] == ["j2", "j1"]
        page = await backend.list_jobs(JobFilter(), limit=2, cursor=page.next_cursor)
        assert ([job.id for job in page.items], page.next_cursor) == (["j0"], None)

    async def test_a_last_page_that_is_full_has_no_next(self, backend: Backend) -> None:
        await backend.enqueue_jobs([kit.new_job() for _ in range(4)])
        page = await backend.list_jobs(JobFilter(), limit=4)
        assert (len(page.items), page.next_cursor) == (4, None)

    async def test_a_listed_job_is_the_whole_record(self, backend: Backend, clock: HeldClock) -> None:
        # B-GET-01
        for job in await mixed_jobs(backend, clock):
            assert job == await backend.get_job(job.id)

    async def test_a_cursor_stays_valid_while_jobs_change(self, backend: Backend, clock: HeldClock) -> None:
        """No job that existed throughout is missed or repeated, even if the cursor's own job was removed."""
        for number in range(10):
            await kit.job_in(backend, S.COMPLETED, f"j{number}", created_at=clock.now() - timedelta(days=number % 3))
        page = await backend.list_jobs(JobFilter(), limit=3)
        seen = [job.id for job in page.items]
        while page.next_cursor is not None:
            await kit.enqueue(backend, f"newcomer {len(seen)}")
            await backend.delete_jobs(job_ids=[seen[-1]])
            clock.advance(1)
            page = await backend.list_jobs(JobFilter(), limit=3, cursor=page.next_cursor)
            seen += [job.id for job in page.items]
        assert seen == [f"j{number}" for number in reversed(range(10))]

    async def test_a_cursor_that_was_never_given_out_is_refused(self, backend: Backend) -> None:
        await kit.refused(backend, backend.list_jobs(JobFilter(), cursor="what page?"), field="cursor")

    # -- counts

    async def test_the_statistics_put_every_status_into_its_bucket(self, backend: Backend) -> None:
        # B-STAT-01 B-STAT-02 B-STAT-03 B-STAT-04 B-STAT-05 B-STAT-06 B-STAT-07 B-OBS-03 X-31
        buckets = {
            S.INITIAL_PENDING: "pending_jobs",
            S.RUNNING: "running_jobs",
            S.COMPLETED: "completed_jobs",
            S.STOPPED: "stopped_jobs",
            S.UNSCHEDULED: "stopped_jobs",
            S.UNKNOWN_STOPPED: "stopped_jobs",
            S.DEAD: "stopped_jobs",
            S.FAILED_RETRY: "failed_jobs",
            S.UNKNOWN_RETRY: "failed_jobs",
        }
        for status in kit.EVERY_STATUS:
            await kit.job_in(backend, status, tags=["counted"])
            stats = await backend.get_job_stats()
            shown = {name for name in set(buckets.values()) if getattr(stats, name)}
            assert shown == ({buckets[status]} if status in buckets else set()), status
            assert stats.total_jobs == 1
            [job] = await kit.all_jobs(backend)
            if not job.status.final:
                await backend.cancel_jobs(job_ids=[job.id])
                if status.holds_capacity:
                    await backend.acknowledge_cancellation(job.id, True)
            await backend.delete_jobs(job_ids=[job.id])
        assert (await backend.get_job_stats()).total_jobs == 0

    async def test_the_statistics_count_jobs_with_all_the_tags_and_echo_them(self, backend: Backend) -> None:
        # B-STAT-01 B-STAT-02 B-CON-06 B-INV-04
        await kit.enqueue(backend, tags=["eu", "slow"])
        await kit.enqueue(backend, tags=["slow", "eu", "gpu"])
        await kit.enqueue(backend, tags=["eu"])
        await kit.enqueue(backend, queue="mail", tags=["eu", "slow"])
        for tags, total in [((), 4), (("eu",), 4), (("slow", "eu"), 3), (("gpu",), 1), (("EU",), 0)]:
            stats = await backend.get_job_stats(tags)
            assert (stats.total_jobs, stats.pending_jobs, stats.tags) == (total, total, tags)
        assert (await backend.get_job_stats(["slow"], queue="mail")).total_jobs == 1
        assert (await backend.get_job_stats(queue="default")).total_jobs == 3
        assert (await backend.get_job_stats(queue="unheard of")).total_jobs == 0

    async def test_the_statistics_add_up_the_failures(self, backend: Backend) -> None:
        # B-STAT-08
        for failures in range(4):
            job = await kit.job_in(backend, S.INITIAL_PENDING, tags=["eu"] if failures % 2 else [])
            for _ in range(failures):
                await kit.claim(backend, tags=[job.id])
                await backend.fail_job(job.id, "again")
        assert (await backend.get_job_stats()).total_retries == 6
        assert (await backend.get_job_stats(["eu"])).total_retries == 4
        dead = await kit.job_in(backend, S.DEAD)
        assert (await backend.get_job_stats()).total_retries == 7
        await backend.retry_job(dead.id)
        assert (await backend.get_job_stats()).total_retries == 6

    async def test_counts_are_exact_for_every_status_and_queue(self, backend: Backend, clock: HeldClock) -> None:
        crowd = await mixed_jobs(backend, clock)
        for queue in (None, "mail", "bills", "default", "unheard of"):
            found = Counter(job.status for job in crowd if queue in (None, job.queue))
            assert await backend.count_jobs(queue) == {status: found[status] for status in JobStatus}

    async def test_counts_are_exact_after_every_kind_of_change(self, backend: Backend, clock: HeldClock) -> None:
        # B-CLN-04 B-STAT-09
        async def check() -> None:
            found = Counter(job.status for job in await kit.all_jobs(backend))
            assert await backend.count_jobs() == {status: found[status] for status in JobStatus}
            stats = await backend.get_job_stats()
            assert stats.total_jobs == sum(found.values())
            assert stats.running_jobs == found[S.RUNNING]

        for status in kit.EVERY_STATUS:
            await kit.job_in(backend, status)
            await check()
        await backend.accept_jobs([job.id for job in await kit.all_jobs(backend, JobFilter(statuses=[S.CREATED]))])
        await check()
        held = await backend.dequeue_jobs("worker-1", limit=2)
        await check()
        await backend.release_lease(held[0].id, kit.lease_of(held[0]))
        await check()
        await backend.mark_worker_unresponsive("worker-1")
        await check()
        await backend.dequeue_jobs("worker-1", limit=2)
        clock.advance(60)
        await backend.reclaim_expired_leases()
        await check()
        for dead in await kit.all_jobs(backend, JobFilter(statuses=[S.DEAD])):
            await backend.retry_job(dead.id)
        await check()
        await backend.delete_jobs(job_ids=[job.id for job in await kit.all_jobs(backend) if job.status.final])
        await check()

    async def test_every_queue_with_jobs_or_settings_is_listed_by_name(self, backend: Backend) -> None:
        await kit.enqueue(backend, queue="mail")
        await kit.job_in(backend, S.RUNNING, queue="bills")
        await backend.pause_queue("empty but paused")
        queues = await backend.list_queues()
        assert [queue.name for queue in queues] == ["bills", "empty but paused", "mail"]
        assert [queue.paused for queue in queues] == [False, True, False]
        for queue in queues:
            assert dict(queue.counts) == await backend.count_jobs(queue.name)
            assert (queue.running, queue.per_key, queue.rate, queue.rate_per_key) == (None, None, None, None)


async def explained(backend: Backend, job_id: str) -> Explanation:
    """Explain why a job does not run; check that the explanation is valid JSON."""
    explanation = explanation_of(await backend.facts_about(job_id))
    assert json.loads(json.dumps(explanation.as_json()))["job_id"] == job_id
    return explanation


async def reason(backend: Backend, job_id: str, kind: str) -> Reason:
    """Return the one reason of this kind."""
    [found] = [reason for reason in (await explained(backend, job_id)).reasons if reason.kind == kind]
    return found


async def add_worker(backend: Backend, worker_id: str = "w", **fields: object) -> None:
    """Store a worker with a recent heartbeat."""
    await backend.heartbeat_worker(WorkerInfo(id=worker_id, concurrency=10, **fields))  # type: ignore[arg-type]  # fields of WorkerInfo


ENDED = {
    S.COMPLETED: "completed",
    S.STOPPED: "stopped",
    S.UNSCHEDULED: "unscheduled",
    S.UNKNOWN_STOPPED: "unknown_stopped",
    S.DEAD: "dead",
}


class TestExplaining:
    """`facts_about`, and the explanations derived from it."""

    async def test_an_unknown_job_is_not_found(self, backend: Backend) -> None:
        with pytest.raises(JobNotFound):
            await backend.facts_about("nobody")

    async def test_a_job_with_nothing_in_its_way_is_about_to_start(self, backend: Backend) -> None:
        await add_worker(backend)
        await kit.enqueue(backend, "j")
        assert (await explained(backend, "j")).kinds == ("about_to_start",)

    async def test_a_job_behind_others_is_explained_with_their_number(self, backend: Backend) -> None:
        await add_worker(backend)
        await fill(backend, 5)
        await kit.enqueue(backend, "j")
        await kit.enqueue(backend, "first of all", priority=-1)
        await kit.enqueue(backend, "elsewhere", queue="mail")
        await kit.enqueue(backend, "not yet", run_at=60)
        assert (await reason(backend, "j", "behind_others")).details["ahead"] == 6
        assert (await explained(backend, "first of all")).kinds == ("about_to_start",)

    @pytest.mark.parametrize("status", ENDED)
    async def test_a_job_that_is_over_says_how_it_ended(self, backend: Backend, status: JobStatus) -> None:
        job = await kit.job_in(backend, status)
        explanation = await explained(backend, job.id)
        assert explanation.kinds == (ENDED[status],)
        assert explanation.reasons[0].details["error"] == job.error_message.partition("\n")[0]

    @pytest.mark.parametrize(("status", "kind"), [(S.RUNNING, "running"), (S.CANCELLING, "cancelling")])
    async def test_a_held_job_names_its_owner(self, backend: Backend, status: JobStatus, kind: str) -> None:
        job = await kit.job_in(backend, status)
        found = await reason(backend, job.id, kind)
        assert job.assigned_at is not None
        assert (found.details["worker"], found.details["since"]) == (job.assignee_id, job.assigned_at.isoformat())

    async def test_a_job_that_was_not_accepted_says_so(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.CREATED)
        assert (await explained(backend, job.id)).kinds == ("not_accepted",)

    async def test_a_job_that_waits_for_others_names_them_and_how_they_stand(self, backend: Backend) -> None:
        await kit.job_in(backend, S.DEAD, "dead")
        await kit.job_in(backend, S.COMPLETED, "done")
        await kit.enqueue(backend, "in line")
        await kit.enqueue(backend, "j", depends_on=["dead", "in line", "nobody", "done"])
        found = await reason(backend, "j", "waiting_for_dependencies")
        assert found.details["left"] == 3
        assert {each["job_id"]: each["status"] for each in found.details["waiting_for"]} == {
            "dead": "DEAD",
            "in line": "INITIAL_PENDING",
            "nobody": None,
        }
        assert "retry_job" in found.text

    async def test_of_many_dependencies_a_few_are_named(self, backend: Backend) -> None:
        await kit.enqueue(backend, "j", depends_on=[f"part {number}" for number in range(50)])
        found = await reason(backend, "j", "waiting_for_dependencies")
        assert (found.details["left"], len(found.details["waiting_for"])) == (50, 10)
        assert "and 40 more" in found.text

    async def test_a_job_that_is_not_due_says_until_when(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "j", run_at=90)
        found = await reason(backend, "j", "not_due")
        assert found.details["seconds"] == 90
        clock.advance(90)
        assert "not_due" not in (await explained(backend, "j")).kinds

    async def test_explain_shows_why_and_until_when_a_job_is_released(self, backend: Backend, clock: HeldClock) -> None:
        await add_worker(backend)
        await kit.enqueue(backend, "j")
        for why in ("the mail server rests", "no task of this worker is named 'emial', but email"):
            job = await kit.claim(backend)
            await backend.release_lease("j", kit.lease_of(job), run_at=20, reason=why)
            assert (await explained(backend, "j")).kinds == ("given_back",)
            found = await reason(backend, "j", "given_back")
            assert (found.details["reason"], found.details["seconds"]) == (why, 20)
            assert why in found.text
            clock.advance(20)
        assert (await explained(backend, "j")).kinds == ("about_to_start",)
        job = await kit.claim(backend)
        await backend.release_lease("j", kit.lease_of(job), run_at=20)
        assert (await explained(backend, "j")).kinds == ("not_due",)

    async def test_a_job_past_its_time_says_that_it_will_be_ended(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "j", expires_at=10)
        clock.advance(10)
        assert "expired" in (await explained(backend, "j")).kinds

    async def test_a_paused_queue_is_a_reason_beside_others(self, backend: Backend) -> None:
        await add_worker(backend)
        await kit.enqueue(backend, "j", run_at=90)
        await backend.pause_queue("default")
        assert (await explained(backend, "j")).kinds == ("not_due", "queue_paused")

    async def test_a_full_queue_names_its_running_jobs(self, backend: Backend) -> None:
        await add_worker(backend)
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

    async def test_a_full_key_names_its_running_jobs_and_another_key_is_free(self, backend: Backend) -> None:
        # M-FUT-07
        await add_worker(backend)
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
        await add_worker(backend)
        clock.set(datetime(2026, 1, 1, 12, 0, 50, tzinfo=UTC))
        await add_worker(backend)
        await backend.set_limits("default", rate=Rate(1, 60), rate_per_key=Rate(1, 30))
        await fill(backend, 2, "k")
        await take(backend)
        assert (await explained(backend, "k 1")).kinds == ("queue_rate_used_up", "key_rate_used_up")
        for kind in ("queue_rate_used_up", "key_rate_used_up"):
            found = await reason(backend, "k 1", kind)
            assert found.details["until"] == datetime(2026, 1, 1, 12, 1, tzinfo=UTC).isoformat()
        clock.advance(10)
        assert (await explained(backend, "k 1")).kinds == ("about_to_start",)

    async def test_explain_says_what_the_live_workers_lack(self, backend: Backend, clock: HeldClock) -> None:
        await kit.enqueue(backend, "j", queue="mail", tags=["eu"])
        assert (await explained(backend, "j")).kinds == ("no_worker",)
        await add_worker(backend, "other queue", queues=("images",))
        await add_worker(backend, "other tag", tags=("us",))
        await add_worker(backend, "stopped", state="stopped")
        found = await reason(backend, "j", "no_worker")
        assert found.details["silent"] == 1
        assert "images" in found.details["workers"]["other queue"]
        assert "us" in found.details["workers"]["other tag"]
        await add_worker(backend, "fits", queues=("images", "mail"), tags=("eu",))
        assert (await explained(backend, "j")).kinds == ("about_to_start",)
        clock.advance(61)
        assert (await explained(backend, "j")).kinds == ("no_worker",)

    async def test_a_job_whose_workers_are_all_busy_says_so(self, backend: Backend) -> None:
        await kit.enqueue(backend, "j")
        await add_worker(backend, "busy", running=10)
        assert (await explained(backend, "j")).kinds == ("workers_busy",)
        await add_worker(backend, "idle")
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

    async def test_explain_gives_all_reasons_position_and_start(self, backend: Backend, clock: HeldClock) -> None:
        # M7
        await backend.heartbeat_worker(WorkerInfo(id="w", concurrency=1, running=1))
        for number in range(20):
            await kit.enqueue(backend, f"done {number}")
            job = await kit.claim(backend)
            clock.advance(kit.seconds(3))
            await backend.complete_job(job.id, lease=job.lease)
        await backend.heartbeat_worker(WorkerInfo(id="w", concurrency=1, running=1))
        await backend.enqueue_jobs([kit.new_job(f"ahead {number}") for number in range(30)])
        await kit.enqueue(backend, "j")
        explanation = await explained(backend, "j")
        assert explanation.kinds == ("workers_busy", "behind_others")
        details = explanation.reasons[1].details
        assert (details["ahead"], details["position"]) == (30, 31)
        estimate = details["estimated_start"]
        assert (estimate["completed"], estimate["window_seconds"]) == (20, 57)
        assert clock.now().isoformat() < estimate["earliest"] < estimate["latest"]
