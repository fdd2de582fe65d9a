"""PostgreSQL's event log never skips: each way in which a reader could miss an event, staged."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from longshore import Job, JobStatus, Queue, connect
from longshore.backends.base import Backend, Outcome
from longshore.backends.postgres.change_notifier import Hints
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, CursorExpired, LeaseLost
from longshore.core.job import JobEvent, Lease
from longshore.runtime.doctor import examine
from tests.backends.postgres_following import (
    AT_ONCE,
    read_on,
    read_until,
    somebody_waits_for_a_lock,
    waits_for_news,
    writing,
)
from tests.postgres_run import Clones
from tests.postgres_server import Server, at_database, create_database
from tests.postgres_server import connect as connect_to_server


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    async with connect(postgres_url) as opened:
        await opened.count_jobs()
        yield opened


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that may be dumped, stopped and restored."""
    with Server() as server:
        yield server


def ids(events: list[JobEvent]) -> list[str | None]:
    return [event.job_id for event in events]


def new_job(name: str, **fields: object) -> Job:
    return Job(id=name, type="t").replace(**fields)


# --- late commits ---


async def test_a_follower_misses_no_event_of_a_transaction_that_commits_late(
    backend: Backend, postgres_url: str
) -> None:
    await backend.enqueue_job(new_job("before"))
    (before,) = await read_until(backend, 1)
    with writing(postgres_url) as late:
        await backend.enqueue_jobs([new_job("late")], connection=late)
        await backend.enqueue_job(new_job("meanwhile"))
        assert await read_on(backend, before.cursor) == []  # reading past "meanwhile" would lose "late"
        late.commit()
        assert sorted(map(str, ids(await read_until(backend, 2, before.cursor)))) == ["late", "meanwhile"]


async def test_a_reader_from_the_end_sees_a_transaction_that_was_open_then(backend: Backend, postgres_url: str) -> None:
    await backend.enqueue_job(new_job("before"))
    (before,) = await read_until(backend, 1)
    with writing(postgres_url) as late:
        await backend.enqueue_jobs([new_job("late")], connection=late)
        await backend.enqueue_job(new_job("meanwhile"))
        end = await backend.end_of_events()
        assert end == before.cursor
        late.commit()
    assert sorted(map(str, ids(await read_until(backend, 2, end)))) == ["late", "meanwhile"]
    assert await backend.read_events(await backend.end_of_events()) == []


async def test_what_came_before_a_late_transaction_is_read_while_it_is_open(
    backend: Backend, postgres_url: str
) -> None:
    await backend.enqueue_job(new_job("before"))
    with writing(postgres_url) as late:
        await backend.enqueue_jobs([new_job("late")], connection=late)
        (before,) = await read_until(backend, 1)
        assert before.job_id == "before"
        late.rollback()
    await backend.enqueue_job(new_job("after"))
    assert ids(await read_until(backend, 1, before.cursor)) == ["after"]


async def test_a_late_transaction_of_one_queue_is_not_passed_by_a_follower_of_another(
    backend: Backend, postgres_url: str
) -> None:
    """A reader of one queue remembers where the log has nothing for it, but never beyond an open transaction."""
    with writing(postgres_url) as late:
        await backend.enqueue_jobs([new_job("late", queue="quiet")], connection=late)
        await backend.enqueue_jobs([new_job(f"busy {n}", queue="busy") for n in range(100)])
        for _ in range(3):
            assert await backend.read_events(queue="quiet") == []
        late.commit()
    await read_until(backend, 101)
    assert ids(await backend.read_events(queue="quiet")) == ["late"]


