"""Data migration: the database has everything that was in the file, once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import apsw
import psycopg
import pytest

from longshore.backends import data_migration
from longshore.backends.base import Backend, Outcome, WorkerInfo
from longshore.backends.data_migration import TABLES, Begun, MoveReport, Source, Step, Target, move
from longshore.backends.postgres.backend import PostgresBackend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.backends.token_store import SupportsTokens
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, CursorExpired, MoveRefused
from longshore.core.job import Job
from longshore.core.limits import Rate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.testing.conformance.scenarios import job_in
from tests.backends.audit import all_events, all_jobs, audit, faults_inside
from tests.backends.second_store import PostgresStore, SQLiteStore
from tests.backends.two_stores import QUEUES, TwoStores, random_steps, shown
from tests.postgres_pooler import Pooler

ODD_NAMES = ("\\N", "\\.", "a\\tb", "it's; DROP TABLE jobs --", '{"a"}', "%s $1 {schema}", "Größe 🚢", "\u202ereversed")


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def file(tmp_path: Path, clock: HeldClock) -> Iterator[SQLiteBackend]:
    backend = SQLiteBackend(tmp_path / "jobs.db", clock=clock)
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
def database(postgres_url: str, clock: HeldClock) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(postgres_url, clock=clock, pool_size=2)
    yield backend
    asyncio.run(backend.close())


async def picture(backend: Backend) -> dict[str, Any]:
    """Everything that the operations return, except for workers, which are not copied."""
    jobs = await all_jobs(backend)
    return shown_all(
        {
            "jobs": jobs,
            "logs": {job.id: await backend.read_logs(job.id) for job in jobs},
            "counts": await backend.count_jobs(),
            "stats": [await backend.get_job_stats(tags) for tags in ((), ("x",), ODD_NAMES[:1], ("x", "y"))],
            "events": await all_events(backend),
            "queues": await backend.list_queues(),
            "schedules": await backend.get_schedules(),
            "tokens": await backend.list_tokens() if isinstance(backend, SupportsTokens) else None,
        }
    )


def shown_all(picture: dict[str, Any]) -> dict[str, Any]:
    """Cursors belong to one log, but lease tokens must be equal."""
    events = [dataclasses.replace(event, cursor="*") for event in picture["events"]]
    return {**picture, "events": events}


async def fill(backend: SQLiteBackend, clock: HeldClock) -> None:
    """One of everything that a store can keep."""
    for status in JobStatus:
        await job_in(backend, status, f"in {status}", queue="north")
    for number, name in enumerate(ODD_NAMES):
        job = Job(id=name, type=name, queue=name, tags=(name, "x"), payload=bytes(range(256)), concurrency_key=name)
        await backend.enqueue_job(job.replace(idempotency_key=name, lifo=number % 2 == 0, parent_id=name))
        await backend.append_log(name, f"first of {name}\nand a second line\t\\N", "warn")
        await backend.append_log(name, "more")
        await backend.set_progress(name, {"of": name, "nul": "\0", "half": 0.5})
        await backend.save_checkpoint(name, b"\0\\x00\xff" if number % 2 else {"page": number})
    await backend.enqueue_job(Job(id="child", type="t", depends_on=(*ODD_NAMES, "unknown"), run_at=60, expires_at=3600))
    await backend.set_limits("south", running=2, per_key=1, rate=Rate(5, 60), rate_per_key=Rate(2, 60))
    await backend.enqueue_jobs([Job(id=f"s{n}", type="t", queue="south", concurrency_key="k") for n in range(6)])
    await backend.dequeue_jobs("w", limit=5, queues=["south"], lease=None)
    await backend.set_retention("south", finished=3600, dead=None)
    await backend.pause_queue("north")
    await backend.put_schedule(Schedule(id="nightly\\N", job=Job(type="t"), repeat=Repeat(cron="0 3 * * *")))
    await backend.put_schedule(Schedule(id="often", job=Job(type="t"), repeat=Repeat(every=20), paused=True))
    await backend.enqueue_job(Job(id="gone", type="t", idempotency_key="still known"))
    await backend.cancel_jobs(job_ids=["gone"])
    await backend.delete_jobs(job_ids=["gone"])
    await backend.heartbeat_worker(WorkerInfo(id="w"))
    token, _ = await backend.issue_token("shop\\N", ["read"], queues=list(ODD_NAMES), expires_in=3600)
    await backend.issue_token("root", ["admin"])
    await backend.note_token_use([token.id])
    await backend.revoke_token(token.id)
    clock.advance(1)


def filled(file: SQLiteBackend, jobs: int) -> None:
    """A file with this many plain jobs, a quarter of them completed."""

    async def work() -> None:
        for start in range(0, jobs, 5_000):
            numbers = range(start, min(jobs, start + 5_000))
            await file.enqueue_jobs([Job(id=f"j{n}", type="t", tags=("x",) if n % 4 else ()) for n in numbers])
        done = await file.dequeue_jobs("w", limit=jobs // 4 or 1)
        await file.settle_jobs([Outcome(job.id, job.lease, result=b"ok") for job in done])

    asyncio.run(work())


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that few jobs fill many."""
    monkeypatch.setattr(data_migration, "BLOCK", 3)


