"""What remote workers wait for: a mark that is another one after every change, and never misses one."""

from __future__ import annotations

import asyncio

import pytest

from longshore.backends.base import Backend
from longshore.core.job import Job
from longshore.server import event_tail
from longshore.server.event_tail import Changes


async def test_a_change_makes_the_mark_another_one(backend: Backend) -> None:
    counted = Changes(backend)
    before = await counted.mark()
    assert await counted.after(before, 0.01) == before
    waiting = [asyncio.create_task(counted.after(before, 25)) for _ in range(3)]
    await asyncio.sleep(0)
    await backend.enqueue_job(Job(type="x"))
    after = set(await asyncio.gather(*waiting))
    assert before not in after
    await counted.close()


async def test_no_change_falls_between_two_waits(backend: Backend) -> None:
    counted = Changes(backend)
    mark = await counted.mark()
    for number in range(50):
        stored = asyncio.create_task(backend.enqueue_job(Job(type="x", id=str(number))))
        changed = await counted.after(mark, 25)
        assert changed != mark
        await stored
        mark = await counted.mark()
    await counted.close()


async def test_a_mark_changes_after_a_long_time_without_requests(
    memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(event_tail, "_LONGEST_POLL", 0.001)
    counted = Changes(memory)
    before = await counted.mark()
    assert counted._work is not None
    await counted._work  # it ends without requests
    assert await counted.mark() != before
    await counted.close()
