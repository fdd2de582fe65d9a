"""Disks that are full, broken or read-only, and files that are damaged or foreign: clear errors, nothing lost."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import apsw
import pytest

from longshore.backends.sqlite import connection as sqlite_connection
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.backends.sqlite.connection import MIGRATIONS, check_read_only, prepare
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, LongshoreError
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from tests.backends.audit import all_jobs, audit, jobs_after_a_restart
from tests.backends.disks import BreakingDisk, mounted
from tests.processes.store_process import SQLITE_MIGRATIONS

NOBODY = 65_534


async def fill(path: Path, jobs: int, clock: HeldClock | None = None) -> None:
    """A queue with this many jobs, some of them completed, closed cleanly."""
    async with SQLiteBackend(path, clock=clock) as backend:
        await backend.enqueue_jobs([Job(id=f"j{n}", type="t", tags=("x",), payload=b'"data"') for n in range(jobs)])
        for job in await backend.dequeue_jobs("w", limit=jobs // 3):
            await backend.complete_job(job.id, b"42", lease=job.lease)


async def enqueue_until_refused(backend: SQLiteBackend, most: int = 500) -> tuple[list[str], BackendUnavailable]:
    """What was acknowledged, and the error after it."""
    acknowledged: list[str] = []
    for number in range(most):
        try:
            acknowledged.append(await backend.enqueue_job(Job(id=f"n{number}", type="t", payload=b" " * 3_000)))
        except BackendUnavailable as refusal:
            return acknowledged, refusal
    raise AssertionError(f"{most} jobs and no refusal")


# -- the disk is full


async def test_a_full_disk_is_reported_and_freed_space_is_used(tmp_path: Path) -> None:
    clock = HeldClock()
    limit = 60
    connections: list[apsw.Connection] = []

    def small(connection: apsw.Connection) -> None:
        connections.append(connection)
        connection.pragma("max_page_count", limit)

    apsw.connection_hooks.append(small)
    try:
        async with SQLiteBackend(tmp_path / "jobs.db", clock=clock) as backend:
            acknowledged, refusal = await enqueue_until_refused(backend)
            assert "the disk is full" in str(refusal)
            assert "Nothing was stored" in str(refusal)
            stored = {job.id for job in await all_jobs(backend)}
            assert stored == set(acknowledged)
            limit = 10_000  # space was freed
            for connection in connections:
                try:
                    connection.pragma("max_page_count", limit)
                except apsw.ConnectionClosedError:
                    continue
            await backend.enqueue_job(Job(id="after", type="t"))
            await audit(backend, clock)
    finally:
        apsw.connection_hooks.remove(small)


async def test_a_call_that_needs_no_space_succeeds_while_the_disk_is_full(tmp_path: Path) -> None:
    """A group commit that does not fit is retried one by one: only requests that do not fit are rejected."""
    limit = 60

    def small(connection: apsw.Connection) -> None:
        connection.pragma("max_page_count", limit)

    apsw.connection_hooks.append(small)
    try:
        async with SQLiteBackend(tmp_path / "jobs.db") as backend:
            await backend.enqueue_job(Job(id="small", type="t"))
            (claimed,) = await backend.dequeue_jobs("w")
            await enqueue_until_refused(backend)
            large = Job(id="large", type="t", payload=b" " * 50_000)
            refused, done = await asyncio.gather(
                backend.enqueue_job(large), backend.complete_job("small", lease=claimed.lease), return_exceptions=True
            )
            assert isinstance(refused, BackendUnavailable)
            assert done == {"w": 1}
    finally:
        apsw.connection_hooks.remove(small)


# -- the disk breaks


@contextmanager
def breaking(kind: type[Exception], at: int, *, lasting: bool = False) -> Iterator[BreakingDisk]:
    """A disk whose call number `at` fails, or all from there on."""
    disk = BreakingDisk(
        "breaking", lambda _kind, number: kind("injected") if number == at or (lasting and number > at) else None
    )
    with mounted(disk, "breaking"):
        yield disk


async def some_life(backend: SQLiteBackend, acknowledged: dict[str, JobStatus]) -> None:
    """A few of each kind of write; a rejected one is only missing from what is acknowledged."""

    async def enqueue(number: int) -> None:
        job_id = await backend.enqueue_job(Job(id=f"j{number}", type="t", payload=b" " * 400))
        acknowledged.setdefault(job_id, JobStatus.INITIAL_PENDING)

    for start in range(0, 24, 4):
        await asyncio.gather(*(enqueue(start + more) for more in range(4)), return_exceptions=True)
        try:
            for job in await backend.dequeue_jobs("w", limit=2, lease=None):
                await backend.complete_job(job.id, lease=job.lease)
                acknowledged[job.id] = JobStatus.COMPLETED
        except BackendUnavailable:
            continue


def check_kept(acknowledged: dict[str, JobStatus], stored: dict[str, Job]) -> None:
    assert not acknowledged.keys() - stored.keys()
    for job_id, status in acknowledged.items():
        assert status is not JobStatus.COMPLETED or stored[job_id].status is JobStatus.COMPLETED


@pytest.mark.prove
@pytest.mark.parametrize("kind", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_an_error_at_any_write_or_sync_is_never_acknowledged(
    kind: type[Exception], lasting: bool, tmp_path: Path, seed: int, proving: bool
) -> None:
    clock = HeldClock()

    async def live(path: Path, acknowledged: dict[str, JobStatus]) -> None:
        backend = SQLiteBackend(path, clock=clock, vfs="breaking")
        await some_life(backend, acknowledged)
        await backend.close()

    with breaking(kind, 0) as disk:
        asyncio.run(live(tmp_path / "whole.db", {}))
        calls = disk.calls
    points = range(1, calls + 1)
    for at in points if proving else sorted(Random(seed).sample(points, 12)):
        acknowledged: dict[str, JobStatus] = {}
        path = tmp_path / f"{at}.db"
        with breaking(kind, at, lasting=lasting):
            asyncio.run(live(path, acknowledged))
        stored = jobs_after_a_restart(path, clock)
        check_kept(acknowledged, stored)
        assert lasting or acknowledged, f"call {at} failed once, and no later call succeeded"
    print(f"{calls} calls, seed {seed}")


async def test_after_one_error_the_same_backend_continues(tmp_path: Path) -> None:
    reported: list[str] = []
    with breaking(apsw.IOError, 130) as disk:
        async with SQLiteBackend(tmp_path / "jobs.db", vfs="breaking") as backend:
            for number in range(30):
                try:
                    await backend.enqueue_job(Job(id=f"j{number}", type="t"))
                except BackendUnavailable as error:
                    reported.append(str(error))
        assert disk.calls > 130
    assert len(reported) == 1
    assert "the disk reports an error" in reported[0]
    async with SQLiteBackend(tmp_path / "jobs.db") as backend:
        await audit(backend)


@pytest.mark.prove
def test_a_migration_that_fails_anywhere_is_completed_by_the_next_start(
    tmp_path: Path, seed: int, proving: bool
) -> None:
    clock = HeldClock()

    async def start(path: Path) -> None:
        async with SQLiteBackend(path, clock=clock, vfs="breaking") as backend:
            await backend.enqueue_job(Job(id="first", type="t"))

    with breaking(apsw.IOError, 0) as disk:
        asyncio.run(start(tmp_path / "whole.db"))
        calls = disk.calls
    points = range(1, calls + 1)
    refusals = 0
    for at in points if proving else sorted(Random(seed).sample(points, 15)):
        path = tmp_path / f"{at}.db"
        with breaking(apsw.IOError, at, lasting=True):
            try:
                asyncio.run(start(path))
            except BackendUnavailable:
                refusals += 1
        jobs_after_a_restart(path, clock)
    assert refusals > 10


def test_two_who_find_the_same_migration_missing_apply_it_once(tmp_path: Path) -> None:
    """Both have read before either begins: the second must read again once it has the lock."""
    both_have_looked = threading.Barrier(2, timeout=20)

    def watch(connection: apsw.Connection) -> None:
        begun = False

        def before_each(_cursor: object, statement: str, _values: object) -> bool:
            nonlocal begun
            if statement.startswith("BEGIN") and not begun:
                begun = True
                both_have_looked.wait()
            return True

        connection.set_exec_trace(before_each)

    path = tmp_path / "jobs.db"
    apsw.connection_hooks.append(watch)
    try:
        with ThreadPoolExecutor(2) as threads:
            for started in [threads.submit(prepare, path, busy_seconds=20) for _ in range(2)]:
                started.result()
    finally:
        apsw.connection_hooks.remove(watch)
    jobs_after_a_restart(path, HeldClock())


# -- wrong paths and permissions


async def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    async with SQLiteBackend(tmp_path / "missing" / "jobs.db") as backend:
        with pytest.raises(BackendUnavailable, match=f"the folder {tmp_path}/missing does not exist; create it, then"):
            await backend.enqueue_job(Job(type="t"))
    assert not (tmp_path / "missing").exists()


async def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    async with SQLiteBackend(tmp_path) as backend:
        with pytest.raises(BackendUnavailable, match="is a folder; name a file"):
            await backend.count_jobs()


@pytest.fixture
def lent_folder() -> Iterator[Path]:
    """A folder that its user may not write to, even if the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
        folder.chmod(0o700)


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def forbid(place: Path) -> None:
    """Its owner may only read it."""
    place.chmod(0o500 if place.is_dir() else 0o400)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("forbidden", ["file", "folder", "both"])