class Interrupted(Exception):
    """Simulates a kill between two rows."""


def interrupt_after(rows: int) -> Any:
    """A progress callback that ends the copy at this point."""

    def tell(step: Step) -> None:
        if step.done >= rows:
            raise Interrupted

    return tell


# -- the copy


async def test_everything_arrives_and_nothing_of_the_source_changes(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, small_blocks: None
) -> None:
    await fill(file, clock)
    before, workers = await picture(file), await file.list_workers()
    report = await asyncio.to_thread(move, file, database, while_live=True)
    after = await picture(database)
    for what, reported in before.items():
        assert after[what] == reported, what
    assert await picture(file) == before
    assert await file.list_workers() == workers
    assert report.begun is Begun.FRESH
    assert report.left_behind == 0
    assert report.inventory.tables["jobs"] == len(before["jobs"])
    assert report.copied == {table: report.inventory.tables[table] for table in TABLES}
    assert await database.enqueue_job(Job(id="again", type="t", idempotency_key="still known")) == "gone"
    await audit(database, clock)


async def test_a_cursor_of_the_old_log_has_expired_and_the_new_log_continues(
    file: SQLiteBackend, database: PostgresBackend
) -> None:
    await file.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(3)])
    old = (await file.read_events())[-1].cursor
    await asyncio.to_thread(move, file, database)
    with pytest.raises(CursorExpired, match="another event log"):
        await database.read_events(old)
    here = (await database.read_events())[-1].cursor
    await database.enqueue_job(Job(id="new", type="t"))
    assert [event.job_id for event in await database.read_events(here)] == ["new"]
    newest = (await database.get_job("new")).uid
    assert newest > max(job.uid for job in await all_jobs(file))


async def test_pruned_events_are_pruned_on_from_the_start_of_what_is_left(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, small_blocks: None
) -> None:
    await file.set_retention("default", events=3600)
    await file.enqueue_jobs([Job(id=f"old{number}", type="t") for number in range(8)])
    clock.advance(timedelta(hours=2))
    await file.apply_retention(5)
    await file.enqueue_jobs([Job(id=f"new{number}", type="t") for number in range(8)])
    await asyncio.to_thread(move, file, database)
    assert shown(await all_events(database)) == shown(await all_events(file))
    first = (await database.read_events(limit=1))[0].cursor
    both: tuple[Backend, Backend] = (file, database)
    for store in both:
        while await store.apply_retention():
            pass
    assert shown(await all_events(database)) == shown(await all_events(file))
    with pytest.raises(CursorExpired, match="pruned"):
        await database.read_events(first)


async def test_an_empty_store_is_copied_too(file: SQLiteBackend, database: PostgresBackend) -> None:
    await file.count_jobs()
    report = await asyncio.to_thread(move, file, database)
    assert set(report.inventory.tables.values()) == {0}
    await database.enqueue_job(Job(id="first", type="t"))
    assert (await database.get_job("first")).uid == 1


