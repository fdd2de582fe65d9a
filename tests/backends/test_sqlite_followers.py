"""Reading one queue's events costs in proportion to that queue's events, however busy the others are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore import Job, connect


@pytest.fixture
def steps() -> Iterator[list[int]]:
    """Counts the steps of SQLite's virtual machine, in tens, on every connection opened from now on."""
    counted = [0]

    def count() -> bool:
        counted[0] += 1
        return False

    def watch(connection: Any) -> None:
        connection.set_progress_handler(count, 10)

    apsw.connection_hooks.append(watch)
    yield counted
    apsw.connection_hooks.remove(watch)


async def test_a_quiet_queues_follower_reads_a_busy_queues_events_once(tmp_path: Path, steps: list[int]) -> None:
    async with connect(f"sqlite:///{tmp_path / 'jobs.db'}") as backend:
        await backend.enqueue_job(Job(type="t", queue="quiet"))
        (event,) = await backend.read_events(queue="quiet")
        await backend.enqueue_jobs([Job(type="t", queue="busy") for _ in range(2000)])
        assert await backend.read_events(event.cursor, queue="quiet") == []
        before = steps[0]
        assert await backend.read_events(event.cursor, queue="quiet") == []
        assert steps[0] - before < 50
        await backend.enqueue_job(Job(id="news", type="t", queue="quiet"))
        (news,) = await backend.read_events(event.cursor, queue="quiet")
        assert news.job_id == "news"
        (again,) = await backend.read_events(event.cursor, queue="quiet")
        assert again == news
        assert await backend.read_events(news.cursor, queue="quiet") == []
