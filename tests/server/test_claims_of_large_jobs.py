"""One claim over HTTP brings no more than can be told at once, and at least one job; the usual one is one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable
from longshore.core.job import Job
from longshore.server import long_poll, response_limits
from tests.server.conftest import Serve
from tests.server.test_access import NameGate, as_caller
from tests.server.test_store_routes import MAILER, asked

HEAVY = b"7" * 4_000


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "MOST_BYTES", 20_000)
    monkeypatch.setattr(response_limits, "WORTH_NOTING", 2_000)
    monkeypatch.setattr(response_limits, "LARGEST_PAYLOAD", 5_000)


@pytest.fixture
def calls(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What the store was asked for: the verb, the limit, and how many it gave."""
    made: list[tuple[str, int, int]] = []

    def spy(name: str, jobs_in: Callable[[Any], list[Job]]) -> None:
        real = getattr(memory, name)

        async def watched(*args: Any, **options: Any) -> Any:
            answer = await real(*args, **options)
            made.append((name, options["limit"], len(jobs_in(answer))))
            return answer

        monkeypatch.setattr(memory, name, watched)

    spy("settle_and_dequeue", lambda answer: answer[1])  # in memory it claims by the other
    spy("dequeue_jobs", lambda answer: answer)
    return made


def ids(answer: httpx.Response) -> list[str]:
    return [job["id"] for job in answer.json()["jobs"]]


async def stored(memory: Backend, jobs: int, payload: bytes = b"1", queue: str = "q") -> list[str]:
    return await memory.enqueue_jobs(
        [Job(id=f"{queue}{n}", type="t", queue=queue, payload=payload) for n in range(jobs)]
    )


async def test_a_claim_of_large_jobs_ends_early_and_the_next_claim_continues(
    quick: httpx.AsyncClient, memory: Backend
) -> None:
    there = await stored(memory, 30, HEAVY)
    first = ids(await asked(quick, "work/claim", assignee_id="w", limit=1000))
    assert first == there[: len(first)]
    assert 3 <= len(first) <= 5
    found = first
    while more := ids(await asked(quick, "work/claim", assignee_id="w", limit=1000, wait=0.001)):
        found += more
    assert found == there


async def test_a_job_beyond_all_bounds_is_claimed_alone(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_limits, "LARGEST_PAYLOAD", 50_000)
    await stored(memory, 2, b"7" * 50_000)
    assert ids(await asked(quick, "work/claim", assignee_id="w", limit=5)) == ["q0"]
    assert ids(await asked(quick, "work/settle-and-claim", outcomes=[], assignee_id="w", limit=5)) == ["q1"]


async def test_no_more_are_asked_for_than_would_fit_if_all_were_as_heavy_as_the_heaviest(
    quick: httpx.AsyncClient, memory: Backend, calls: list[tuple[str, int, int]]
) -> None:
    await stored(memory, 8)
    await asked(quick, "work/claim", assignee_id="w", limit=8, queues=["q"])
    assert calls == [("dequeue_jobs", 4, 4), ("dequeue_jobs", 4, 4)], "the size of the queue's jobs is unknown"
    calls.clear()
    for n in range(30):
        said = {"type": "t", "queue": "q", "data": "x" * 4_000 if n == 29 else 1}
        assert (await quick.post("/v1/jobs", json=said)).status_code == 202
    await asked(quick, "work/claim", assignee_id="w", limit=30, queues=["q"])
    assert max(limit for _, limit, _ in calls) == 4, "a large one came in, wherever it stands in line"


async def test_the_usual_claim_is_one_call_of_the_store(
    quick: httpx.AsyncClient, memory: Backend, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "MOST_BYTES", 64 * 1024 * 1024)
    await stored(memory, 350)
    await asked(quick, "work/claim", assignee_id="w", queues=["q", "an empty one"])
    calls.clear()
    claim = {"assignee_id": "w", "limit": 100, "queues": ["q", "an empty one"]}
    assert len(ids(await asked(quick, "work/claim", **claim))) == 100
    assert calls == [("dequeue_jobs", 100, 100)]
    calls.clear()
    turn = await asked(quick, "work/settle-and-claim", outcomes=[{"job_id": "q1"}], **claim)
    assert (turn.json()["settled"], len(ids(turn))) == ({"q1": "COMPLETED"}, 100)
    assert [call for call in calls if call[0] == "settle_and_dequeue"] == [("settle_and_dequeue", 100, 100)]
    assert len(calls) <= 2