@pytest.mark.parametrize("part", range(3))
def test_a_random_walk_continues_the_same_after_a_copy(
    part: int, postgres_url: str, seed: int, small_blocks: None
) -> None:
    stores = TwoStores(SQLiteStore)
    try:
        steps = random_steps(seed + part, 300)
        for name, number in steps[:200]:
            stores.happen(name, Random(number))
        carry_over(stores, postgres_url)
        stores.look_at_everything()
        for name, number in steps[200:]:
            stores.happen(name, Random(number))
        stores.finish()
    finally:
        stores.close()


def carry_over(stores: TwoStores, url: str) -> None:
    """From here on the database is compared with memory; leases continue, cursors do not."""
    file = stores.second
    assert isinstance(file, SQLiteStore)
    assert isinstance(file.backend, SQLiteBackend)
    target = PostgresBackend(url, clock=stores.clock)
    move(file.backend, target, while_live=True)
    stores.run(target.close())
    bring_workers(file, url)
    stores.second = PostgresStore(url, stores.clock)
    stores.stores = (stores.stores[0], stores.second.backend)
    stores.cursors[1] = dict.fromkeys(QUEUES)
    stores.read_on(1)
    stores.run(file.backend.close())
    file.clear()


def bring_workers(file: SQLiteStore, url: str) -> None:
    """Workers are not copied; they are added here so that the walk can continue."""
    workers = file._inside.execute("SELECT id, seen_at, body FROM workers").fetchall()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO longshore.workers VALUES (%s, %s, %s)", workers)


def test_twenty_thousand_jobs_take_a_moment(file: SQLiteBackend, database: PostgresBackend) -> None:
    filled(file, 20_000)
    reported: list[Step] = []
    report = move(file, database, on_step=reported.append)
    print(f"{20_000 / report.seconds:.0f} jobs a second, with {report.inventory.tables['job_events']} events")
    assert report.inventory.jobs == {"default": {"COMPLETED": (5_000, 0), "INITIAL_PENDING": (15_000, 0)}}
    assert [step.done for step in reported] == sorted(step.done for step in reported)
    assert reported[-1].done == reported[-1].total == sum(report.copied.values()) == 50_000


# -- unfinished copies


def test_a_partly_copied_store_is_closed_until_the_copy_is_finished(
    file: SQLiteBackend, database: PostgresBackend, postgres_url: str, small_blocks: None
) -> None:
    filled(file, 40)
    asyncio.run(database.count_jobs())  # opened before the copy began
    with pytest.raises(Interrupted):
        move(file, database, on_step=interrupt_after(20))
    for early in (
        database.dequeue_jobs("w", queues=["default"]),
        database.enqueue_job(Job(id="early", type="t")),
        database.pause_queue("default"),
        database.put_schedule(Schedule(id="s", job=Job(type="t"), repeat=Repeat(every=20))),
    ):
        with pytest.raises(BackendUnavailable, match="not finished; run it again"):
            asyncio.run(early)
    late = PostgresBackend(postgres_url)
    with pytest.raises(BackendUnavailable, match="was not finished; run longshore migrate-data again"):
        asyncio.run(late.count_jobs())
    asyncio.run(late.close())
    report = move(file, database)
    assert report.begun is Begun.RESUMED
    assert 0 < report.copied["jobs"] < 40
    assert asyncio.run(picture(database)) == asyncio.run(picture(file))
    assert len(asyncio.run(database.dequeue_jobs("w", limit=100))) == 30


