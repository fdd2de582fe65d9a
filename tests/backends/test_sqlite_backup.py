"""A backup copies one snapshot: commits between its steps must not restart it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job
from tests.backends.audit import audit

COMMIT_EVERY = 250
"""Pages written to the copy between two commits on the original; a step of the copy is longer."""


class _CountingDisk(apsw.VFS):
    """Counts the pages written through it, and calls back from time to time."""

    def __init__(self, name: str, now_and_then: Callable[[], None]) -> None:
        self.writes = 0
        self.beneath = apsw.vfs_names()[0]
        self._now_and_then = now_and_then
        super().__init__(name, self.beneath, makedefault=True)

    def wrote(self) -> None:
        self.writes += 1
        if self.writes % COMMIT_EVERY == 0:
            self._now_and_then()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:  # noqa: N802 - SQLite's own name
        return _CountingFile(self, name, flags)


class _CountingFile(apsw.VFSFile):
    def __init__(self, disk: _CountingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(disk.beneath, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.wrote()
        super().xWrite(data, offset)


@contextmanager
def counting(now_and_then: Callable[[], None]) -> Iterator[_CountingDisk]:
    """Inside the block, connections without a VFS (only the copy) write through the counting one."""
    before = apsw.vfs_names()[0]

    def take_over(connection: apsw.Connection) -> None:
        if connection.open_vfs == "counting":
            connection.pragma("locking_mode", "EXCLUSIVE")  # it has no shared memory

    disk = _CountingDisk("counting", now_and_then)
    apsw.connection_hooks.append(take_over)
    try:
        yield disk
    finally:
        apsw.connection_hooks.remove(take_over)
        disk.unregister()
        assert apsw.vfs_names()[0] == before


async def test_commits_during_a_backup_do_not_send_it_back_to_the_start(tmp_path: Path) -> None:
    usual = apsw.vfs_names()[0]
    async with SQLiteBackend(tmp_path / "jobs.db", vfs=usual) as backend:
        await backend.enqueue_jobs([Job(id=f"j{n}", type="t", payload=b" " * 4_000) for n in range(4_000)])
        other = backend.new_connection()
        commits = 0

        def commit() -> None:
            nonlocal commits
            if commits < 200:  # a copy that restarts each time must end as well, for the test to fail
                commits += 1
                other.execute("UPDATE meta SET next_uid = next_uid + 1")

        with counting(commit) as disk:
            await backend.backup(tmp_path / "copy.db")
        ((pages,),) = other.execute("PRAGMA page_count")
        other.close()
        assert commits > 10
        assert disk.writes < 2 * pages, f"{disk.writes} pages written for a copy of {pages}"
    async with SQLiteBackend(tmp_path / "copy.db") as copy:
        jobs, _ = await audit(copy)
        assert len(jobs) == 4_000
