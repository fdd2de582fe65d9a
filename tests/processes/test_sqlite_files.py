"""Files beside a SQLite store: other people's survive us, ours are private, and a store that vanishes is noticed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.job import Job
from tests.cli.terminal import longshore
from tests.processes.crew import Crew

OTHER_UID = 65_534


def findings(path: Path, check: str) -> list[dict[str, str]]:
    """What `longshore doctor` finds under this name."""
    told = json.loads(longshore("doctor", "--json", "--url", f"sqlite:///{path}").out)
    return [one for one in told["findings"] if one["check"] == check]


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
        with Crew(path) as crew:
            crew.hire("writer", "writer", "1").wait()
    assert {file.name: file.read_bytes() for file in victims.iterdir()} == files
    warnings = [record.getMessage() for record in caplog.records if "-wake" in record.getMessage()]
    assert len(warnings) == (0 if plant == "our own folder" else 1), warnings
    if warnings:
        assert "processes look for changes every 25 ms instead" in warnings[0]


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
    """A folder like /tmp: writable by everybody, and sticky."""
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
        with pytest.raises(BackendUnavailable, match="belongs to another user, in a folder that everybody may write"):
            await backend.enqueue_job(Job(type="t"))
    assert not (shared_folder.parent / "made-for-them").exists()


async def test_a_store_of_our_own_in_a_shared_folder_works(shared_folder: Path) -> None:
    # X1
    await use_as_a_worker_does(shared_folder / "jobs.db")
    await use_as_a_worker_does(shared_folder / "jobs.db")


# -- X2: private whatever the umask


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


def test_an_existing_store_that_others_may_read_works_and_doctor_says_so(tmp_path: Path) -> None:
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