@pytest.mark.parametrize("turn", range(6))
def test_changes_of_the_source_between_two_runs_are_copied(
    turn: int, file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, seed: int, small_blocks: None
) -> None:
    """Reused ids and keys, changed and removed jobs, pruned events, a checkpoint written under a stopped clock."""
    chance = Random(seed + turn)

    async def go_on() -> None:
        await file.reset_running_jobs()
        waiting = sorted(job.id for job in await all_jobs(file) if not job.status.final and job.id.startswith("j"))
        names = chance.sample(waiting, 6)
        await file.cancel_jobs(job_ids=names[:3])
        await file.delete_jobs(job_ids=names[:3])
        clock.advance(timedelta(hours=25))  # their keys are free again
        await file.enqueue_jobs([Job(id=name, type="again", idempotency_key=name) for name in names[:3]])
        await file.save_checkpoint(names[3], {"page": chance.random()})
        await file.append_log(names[4], "went on")
        await file.cancel_jobs(job_ids=names[5:])
        await file.dequeue_jobs("w", limit=chance.randint(1, 5))
        await file.extend_leases(
            {job.id: job.lease for job in await all_jobs(file) if job.lease}, 100 + chance.random()
        )
        await file.enqueue_job(Job(type="t", depends_on=(names[0], names[4]), tags=("y",)))
        await file.apply_retention(7)

    async def begin() -> None:
        await file.set_retention("default", events=3600)
        keyed = [Job(id=f"j{n}", type="t", idempotency_key=f"j{n}", tags=("x",)) for n in range(40)]
        await file.enqueue_jobs(keyed)
        clock.advance(timedelta(hours=2))

    asyncio.run(begin())
    for _ in range(5):
        with pytest.raises(Interrupted):
            move(file, database, while_live=True, on_step=interrupt_after(chance.randint(10, 80)))
        asyncio.run(go_on())
    move(file, database, while_live=True)
    assert asyncio.run(picture(database)) == asyncio.run(picture(file))
    assert faults_inside(database) == []


def test_a_run_that_was_overtaken_by_another_writes_nothing_more(
    file: SQLiteBackend, database: PostgresBackend, small_blocks: None
) -> None:
    filled(file, 40)
    reports: list[MoveReport] = []

    def overtake(step: Step) -> None:
        if step.done >= 20 and not reports:
            reports.append(move(file, database))

    with pytest.raises(MoveRefused, match="another run"):
        move(file, database, on_step=overtake)
    assert reports[0].begun is Begun.RESUMED
    assert asyncio.run(picture(database)) == asyncio.run(picture(file))


def test_a_finished_copy_is_reported_and_not_repeated(file: SQLiteBackend, database: PostgresBackend) -> None:
    filled(file, 8)
    move(file, database)
    asyncio.run(database.dequeue_jobs("w"))
    again = move(file, database)
    assert again.begun is Begun.FINISHED
    assert not any(again.copied.values())
    asyncio.run(file.enqueue_job(Job(id="late", type="t")))
    with pytest.raises(MoveRefused, match="has changed since: 1 events are not in the copy"):
        move(file, database)


def test_what_is_written_meanwhile_is_brought_too(
    file: SQLiteBackend, database: PostgresBackend, small_blocks: None
) -> None:
    filled(file, 40)
    late: list[str] = []

    def write(step: Step) -> None:
        if step.table == "job_events" and not late:
            late.extend(asyncio.run(file.enqueue_jobs([Job(id=f"late{number}", type="t") for number in range(2)])))

    report = move(file, database, on_step=write)
    assert report.left_behind == 0
    assert report.inventory.tables["jobs"] == 42
    assert asyncio.run(picture(database)) == asyncio.run(picture(file))


def test_events_written_until_the_end_are_reported_as_left_behind(
    file: SQLiteBackend, database: PostgresBackend, small_blocks: None
) -> None:
    filled(file, 40)
    late = count()

    def write(_step: Step) -> None:
        asyncio.run(file.enqueue_job(Job(id=f"late{next(late)}", type="t")))

    report = move(file, database, on_step=write)
    assert 0 < report.left_behind < next(late)
    there = asyncio.run(all_jobs(database))
    assert asyncio.run(all_jobs(file))[-len(there) :] == there
    assert faults_inside(database) == []