async def test_a_turn_settles_once_and_claims_in_portions(
    quick: httpx.AsyncClient, memory: Backend, calls: list[tuple[str, int, int]]
) -> None:
    await stored(memory, 12)
    await memory.dequeue_jobs("w", limit=1)
    turn = await asked(quick, "work/settle-and-claim", outcomes=[{"job_id": "q0"}], assignee_id="w", limit=9)
    assert (turn.json()["settled"], len(ids(turn))) == ({"q0": "COMPLETED"}, 9)
    assert [name for name, *_ in calls].count("settle_and_dequeue") == 1


@pytest.mark.parametrize("path", ["work/claim", "work/settle-and-claim"])
async def test_claimed_jobs_are_returned_although_the_next_call_fails(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await stored(memory, 12)
    real, asked_for = memory.dequeue_jobs, 0 if path == "work/claim" else 1

    async def dequeue_jobs(*args: Any, **options: Any) -> list[Job]:
        nonlocal asked_for
        asked_for += 1
        if asked_for == 2:
            raise BackendUnavailable("for a moment")
        return await real(*args, **options)

    monkeypatch.setattr(memory, "dequeue_jobs", dequeue_jobs)
    body: dict[str, Any] = {} if path == "work/claim" else {"outcomes": []}
    assert ids(await asked(quick, path, assignee_id="w", limit=9, **body)) == ["q0", "q1", "q2", "q3"]


async def test_a_caller_with_queues_claims_large_jobs_in_several_calls(memory: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(MAILER))
    await stored(memory, 9, queue="mail")
    await stored(memory, 3, queue="bills")
    answer = await client.post("/v1/work/claim", json={"assignee_id": "w", "limit": 20}, headers=as_caller(MAILER))
    assert ids(answer) == [f"mail{n}" for n in range(9)]
    turn = {"outcomes": [], "assignee_id": "w", "limit": 0}
    assert (await client.post("/v1/work/settle-and-claim", json=turn, headers=as_caller(MAILER))).json()["jobs"] == []


@pytest.mark.parametrize("limit", [0, -1, "5", None, 1.5, True])
async def test_a_limit_that_cannot_be_meant_is_refused_as_ever(quick: httpx.AsyncClient, limit: Any) -> None:
    refused = await asked(quick, "work/claim", assignee_id="w", limit=limit)
    assert (refused.status_code, refused.json()["field"]) == (422, "limit")


@pytest.mark.parametrize("queues", [[{}], [[]], [""], 5, "q", [None]])
@pytest.mark.parametrize("path", ["work/claim", "work/settle-and-claim"])
async def test_queues_that_cannot_be_meant_are_refused_as_ever(
    quick: httpx.AsyncClient, path: str, queues: Any
) -> None:
    body: dict[str, Any] = {} if path == "work/claim" else {"outcomes": []}
    refused = await asked(quick, path, assignee_id="w", limit=5, queues=queues, **body)
    assert (refused.status_code, refused.json()["field"].split("[")[0]) == (422, "queues")


async def test_of_very_many_queues_the_first_are_forgotten_and_met_with_care(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_limits, "_MOST_QUEUES", 2)
    known = response_limits.JobSizes()
    assert (known.of(None), known.of(["a"]), known.of([])) == (5_000, 5_000, 5_000)
    for queue in "abc":
        known.saw([], [queue])
    assert (known.of(["a"]), known.of(["b", "c"]), known.of(None)) == (5_000, 1, 1)


@pytest.mark.parametrize("verb", ["enqueue_jobs", "enqueue_new_jobs", "add_jobs"])
async def test_new_jobs_are_weighed_only_when_the_store_has_looked_at_them(quick: httpx.AsyncClient, verb: str) -> None:
    refused = await asked(quick, f"store/{verb}", jobs=[{"id": "a", "type": "t", "payload": None}])
    assert (refused.status_code, refused.json()["field"]) == (422, "jobs[0].payload")
