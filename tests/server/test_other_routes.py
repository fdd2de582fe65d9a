"""Queues, schedules, flows, workers and counts over HTTP."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from longshore.app.harbor import Harbor
from longshore.backends.base import Backend, WorkerInfo
from longshore.cli.rows import worker_row
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.server.console.status_page import status_of
from longshore.server.models.queues import worker_view


async def test_a_queue_is_paused_limited_and_resumed(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.enqueue_jobs([Job(id=f"j{n}", type="t", queue="mail") for n in range(3)])
    assert (await client.post("/v1/queues/mail/pause")).json()["paused"] is True
    assert await backend.dequeue_jobs("w", limit=5) == []
    assert (await client.post("/v1/queues/mail/resume")).json()["paused"] is False
    limited = await client.patch("/v1/queues/mail/limits", json={"running": 2, "rate": {"count": 9, "per": 60}})
    assert limited.json()["limits"] == {
        "running": 2,
        "per_key": None,
        "rate": {"count": 9, "per": 60.0},
        "rate_per_key": None,
    }
    kept = await client.patch("/v1/queues/mail/limits", json={"rate": None})
    assert (kept.json()["limits"]["running"], kept.json()["limits"]["rate"]) == (2, None)
    assert len(await backend.dequeue_jobs("w", limit=5)) == 2
    shown = (await client.get("/v1/queues/mail")).json()
    assert (shown["waiting"], shown["counts"]["RUNNING"], shown["counts"]["DEAD"]) == (1, 2, 0)
    assert [queue["name"] for queue in (await client.get("/v1/queues")).json()["items"]] == ["mail"]
    unused = (await client.get("/v1/queues/unused")).json()
    assert (unused["waiting"], unused["paused"]) == (0, False)
    for bad in (
        {"running": 0},
        {"rate": {"count": 1}},
        {"rate": {"count": 1, "per": 0}},
        {"speed": 1},
        {"running": "2"},
    ):
        refused = await client.patch("/v1/queues/mail/limits", json=bad)
        assert refused.status_code == 422, bad


async def test_a_schedule_is_created_changed_run_and_removed(client: httpx.AsyncClient, backend: Backend) -> None:
    body = {
        "job": {"type": "report", "data": {"of": "eu"}, "queue": "reports", "attempts": 3, "expires_after": 600},
        "repeat": {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
    }
    stored = await client.put("/v1/schedules/nightly", json=body)
    assert stored.status_code == 200
    told = stored.json()
    assert (told["queue"], told["job"]["data"], told["job"]["max_attempts"]) == ("reports", {"of": "eu"}, 3)
    assert (told["repeat"]["cron"], told["paused"], told["run_count"]) == ("30 2 * * *", False, 0)
    ahead = (await client.get("/v1/schedules/nightly/preview?count=3")).json()["items"]
    assert ahead[0] == told["next_run_at"]
    assert len(ahead) == 3
    assert (await client.post("/v1/schedules/nightly/pause")).json()["paused"] is True
    assert (await client.put("/v1/schedules/nightly", json=body)).json()["paused"] is True, "as it was"
    for address in ("/v1/schedules/nightly/run", "/v1/flows/f/rerun"):
        keyed = await client.post(address, headers={"Idempotency-Key": "k"})
        assert (keyed.status_code, keyed.json()["field"]) == (422, "Idempotency-Key"), "it would not be kept"
    run = await client.post("/v1/schedules/nightly/run")
    assert run.status_code == 202
    assert (await backend.get_job(run.json()["id"])).schedule_id == "nightly"
    assert (await client.post("/v1/schedules/nightly/resume")).json()["paused"] is False
    assert (await client.put("/v1/schedules/nightly", json={**body, "paused": True})).json()["paused"] is True
    assert [one["id"] for one in (await client.get("/v1/schedules")).json()["items"]] == ["nightly"]
    assert (await client.delete("/v1/schedules/nightly")).status_code == 204
    for method, path in [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/preview"),
        ("POST", "/run"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ]:
        missing = await client.request(method, f"/v1/schedules/nightly{path}")
        assert (missing.status_code, missing.json()["schedule_id"]) == (404, "nightly"), f"{method} {path}"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"repeat": {}}, "repeat"),
        ({"repeat": {"cron": "nonsense"}}, "repeat.cron"),
        ({"repeat": {"every": 1, "tz": "Mars/Olympus"}}, "repeat.tz"),
        ({"repeat": {"every": -1}}, "repeat.every"),
        ({"job": {"type": ""}}, "job.type"),
        ({"job": {"type": "t", "data": 2**80}}, "job.data"),
        ({"job": {"type": "t", "id": "x"}}, "job.id"),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_by_field(
    quick: httpx.AsyncClient, change: dict[str, object], field: str
) -> None:
    body: dict[str, object] = {"job": {"type": "t"}, "repeat": {"every": 60}, **change}
    refused = await quick.put("/v1/schedules/s", json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert (await quick.get("/v1/schedules")).json()["items"] == []


async def test_a_rule_can_be_looked_ahead_at_before_it_is_stored(quick: httpx.AsyncClient) -> None:
    times = await quick.post("/v1/schedules/preview?count=2", json={"every": 60})
    assert len(times.json()["items"]) == 2


async def test_a_flow_is_asked_after_called_off_and_run_again(quick: httpx.AsyncClient, memory: Backend) -> None:
    harbor = Harbor(memory)

    @harbor.task
    async def half(n: int) -> float:
        return n / 2

    flow = harbor.flow("halves", id="f/1")
    first = flow.add(half.call(8), name="first")
    flow.add(half.call(3), after=[first], name="second")
    await flow.enqueue()
    shown = (await quick.get("/v1/flows/f%2F1")).json()
    assert (shown["name"], shown["state"], shown["total"], shown["ended"]) == ("halves", "running", 2, 0)
    assert [(step["name"], step["status"]) for step in shown["steps"]] == [
        ("first", "INITIAL_PENDING"),
        ("second", "WAITING_CHILDREN"),
    ]
    assert "flowchart TD" in (await quick.get("/v1/flows/f%2F1/drawing")).text
    assert (await quick.post("/v1/flows/f%2F1/retry")).json() == {"job_ids": []}
    assert len((await quick.post("/v1/flows/f%2F1/cancel")).json()["job_ids"]) == 2
    again = await quick.post("/v1/flows/f%2F1/rerun")
    assert again.status_code == 202
    assert (await quick.get(f"/v1/flows/{again.json()['id']}")).json()["state"] == "running"
    assert (await quick.get("/v1/flows/unknown")).status_code == 404


@pytest.mark.parametrize(
    ("said", "ago", "state"),
    [("running", 59, "running"), ("running", 61, "silent"), ("draining", 61, "silent"), ("stopped", 61, "stopped")],
)
def test_a_worker_that_went_silent_is_called_so_on_every_surface(said: str, ago: int, state: str) -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    worker = WorkerInfo(id="w", state=said, seen_at=now - timedelta(seconds=ago))
    assert worker_view(worker, now).state == state
    assert worker_row(worker, now)[1] == state
    assert status_of([], [], [], [worker], now)["workers"][0]["state"] == state


async def test_workers_and_counts_are_shown(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.heartbeat_worker(WorkerInfo(id="w1", queues=("mail",), concurrency=4, running=1, host="h", pid=7))
    (worker,) = (await client.get("/v1/workers")).json()["items"]
    assert (worker["id"], worker["queues"], worker["running"], worker["state"]) == ("w1", ["mail"], 1, "running")
    await backend.enqueue_jobs([Job(type="t", tags=["a"]), Job(type="t", delay=60), Job(type="t", queue="mail")])
    every = (await client.get("/v1/stats")).json()
    assert (every["total_jobs"], every["counts"][JobStatus.INITIAL_PENDING], every["delayed"]) == (3, 3, 1)
    assert (await client.get("/v1/stats?queue=mail")).json()["total_jobs"] == 1
    tagged = (await client.get("/v1/stats?tag=a")).json()
    assert (tagged["total_jobs"], tagged["counts"], tagged["delayed"]) == (1, None, None)