async def test_an_open_transaction_in_another_database_hides_nothing_of_ours_and_loses_nothing(
    backend: Backend, postgres_url: str, postgres_clones: Clones
) -> None:
    elsewhere = postgres_clones.add()
    try:
        with writing(elsewhere) as stranger:
            await backend.enqueue_job(new_job("a"))
            (first,) = await read_until(backend, 1)
            with writing(postgres_url) as late:
                await backend.enqueue_jobs([new_job("b")], connection=late)
                await backend.enqueue_job(new_job("c"))
                assert await read_on(backend, first.cursor) == []
                late.commit()
            assert ids(await read_until(backend, 2, first.cursor)) == ["b", "c"]
            stranger.commit()
        await backend.enqueue_job(new_job("d"))
        assert ids(await read_until(backend, 4)) == ["a", "b", "c", "d"]
    finally:
        postgres_clones.drop(elsewhere)


async def test_nothing_but_the_follower_waits_for_an_open_transaction(backend: Backend, postgres_url: str) -> None:
    await backend.set_limits("default", running=1)
    await backend.enqueue_jobs([new_job("a"), new_job("b")])
    before = (await read_until(backend, 2))[-1].cursor
    async with connect(postgres_url, poll_seconds=30) as other:
        waiting = await waits_for_news(other)
        with writing(postgres_url):
            async with asyncio.timeout(AT_ONCE):
                (job,) = await backend.dequeue_jobs("w", limit=5)
                assert await waiting  # the wake-up
                await backend.cancel_jobs(job_ids=["a"])
                assert job.lease is not None
                renewed = await backend.extend_leases({"a": job.lease}, 30)
                assert renewed["a"].cancel_requested
                assert await backend.dequeue_jobs("w") == []
                await backend.complete_job("a", b"42", lease=renewed["a"])
                assert (await other.get_job("a")).result == b"42"
                assert [job.id for job in await other.dequeue_jobs("w")] == ["b"]  # the capacity
                assert (await other.count_jobs())[JobStatus.COMPLETED] == 1
            assert await read_on(backend, before) == []
    reported = await read_until(backend, 4, before)
    assert [(event.job_id, event.event) for event in reported] == [
        ("a", "job.active"),
        ("a", "job.cancelling"),
        ("a", "job.completed"),
        ("b", "job.active"),
    ]


async def test_a_caller_waiting_after_a_cursor_is_woken_when_the_late_transaction_ends(
    backend: Backend, postgres_url: str
) -> None:
    await backend.enqueue_job(new_job("before"))
    (before,) = await read_until(backend, 1)
    with writing(postgres_url) as late:
        await backend.enqueue_job(new_job("hidden"))
        assert await read_on(backend, before.cursor) == []
        waiting = await waits_for_news(backend, after=before.cursor)
        late.rollback()  # nothing is committed and no hint is sent, but the events after it become readable
        async with asyncio.timeout(AT_ONCE):
            while await read_on(backend, before.cursor) == []:
                await waiting
                waiting = asyncio.create_task(backend.wait_for_change(60, after=before.cursor))
            await waiting


# --- polling without hints ---