async def test_a_read_only_store_is_reported_and_not_changed(forbidden: str, lent_folder: Path) -> None:
    path = lent_folder / "jobs.db"
    with as_nobody():
        await fill(path, 3)
        before = path.read_bytes()
        forbid(path if forbidden == "file" else lent_folder)
        if forbidden == "both":
            forbid(path)
        async with SQLiteBackend(path) as backend:
            with pytest.raises(BackendUnavailable, match=r"cannot be (written|opened)") as refusal:
                await backend.enqueue_job(Job(type="t"))
        assert str(path) in str(refusal.value)
        assert path.read_bytes() == before


async def test_a_new_file_in_a_read_only_folder_is_reported(lent_folder: Path) -> None:
    with as_nobody():
        forbid(lent_folder)
        async with SQLiteBackend(lent_folder / "jobs.db") as backend:
            with pytest.raises(BackendUnavailable, match="cannot be opened: check its path and permissions"):
                await backend.enqueue_job(Job(type="t"))
        assert names_in(lent_folder) == []


# -- foreign and damaged files


def damaged(damage: str, path: Path) -> str:
    """Turn the file into one that must be rejected, and return the expected words."""
    whole = path.read_bytes()
    if damage == "zeroed header":
        path.write_bytes(bytes(100) + whole[100:])
        return "is not a SQLite database; it was not changed"
    if damage == "plain text":
        path.write_text("dear diary, " * 1_000)
        return "is not a SQLite database; it was not changed"
    if damage == "cut in half":
        path.write_bytes(whole[: len(whole) // 2])
        return "is damaged; it was not changed"
    if damage == "another program's":
        path.unlink()
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE mail (body TEXT); INSERT INTO mail VALUES ('hello')")
        connection.close()
        return "is a database of another program; choose a separate file"
    if damage == "newer":
        connection = apsw.Connection(str(path))
        connection.pragma("user_version", len(MIGRATIONS) + 1)
        connection.close()
        return "created by a newer Longshore"
    if damage == "gone, its log left behind":
        path.unlink()
        Path(f"{path}-wal").write_bytes(b"what was not yet in the file")
        return "is missing but its log jobs.db-wal exists"
    assert damage == "empty, its log left behind"
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(b"what was not yet in the file")
    return "is missing but its log jobs.db-wal exists"


@pytest.mark.parametrize(
    "damage",
    [
        "zeroed header",
        "plain text",
        "cut in half",
        "another program's",
        "newer",
        "gone, its log left behind",
        "empty, its log left behind",
    ],
)
async def test_a_foreign_or_damaged_file_is_rejected_and_not_changed(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await fill(path, 300)
    words = damaged(damage, path)

    def state() -> dict[str, str]:
        files = (file for file in tmp_path.iterdir() if not file.name.endswith("-shm"))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.stat().st_size}

    before = state()
    calls: list[Callable[[SQLiteBackend], object]] = [
        lambda backend: backend.enqueue_job(Job(id="new", type="t", tags=("x",))),
        lambda backend: backend.dequeue_jobs("w", limit=100),
        lambda backend: backend.list_jobs(JobFilter(), limit=1000),
    ]
    refusals = []
    for call in calls:
        async with SQLiteBackend(path) as backend:
            try:
                await call(backend)  # type: ignore[misc]  # each of them is a coroutine
            except BackendUnavailable as refusal:
                refusals.append(str(refusal))
    assert refusals, "nothing was refused"
    assert all(str(path) in reported and words in reported for reported in refusals), refusals
    if damage != "cut in half":  # where a part can be read, calls on that part may succeed
        assert len(refusals) == len(calls)
        assert state() == before


@pytest.mark.prove
def test_flipped_bytes_are_reported_with_a_clear_error_or_do_no_harm(tmp_path: Path, seed: int, proving: bool) -> None:
    """Never a foreign error, never a file replaced by a new empty one."""
    path = tmp_path / "jobs.db"
    asyncio.run(fill(path, 100))
    whole = path.read_bytes()
    reported = 0

    async def use(damaged_path: Path) -> int:
        refused = 0
        async with SQLiteBackend(damaged_path) as backend:
            calls: list[Callable[[], object]] = [
                lambda: backend.list_jobs(JobFilter(), limit=1000),
                lambda: backend.count_jobs(),
                lambda: backend.get_job_stats(["x"]),
                lambda: backend.dequeue_jobs("w", limit=50),
                lambda: backend.dequeue_jobs("w", ["x"], limit=50),
                lambda: backend.reclaim_expired_leases(),
                lambda: backend.read_events(),
                lambda: backend.enqueue_job(Job(id="one more", type="t", tags=("x",))),
                lambda: backend.cancel_jobs(["x"]),
            ]
            for call in calls:
                try:
                    await call()  # type: ignore[misc]  # each of them is a coroutine
                except LongshoreError:
                    refused += 1
        return refused

    for number in range(500 if proving else 40):
        chance = Random(seed + number)
        image = bytearray(whole)
        for _ in range(chance.randint(1, 20)):
            image[chance.randrange(len(image))] ^= 1 << chance.randrange(8)
        one = tmp_path / f"{number}.db"
        one.write_bytes(image)
        try:
            reported += asyncio.run(use(one)) > 0
        except Exception as error:
            raise AssertionError(f"seed {seed + number}: {error!r} reached the caller") from error
        assert one.stat().st_size >= len(whole) // 2
    print(f"{reported} errors reported, seed {seed}")
    assert reported


async def test_a_store_can_be_opened_while_another_process_migrates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R7: SQLite then reports a changed schema instead of a missing table
    path = tmp_path / "jobs.db"
    prepare(path, busy_seconds=1)
    monkeypatch.setattr(sqlite_connection, "MIGRATIONS", SQLITE_MIGRATIONS)
    changes = 0

    def watch(connection: apsw.Connection) -> None:
        def change_schema(*_: object) -> bool:
            nonlocal changes
            if not connection.in_transaction and changes < 10:
                changes += 1
                other.execute(f"CREATE TABLE change_{changes} (x)")
            return False  # 0 allows the statement, False lets it run on

        connection.authorizer = change_schema  # before a statement is compiled
        connection.set_progress_handler(change_schema, 20)  # while the schema is read again

    other = apsw.Connection(str(path))
    apsw.connection_hooks.append(watch)
    try:
        prepare(path, busy_seconds=1)
    finally:
        apsw.connection_hooks.remove(watch)
        other.close()
    assert changes > 0
    async with SQLiteBackend(path) as backend:
        assert await backend.schema_version() == len(SQLITE_MIGRATIONS)


@pytest.mark.parametrize("change", ["UPDATE meta SET lineage = 'other'", "ALTER TABLE meta DROP COLUMN lineage"])
def test_a_store_of_another_lineage_is_refused_with_what_to_do(tmp_path: Path, change: str) -> None:
    path = tmp_path / "jobs.db"
    prepare(path, busy_seconds=1)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(change)
        connection.pragma("user_version", 9)
    for open_it in (prepare, check_read_only):
        with pytest.raises(BackendUnavailable, match=r"schema lineage.*cannot read it.*choose a new file"):
            open_it(path, busy_seconds=1)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("jobs", "status"),
        ("jobs", "on_dependency_failure"),
        ("job_dependencies", "policy"),
        ("job_dependencies", "state"),
        ("tombstones", "status"),
    ],
)
def test_a_word_that_is_none_of_ours_is_refused(tmp_path: Path, table: str, column: str) -> None:
    prepare(tmp_path / "jobs.db", busy_seconds=1)
    with closing(apsw.Connection(str(tmp_path / "jobs.db"))) as connection:
        found = list(connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", (table,)))
        values: dict[str, object] = {name: {"TEXT": "x", "BLOB": b"x"}.get(kind, 1) for name, kind, _ in found}
        values |= {"status": "DEAD", "on_dependency_failure": "wait", "policy": "wait", "state": "failed"}
        insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(found))})"
        with pytest.raises(apsw.ConstraintError, match="CHECK"):
            connection.execute(insert, [values[name] if name != column else "dead" for name, _, _ in found])
        connection.execute(insert, [values[name] for name, _, _ in found])
