"""Jobs are added and answered as they are stored: once, whatever id or idempotency key comes again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import DuplicateJob, InvalidArgument, KeyReused
from longshore.core.job import Job
from longshore.testing.conformance.fixtures import OpenBackend
from longshore.testing.conformance.staging import (
    S,
    all_jobs,
    claim,
    enqueue,
    job_in,
    new_job,
    nothing_changes,
    refused,
    seconds,
    story,
)


async def add(backend: Backend, *jobs: Job) -> list[Job]:
    """Adds the jobs; every answer is the job as anybody reads it who looks now."""
    answers = await backend.add_jobs(jobs)
    assert answers == [await backend.get_job(job.id) for job in answers]
    return answers


class TestAdding:
    """`add_jobs`."""

    async def test_a_new_job_is_answered_as_it_is_stored(self, backend: Backend, clock: HeldClock) -> None:
        # B-ENQ-01
        plain, full = await add(
            backend,
            new_job("plain"),
            new_job(
                "full",
                queue="mail",
                payload=b'{"to": "ada"}',
                tags=["eu", "eu", "slow"],
                priority=-3,
                lifo=True,
                delay=60,
                expires_at=timedelta(hours=1),
                timeout=10,
                max_attempts=5,
                max_crashes=3,
                idempotency_key="once",
                concurrency_key="customer 7",
                parent_id="mother",
                schedule_id="nightly",
                options={"backoff": {"type": "fixed", "delay": 5.0}},
            ),
        )
        assert (plain.id, plain.status, plain.created_at) == ("plain", S.INITIAL_PENDING, clock.now())
        assert (full.tags, full.run_at, full.timeout) == (("eu", "slow"), clock.now() + seconds(60), seconds(10))
        assert 0 < plain.uid < full.uid
        assert await story(backend, "full") == ["job.added", "job.delayed"]
        assert await add(backend) == []

    async def test_jobs_that_are_held_back_or_wait_are_answered_so(self, backend: Backend) -> None:
        created, child, parent = await add(
            backend,
            new_job("created", status=S.CREATED),
            new_job("child", depends_on=["parent"]),
            new_job("parent"),
        )
        assert [created.status, child.status, parent.status] == [S.CREATED, S.WAITING_CHILDREN, S.INITIAL_PENDING]
        assert child.depends_on == ("parent",)

    async def test_jobs_that_are_over_as_they_come_are_answered_so(self, backend: Backend) -> None:
        dead = await job_in(backend, S.DEAD)
        answers = await add(
            backend,
            new_job("doomed", depends_on=[dead.id], on_dependency_failure="stop"),
            new_job("with it", depends_on=["doomed"], on_dependency_failure="stop"),
            new_job("not at all"),
        )
        assert [job.status.final for job in answers] == [True, True, False]

    async def test_an_id_in_use_answers_with_its_job_and_changes_nothing(self, backend: Backend) -> None:
        # X-112
        for status in (S.INITIAL_PENDING, S.RUNNING, S.COMPLETED):
            known = await job_in(backend, status, f"{status}", queue="mail")
            async with nothing_changes(backend):
                assert await add(backend, new_job(known.id, type="other", queue="bills", priority=9)) == [known]

    async def test_known_and_new_jobs_come_together_each_in_its_place(self, backend: Backend) -> None:
        # X-112
        known = [await enqueue(backend, f"known {number}", idempotency_key=f"key {number}") for number in range(3)]
        answers = await add(
            backend,
            new_job("new 1"),
            new_job("known 0"),
            new_job("new 1", type="again"),
            new_job("another", idempotency_key="key 1"),
            new_job("new 2", idempotency_key="new key"),
            new_job("another", idempotency_key="new key"),
            new_job("known 2", idempotency_key="key 1"),
            new_job("another"),
        )
        new = ["new 1", "known 0", "new 1", "known 1", "new 2", "new 2", "known 1", "another"]
        assert [job.id for job in answers] == new
        assert {job.type for job in answers} == {"email"}
        assert (answers[1], answers[3]) == (known[0], known[1])
        assert len(await all_jobs(backend)) == 6

    async def test_many_known_ids_are_no_more_trouble_than_one(self, backend: Backend) -> None:
        ids = [f"job {number}" for number in range(300)]
        await backend.enqueue_jobs([new_job(job_id) for job_id in ids[::2]])
        answers = await backend.add_jobs([new_job(job_id) for job_id in ids])
        assert [job.id for job in answers] == ids
        assert len(await all_jobs(backend)) == 300

    async def test_a_key_is_known_in_its_own_queue_only(self, backend: Backend) -> None:
        mail, bill = await add(
            backend,
            new_job("mail", queue="mail", idempotency_key="once"),
            new_job("bill", queue="bills", idempotency_key="once"),
        )
        assert (mail.id, bill.id) == ("mail", "bill")

    async def test_the_key_of_a_removed_job_answers_with_what_is_remembered(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        gone = await job_in(backend, S.STOPPED, "gone", queue="mail", payload=b"1", idempotency_key="once")
        await backend.delete_jobs(job_ids=["gone"])
        await enqueue(backend, "gone", type="another of this name")
        async with nothing_changes(backend):
            [answer] = await backend.add_jobs([new_job("new", queue="mail", idempotency_key="once")])
        assert (answer.id, answer.uid, answer.queue, answer.type) == ("gone", gone.uid, "mail", "email")
        assert (answer.status, answer.idempotency_key, answer.payload) == (S.STOPPED, "once", b"null")
        assert (answer.created_at, answer.lease) == (None, None)
        clock.advance(timedelta(hours=24))
        [answer] = await add(backend, new_job("new", queue="mail", idempotency_key="once"))
        assert answer.id == "new"

    async def test_of_jobs_that_are_to_be_new_a_known_key_is_in_the_way_as_an_id_is(self, backend: Backend) -> None:
        await enqueue(backend, "known", queue="mail", idempotency_key="once")
        gone = await job_in(backend, S.COMPLETED, "gone", queue="mail", idempotency_key="then")
        await backend.delete_jobs(job_ids=[gone.id])
        for in_the_way, named in (
            (new_job("other", queue="mail", idempotency_key="once"), "known"),
            (new_job("known", queue="mail", idempotency_key="once"), "known"),
            (new_job("other", queue="mail", idempotency_key="then"), "gone"),
            (new_job("known"), "known"),
        ):
            async with refused(backend, DuplicateJob) as refusal:
                await backend.enqueue_new_jobs([new_job("new"), in_the_way])
            assert refusal.value.job_ids == [named]
        twins = [new_job("a", idempotency_key="twice"), new_job("b", idempotency_key="twice")]
        async with refused(backend, DuplicateJob):
            await backend.enqueue_new_jobs(twins)
        assert await backend.enqueue_new_jobs([new_job("a", idempotency_key="new")]) == ["a"]
        async with refused(backend, InvalidArgument, field="jobs[1].priority"):
            await backend.enqueue_new_jobs([new_job(), new_job(priority="high")])

    async def test_where_only_repeats_are_taken_another_job_under_a_known_key_or_id_stops_them_all(
        self, backend: Backend
    ) -> None:
        printed = {"request": "0123456789abcdef" * 2}
        await enqueue(backend, "by key", idempotency_key="once", payload=b"1")
        await enqueue(backend, "by request", idempotency_key="said", payload=b"1", options=printed)
        known = [
            new_job("x", idempotency_key="once", payload=b"1"),
            new_job("y", idempotency_key="said", payload=b"2", options=printed),
            new_job("by key", payload=b"1"),
        ]
        async with nothing_changes(backend):
            answers = await backend.add_jobs(known, same_only=True)
        assert [job.id for job in answers] == ["by key", "by request", "by key"]
        for another in (
            new_job("x", idempotency_key="once", payload=b"2"),
            new_job("x", idempotency_key="once", payload=b"1", type="another"),
            new_job("y", idempotency_key="said", payload=b"1"),
            new_job("y", idempotency_key="said", payload=b"1", options={"request": "f" * 32}),
        ):
            async with refused(backend, KeyReused) as reused:
                await backend.add_jobs([new_job("new"), another], same_only=True)
            assert reused.value.job_id in ("by key", "by request")
        for another in (new_job("by key", payload=b"2"), new_job("by key", payload=b"1", queue="another")):
            async with refused(backend, DuplicateJob) as taken:
                await backend.add_jobs([new_job("new"), another], same_only=True)
            assert taken.value.job_ids == ["by key"]
        async with refused(backend, DuplicateJob) as taken:  # an answer would promise a key that nobody keeps
            another = new_job("by key", idempotency_key="never said", payload=b"1")
            await backend.add_jobs([new_job("new"), another], same_only=True)
        assert taken.value.job_ids == ["by key"]
        [new, again] = await backend.add_jobs([new_job("new"), known[0]], same_only=True)
        assert (new.id, again.id) == ("new", "by key")
        async with refused(backend, InvalidArgument, field="same_only"):
            await backend.add_jobs([new_job()], same_only=1)  # type: ignore[arg-type]  # that is the point

    async def test_of_a_removed_job_the_request_is_remembered_with_its_key(self, backend: Backend) -> None:
        printed = {"request": "0123456789abcdef" * 2, "backoff": {"type": "fixed", "delay": 5.0}}
        for job_id, options in (("printed", printed), ("plain", {}), ("odd", {"request": "x\x00y"})):
            await job_in(backend, S.COMPLETED, job_id, idempotency_key=job_id, payload=b"1", options=options)
        await backend.delete_jobs(job_ids=["printed", "plain", "odd"])
        [printed_job] = await backend.add_jobs(
            [new_job(idempotency_key="printed", payload=b"2", options={"request": printed["request"]})], same_only=True
        )
        assert (printed_job.id, dict(printed_job.options)) == ("printed", {"request": printed["request"]})
        async with refused(backend, KeyReused):
            await backend.add_jobs([new_job(idempotency_key="printed", payload=b"1")], same_only=True)
        for job_id in ("plain", "odd"):  # nobody can tell any more what they were
            [answer] = await backend.add_jobs([new_job(idempotency_key=job_id, payload=b"2")], same_only=True)
            assert (answer.id, dict(answer.options)) == (job_id, {})
        async with refused(backend, KeyReused):
            await backend.add_jobs([new_job(idempotency_key="plain", type="another")], same_only=True)

    async def test_an_id_whose_job_was_removed_is_free(self, backend: Backend) -> None:
        gone = await job_in(backend, S.COMPLETED, "gone")
        await backend.delete_jobs(job_ids=["gone"])
        [answer] = await add(backend, new_job("gone"))
        assert answer.uid > gone.uid

    async def test_one_wrong_job_stops_them_all(self, backend: Backend) -> None:
        # B-ENQS-03
        await enqueue(backend, "known")
        async with refused(backend, InvalidArgument, field="jobs[2].priority"):
            await backend.add_jobs([new_job("known"), new_job(), new_job(priority="high")])
        async with refused(backend, InvalidArgument, field="depends_on"):
            await backend.add_jobs([new_job("a", depends_on=["b"]), new_job("b", depends_on=["a"])])
        async with refused(backend, InvalidArgument, field="jobs"):
            await backend.add_jobs("a")  # type: ignore[arg-type]  # that it is no list is the point
        async with refused(backend, InvalidArgument, field="connection"):
            await backend.add_jobs([new_job()], connection=object())

    async def test_of_many_who_add_the_same_at_once_one_stores_it_and_all_get_it(
        self, backend: Backend, open_backend: OpenBackend
    ) -> None:
        # X-112
        others = [backend, open_backend()] if backend.capabilities.shared else [backend]
        for number in range(5):
            wanted = [new_job(f"a {number}"), new_job(f"b {number}", idempotency_key=f"key {number}"), new_job()]
            answers = await asyncio.gather(*(each.add_jobs(wanted) for each in others * 4))
            assert {tuple(job.uid for job in jobs) for jobs in answers} == {tuple(job.uid for job in answers[0])}
        assert len(await all_jobs(backend)) == 15

    async def test_what_was_added_is_claimed_as_it_was_answered(self, backend: Backend) -> None:
        [job] = await add(backend, new_job("a", payload=b"1", tags=["eu"]))
        claimed = await claim(backend)
        assert (
            claimed.replace(
                **{
                    name: getattr(job, name) for name in ("status", "lease", "assignee_id", "assigned_at", "started_at")
                },
                **{name: getattr(job, name) for name in ("updated_at", "epoch", "executions")},
            )
            == job
        )

    async def test_the_stores_own_time_is_told(self, backend: Backend, clock: HeldClock) -> None:
        assert await backend.now() == clock.now()
        clock.advance(1.5)
        assert await backend.now() == clock.now()
