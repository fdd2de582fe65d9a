"""What a running job writes: progress, log lines and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument, JobNotFound, JobNotInflight
from longshore.core.status import FINAL
from longshore.testing.conformance.scenarios import (
    S,
    claim,
    enqueue,
    history,
    job_in,
    lease_of,
    refused,
    seconds,
    story,
)

JSON_VALUES: list[Any] = [
    0,
    100,
    42.5,
    -0.0,
    2**63 - 1,
    -(2**63),
    True,
    None,
    "text with 🐙, zażółć and \x00",
    {"page": 3, "of": [1, None, {"deep": True}], "": "empty key", "🐙": "odd key"},
    [],
]


class TestNotes:
    """`set_progress`, `append_log`, `read_logs`, `save_checkpoint`; that they are fenced is shown with the leases."""

    @pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
    async def test_progress_is_any_json_value_and_the_last_one_stays(
        self, backend: Backend, clock: HeldClock, value: Any
    ) -> None:
        job = await job_in(backend, S.RUNNING)
        await backend.set_progress(job.id, "something else", lease=lease_of(job))
        clock.advance(1)
        await backend.set_progress(job.id, value, lease=lease_of(job))
        after = await backend.get_job(job.id)
        assert repr(after.progress) == repr(value)
        assert after == job.replace(progress=after.progress, updated_at=clock.now())
        assert await story(backend, job.id) == ["job.added", "job.active", "job.progress", "job.progress"]

    async def test_lines_are_logged_in_order_with_number_time_and_level(
        self, backend: Backend, clock: HeldClock
    ) -> None:
        job = await job_in(backend, S.RUNNING)
        for level in ("debug", "info", "warn", "error"):
            await backend.append_log(job.id, f"a line of {level}", level, lease=lease_of(job))
            clock.advance(1)
        lines = await backend.read_logs(job.id)
        assert [(line.number, line.level, line.message) for line in lines] == [
            (1, "debug", "a line of debug"),
            (2, "info", "a line of info"),
            (3, "warn", "a line of warn"),
            (4, "error", "a line of error"),
        ]
        assert [line.at - lines[0].at for line in lines] == [seconds(n) for n in range(4)]
        assert [line.number for line in await backend.read_logs(job.id, after=2)] == [3, 4]
        assert await backend.read_logs(job.id, after=4) == []
        event = (await history(backend, job.id))[-1]
        assert (event.event, event.detail["level"]) == ("job.log_added", "error")

    async def test_a_line_is_info_if_nothing_is_said(self, backend: Backend) -> None:
        job = await job_in(backend, S.RUNNING)
        await backend.append_log(job.id, "")
        [line] = await backend.read_logs(job.id)
        assert (line.level, line.message) == ("info", "")

    async def test_a_level_that_is_none_is_refused(self, backend: Backend) -> None:
        job = await job_in(backend, S.RUNNING)
        async with refused(backend, InvalidArgument, field="level"):
            await backend.append_log(job.id, "psst", "secret")

    async def test_each_job_has_its_own_log(self, backend: Backend) -> None:
        a, b = await job_in(backend, S.RUNNING), await job_in(backend, S.RUNNING)
        await backend.append_log(a.id, "of a")
        await backend.append_log(b.id, "of b")
        assert [(line.number, line.message) for line in await backend.read_logs(b.id)] == [(1, "of b")]

    async def test_a_line_may_be_added_by_whoever_calls_even_when_the_job_is_over(self, backend: Backend) -> None:
        job = await job_in(backend, S.COMPLETED)
        await backend.append_log(job.id, "checked by hand")
        assert len(await backend.read_logs(job.id)) == 1

    async def test_the_log_of_an_unknown_job_is_not_found(self, backend: Backend) -> None:
        with pytest.raises(JobNotFound):
            await backend.read_logs("nobody")

    @pytest.mark.parametrize("value", [*JSON_VALUES, b"", b"\x00\xff raw", b"null"], ids=repr)
    async def test_a_checkpoint_is_json_or_bytes_and_comes_back_with_the_next_claim(
        self, backend: Backend, clock: HeldClock, value: Any
    ) -> None:
        # X-67
        job = await job_in(backend, S.RUNNING)
        await backend.save_checkpoint(job.id, {"page": 0}, lease=lease_of(job))
        await backend.save_checkpoint(job.id, value, lease=lease_of(job))
        clock.advance(30)
        await backend.reclaim_expired_leases()
        again = await claim(backend, "worker-2")
        assert repr(again.checkpoint) == repr(value)

    async def test_a_checkpoint_writes_no_event(self, backend: Backend) -> None:
        job = await job_in(backend, S.RUNNING)
        await backend.save_checkpoint(job.id, 1)
        assert await story(backend, job.id) == ["job.added", "job.active"]

    @pytest.mark.parametrize("status", sorted(FINAL))
    async def test_a_job_that_is_over_takes_no_progress_and_no_checkpoint(self, backend: Backend, status: S) -> None:
        job = await job_in(backend, status)
        async with refused(backend, JobNotInflight):
            await backend.set_progress(job.id, 100)
        async with refused(backend, JobNotInflight):
            await backend.save_checkpoint(job.id, 100)

    async def test_progress_log_and_checkpoint_survive_every_turn(self, backend: Backend) -> None:
        await enqueue(backend, "j1")
        await claim(backend)
        await backend.set_progress("j1", 30)
        await backend.append_log("j1", "first try")
        await backend.save_checkpoint("j1", {"page": 3})
        await backend.fail_job("j1", "busy")
        again = await claim(backend)
        assert (again.progress, again.checkpoint) == (30, {"page": 3})
        await backend.append_log("j1", "second try")
        await backend.complete_job("j1")
        done = await backend.get_job("j1")
        assert (done.progress, done.checkpoint) == (30, {"page": 3})
        assert [line.number for line in await backend.read_logs("j1")] == [1, 2]
