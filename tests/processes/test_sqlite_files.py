"""Files next to a SQLite store: files of other users are kept, ours are private, and a removed store is detected."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import apsw
import httpx
import pytest

from longshore.backends.connect import connect
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.job import Job
from tests.backends.test_sqlite_faults import as_nobody, fill, forbid, lent_folder
from tests.cli.terminal import PROGRAM, longshore
from tests.processes.process_group import ProcessGroup
from tests.processes.test_server import free_port, start
from tests.runtime.working import until

__all__ = ["lent_folder"]  # a fixture
OTHER_UID = 65_534
numbers = count()
"""One for each process that enqueues: its jobs are named after it."""


def findings(path: Path, check: str) -> list[dict[str, str]]:
    """The findings of `longshore doctor` for this check."""
    output = json.loads(longshore("doctor", "--json", "--url", f"sqlite:///{path}").out)
    return [one for one in output["findings"] if one["check"] == check]


def modes(folder: Path) -> dict[str, str]:
    return {file.name: oct(stat.S_IMODE(file.lstat().st_mode)) for file in sorted(folder.iterdir())}


# -- X1: only our own sockets are removed


def victim_files(folder: Path) -> dict[str, bytes]:
    """Regular files, one of them named like one of our sockets."""
    folder.mkdir()
    files = {"diary.txt": b"dear diary", f"{os.getpid()}-0123abcd": b"not a socket", "keys": b"secret"}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files


async def use_as_a_worker_does(path: Path) -> None:
    """Writes, waits for changes, claims, and closes."""
    async with SQLiteBackend(path) as backend:
        await backend.wait_for_change(0)
        await backend.enqueue_job(Job(type="t"))
        (claimed,) = await backend.dequeue_jobs("w")
        await backend.wait_for_change(0)
        await backend.complete_job(claimed.id, lease=claimed.lease)


@pytest.mark.parametrize("plant", ["symlink", "writable folder", "folder of another user", "our own folder"])
def test_files_in_a_planted_wake_folder_survive_every_command(
    plant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # X1
    path = tmp_path / "jobs.db"
    wake = Path(f"{path}-wake")
    victims = tmp_path / "home" if plant == "symlink" else wake
    files = victim_files(victims)
    if plant == "symlink":
        wake.symlink_to(victims)
    elif plant == "writable folder":
        wake.chmod(0o777)
    elif plant == "folder of another user":
        if os.geteuid() == 0:
            os.chown(wake, OTHER_UID, OTHER_UID)
        else:
            wake.chmod(0o777)
    else:
        wake.chmod(0o700)
    url = f"sqlite:///{path}"
    assert longshore("migrate", "--url", url).code == 0
    assert longshore("enqueue", "--url", url, "t").code == 0
    caplog.clear()
    with caplog.at_level(logging.WARNING, "longshore.sqlite"):
        asyncio.run(use_as_a_worker_does(path))
        with ProcessGroup(path) as processes:
            processes.start_process("writer", "writer", "1").wait()
    assert {file.name: file.read_bytes() for file in victims.iterdir()} == files
    warnings = [record.getMessage() for record in caplog.records if "-wake" in record.getMessage()]
    assert len(warnings) == (0 if plant == "our own folder" else 1), warnings
    if warnings:
        assert "processes poll for changes every 25 ms instead" in warnings[0]


async def test_a_socket_of_a_killed_process_is_removed_and_one_of_another_owner_or_name_is_not(tmp_path: Path) -> None:
    # X1
    path = tmp_path / "jobs.db"
    wake = Path(f"{path}-wake")
    os.mkdir(wake, 0o700)  # noqa: PTH102 - Path.mkdir is refused in a coroutine
    names = ["4000000-0123abcd", "4000001-0123abcd", "somebody.sock"]
    for name in names:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(wake / name))
    kept = ["somebody.sock"]
    if os.geteuid() == 0:
        os.chown(wake / names[1], OTHER_UID, OTHER_UID)
        kept.insert(0, names[1])
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(type="t"))
    assert sorted(modes(wake)) == kept


async def test_a_file_planted_where_a_backup_is_written_survives(tmp_path: Path) -> None:
    # X1
    victim = tmp_path / "victim.db"
    async with SQLiteBackend(victim) as other:
        await other.enqueue_job(Job(id="theirs", type="t"))
    (tmp_path / "copy.db.unfinished").symlink_to(victim)
    async with SQLiteBackend(tmp_path / "jobs.db") as backend:
        await backend.enqueue_job(Job(id="ours", type="t"))
        await backend.backup(tmp_path / "copy.db")
        (tmp_path / "dangling.db").symlink_to(tmp_path / "nothing.db")
        with pytest.raises(InvalidArgument, match="exists already"):
            await backend.backup(tmp_path / "dangling.db")
    assert not (tmp_path / "nothing.db").exists()
    async with SQLiteBackend(victim) as other:
        assert (await other.get_job("theirs")).id == "theirs"
    async with SQLiteBackend(tmp_path / "copy.db") as copy:
        assert (await copy.get_job("ours")).id == "ours"


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A folder like /tmp: writable by all users, and sticky."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("plant", ["symlink", "file"])
async def test_a_store_that_another_user_planted_in_a_shared_folder_is_refused(plant: str, shared_folder: Path) -> None:
    # X1
    path = shared_folder / "jobs.db"
    if plant == "symlink":
        path.symlink_to(shared_folder.parent / "made-for-them")
    else:
        path.touch()
    os.chown(path, OTHER_UID, OTHER_UID, follow_symlinks=False)
    async with SQLiteBackend(path) as backend:
        with pytest.raises(BackendUnavailable, match="belongs to another user, in a folder that all users may write"):
            await backend.enqueue_job(Job(type="t"))
    assert not (shared_folder.parent / "made-for-them").exists()


def plant(file: Path) -> Path:
    """An empty file of another user, which we may write."""
    file.unlink(missing_ok=True)
    file.touch(mode=0o666)
    os.chown(file, OTHER_UID, OTHER_UID)
    return file


def is_empty(file: Path) -> bool:
    return file.stat().st_size == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_a_log_that_another_user_planted_beside_our_store_is_refused(suffix: str, shared_folder: Path) -> None:
    # X1
    path = shared_folder / "jobs.db"
    await use_as_a_worker_does(path)
    planted = plant(Path(f"{path}{suffix}"))
    async with SQLiteBackend(path) as backend:
        with pytest.raises(BackendUnavailable, match=f"{suffix} belongs to another user"):
            await backend.enqueue_job(Job(type="t"))
    assert is_empty(planted)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
async def test_a_symlink_of_ours_to_a_store_that_another_user_planted_is_refused(
    shared_folder: Path, tmp_path: Path
) -> None:
    # X1
    planted = plant(shared_folder / "theirs.db")
    (tmp_path / "jobs.db").symlink_to(planted)
    async with SQLiteBackend(tmp_path / "jobs.db") as backend:
        with pytest.raises(BackendUnavailable, match="belongs to another user"):
            await backend.enqueue_job(Job(type="t"))
    assert is_empty(planted)


async def test_a_store_of_our_own_in_a_shared_folder_works(shared_folder: Path) -> None:
    # X1
    await use_as_a_worker_does(shared_folder / "jobs.db")
    await use_as_a_worker_does(shared_folder / "jobs.db")


# -- X2: private regardless of the umask


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
async def test_a_store_its_log_its_wake_folder_and_its_copies_are_private(tmp_path: Path) -> None:
    # X2
    async with SQLiteBackend(tmp_path / "jobs.db") as backend:
        await backend.enqueue_job(Job(type="t"))
        await backend.wait_for_change(0)
        assert modes(tmp_path) == {
            "jobs.db": "0o600",
            "jobs.db-shm": "0o600",
            "jobs.db-wake": "0o700",
            "jobs.db-wal": "0o600",
        }
        await backend.backup(tmp_path / "copy.db")
    assert modes(tmp_path) == {"copy.db": "0o600", "jobs.db": "0o600"}


@pytest.mark.usefixtures("umask")
async def test_no_file_is_readable_by_others_at_any_moment_while_a_store_and_its_copy_are_made(
    tmp_path: Path,
) -> None:
    # X2
    seen: set[tuple[str, int]] = set()

    def after_each(_frame: object, _event: str, _argument: object) -> None:
        for entry in os.scandir(tmp_path):
            seen.add((entry.name, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)))

    threading.setprofile(after_each)
    sys.setprofile(after_each)
    try:
        async with SQLiteBackend(tmp_path / "jobs.db") as backend:
            await backend.enqueue_job(Job(type="t"))
            await backend.wait_for_change(0)
            await backend.backup(tmp_path / "copy.db")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert {name for name, _ in seen} >= {"jobs.db", "jobs.db-wal", "jobs.db-wake", "copy.db"}
    assert not {(name, oct(mode)) for name, mode in seen if mode & 0o077}


def test_an_existing_store_that_others_may_read_works_and_doctor_reports_it(tmp_path: Path) -> None:
    # X2
    path = tmp_path / "jobs.db"
    asyncio.run(use_as_a_worker_does(path))
    path.chmod(0o644)
    asyncio.run(use_as_a_worker_does(path))
    (found,) = findings(path, "permissions")
    assert found["level"] == "warning"
    assert found["found"].startswith(f"other users may read or write {path} (0644)")
    assert found["fix"].startswith(f"chmod 600 {path}")
    path.chmod(0o600)
    assert not findings(path, "permissions")


# -- R1: a file that is removed under live processes


def remove_store(path: Path, *, how: str = "removed") -> None:
    """What `rm jobs.db*` does: the folder stays."""
    for file in path.parent.glob(f"{path.name}*"):
        if not file.is_dir():
            if how == "moved":
                file.rename(file.with_name(f"moved-{file.name}"))
            else:
                file.unlink()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced by a copy"])
async def test_no_write_is_acknowledged_after_the_file_was_removed_or_replaced(how: str, tmp_path: Path) -> None:
    # R1
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        assert (await backend.get_job("first")).id == "first"
        assert backend.unusable_because == ""
        if how == "replaced by a copy":
            await backend.backup(tmp_path / "copy")
        remove_store(path, how=how)
        if how == "replaced by a copy":
            os.rename(tmp_path / "copy", path)  # noqa: PTH104 - Path.rename is refused in a coroutine
        with pytest.raises(BackendUnavailable, match=r"was removed or replaced while it was in use.*restart"):
            await backend.enqueue_job(Job(id="second", type="t"))
        with pytest.raises(BackendUnavailable, match=r"was removed or replaced while it was in use.*restart"):
            await backend.get_job("first")
        with pytest.raises(BackendUnavailable, match="was removed or replaced while it was in use"):
            await backend.enqueue_job(Job(id="third", type="t"))
        assert "removed or replaced" in backend.unusable_because
    if how == "removed":
        assert "jobs.db" not in modes(tmp_path)


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_the_file_alone_is_missed_even_if_its_log_and_index_are_still_in_place(how: str, tmp_path: Path) -> None:
    # R1: inode and device of the file itself decide
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        await backend.backup(tmp_path / "copy")
        if how == "replaced":
            os.replace(tmp_path / "copy", path)  # noqa: PTH105 - Path.replace is refused in a coroutine
        else:
            os.unlink(path)  # noqa: PTH108 - Path.unlink is refused in a coroutine
        assert {"jobs.db-wal", "jobs.db-shm"} <= modes(tmp_path).keys()
        assert "removed or replaced" in backend.unusable_because
        with pytest.raises(BackendUnavailable, match=r"jobs.db was removed or replaced while it was in use"):
            await backend.get_job("first")
        with pytest.raises(BackendUnavailable, match=r"jobs.db was removed or replaced while it was in use"):
            await backend.enqueue_job(Job(id="second", type="t"))


async def test_a_log_removed_under_a_live_writer_is_detected_and_its_commits_are_kept(tmp_path: Path) -> None:
    # R1, R7
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        os.unlink(f"{path}-wal")  # noqa: PTH108 - Path.unlink is refused in a coroutine
        with pytest.raises(BackendUnavailable, match=r"jobs.db-wal was removed or replaced while it was in use"):
            await backend.enqueue_job(Job(id="second", type="t"))
    async with SQLiteBackend(path) as backend:
        assert (await backend.get_job("first")).id == "first"


async def test_no_job_is_lost_when_the_index_of_the_log_is_removed_under_living_processes(tmp_path: Path) -> None:
    # R1, R7: a second index would let two processes write over each other's commits
    path = tmp_path / "jobs.db"
    url = f"sqlite:///{path}"
    async with SQLiteBackend(path) as backend:
        for number in range(20):
            await backend.enqueue_job(Job(id=f"a{number}", type="t"))
        os.unlink(f"{path}-shm")  # noqa: PTH108 - Path.unlink is refused in a coroutine
        done = await asyncio.to_thread(run_longshore, "enqueue", "--url", url, "t")
        assert done.returncode != 0
        assert "jobs.db-shm is missing while another process uses the store" in done.stderr
        assert "jobs.db-shm" not in modes(tmp_path)
        with pytest.raises(BackendUnavailable, match=r"jobs.db-shm was removed or replaced while it was in use"):
            await backend.enqueue_job(Job(id="refused", type="t"))
        with pytest.raises(BackendUnavailable, match=r"jobs.db-shm was removed or replaced while it was in use"):
            await backend.get_job("a0")
        assert "removed or replaced" in backend.unusable_because
    async with SQLiteBackend(path) as backend:
        assert sum((await backend.count_jobs()).values()) == 20
        assert backend.new_connection().execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_process_whose_index_was_replaced_writes_nothing_over_the_commits_of_others(tmp_path: Path) -> None:
    # R1, R7: another program, like sqlite3, makes a new index and writes
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        for number in range(20):
            await backend.enqueue_job(Job(id=f"a{number}", type="t"))
        os.unlink(f"{path}-shm")  # noqa: PTH108 - Path.unlink is refused in a coroutine
        program = "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('CREATE TABLE theirs (n)')"
        program += "; c.execute('INSERT INTO theirs VALUES (1)'); import os; os._exit(0)"
        command = [sys.executable, "-c", program, str(path)]
        assert (await asyncio.to_thread(subprocess.run, command, check=False)).returncode == 0
        for number in range(3):
            with pytest.raises(BackendUnavailable, match=r"jobs.db-shm was removed or replaced"):
                await backend.enqueue_job(Job(id=f"refused{number}", type="t"))
    async with SQLiteBackend(path) as backend:
        own = backend.new_connection()
        assert own.execute("SELECT n FROM theirs").fetchall() == [(1,)]
        assert own.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        own.close()
        assert sum((await backend.count_jobs()).values()) == 20


def test_an_index_that_was_removed_after_a_kill_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # R1, R7
    path = tmp_path / "jobs.db"
    enqueue_and_be_killed(path)
    Path(f"{path}-shm").unlink()
    assert longshore("list", "--url", f"sqlite:///{path}").out.count("writer") >= 3
    assert not lost_logs(caplog)


async def test_no_new_store_is_created_while_a_process_uses_the_removed_one(tmp_path: Path) -> None:
    # R1
    path = tmp_path / "jobs.db"
    with ProcessGroup(path) as processes:
        waiter = processes.start_process("waiter", "waiter")
        assert (await asyncio.to_thread(processes.next_line))[1] == "waiting"
        await until(lambda: any((tmp_path / "jobs.db-wake").glob("*")))  # it listens
        remove_store(path)
        async with SQLiteBackend(path) as backend:
            with pytest.raises(BackendUnavailable, match="is missing while another process uses it: stop that process"):
                await backend.enqueue_job(Job(type="t"))
        assert set(modes(tmp_path)) == {"jobs.db-wake"}
        await asyncio.to_thread(waiter.kill)
    async with SQLiteBackend(path) as backend:  # only a live listener counts
        await backend.enqueue_job(Job(id="new", type="t"))
    assert "jobs.db" in modes(tmp_path)


@pytest.mark.parametrize("log", [b"", b"what was not yet in the file"], ids=["empty", "with commits"])
async def test_no_new_store_is_created_next_to_a_log(log: bytes, tmp_path: Path) -> None:
    # R1
    path = tmp_path / "jobs.db"
    (tmp_path / "jobs.db-wal").write_bytes(log)
    async with SQLiteBackend(path) as backend:
        with pytest.raises(BackendUnavailable, match=r"is missing but its log jobs.db-wal exists"):
            await backend.enqueue_job(Job(type="t"))
    assert set(modes(tmp_path)) == {"jobs.db-wal"}


async def test_a_server_whose_file_was_removed_accepts_no_job_and_is_not_ready(tmp_path: Path) -> None:
    # R1: `rm jobs.db*` under a live server
    path = tmp_path / "jobs.db"
    process = await start(f"sqlite:///{path}", port := free_port(), "")
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            async def ready() -> bool:
                return (await client.get("/readyz")).status_code == 200

            await until(ready)
            assert (await client.post("/v1/jobs", json={"type": "t"})).status_code == 202
            remove_store(path)
            answer = await client.post("/v1/jobs", json={"type": "t"})
            assert (answer.status_code, "was removed or replaced while it was in use" in answer.text) == (503, True)
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert answer.json()["reason"].startswith("the store's file was removed or replaced while it was in use")
            assert str(path) not in answer.text  # this page needs no token
            assert longshore_as_a_process("enqueue", "--url", f"sqlite:///{path}", "t") != 0
            assert not modes(tmp_path).keys() - {"jobs.db-wake"}
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)


def longshore_as_a_process(*arguments: str) -> int:
    return run_longshore(*arguments).returncode


def run_longshore(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], check=False, capture_output=True, text=True, timeout=60)


async def test_a_relative_path_stays_the_same_file_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R1
    other = tmp_path / "other"
    os.mkdir(other)  # noqa: PTH102 - Path.mkdir is refused in a coroutine
    monkeypatch.chdir(tmp_path)
    async with connect("sqlite:///jobs.db") as backend, connect("sqlite:///unused.db") as later:
        await backend.enqueue_job(Job(id="first", type="t"))
        monkeypatch.chdir(other)
        await backend.enqueue_job(Job(id="second", type="t"))
        assert (await backend.get_job("first")).id == "first"
        await backend.wait_for_change(0)
        await later.enqueue_job(Job(type="t"))
        assert not modes(other)
    assert set(modes(tmp_path)) == {"jobs.db", "unused.db", "other"}


# -- R7: a log that was removed after an unclean close


def enqueue_and_be_killed(path: Path) -> None:
    """A process acknowledges a few jobs and dies without closing the store."""
    with ProcessGroup(path) as processes:
        writer = processes.start_process("writer", f"writer{next(numbers)}", "1000000")
        while len(writer.lines_of("enqueued")) < 3:
            processes.next_line()
        writer.kill()
    assert Path(f"{path}-wal").stat().st_size > 0


def lost_logs(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "-wal is missing" in record.getMessage()]
    caplog.clear()
    return found


@pytest.mark.parametrize("removed", [["-wal"], ["-wal", "-shm"], []], ids=["log", "log and its index", "emptied"])
@pytest.mark.parametrize("first", ["worker", "doctor"])
def test_a_log_that_was_removed_after_a_kill_is_reported_by_the_first_open_and_by_doctor(
    removed: list[str], first: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # R7
    path = tmp_path / "jobs.db"
    enqueue_and_be_killed(path)
    for suffix in removed:
        Path(f"{path}{suffix}").unlink()
    if not removed:  # `: > jobs.db-wal`
        os.truncate(f"{path}-wal", 0)
    if first == "worker":
        asyncio.run(use_as_a_worker_does(path))
        assert len(lost_logs(caplog)) == 1
    (found,) = findings(path, "lost log")
    assert "its last commits are lost" in found["found"]
    asyncio.run(use_as_a_worker_does(path))
    assert len(lost_logs(caplog)) == (first == "doctor")


def test_a_kill_with_an_intact_log_causes_no_warning_in_any_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # R7
    path = tmp_path / "jobs.db"
    url = f"sqlite:///{path}"
    for _ in range(2):
        enqueue_and_be_killed(path)
        assert longshore("list", "--url", url).code == 0  # reads and closes as the only process
        assert not Path(f"{path}-wal").exists()
        asyncio.run(use_as_a_worker_does(path))
        enqueue_and_be_killed(path)
        enqueue_and_be_killed(path)
        asyncio.run(use_as_a_worker_does(path))
        assert not Path(f"{path}-wal").exists()
    assert not lost_logs(caplog)
    assert not findings(path, "lost log")


async def test_stores_closed_in_any_order_and_copies_cause_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # R7
    path = tmp_path / "jobs.db"
    for _ in range(5):
        backends = [SQLiteBackend(path) for _ in range(3)]
        await asyncio.gather(*(backend.enqueue_job(Job(type="t")) for backend in backends))
        own = backends[0].new_connection()
        await backends[0].backup(tmp_path / "copy.db")
        await asyncio.gather(*(backend.close() for backend in backends))
        own.close()
        await use_as_a_worker_does(tmp_path / "copy.db")
        os.unlink(tmp_path / "copy.db")  # noqa: PTH108 - Path.unlink is refused in a coroutine
    await use_as_a_worker_does(path)
    assert set(modes(tmp_path)) == {"jobs.db"}
    assert not lost_logs(caplog)


async def test_a_copy_made_by_another_program_causes_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # R7
    async with SQLiteBackend(tmp_path / "jobs.db") as backend:
        await backend.enqueue_job(Job(id="j", type="t"))
        own = backend.new_connection()
        own.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
        own.close()
    async with SQLiteBackend(tmp_path / "copy.db") as copy:
        assert (await copy.get_job("j")).id == "j"
    assert not lost_logs(caplog)


# -- R1: a backup put in place beside the log of the file before it


def copy_in_use(path: Path, copy: Path) -> None:
    """What `sqlite3 jobs.db ".backup copy.db"` does while a process writes the store."""

    async def run() -> None:
        async with SQLiteBackend(path) as backend:
            await backend.enqueue_job(Job(type="t"))
            source, target = backend.new_connection(), apsw.Connection(str(copy))
            with target.backup("main", source, "main") as step:
                step.step(-1)
            target.close()
            source.close()

    asyncio.run(run())


def sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize(
    ("backup", "put"),
    [
        ("longshore backup", "mv"),
        ("longshore backup", "cp"),
        ("copy of a stopped store", "mv"),
        ("copy of a stopped store", "cp"),
        ("copy of a store in use", "mv"),
    ],
)
def test_a_backup_beside_the_log_of_the_file_before_it_is_refused_and_stays_whole(
    backup: str, put: str, tmp_path: Path
) -> None:
    # R1
    path, copy, away = tmp_path / "jobs.db", tmp_path / "copy.db", tmp_path / "away"
    asyncio.run(fill(path, 3))
    if backup == "longshore backup":
        assert longshore("backup", "--url", f"sqlite:///{path}", str(copy)).code == 0
    elif backup == "copy of a stopped store":
        shutil.copy(path, copy)
    else:
        copy_in_use(path, copy)
    enqueue_and_be_killed(path)
    if put == "mv":
        copy.rename(path)
    else:
        shutil.copy(copy, path)
    before = sizes(tmp_path)
    for command in (["list"], ["enqueue", "t"], ["doctor"]):
        done = longshore(*command, "--url", f"sqlite:///{path}")
        assert done.code != 0, (command, done)
        assert "jobs.db-wal belongs to another file than jobs.db" in done.err
        assert "move jobs.db-wal and jobs.db-shm away, then start again" in done.err
    assert sizes(tmp_path) == before
    away.mkdir()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").rename(away / f"jobs.db{suffix}")
    asyncio.run(use_as_a_worker_does(path))
    with apsw.Connection(str(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert longshore("show", "j0", "--url", f"sqlite:///{path}").code == 0


@pytest.mark.parametrize("sessions", [0, 1])
def test_a_store_copied_or_moved_together_with_its_log_after_a_kill_keeps_every_job(
    sessions: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # R1, R7
    path = tmp_path / "jobs.db"
    for _ in range(sessions):
        asyncio.run(use_as_a_worker_does(path))
    enqueue_and_be_killed(path)
    for number in range(3):
        target = tmp_path / str(number) / "jobs.db"
        target.parent.mkdir()
        for suffix in ("", "-wal"):
            (shutil.move if number == 1 else shutil.copy)(f"{path}{suffix}", f"{target}{suffix}")
        if number == 0:  # the copy is used, and killed again
            enqueue_and_be_killed(target)
        assert longshore("list", "--url", f"sqlite:///{target}").out.count("writer") >= 3
        if number == 1:
            enqueue_and_be_killed(target)
            path = target
    assert not lost_logs(caplog)


# -- R6: a store that may only be read


LOOKS = (["list"], ["show", "j0"], ["stats"], ["doctor", "--json"])


@pytest.fixture
def loaded(tmp_path: Path) -> None:
    """Every module the commands need is loaded: the other user may not be able to read them."""
    url = f"sqlite:///{tmp_path / 'any.db'}"
    asyncio.run(fill(tmp_path / "any.db", 3))
    for command in (*LOOKS, ["enqueue", "t"], ["show", "missing"]):
        longshore(*command, "--url", url)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("forbidden", ["file", "folder", "both"])
def test_a_read_only_store_can_be_inspected(forbidden: str, lent_folder: Path) -> None:
    # R6
    path = lent_folder / "jobs.db"
    url = f"sqlite:///{path}"
    with as_nobody():
        asyncio.run(fill(path, 3))
        before = {file.name: file.read_bytes() for file in lent_folder.iterdir()}
        if forbidden in ("file", "both"):
            forbid(path)
        if forbidden in ("folder", "both"):
            forbid(lent_folder)
        for command in LOOKS:
            done = longshore(*command, "--url", url)
            assert done.code in (0, 1), done  # doctor finds jobs without a worker
            assert "cannot be" not in done.err, done
            assert done.out, done
        assert not [one for one in json.loads(done.out)["findings"] if one["check"] == "journal_mode"]
        assert "the store is read-only" in done.out
        done = longshore("enqueue", "--url", url, "t")
        assert done.code != 0
        assert "cannot be written: the file or its folder is read-only" in done.err
        assert {file.name: file.read_bytes() for file in lent_folder.iterdir()} == before


@pytest.mark.usefixtures("loaded")
def test_a_read_only_store_whose_log_holds_commits_is_not_shown_without_them(lent_folder: Path) -> None:
    # R6
    path = lent_folder / "jobs.db"
    enqueue_and_be_killed(path)
    Path(f"{path}-shm").unlink()
    for file in lent_folder.iterdir():
        file.chmod(0o444)
    with as_nobody():
        forbid(lent_folder)
        done = longshore("list", "--url", f"sqlite:///{path}")
    assert done.code != 0
    assert "its log jobs.db-wal holds commits" in done.err


# -- R5: a file system with a risk


ON_AN_OVERLAY = """
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 99
for arguments in "migrate" "enqueue t" "list" "doctor --json"; do
    "$@" $arguments --url "sqlite:///$PWD/merged/jobs.db" || test $? = 1 || exit
done
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can mount a file system")
def test_a_store_on_a_real_overlay_works_and_the_first_open_and_doctor_name_the_file_system(tmp_path: Path) -> None:
    # R5
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    command = ["unshare", "--mount", "sh", "-c", ON_AN_OVERLAY, "sh", *PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr or done.returncode == 99:
        pytest.skip(f"this machine does not let us mount an overlay: {done.stderr}")
    assert done.returncode in (0, 1), done  # doctor finds a job without a worker
    assert done.stderr.count("is on overlay, a layer of a container: the store is lost") == 1, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    (found,) = [one for one in output["findings"] if one["check"] == "file system"]
    assert (found["level"], "is on overlay" in found["found"]) == ("warning", True)
    assert "INITIAL_PENDING" in done.stdout