def test_a_job_that_waits_for_one_less_than_before_is_brought_again(
    file: SQLiteBackend, database: PostgresBackend, small_blocks: None
) -> None:
    """No event records it: only a number changes in the row of a job that still waits."""
    asyncio.run(file.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(6)]))
    asyncio.run(file.enqueue_jobs([Job(id=f"d{number}", type="t", depends_on=("j0", "j1")) for number in range(6)]))
    with pytest.raises(Interrupted):
        move(file, database, on_step=interrupt_after(18))
    asyncio.run(file.update_job_status("j0", JobStatus.RUNNING))
    asyncio.run(file.complete_job("j0"))
    move(file, database)
    assert faults_inside(database) == []
    asyncio.run(database.update_job_status("j1", JobStatus.RUNNING))
    asyncio.run(database.complete_job("j1"))
    assert len(asyncio.run(database.dequeue_jobs("w", limit=20))) == 10


# -- rejected copies


async def test_a_store_with_active_workers_is_copied_only_on_request(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock
) -> None:
    await file.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(4)])
    await file.heartbeat_worker(WorkerInfo(id="mail-0", state="stopped"))  # not active
    await file.heartbeat_worker(WorkerInfo(id="mail-1"))
    clock.advance(12)
    with pytest.raises(MoveRefused, match=r"in use: worker mail-1 sent a heartbeat 12 seconds ago\..*--while-live"):
        await asyncio.to_thread(move, file, database)
    clock.advance(48)
    (held,) = await file.dequeue_jobs("mail-2", lease=30)
    with pytest.raises(MoveRefused, match="mail-2 holds 1 job until 12:01:30 UTC"):
        await asyncio.to_thread(move, file, database)
    clock.advance(30)
    await file.dequeue_jobs("mail-3", limit=2, lease=None)
    with pytest.raises(MoveRefused, match="mail-3 holds 2 jobs under a lease without expiry"):
        await asyncio.to_thread(move, file, database)
    await database.enqueue_job(Job(id="nothing was closed", type="t"))
    await database.cancel_jobs(job_ids=["nothing was closed"])
    assert held.lease is not None


async def test_a_lease_is_valid_in_the_new_store_and_expires_there(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock
) -> None:
    await file.enqueue_jobs([Job(id="kept", type="t"), Job(id="lost", type="t")])
    leases = {job.id: job.lease for job in await file.dequeue_jobs("w", limit=2, lease=30) if job.lease}
    await asyncio.to_thread(move, file, database, while_live=True)
    await database.complete_job("kept", lease=leases["kept"])
    clock.advance(31)
    assert [job.id for job in await database.reclaim_expired_leases()] == ["lost"]


async def test_a_target_with_other_jobs_or_settings_is_rejected_and_not_changed(
    file: SQLiteBackend, database: PostgresBackend
) -> None:
    await file.enqueue_job(Job(id="here", type="t"))
    await database.enqueue_job(Job(id="there", type="t"))
    with pytest.raises(MoveRefused, match="has other jobs, schedules or settings"):
        await asyncio.to_thread(move, file, database)
    assert [job.id for job in await database.dequeue_jobs("w")] == ["there"]


def test_an_unfinished_move_from_elsewhere_is_refused(
    file: SQLiteBackend, database: PostgresBackend, tmp_path: Path, small_blocks: None
) -> None:
    filled(file, 40)
    with pytest.raises(Interrupted):
        move(file, database, on_step=interrupt_after(10))
    other = SQLiteBackend(tmp_path / "other.db")
    filled(other, 4)
    with pytest.raises(MoveRefused, match=r"an unfinished copy from .*jobs\.db"):
        move(other, database)
    asyncio.run(other.close())
    assert move(file, database).begun is Begun.RESUMED


def test_a_schema_with_an_odd_name_is_moved_into(file: SQLiteBackend, postgres_url: str, clock: HeldClock) -> None:
    filled(file, 8)
    database = PostgresBackend(postgres_url, schema='Größe "x" $1', clock=clock)
    move(file, database)
    assert asyncio.run(picture(database)) == asyncio.run(picture(file))
    asyncio.run(database.close())


