"""The cascade after one end on PostgreSQL takes the same number of statements for any number of stopped jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from longshore.backends.connect import connect
from longshore.backends.postgres.connection import OwnSession
from longshore.core.job import Job
from longshore.core.status import JobStatus

STATEMENTS = ("rows", "run", "many", "simply")


async def test_a_long_chain_is_stopped_in_as_many_statements_as_a_short_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0

    def counted(name: str) -> Any:
        send = getattr(OwnSession, name)

        def counting(session: OwnSession, *given: Any) -> Any:
            nonlocal sent
            sent += 1
            return send(session, *given)

        return counting

    async def cost_of_stopping(links: Sequence[str]) -> int:
        chain = [
            Job(id=name, type="t", depends_on=[before] if before else [], on_dependency_failure="stop")
            for name, before in zip(links, ["", *links], strict=False)
        ]
        await backend.enqueue_jobs(chain)
        already = sent
        await backend.cancel_jobs(job_ids=[links[0]])
        return sent - already

    async with connect(postgres_url) as backend:
        await backend.count_jobs()
        for name in STATEMENTS:
            monkeypatch.setattr(OwnSession, name, counted(name))
        short = await cost_of_stopping([f"short {number}" for number in range(3)])
        long = await cost_of_stopping([f"long {number}" for number in range(300)])
        assert (await backend.count_jobs())[JobStatus.UNSCHEDULED] == 303
    assert long < short + 5  # hints sent meanwhile count, too
