"""A commit of another process wakes a waiting caller, by a datagram or by polling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.core.job import Job
from tests.processes.process_group import ProcessGroup

LONG = 20
"""Seconds of a wait that a notification must end."""


def touch(name: str) -> None:
    Path(name).touch()


@pytest.mark.parametrize("how", ["a datagram", "looking"])
async def test_a_commit_of_another_process_wakes_a_waiting_caller(how: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    if how == "looking":
        touch(f"{path}-wake")  # a file in place of the folder for the sockets
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        waiting = asyncio.create_task(backend.wait_for_change(LONG))
        with ProcessGroup(path) as processes:
            writer = processes.start_process("writer", "writer", "1")
            assert await waiting
            await asyncio.to_thread(writer.finish)
            assert (await backend.get_job("writer-0-0")).queue == "q"


async def test_a_commit_here_wakes_another_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        with ProcessGroup(path) as processes:
            waiter = processes.start_process("waiter", "waiter")
            assert (await asyncio.to_thread(processes.next_line))[1] == "waiting"
            await backend.enqueue_job(Job(id="second", type="t"))
            assert await asyncio.to_thread(processes.next_line) == (waiter, "changed", [True])
            await asyncio.to_thread(waiter.finish)


async def test_a_cursor_shows_at_once_what_another_process_wrote_before_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        cursor = (await backend.read_events())[-1].cursor
        with ProcessGroup(path) as processes:
            writer = processes.start_process("writer", "writer", "1")
            await asyncio.to_thread(writer.wait)
        assert await backend.wait_for_change(LONG, after=cursor)


async def test_a_process_killed_while_it_waits_does_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteBackend(path) as backend:
        await backend.enqueue_job(Job(id="first", type="t"))
        with ProcessGroup(path) as processes:
            waiter = processes.start_process("waiter", "waiter")
            assert (await asyncio.to_thread(processes.next_line))[1] == "waiting"
            await asyncio.to_thread(waiter.kill)
        for number in range(5):
            await backend.enqueue_job(Job(id=f"after{number}", type="t"))
        assert await backend.wait_for_change(0, after=(await backend.read_events(limit=1))[0].cursor)