def test_a_move_goes_through_a_pooler_that_changes_sessions_with_each_transaction(
    file: SQLiteBackend, postgres_url: str, clock: HeldClock, small_blocks: None
) -> None:
    filled(file, 40)
    with Pooler(postgres_url) as pooler:
        database = PostgresBackend(pooler.url, clock=clock)
        with pytest.raises(Interrupted):
            move(file, database, on_step=interrupt_after(20))
        assert move(file, database).begun is Begun.RESUMED
        assert asyncio.run(picture(database)) == asyncio.run(picture(file))
        asyncio.run(database.close())


def test_a_store_that_differs_in_the_end_stays_closed(
    file: SQLiteBackend, database: PostgresBackend, postgres_url: str, small_blocks: None
) -> None:
    """Another process changes what was copied already."""
    filled(file, 40)

    def meddle(step: Step) -> None:
        if step.table == "job_events":
            with psycopg.connect(postgres_url) as connection:
                connection.execute("SET longshore.copying = 'on'")
                connection.execute("UPDATE longshore.jobs SET job_seq = job_seq + 1 WHERE id = 'j7'")

    with pytest.raises(MoveRefused, match=r"differs from .* in jobs 6 to 8"):
        move(file, database, on_step=meddle)
    with pytest.raises(BackendUnavailable, match="was not finished"):
        asyncio.run(database.count_jobs())
    assert move(file, database).copied["jobs"] == 3
    assert asyncio.run(picture(database)) == asyncio.run(picture(file))


def test_statuses_have_different_numbers_in_a_digest() -> None:
    numbers = {len(status) * 128 + ord(status[0]) for status in JobStatus}
    assert len(numbers) == len(JobStatus)


def test_the_stores_implement_the_copy_protocols(file: SQLiteBackend, database: PostgresBackend) -> None:
    """For the type checker more than for the run."""
    with file.copy_out() as old, database.copy_in() as new:
        houses: tuple[Source, Target] = (old, new)
    assert houses[0].name.endswith("jobs.db")


