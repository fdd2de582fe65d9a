"""Jobs added with options: the effect of each, refusals, and repeated calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from longshore import Job, JobStatus, Queue, Repeat, exponential, fixed
from longshore.backends.base import Backend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.clock import HeldClock
from longshore.core.errors import DuplicateJob, InvalidArgument
from longshore.runtime.queue import SyncQueue
from longshore.testing.conformance.scenarios import (
    all_jobs,
    claim,
    claimable,
    job_in,
    log_of,
    nothing_changes,
    refused,
    seconds,
    story,
)

S = JobStatus


def test_the_options_of_add_are_those_of_the_surface_with_their_defaults() -> None:
    # M-OPT-01 M-OPT-02 M-OPT-03 M-OPT-05 M-OPT-06 M-OPT-07 M-OPT-16 M-OPT-17 M-OPT-18
    parameters = list(inspect.signature(Queue.add).parameters.values())[1:]
    assert [(one.name, one.default) for one in parameters[:2]] == [("type", inspect.Parameter.empty), ("data", None)]
    assert {one.name: one.default for one in parameters[2:]} == dict(
        [
            *(("priority", 0), ("delay", None), ("run_at", None), ("expires_at", None), ("attempts", 1)),
            *(("backoff", None), ("retry_strategy", None), ("lifo", False), ("job_id", None)),
            *(("idempotency_key", None), ("tags", ()), ("timeout", None), ("depends_on", ())),
            *(("on_dependency_failure", "wait"), ("parent_id", None), ("remove_on_complete", False)),
            *(("remove_on_fail", False), ("repeat", None), ("concurrency_key", None), ("max_crashes", 3)),
            *(("hold", False), ("connection", None)),
        ]
    )
    assert {parameter.kind for parameter in parameters[2:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.signature(SyncQueue.add).parameters.keys() == inspect.signature(Queue.add).parameters.keys()


@pytest.mark.parametrize("options", [{"dealy": 5}, {"Priority": 1}, {"max_attempts": 1}])
async def test_an_option_that_there_is_not_is_refused_by_name_on_every_way_in(
    queue: Queue, options: dict[str, Any]
) -> None:
    # M-OPT-01
    (name,) = options
    for adding in (queue.add("email", **options), queue.add("email", repeat=Repeat(every=60), **options)):
        with pytest.raises(
            InvalidArgument, match=rf"^{name}: is not an option of a job; (did you mean|the options are) "
        ):
            await adding
    for spec in ({"type": "email", **options}, ("email", None, options)):
        with pytest.raises(InvalidArgument, match=rf"^specs\[0\].{name}: is not an option of a job; "):
            await queue.add_bulk([spec])  # type: ignore[list-item]  # wrong on purpose
    assert await all_jobs(queue.backend) == []


async def test_a_job_is_added_with_its_data_and_the_defaults_of_the_surface(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M-QUE-02 M-QUE-04 M-JOB-01 M-JOB-02 M-JOB-03 M-JOB-04 M-JOB-05 M-JOB-06 M-JOB-11 M-JOB-15 M-TR-01 M-OPT-03
    job = await queue.add("email", {"to": ["ada", None, 1.5]})
    assert (job.type, job.queue, job.data, job.options) == ("email", "default", {"to": ["ada", None, 1.5]}, {})
    assert (job.max_attempts, job.max_crashes, job.priority, job.lifo) == (1, 3, 0, False)
    assert (job.status, job.created_at, job.updated_at) == (S.INITIAL_PENDING, clock.now(), clock.now())
    assert len(job.id) == 36
    assert job.uid > 0
    assert job == await backend.get_job(job.id)
    assert await story(backend, job.id) == ["job.added"]
    assert (await queue.add("email")).data is None


async def test_every_option_is_kept_on_the_job(queue: Queue, clock: HeldClock) -> None:
    # M-JOB-05 M-JOB-14 M-OPT-01 M-OPT-02 M-OPT-03 M-OPT-04 M-OPT-05 M-OPT-06 M-OPT-07 M-OPT-17 M-OPT-18 M-JOB-19
    job = await queue.add(
        "email",
        priority=-3,
        delay=60,
        expires_at=timedelta(hours=1),
        attempts=5,
        backoff=exponential(2, cap=60, jitter=0.5),
        retry_strategy="patient",
        lifo=True,
        job_id="my own",
        idempotency_key="once",
        tags=["eu", "eu", "slow"],
        timeout=10,
        parent_id="mother",
        remove_on_complete=True,
        remove_on_fail=100,
        concurrency_key="customer 7",
        max_crashes=None,
    )
    assert (job.priority, job.lifo, job.id, job.idempotency_key) == (-3, True, "my own", "once")
    assert (job.delay, job.run_at) == (seconds(60), clock.now() + seconds(60))
    assert (job.expires_at, job.timeout) == (clock.now() + seconds(3600), seconds(10))
    assert (job.max_attempts, job.max_crashes, job.tags) == (5, None, ("eu", "slow"))
    assert (job.parent_id, job.concurrency_key) == ("mother", "customer 7")
    assert job.options == {
        "backoff": {"type": "exponential", "delay": 2.0, "cap": 60.0, "jitter": 0.5},
        "retry_strategy": "patient",
        "remove_on_complete": True,
        "remove_on_fail": 100,
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (fixed(5), ("fixed", 5)),
        (7, ("fixed", 7)),
        (0.5, ("fixed", 0.5)),
        (timedelta(minutes=1), ("fixed", 60)),
        ({"type": "exponential", "delay": 3}, ("exponential", 3)),
    ],
    ids=str,
)
async def test_a_backoff_is_written_in_several_ways(queue: Queue, given: Any, kept: tuple[str, float]) -> None:
    # M-OPT-05
    backoff = (await queue.add("email", backoff=given)).options["backoff"]
    assert (backoff["type"], backoff["delay"]) == kept


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("attempts", {"attempts": -1}),
        ("attempts", {"attempts": True}),
        ("backoff", {"backoff": "soon"}),
        ("backoff", {"backoff": -1}),
        ("backoff", {"backoff": {"delay": 1}}),
        ("backoff.type", {"backoff": {"type": "linear", "delay": 1}}),
        ("retry_strategy", {"retry_strategy": ""}),
        ("remove_on_complete", {"remove_on_complete": -1}),
        ("remove_on_fail", {"remove_on_fail": "all"}),
        ("hold", {"hold": 1}),
        ("job_id", {"job_id": ""}),
        ("priority", {"priority": "high"}),
        ("delay", {"delay": -5}),
        ("run_at", {"run_at": datetime(2026, 1, 1)}),  # noqa: DTZ001 - without a time zone on purpose
        ("expires_at", {"expires_at": "tomorrow"}),
        ("lifo", {"lifo": 1}),
        ("tags", {"tags": "eu"}),
        ("timeout", {"timeout": 0}),
        ("depends_on", {"depends_on": ["me"], "job_id": "me"}),
        ("on_dependency_failure", {"on_dependency_failure": "cry"}),
        ("max_crashes", {"max_crashes": -1}),
        ("idempotency_key", {"idempotency_key": ""}),
        ("concurrency_key", {"concurrency_key": "\n"}),
        ("parent_id", {"parent_id": ""}),
        ("repeat", {"repeat": "daily"}),
        ("type", {"type": ""}),
        ("data.to[1]", {"data": {"to": ["a", {1, 2}]}}),
        ("data.when", {"data": {"when": datetime(2026, 1, 1)}}),  # noqa: DTZ001 - a datetime is not JSON
        ("data", {"data": {1: 2}}),
        ("data.share", {"data": {"share": float("nan")}}),
    ],
    ids=str,
)
async def test_a_wrong_option_is_refused_by_its_own_name_alone_and_in_a_batch(
    queue: Queue, backend: Backend, field: str, options: dict[str, Any]
) -> None:
    # M-JOB-04 Q-ERR-02
    spec = {"type": "email", **options}
    await refused(backend, queue.add(**spec), field=field)
    if "repeat" not in options:
        await refused(backend, queue.add_bulk([{"type": "good"}, spec]), field=f"specs[1].{field}")  # type: ignore[list-item]  # wrong on purpose


async def test_a_delay_and_a_time_hold_the_job_back_and_the_time_wins(
    queue: Queue, backend: Backend, clock: HeldClock
) -> None:
    # M-OPT-02 M-JOB-14 M-TR-02 M-EV-08 M-STS-05
    delayed = await queue.add("a", delay=60)
    timed = await queue.add("b", delay=60, run_at=clock.now() + seconds(10))
    past = await queue.add("c", run_at=clock.now() - seconds(10))
    assert await story(backend, delayed.id) == ["job.added", "job.delayed"]
    assert await claimable(backend) == [past.id]
    clock.advance(10)
    assert await claimable(backend) == [past.id, timed.id]
    clock.advance(49.999)
    assert delayed.id not in await claimable(backend)
    clock.advance(0.001)
    assert delayed.id in await claimable(backend)


async def test_jobs_are_served_by_priority_then_lifo_then_age(queue: Queue, clock: HeldClock) -> None:
    # M-QUE-14 M-OPT-01 M-OPT-06
    for name, options in (("old", {}), ("new", {}), ("last in", {"lifo": True}), ("urgent", {"priority": -1})):
        await queue.add(name, **options)
        clock.advance(1)
    await queue.add("newest in", lifo=True)
    await queue.add("later", delay=1)
    served = [job.type for job in await queue.dequeue_jobs("w", limit=9)]
    assert served == ["urgent", "newest in", "last in", "old", "new"]


@pytest.mark.parametrize(("keep", "left"), [(False, 4), (True, 0), (0, 0), (2, 2)])
async def test_an_ended_job_is_removed_or_the_latest_few_are_kept(
    queue: Queue, backend: Backend, clock: HeldClock, keep: bool | int, left: int
) -> None:
    # M-OPT-08 M-OPT-09 M-TR-13 X-100
    for number in range(4):
        good = await queue.add("good", remove_on_complete=keep, job_id=f"good {number}")
        await claim(backend)
        await queue.complete_job(good.id)
        bad = await queue.add("bad", remove_on_fail=keep, job_id=f"bad {number}")
        await claim(backend)
        await queue.fail_job(bad.id, "not final")
        await claim(backend)
        await queue.bury_job(bad.id, "for good")
        assert await story(backend, bad.id) == [
            *("job.added", "job.active", "job.failed", "job.promoted", "job.active", "job.failed", "job.dead"),
            *(["job.removed"] if keep is not False and keep in (True, 0) else []),
        ]
        clock.advance(1)
    kept = [job.id for job in await all_jobs(backend)]
    assert kept == [f"{kind} {number}" for number in range(3, 3 - left, -1) for kind in ("bad", "good")]


async def test_a_held_job_waits_until_it_is_accepted(queue: Queue, backend: Backend) -> None:
    # M-QUE-02
    job = await queue.add("email", hold=True)
    assert job.status is S.CREATED
    assert await claimable(backend) == []
    await queue.accept_jobs([job.id])
    assert await claimable(backend) == [job.id]


async def test_a_job_with_dependencies_waits_for_them(queue: Queue, backend: Backend) -> None:
    # M-OPT-16 M-JOB-19 M-STS-06
    first = await queue.add("first")
    second = await queue.add("second", depends_on=[first.id])
    assert (second.status, second.depends_on) == (S.WAITING_CHILDREN, (first.id,))
    await claim(backend)
    await queue.complete_job(first.id)
    assert (await queue.get_job(second.id)).status is S.INITIAL_PENDING


async def test_an_id_in_use_returns_its_job_and_writes_no_event(queue: Queue, backend: Backend) -> None:
    # M-OPT-07 X-112
    first = await queue.add("email", {"to": "ada"}, job_id="one")
    async with nothing_changes(backend):
        assert await queue.add("letter", {"to": "bob"}, job_id="one") == first
        assert await queue.add_bulk([("x", 1, {"job_id": "one"})]) == [first]
    await claim(backend)
    await queue.complete_job("one", b"{}")
    assert (await queue.add("email", job_id="one")).status is S.COMPLETED


async def test_two_callers_that_add_one_id_at_once_get_one_job(queue: Queue, backend: Backend) -> None:
    # M-OPT-07 X-112
    jobs = await asyncio.gather(*(queue.add("email", number, job_id="one") for number in range(8)))
    assert len({job.uid for job in jobs}) == 1
    assert [event.event for event in await log_of(backend)] == ["job.added"]


async def test_an_id_that_is_in_use_is_an_error_only_for_a_plain_enqueue(queue: Queue, backend: Backend) -> None:
    # X-112
    await backend.enqueue_job(Job(id="one", type="theirs"))
    assert (await queue.add("ours", job_id="one")).type == "theirs"
    with pytest.raises(DuplicateJob):
        await queue.enqueue_job(Job(id="one", type="ours"))


async def test_an_idempotency_key_answers_with_the_first_job(queue: Queue, mail: Queue, backend: Backend) -> None:
    # M-QUE-02
    first = await queue.add("email", {"to": "ada"}, idempotency_key="order 7")
    async with nothing_changes(backend):
        assert await queue.add("email", {"to": "bob"}, idempotency_key="order 7") == first
    assert (await mail.add("email", idempotency_key="order 7")).id != first.id  # a key belongs to its queue


async def test_the_key_of_a_removed_job_returns_its_remaining_record(queue: Queue, backend: Backend) -> None:
    # M-QUE-02
    first = await queue.add("email", {"to": "ada"}, idempotency_key="order 7")
    await claim(backend)
    await queue.stop_job(first.id)
    await queue.remove_job(first.id)
    async with nothing_changes(backend):
        again = await queue.add("letter", {"to": "bob"}, idempotency_key="order 7")
    assert (again.id, again.queue, again.type, again.status) == (first.id, "default", "email", S.STOPPED)


async def test_a_batch_is_added_all_or_nothing_in_its_order(queue: Queue, backend: Backend) -> None:
    # M-QUE-03 X-113
    as_in_bullmq: Any = {"name": "e", "data": 3, "opts": {"delay": 60}}
    jobs = await queue.add_bulk(
        [
            {"type": "a", "data": 1, "priority": 4, "tags": ["t"]},
            ("b", {"x": 1}, {"attempts": 3}),
            ("c", 2),
            ("d",),
            as_in_bullmq,
        ]
    )
    assert [(job.type, job.data) for job in jobs] == [("a", 1), ("b", {"x": 1}), ("c", 2), ("d", None), ("e", 3)]
    assert (jobs[0].priority, jobs[0].tags, jobs[1].max_attempts, jobs[4].delay) == (4, ("t",), 3, seconds(60))
    assert [(job.max_attempts, job.max_crashes) for job in jobs[2:]] == [(1, 3)] * 3
    assert jobs == [await backend.get_job(job.id) for job in jobs]
    assert await queue.add_bulk([]) == []
    assert [event.event for event in await log_of(backend)].count("job.added") == 5


async def test_an_id_twice_in_a_batch_or_in_use_is_one_job(queue: Queue, backend: Backend) -> None:
    # M-QUE-03 X-112
    known = await queue.add("known", job_id="known")
    jobs = await queue.add_bulk(
        [("a", 1, {"job_id": "x"}), ("b", 2, {"job_id": "x"}), ("c", 3, {"job_id": "known"}), ("d", 4)]
    )
    assert [job.type for job in jobs] == ["a", "a", "known", "d"]
    assert jobs[2] == known
    assert len(await all_jobs(backend)) == 3


@pytest.mark.parametrize(
    ("specs", "field"),
    [
        ("email", "specs"),
        ({"type": "email"}, "specs"),
        (7, "specs"),
        ([("a",), "email"], "specs[1].spec"),
        ([{"data": 1}], "specs[0].type"),
        ([{"type": "a", "speed": 1}], "specs[0].speed"),
        ([{"type": "a", "repeat": None}], "specs[0].repeat"),
        ([{"type": "a", "connection": None}], "specs[0].connection"),
        ([("a", 1, 2)], "specs[0].opts"),
        ([()], "specs[0].spec"),
    ],
    ids=str,
)
async def test_a_batch_that_is_none_is_refused(queue: Queue, backend: Backend, specs: Any, field: str) -> None:
    # M-QUE-03
    await refused(backend, queue.add_bulk(specs), field=field)


async def test_a_repeated_job_is_a_schedule_that_is_put_once(queue: Queue, backend: Backend, clock: HeldClock) -> None:
    # X-93 M-QUE-02
    schedule = await queue.add("report", {"of": "sales"}, repeat=Repeat(cron="0 9 * * *"), attempts=4, tags=["t"])
    assert schedule.next_run_at is not None
    assert (schedule.job.type, schedule.job.data, schedule.job.max_attempts) == ("report", {"of": "sales"}, 4)
    assert (schedule.job.max_crashes, schedule.job.tags) == (3, ("t",))
    again = await queue.add("report", {"of": "sales"}, repeat=Repeat(cron="0 9 * * *"), priority=2)
    assert (again.id, again.job.priority) == (schedule.id, 2)
    other = await queue.add("report", {"of": "costs"}, repeat=Repeat(cron="0 9 * * *"))
    named = await queue.add("report", repeat=Repeat(every=60), job_id="named")
    changed = await queue.add("report", 1, repeat=Repeat(every=90), job_id="named")
    assert (named.id, changed.id) == ("named", "named")
    assert {found.id for found in await queue.get_schedules()} == {schedule.id, other.id, "named"}
    assert await all_jobs(backend) == []
    clock.advance(90)
    [job] = await queue.fire_due_schedules()
    assert (job.data, job.schedule_id) == (1, "named")


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("run_at", {"run_at": 5}),
        ("depends_on", {"depends_on": ["a"]}),
        ("idempotency_key", {"idempotency_key": "a"}),
        ("hold", {"hold": True}),
        ("connection", {"connection": object()}),
        ("job_id", {"job_id": "x" * 201}),
    ],
)
async def test_what_a_repeated_job_cannot_have_is_refused(
    queue: Queue, backend: Backend, field: str, options: dict[str, Any]
) -> None:
    # X-93
    await refused(backend, queue.add("report", repeat=Repeat(every=60), **options), field=field)


# -- in the caller's transaction


@asynccontextmanager
async def transaction_of(backend: Backend, url: str, *, commits: bool) -> AsyncIterator[object]:
    """A connection of the caller with an open transaction, which ends as requested."""
    ending = "COMMIT" if commits else "ROLLBACK"
    if isinstance(backend, SQLiteBackend):
        connection = backend.new_connection()
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute(ending)
        connection.close()
    else:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as joined:
            await joined.execute("BEGIN")
            yield joined
            await joined.execute(ending)


async def test_a_job_added_in_the_callers_transaction_exists_if_and_only_if_it_commits(
    queue: Queue, backend: Backend, store_url: str
) -> None:
    # M-QUE-02
    if not backend.capabilities.joins_transactions:
        with pytest.raises(InvalidArgument):
            await queue.add("email", connection=object())
        return
    await queue.add("here already", job_id="taken")
    for commits, found in ((False, 1), (True, 4)):
        async with transaction_of(backend, store_url, commits=commits) as connection:
            job = await queue.add("email", {"to": "ada"}, idempotency_key="k", tags=["t"], connection=connection)
            assert (job.type, job.data, job.status, job.tags) == ("email", {"to": "ada"}, S.INITIAL_PENDING, ("t",))
            again = await queue.add("email", idempotency_key="k", connection=connection)
            assert again.id == job.id
            assert (await queue.add("x", job_id="taken", connection=connection)).type == "here already"
            two = await queue.add_bulk([("a", 1), ("b", 2)], connection=connection)
            assert len(await all_jobs(backend)) == 1
        assert len(await all_jobs(backend)) == found
    assert [(await queue.get_job(each.id)).data for each in two] == [1, 2]


async def test_a_job_of_a_tombstone_key_is_not_run_again(queue: Queue, backend: Backend) -> None:
    # X-50
    job = await job_in(backend, S.COMPLETED, idempotency_key="k")
    await queue.remove_job(job.id)
    await queue.add("email", idempotency_key="k")
    assert await claimable(backend) == []