@pytest.fixture
async def waiter(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    """Another process, behind a pooler that passes on no hints."""
    monkeypatch.setattr(Hints, "send_soon", lambda _hints, _queues: None)
    async with connect(postgres_url, poll_seconds=0.02) as opened:
        yield opened


async def test_a_waiting_caller_finds_by_polling_what_no_hint_reported(
    backend: Backend, waiter: Backend, postgres_url: str
) -> None:
    waiting = await waits_for_news(waiter)
    await backend.enqueue_job(new_job("a"))
    assert await waiting
    with writing(postgres_url):  # open for a long time: no reader scans everything since
        waiting = await waits_for_news(waiter)
        await backend.enqueue_job(new_job("b"))
        assert await waiting
    waiting = await waits_for_news(waiter)
    await backend.pause_queue("default")
    assert await waiting


async def test_the_end_of_a_job_that_a_later_transaction_recorded_already_is_in_order(
    backend: Backend, waiter: Backend, postgres_url: str
) -> None:
    await backend.enqueue_jobs([new_job(name) for name in "abc"])
    leases = {job.id: job.lease for job in await backend.dequeue_jobs("w", limit=3)}
    stale = Lease("no such token", 1, None)
    outcomes = [Outcome(name, leases[name] if name == "c" else stale, "fail", error="no") for name in "abc"]
    async with connect(postgres_url) as other:
        async with held_up_at_its_second_job(backend.settle_jobs(outcomes), postgres_url, "b"):
            await other.set_progress("c", 50)
            await other.enqueue_job(new_job("later"))
            waiting = await waits_for_news(waiter)
        assert await waiting


# --- order ---


async def test_pages_of_one_give_every_event_once_and_each_jobs_events_in_their_order(
    backend: Backend, postgres_url: str
) -> None:
    with writing(postgres_url) as late:
        for number in range(5):  # alternating between the two transactions
            await backend.enqueue_jobs([new_job(f"late {number}")], connection=late)
            await backend.enqueue_jobs([new_job(f"own {number}"), new_job(f"child {number}", depends_on=["never"])])
        late.commit()
    for job in await backend.dequeue_jobs("w", limit=5):
        await backend.set_progress(job.id, 50, lease=job.lease)
        await backend.fail_job(job.id, "no", retry_at=60, lease=job.lease)
    count = 5 + 5 * 3 + 5 * 4
    pages = await read_until(backend, count, limit=1)
    assert len(pages) == count
    assert pages == await read_on(backend)
    assert len({event.cursor for event in pages}) == count
    with psycopg.connect(postgres_url) as connection:
        stored = connection.execute("SELECT job_id, job_seq FROM longshore.job_events ORDER BY xid, n").fetchall()
        places = connection.execute("SELECT xid::text::bigint, n FROM longshore.job_events ORDER BY n").fetchall()
    assert places != sorted(places)  # otherwise the two transactions did not alternate
    assert [(event.job_id, event.job_seq) for event in pages] == stored
    assert out_of_order(pages) == []


def out_of_order(events: list[JobEvent]) -> list[JobEvent]:
    """Events that do not follow the previous one of their job."""
    last: Counter[int | None] = Counter()
    wrong = []
    for event in events:
        if event.job_seq != last[event.job_uid] + 1:
            wrong.append(event)
        last[event.job_uid] = event.job_seq
    return wrong


@asynccontextmanager
async def held_up_at_its_second_job(calling: Coroutine[Any, Any, object], url: str, second: str) -> AsyncIterator[None]:
    """The call has written already, so its transaction has an xid, and it waits for the second of its jobs."""
    with psycopg.connect(url) as holder:
        holder.execute("SELECT 1 FROM longshore.jobs WHERE id = %s FOR UPDATE", (second,))
        task = asyncio.create_task(calling)
        await somebody_waits_for_a_lock(url)
        yield
        holder.rollback()
        await task


async def test_a_jobs_events_are_in_order_even_if_the_later_one_is_of_the_older_transaction(
    backend: Backend, postgres_url: str
) -> None:
    """A transaction gets its xid at its first write; by then one with a later xid may have committed."""
    await backend.enqueue_jobs([new_job(name) for name in "abc"])
    jobs = await backend.dequeue_jobs("w", limit=3)
    outcomes = [Outcome(job.id, job.lease) for job in jobs]
    async with connect(postgres_url) as other:
        async with held_up_at_its_second_job(backend.settle_jobs(outcomes), postgres_url, "b"):
            await other.cancel_jobs(job_ids=["c"])
        async with held_up_at_its_second_job(backend.delete_jobs(job_ids=["a", "b", "c"]), postgres_url, "b"):
            await other.append_log("c", "a last word")
    reported = await read_until(backend, 3 + 3 + 1 + 3 + 1 + 3, limit=1)
    assert out_of_order(reported) == []
    assert [event.event for event in reported if event.job_id == "c"] == [
        "job.added",
        "job.active",
        "job.cancelling",
        "job.completed",
        "job.log_added",
        "job.removed",
    ]


@pytest.mark.prove
async def test_very_many_events_of_one_transaction_are_read_completely(
    backend: Backend, postgres_url: str, proving: bool
) -> None:
    count = 300_000 if proving else 30_000
    await backend.enqueue_jobs([Job(type="t") for _ in range(count)])
    after, found = None, 0
    seen: set[int | None] = set()
    while events := await backend.read_events(after, 7_000):
        after = events[-1].cursor
        found += len(events)
        seen.update(event.job_uid for event in events)
    assert (found, len(seen)) == (count, count)
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT count(DISTINCT xid::text) FROM longshore.job_events").fetchone()
    assert row == (1,)
    print(f"{count} events of one transaction")


# --- concurrent writers ---


class Writers:
    """Threads that add, claim and complete jobs; some of their transactions stay open for a while."""

    def __init__(self, url: str, seed: int, rounds: int) -> None:
        self.failures: list[BaseException] = []
        self._url = url
        self._rounds = rounds
        self._threads = [threading.Thread(target=self._work, args=(seed, number)) for number in range(4)]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _work(self, seed: int, number: int) -> None:
        try:
            asyncio.run(self._write(Random(f"{seed} {number}"), number))
        except BaseException as failure:
            # the test's thread must get any error
            self.failures.append(failure)

    async def _write(self, chance: Random, number: int) -> None:
        async with connect(self._url) as backend:
            for turn in range(self._rounds):
                jobs = [new_job(f"{number}-{turn}-{n}", queue=chance.choice("ab")) for n in range(chance.randint(1, 4))]
                if chance.random() < 0.4:
                    with writing(self._url) as open_for_long:
                        await backend.enqueue_jobs(jobs, connection=open_for_long)
                        for job in await backend.dequeue_jobs(f"w{number}", limit=chance.randint(1, 3)):
                            await backend.complete_job(job.id, lease=job.lease)
                        if chance.random() < 0.8:
                            open_for_long.commit()
                else:
                    await backend.enqueue_jobs(jobs)


@pytest.mark.prove
async def test_a_follower_sees_every_event_of_several_writers_exactly_once(
    backend: Backend, postgres_url: str, seed: int, proving: bool
) -> None:
    #
    rounds = 400 if proving else 25
    writers = await asyncio.to_thread(Writers, postgres_url, seed, rounds)
    chance = Random(seed)
    followed: list[JobEvent] = []
    of_queue: dict[str, list[JobEvent]] = {"a": [], "b": []}

    async def follow() -> None:
        after = followed[-1].cursor if followed else None
        followed.extend(await backend.read_events(after, chance.choice((1, 3, 10, 1000))))
        for queue, seen in of_queue.items():
            seen += await backend.read_events(seen[-1].cursor if seen else None, chance.choice((1, 100)), queue=queue)

    while writers.busy:
        await follow()
    assert writers.failures == []
    with psycopg.connect(postgres_url) as connection:
        stored = connection.execute("SELECT job_id, job_seq, queue FROM longshore.job_events").fetchall()
    while len(followed) + sum(map(len, of_queue.values())) < 2 * len(stored):
        await follow()
    reported = [(event.job_id, event.job_seq, event.queue) for event in followed]
    assert sorted(reported) == sorted(stored)
    assert out_of_order(followed) == []
    for queue, seen in of_queue.items():
        assert [event for event in followed if event.queue == queue] == seen
    print(f"{len(stored)} events")


# --- copies and restored logs ---


async def some_history(url: str) -> list[JobEvent]:
    """A log with the events of several transactions."""
    async with connect(url) as backend:
        for number in range(5):
            await backend.enqueue_job(new_job(f"old {number}"))
        await backend.pause_queue("default")
        return await read_until(backend, 6)


async def begins_a_new_log(url: str, old: list[JobEvent]) -> None:
    """What must hold for a copy: old cursors are rejected, no old event is lost, and all new ones are seen."""
    async with connect(url) as backend:
        for event in (old[0], old[-1]):
            with pytest.raises(CursorExpired, match="another event log"):
                await backend.read_events(event.cursor)
        copied = await read_until(backend, len(old))
        assert [(event.job_id, event.event) for event in copied] == [(event.job_id, event.event) for event in old]
        waiting = await waits_for_news(backend, after=copied[-1].cursor)
        await backend.enqueue_job(new_job("new"))
        assert await waiting
        assert ids(await read_until(backend, 1, copied[-1].cursor)) == ["new"]
        assert [event.cursor for event in await read_on(backend)][: len(old)] == [event.cursor for event in copied]
    async with connect(url) as again:  # it stays the same log from now on
        assert ids(await again.read_events(copied[-1].cursor)) == ["new"]


async def test_a_database_made_from_ours_as_a_template_begins_a_new_log(
    postgres_url: str, postgres_clones: Clones
) -> None:
    old = await some_history(postgres_url)
    name = urlsplit(postgres_url).path.removeprefix("/")
    copy = at_database(postgres_url, f"{name}_copy")
    with connect_to_server(at_database(postgres_url, "postgres")) as server:
        create_database(server, f"{name}_copy", name)
    try:
        await begins_a_new_log(copy, old)
    finally:
        postgres_clones.drop(copy)
    async with connect(postgres_url) as backend:  # the original still works
        await backend.enqueue_job(new_job("own"))
        assert ids(await read_until(backend, 1, old[-1].cursor)) == ["own"]


def dump(server: Server, url: str, target: Path) -> None:
    subprocess.run([server.program("pg_dump"), "--format=custom", f"--file={target}", url], check=True)


def restore(server: Server, source: Path, url: str, *options: str) -> None:
    command = [str(server.program("pg_restore")), "--exit-on-error", *options, f"--dbname={url}", str(source)]
    subprocess.run(command, check=True)


def keep_a_copy(server: Server) -> None:
    server.stop()
    # with its owner, which is another account if we are root
    subprocess.run(["cp", "--archive", server.folder / "data", server.folder / "copy"], check=True)
    server.start()


def set_back(server: Server) -> None:
    server.stop()
    shutil.rmtree(server.folder / "data")
    (server.folder / "copy").rename(server.folder / "data")
    server.start()


async def test_a_restored_dump_begins_a_new_log(own_server: Server, tmp_path: Path) -> None:
    url = own_server.create_database("dumped")
    old = await some_history(url)
    dump(own_server, url, tmp_path / "dump")
    restored = own_server.create_database("restored")
    restore(own_server, tmp_path / "dump", restored)
    await begins_a_new_log(restored, old)


async def test_a_dump_of_a_server_far_ahead_begins_a_new_log_on_a_young_one(
    own_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    """The new server's transaction ids are small compared with the old ones: as positions in the log they would hide
    new events."""
    url = own_server.create_database("ahead")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN FOR n IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    old = await some_history(url)
    dump(own_server, url, tmp_path / "dump")
    with Server() as young:
        restored = young.create_database("restored")
        restore(young, tmp_path / "dump", restored)
        await begins_a_new_log(restored, old)


async def test_a_backend_that_stayed_open_notices_that_its_database_was_replaced(
    own_server: Server, tmp_path: Path
) -> None:
    url = own_server.create_database("replaced")
    old = await some_history(url)
    dump(own_server, url, tmp_path / "dump")
    async with connect(url) as backend:
        await backend.enqueue_job(new_job("lost"))
        (lost,) = await read_until(backend, 1, old[-1].cursor)
        own_server.drop_database("replaced")
        own_server.create_database("replaced")
        restore(own_server, tmp_path / "dump", url)
        with pytest.raises(CursorExpired):
            await backend.read_events(lost.cursor)
        await backend.enqueue_job(new_job("new"))
        assert ids(await read_until(backend, 7))[-1] == "new"


async def test_a_cursor_ahead_of_a_log_that_was_set_back_is_refused() -> None:
    with Server() as server:
        url = server.create_database("set_back")
        old = await some_history(url)
        keep_a_copy(server)
        async with connect(url) as backend:
            for number in range(50):
                await backend.enqueue_job(new_job(f"lost {number}"))
            lost = (await read_until(backend, 50, old[-1].cursor))[-1]
        set_back(server)
        async with connect(url) as backend:
            with pytest.raises(CursorExpired, match="replaced by an older copy"):
                await backend.read_events(lost.cursor)
            assert ids(await read_on(backend, old[0].cursor)) == ids(old[1:])
            await backend.enqueue_job(new_job("new"))
            assert ids(await read_until(backend, 1, old[-1].cursor)) == ["new"]


# --- pruning ---


async def test_a_cursor_whose_followers_were_pruned_is_refused(postgres_url: str) -> None:
    clock = HeldClock()
    async with connect(postgres_url, clock=clock) as backend:
        await backend.set_retention("a", events=60)
        await backend.enqueue_jobs([new_job("a1", queue="a"), new_job("b1", queue="b"), new_job("a2", queue="a")])
        old = await read_until(backend, 3)
        clock.advance(timedelta(minutes=5))
        await backend.enqueue_job(new_job("a3", queue="a"))
        await read_until(backend, 4)
        while await backend.apply_retention():
            pass
        with pytest.raises(CursorExpired, match="pruned"):
            await backend.read_events(old[0].cursor)
        with pytest.raises(CursorExpired, match="pruned"):
            await backend.read_events(old[0].cursor, queue="a")
        assert ids(await backend.read_events(old[0].cursor, queue="b")) == ["b1"]  # no event of queue b was pruned
        assert ids(await backend.read_events(old[2].cursor)) == ["a3"]
        assert ids(await read_on(backend)) == ["b1", "a3"]


async def test_pruning_stops_before_a_transaction_that_is_still_open(postgres_url: str) -> None:
    """If it were marked as pruned beyond it, its events would be rejected or never be pruned."""
    clock = HeldClock()
    async with connect(postgres_url, clock=clock) as backend:
        await backend.set_retention("a", events=60)
        await backend.enqueue_job(new_job("before", queue="a"))
        (before,) = await read_until(backend, 1)
        with writing(postgres_url) as late:
            await backend.enqueue_jobs([new_job("late", queue="a")], connection=late)
            await backend.enqueue_job(new_job("meanwhile", queue="a"))
            clock.advance(timedelta(minutes=5))
            while await backend.apply_retention():
                pass
            late.commit()
        assert sorted(map(str, ids(await read_until(backend, 2, before.cursor)))) == ["late", "meanwhile"]
        while await backend.apply_retention():
            pass
        assert await read_on(backend) == []


# --- an older copy under a backend that stays open (R4, F32) ---


async def claimed_once(backend: Backend) -> Job:
    (job,) = await backend.dequeue_jobs("w", queues=["work"])
    return job


@pytest.mark.parametrize("form", ["files", "dump in place"])
async def test_an_older_copy_under_an_open_backend_is_reported_and_no_fence_repeats(
    form: str, own_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_server.create_database(f"set_back_{form[:4]}")
    async with connect(url) as backend:
        await backend.enqueue_job(new_job("j", queue="work"))
        (added,) = await read_until(backend, 1)
        if form == "files":
            keep_a_copy(own_server)
        else:
            dump(own_server, url, tmp_path / "dump")
    async with connect(url, wait_seconds=20) as backend:
        first = await claimed_once(backend)
        for number in range(5):  # the last one after more than a second
            backend._runner._next_xid_check = 0  # type: ignore[attr-defined]  # no test sleeps
            await backend.enqueue_job(new_job(f"lost {number}"))
        if form == "files":
            set_back(own_server)
        else:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA longshore CASCADE")
            restore(own_server, tmp_path / "dump", url)  # this ends no connection of the backend
            backend._runner._next_xid_check = 0  # type: ignore[attr-defined]  # no test sleeps
        second = await claimed_once(backend)
        assert first.lease is not None
        assert second.lease is not None
        assert (first.id, first.lease.epoch) == (second.id, second.lease.epoch) == ("j", 1)
        assert first.lease.token.partition("-")[0] != second.lease.token.partition("-")[0]
        assert "was replaced by an older copy" in caplog.text
        with pytest.raises(LeaseLost):
            await backend.complete_job("j", lease=first.lease)
        await backend.complete_job("j", lease=second.lease)
        with pytest.raises(CursorExpired, match="another event log"):
            await backend.read_events(added.cursor)
        found = [finding for finding in await examine(Queue(backend)) if finding.check == "restored"]
        assert [finding.level for finding in found] == ["warning"]


async def test_a_crash_of_the_server_is_not_reported_as_an_older_copy(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_server.create_database("crashed")
    async with connect(url, wait_seconds=20) as backend:
        await backend.enqueue_job(new_job("j", queue="work"))
        (added,) = await read_until(backend, 1)
        own_server.restart("immediate")
        assert (await claimed_once(backend)).id == "j"
        await backend.read_events(added.cursor)
    assert "older copy" not in caplog.text


def put_back_under(server: Server, url: str, dumped: Path) -> None:
    """The dump replaces the database; every session on it ends."""
    name = urlsplit(url).path.removeprefix("/")
    server.drop_database(name)
    server.create_database(name)
    restore(server, dumped, url)


def incarnation(job: Job) -> str:
    """The part of the token that names the event log."""
    assert job.lease is not None
    log, _, own = job.lease.token.partition("-")
    assert len(own) == 32
    return log


async def claim(backend: Backend, way: str) -> Job:
    if way == "update_job_status":
        await backend.update_job_status("j", JobStatus.RUNNING)
        return await backend.get_job("j")
    if way == "settle_and_dequeue":
        _, (job,) = await backend.settle_and_dequeue([], "w")
        return job
    (job,) = await backend.dequeue_jobs("w")
    return job


@pytest.mark.parametrize("way", ["dequeue_jobs", "settle_and_dequeue", "update_job_status"])
async def test_every_new_lease_names_the_event_log_of_the_copy_that_it_was_made_in(
    way: str, own_server: Server, tmp_path: Path
) -> None:
    url = own_server.create_database(f"named_{way}")
    async with connect(url) as backend:
        await backend.enqueue_job(new_job("j"))
        dump(own_server, url, tmp_path / "dump")
        before = await claim(backend, way)
        assert incarnation(before) == (await backend.end_of_events()).partition("-")[0]
        put_back_under(own_server, url, tmp_path / "dump")
        after = await claim(backend, way)
        assert incarnation(after) == (await backend.end_of_events()).partition("-")[0]
        assert incarnation(after) != incarnation(before)
        assert (after.id, after.epoch) == (before.id, before.epoch)


async def test_a_process_forgets_the_queues_that_a_restored_copy_does_not_have(
    own_server: Server, tmp_path: Path
) -> None:
    url = own_server.create_database("forgotten")
    async with connect(url) as backend:
        await backend.enqueue_job(new_job("j"))
        dump(own_server, url, tmp_path / "dump")
        await backend.enqueue_job(new_job("lost", queue="later"))
        put_back_under(own_server, url, tmp_path / "dump")
        await backend.enqueue_job(new_job("new", queue="later"))
        assert [queue.name for queue in await backend.list_queues()] == ["default", "later"]
        assert [job.id for job in await backend.dequeue_jobs("w", limit=5)] == ["j", "new"]


async def test_a_copy_that_is_not_restored_completely_is_refused(own_server: Server, tmp_path: Path) -> None:
    url = own_server.create_database("halfway")
    async with connect(url, wait_seconds=1) as backend:
        await backend.enqueue_job(new_job("j"))
        dump(own_server, url, tmp_path / "dump")
        own_server.drop_database("halfway")
        own_server.create_database("halfway")
        with pytest.raises(BackendUnavailable, match="is missing or incomplete"):
            await backend.dequeue_jobs("w")
        restore(own_server, tmp_path / "dump", url, "--section=pre-data")
        with pytest.raises(BackendUnavailable, match="is missing or incomplete"):
            await backend.dequeue_jobs("w")
        restore(own_server, tmp_path / "dump", url, "--section=data", "--section=post-data")
        assert [job.id for job in await backend.dequeue_jobs("w")] == ["j"]
