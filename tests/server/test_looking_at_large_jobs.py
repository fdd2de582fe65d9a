"""Lists of large jobs never hold all payloads in memory."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend, Page
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.runtime import job_listing
from longshore.server import response_limits
from longshore.server.models.jobs import view, written_view
from tests.server.conftest import Serve
from tests.server.test_access import NameGate, as_caller
from tests.server.test_store_routes import MAILER, asked

HEAVY = b"7" * 4_000


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_limits, "MOST_READ", 20_000)
    monkeypatch.setattr(response_limits, "LARGEST_PAYLOAD", 5_000)
    monkeypatch.setattr(job_listing, "_MOST_BYTES", 20_000)
    monkeypatch.setattr(job_listing, "_FIRST", 5)


@pytest.fixture
def sizes(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs the store gave at once."""
    real, given = memory.list_jobs, []

    async def list_jobs(filter: JobFilter, **options: Any) -> Page:
        page = await real(filter, **options)
        given.append(len(page.items))
        return page

    monkeypatch.setattr(memory, "list_jobs", list_jobs)
    return given


async def stored(memory: Backend, jobs: int, payload: bytes, queue: str = "mail") -> list[str]:
    return await memory.enqueue_jobs(
        [Job(id=f"{queue}{n}", type="t", queue=queue, payload=payload) for n in range(jobs)]
    )


async def test_a_page_of_large_jobs_has_all_of_them_and_is_read_in_portions(
    quick: httpx.AsyncClient, memory: Backend, sizes: list[int]
) -> None:
    there = await stored(memory, 30, HEAVY)
    first = (await quick.get("/v1/jobs?order=oldest&limit=20&queue=mail")).json()
    rest = (await quick.get("/v1/jobs", params={"order": "oldest", "cursor": first["next_cursor"]})).json()
    assert [job["id"] for job in first["items"]] == there[:20]
    assert ([job["id"] for job in rest["items"]], rest["next_cursor"]) == (there[20:], None)
    assert max(sizes) <= 5


async def test_a_page_of_small_jobs_is_read_at_once_where_they_are_known(
    quick: httpx.AsyncClient, memory: Backend, sizes: list[int]
) -> None:
    await stored(memory, 30, b"1")
    for _ in range(2):
        sizes.clear()
        assert len((await quick.get("/v1/jobs?limit=30")).json()["items"]) == 30
    assert sizes == [30]


async def test_dead_letters_are_read_in_portions(quick: httpx.AsyncClient, memory: Backend, sizes: list[int]) -> None:
    await stored(memory, 12, HEAVY)
    for job in await memory.dequeue_jobs("w", limit=12):
        await memory.bury_job(job.id, "no", lease=job.lease)
    assert len((await quick.get("/v1/dead-letters")).json()["items"]) == 12
    assert max(sizes) <= 5


async def test_an_act_on_all_that_match_reads_large_jobs_in_portions(
    quick: httpx.AsyncClient, memory: Backend, sizes: list[int]
) -> None:
    await stored(memory, 30, HEAVY)
    act = {"action": "cancel", "filter": {"queues": ["mail"]}}
    answer = (await quick.post("/v1/jobs/bulk", json=act)).json()
    assert (answer["matched"], answer["changed"], answer["more"]) == (30, 30, False)
    assert max(sizes) <= 5


async def test_the_queues_of_many_jobs_are_read_in_several_calls(
    memory: Backend, serve: Serve, sizes: list[int]
) -> None:
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER))
    await stored(memory, 12, HEAVY)
    await stored(memory, 2, HEAVY, "bills")
    held = {job.id: job.lease for job in await memory.dequeue_jobs("w", limit=14, lease=60)}
    leases = {name: {"token": lease.token, "epoch": lease.epoch} for name, lease in held.items() if lease is not None}
    renewed = await asked(client, "work/renew", MAILER, leases=leases, duration=60)
    assert sorted(renewed.json()["leases"]) == sorted(name for name in held if name.startswith("mail"))
    assert max(sizes) <= 5
    headers = as_caller(MAILER)
    called_off = await client.post("/v1/store/cancel_jobs", json={"job_ids": ["mail3", "bills0"]}, headers=headers)
    assert called_off.json() == {"cancelled": ["mail3"], "unknown": ["bills0"]}


@pytest.mark.parametrize("payload", [b'{"a":1}', b"null", b"", b"\xff\x00", b"[1"])
@pytest.mark.parametrize("result", [None, b"", b"null", b'{"x":[1,2]}', b"\xfe"])
def test_a_large_job_is_shown_like_a_small_one(payload: bytes, result: bytes | None) -> None:
    job = Job(id="a", queue="mail", type="send", payload=payload, result=result)
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert json.loads(written_view(job, now)) == view(job, now).model_dump(mode="json")