def test_a_store_moved_to_a_database_can_be_moved_back_to_a_file(
    file: SQLiteBackend,
    database: PostgresBackend,
    clock: HeldClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.run(fill(file, clock))
    clock.advance(timedelta(hours=1))
    move(file, database, while_live=True)
    back = SQLiteBackend(tmp_path / "back.db", clock=clock)
    report = move(database, back, while_live=True)
    assert (report.begun, report.left_behind) == (Begun.FRESH, 0)
    assert asyncio.run(picture(back)) == asyncio.run(picture(file))
    assert faults_inside(back) == []
    assert list(tmp_path.glob("back.db-copying*")) == []
    assert move(database, back, while_live=True).begun is Begun.FINISHED
    cursor = asyncio.run(database.end_of_events())
    with pytest.raises(CursorExpired):
        asyncio.run(back.read_events(cursor))
    asyncio.run(back.close())
    assert "log" not in caplog.text  # an emptied log is not a lost one


def test_an_interrupted_move_to_a_file_continues_and_includes_later_changes(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, tmp_path: Path, small_blocks: None
) -> None:
    filled(file, 40)
    move(file, database, while_live=True)
    path = tmp_path / "back.db"
    for rows in (1, 20, 70):
        with pytest.raises(Interrupted):
            move(database, SQLiteBackend(path, clock=clock), while_live=True, on_step=interrupt_after(rows))
        with pytest.raises(BackendUnavailable, match="was not finished; run longshore migrate-data again"):
            asyncio.run(SQLiteBackend(path, clock=clock).count_jobs())
        asyncio.run(database.enqueue_job(Job(id=f"meanwhile {rows}", type="t", tags=("x",))))
        asyncio.run(database.append_log("j20", "a line"))
    asyncio.run(database.delete_jobs(job_ids=["j0"]))
    back = SQLiteBackend(path, clock=clock)
    assert move(database, back, while_live=True).begun is Begun.RESUMED
    assert asyncio.run(picture(back)) == asyncio.run(picture(database))
    assert faults_inside(back) == []
    asyncio.run(database.enqueue_job(Job(type="t")))
    with pytest.raises(
        MoveRefused, match=r"was copied to .* before and has changed since: 1 events are not in the copy"
    ):
        move(database, back, while_live=True)
    with pytest.raises(MoveRefused, match="exists already; name a file that does not exist"):
        move(database, file, while_live=True)
    asyncio.run(back.close())


def test_a_file_that_does_not_agree_in_the_end_does_not_get_its_name(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, tmp_path: Path, small_blocks: None
) -> None:
    filled(file, 40)
    move(file, database, while_live=True)
    path = tmp_path / "back.db"

    def meddle(step: Step) -> None:
        if step.table == "job_events":
            with apsw.Connection(f"{path}-copying") as connection:
                connection.set_busy_timeout(10_000)
                connection.execute("UPDATE jobs SET job_seq = job_seq + 1 WHERE id = 'j7'")

    with pytest.raises(MoveRefused, match=r"differs from .* in jobs 6 to 8"):
        move(database, SQLiteBackend(path, clock=clock), while_live=True, on_step=meddle)
    assert not path.exists()
    back = SQLiteBackend(path, clock=clock)
    assert move(database, back, while_live=True).copied["jobs"] == 3
    assert asyncio.run(picture(back)) == asyncio.run(picture(database))
    asyncio.run(back.close())


def test_a_file_created_during_a_move_is_not_replaced(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, tmp_path: Path
) -> None:
    filled(file, 10)
    move(file, database, while_live=True)
    path = tmp_path / "back.db"

    def plant(_step: Step) -> None:
        path.write_bytes(b"")

    with pytest.raises(MoveRefused, match="was created during the copy"):
        move(database, SQLiteBackend(path, clock=clock), while_live=True, on_step=plant)
    assert path.stat().st_size == 0


def test_of_two_moves_into_one_file_the_later_one_continues(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, tmp_path: Path, small_blocks: None
) -> None:
    filled(file, 30)
    move(file, database, while_live=True)
    path = tmp_path / "back.db"
    overtaken: list[MoveReport] = []

    def overtake(step: Step) -> None:
        if step.done >= 9 and not overtaken:
            overtaken.append(move(database, SQLiteBackend(path, clock=clock), while_live=True))

    with pytest.raises(MoveRefused, match="another run of this copy"):
        move(database, SQLiteBackend(path, clock=clock), while_live=True, on_step=overtake)
    assert overtaken[0].begun is Begun.RESUMED
    assert asyncio.run(picture(SQLiteBackend(path, clock=clock))) == asyncio.run(picture(database))


def test_a_database_with_live_workers_is_not_moved(database: PostgresBackend, clock: HeldClock, tmp_path: Path) -> None:
    async def work() -> None:
        await database.enqueue_job(Job(type="t"))
        await database.dequeue_jobs("w", lease=30)
        await database.heartbeat_worker(WorkerInfo(id="w"))

    asyncio.run(work())
    with pytest.raises(MoveRefused, match="worker w sent a heartbeat 0 seconds ago; w holds 1 job until"):
        move(database, SQLiteBackend(tmp_path / "back.db", clock=clock))


def test_a_store_is_moved_to_another_of_its_kind(
    file: SQLiteBackend, database: PostgresBackend, clock: HeldClock, tmp_path: Path, postgres_url: str
) -> None:
    asyncio.run(fill(file, clock))
    clock.advance(timedelta(hours=1))
    copy = SQLiteBackend(tmp_path / "copy.db", clock=clock)
    move(file, copy, while_live=True)
    move(copy, database, while_live=True)
    other = PostgresBackend(postgres_url, schema="other", clock=clock, pool_size=2)
    move(database, other, while_live=True)
    assert asyncio.run(picture(other)) == asyncio.run(picture(copy)) == asyncio.run(picture(file))
    assert faults_inside(copy) == []
    for backend in (copy, other):
        asyncio.run(backend.close())
