"""Jobs looked at and acted upon over HTTP, on every store."""

import asyncio
from typing import Any, get_args
from urllib.parse import quote

import httpx
import pytest

from longshore.backends.base import Backend, Outcome
from longshore.core.clock import HeldClock
from longshore.core.filters import JobFilter, matches
from longshore.core.job import Job
from longshore.core.job_record import record_of
from longshore.core.status import JobStatus
from longshore.runtime.bulk_operations import APPLIES_TO, Act
from tests.runtime.working import until
from tests.server.conftest import platform_of

ODD_NAMES = ["a/b", "../../etc", "%2e%2e", "é ß", "'; DROP TABLE jobs;--", "a?b#c", "100%", "{job_id}", "emoji 🚢", "."]


async def test_a_job_is_followed_from_its_beginning_to_its_end(client: httpx.AsyncClient, backend: Backend) -> None:
    # O-GOAL-02, O-INV-01, O-ST-03, O-TR-02, O-TR-03, O-ST-06, O-DM-05
    job_id = (await client.post("/v1/jobs", json={"type": "t", "data": [1]})).json()["id"]
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (shown["status"], shown["state"], shown["data"], shown["lease"]) == ("INITIAL_PENDING", "QUEUED", [1], None)
    assert shown["created_at"] <= shown["updated_at"]
    (job,) = await backend.dequeue_jobs("w")
    await backend.set_progress(job_id, {"done": 3}, lease=job.lease)
    await backend.append_log(job_id, "half way", lease=job.lease)
    await backend.save_checkpoint(job_id, b"\x00raw", lease=job.lease)
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (shown["state"], shown["assignee_id"], shown["progress"], shown["checkpoint"]) == (
        "RUNNING",
        "w",
        {"done": 3},
        "AHJhdw==",
    )
    assert shown["lease"] == {"epoch": 1, "expires_at": shown["lease"]["expires_at"], "cancel_requested": False}
    assert job.lease is not None
    assert job.lease.token not in str(shown), "the token is the worker's alone"
    progress = (await client.get(f"/v1/jobs/{job_id}/progress")).json()
    assert progress == {"status": "RUNNING", "state": "RUNNING", "progress": {"done": 3}, "executions": 1}
    lines = (await client.get(f"/v1/jobs/{job_id}/logs")).json()["items"]
    assert [(line["number"], line["level"], line["message"]) for line in lines] == [(1, "info", "half way")]
    assert (await client.get(f"/v1/jobs/{job_id}/logs?after=1")).json()["items"] == []
    await backend.complete_job(job_id, b"\xff\xfe", lease=job.lease)
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (shown["state"], shown["result"], shown["result_base64"]) == ("SUCCESS", None, "//4=")
    history = (await client.get(f"/v1/jobs/{job_id}/events?limit=2")).json()
    rest = (await client.get(f"/v1/jobs/{job_id}/events", params={"after": history["next_cursor"]})).json()
    told = [event["event"] for event in history["items"] + rest["items"]]
    assert [name for name in told if name not in ("job.progress", "job.log_added")] == [
        "job.added",
        "job.accepted",
        "job.active",
        "job.completed",
    ]


async def test_failures_appear_with_the_states_of_the_api(
    client: httpx.AsyncClient, backend: Backend, clock: HeldClock
) -> None:
    # O-ST-07, O-TR-04, O-TR-05, O-TR-06, O-ST-08, O-ST-09, O-DM-03, X-60, X-69
    await backend.enqueue_job(Job(id="j", type="t"))
    (job,) = await backend.dequeue_jobs("w")
    await backend.fail_job("j", "Broken: it is", retry_at=60, lease=job.lease)
    assert (await client.get("/v1/jobs/j")).json()["state"] == "RETRY"
    clock.advance(61)
    assert (await client.get("/v1/jobs/j")).json()["state"] == "QUEUED"
    (job,) = await backend.dequeue_jobs("w")
    await backend.bury_job("j", "Broken: permanently", lease=job.lease)
    shown = (await client.get("/v1/jobs/j")).json()
    assert (shown["state"], shown["retry_count"], shown["error_message"]) == ("DEAD", 2, "Broken: permanently")
    moves = [(event.from_status, event.to_status) for event in await backend.read_events(job_id="j")]
    assert (JobStatus.RUNNING, JobStatus.DEAD) not in moves
    back = await client.post("/v1/jobs/j/retry", json={"reset": False})
    assert (back.json()["status"], back.json()["retry_count"]) == ("FAILED_RETRY", 2)
    assert [event.actor for event in await backend.read_events(job_id="j") if event.event == "job.retried"] == ["local"]
    refused = await client.post("/v1/jobs/j/retry")
    assert (refused.status_code, refused.json()["status_of_job"]) == (409, "FAILED_RETRY")


async def test_a_call_waits_for_the_end_of_a_job(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.enqueue_job(Job(id="j", type="t"))
    (job,) = await backend.dequeue_jobs("w")
    waiting = asyncio.create_task(client.get("/v1/jobs/j?wait=30"))
    await until(lambda: platform_of(client).streams == 1)
    await backend.complete_job("j", b"42", lease=job.lease)
    answered = await waiting
    assert (answered.json()["status"], answered.json()["result"]) == ("COMPLETED", 42)
    assert (await client.get("/v1/jobs/j?wait=61")).status_code == 422


async def test_a_job_is_called_off_promoted_and_removed(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.enqueue_jobs([Job(id="waits", type="t", delay=3600), Job(id="runs", type="t"), Job(id="c", type="t")])
    assert [job.id for job in await backend.dequeue_jobs("w", limit=1)] == ["runs"]
    promoted = await client.post("/v1/jobs/waits/promote")
    assert (promoted.status_code, promoted.json()["run_at"]) == (200, None)
    refused = await client.delete("/v1/jobs/runs")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:longshore:invalid-transition")
    assert (await client.post("/v1/jobs/runs/cancel")).json()["status"] == "CANCELLING"
    assert (await client.post("/v1/jobs/runs/cancel")).status_code == 200, "asking again changes nothing"
    assert (await client.post("/v1/jobs/waits/cancel")).json()["status"] == "UNSCHEDULED"
    assert (await client.post("/v1/jobs/waits/cancel")).status_code == 409
    assert (await client.delete("/v1/jobs/waits")).status_code == 204
    refused = await client.delete("/v1/jobs/c")
    assert (refused.status_code, refused.json()["status_of_job"]) == (409, "INITIAL_PENDING"), (
        "as in bulk and elsewhere"
    )
    assert "cancel" in refused.json()["detail"]
    for method, path in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("POST", "/promote"),
        ("GET", "/explain"),
        ("GET", "/progress"),
        ("GET", "/logs"),
        ("GET", "/events"),
        ("GET", "/events/stream"),
    ]:
        missing = await client.request(method, f"/v1/jobs/waits{path}")
        assert (missing.status_code, missing.json()["job_id"]) == (404, "waits"), f"{method} {path}"


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_name_can_be_an_id_a_queue_and_a_schedule(quick: httpx.AsyncClient, name: str) -> None:
    # F47, F57
    written = quote(name, safe="") if name != "." else "%2E"
    stored = await quick.post("/v1/jobs", json={"type": "t", "id": name, "queue": name})
    assert stored.status_code == 202
    if name != ".":  # clients may normalise the path
        assert stored.headers["location"] == f"/v1/jobs/{written}"
        assert (await quick.get(f"/v1/jobs/{written}")).json()["id"] == name
        assert (await quick.get(f"/v1/queues/{written}")).json()["counts"]["INITIAL_PENDING"] == 1
        put = await quick.put(f"/v1/schedules/{written}", json={"job": {"type": "t"}, "repeat": {"every": 60}})
        assert put.json()["id"] == name
    assert [job["id"] for job in (await quick.get("/v1/jobs", params={"id": name})).json()["items"]] == [name]


async def test_jobs_are_listed_by_filter_and_page_by_page(client: httpx.AsyncClient, backend: Backend) -> None:
    # F57
    jobs = [
        Job(id="a'; --", type="x%", payload=b'{"n": 1, "s": "_"}', tags=["r", "s"], queue="q1"),
        Job(id="b", type="x_", payload=b'{"n": 2, "deep": {"x": [true]}}', tags=["r"], queue="q2", parent_id="p"),
        Job(id="c", type="xx", payload=b'"100%"', queue="q1", concurrency_key="k"),
        Job(id="d", type="x%", payload=b"null", queue="q2", delay=3600),
    ]
    await backend.enqueue_jobs(jobs)
    by_id = {job.id: record_of(job, 0) for job in jobs}
    questions: list[tuple[dict[str, str | list[str]], JobFilter]] = [
        ({}, JobFilter()),
        ({"type": "x%"}, JobFilter(types=["x%"])),
        ({"type": ["x%", "xx"], "queue": "q1"}, JobFilter(types=["x%", "xx"], queues=["q1"])),
        ({"tag": ["r", "s"]}, JobFilter(tags=["r", "s"])),
        ({"text": "%"}, JobFilter(text="%")),
        ({"text": "_"}, JobFilter(text="_")),
        ({"text": "' OR 1=1 --"}, JobFilter(text="' OR 1=1 --")),
        ({"data": '{"deep.x.0": true}'}, JobFilter(data={"deep.x.0": True})),
        ({"data": '{"n": 1, "s": "_"}'}, JobFilter(data={"n": 1, "s": "_"})),
        ({"parent_id": "p"}, JobFilter(parent_id="p")),
        ({"concurrency_key": "k"}, JobFilter(concurrency_key="k")),
        ({"id": ["a'; --", "d"]}, JobFilter(ids=["a'; --", "d"])),
        ({"status": "DEAD"}, JobFilter(statuses=[JobStatus.DEAD])),
    ]
    for params, wanted in questions:
        found = (await client.get("/v1/jobs", params=params)).json()["items"]
        expected = [job_id for job_id, record in by_id.items() if matches(wanted, record)]
        assert sorted(job["id"] for job in found) == sorted(expected), params
    first = (await client.get("/v1/jobs?limit=3&order=oldest")).json()
    second = (
        await client.get("/v1/jobs", params={"limit": 3, "order": "oldest", "cursor": first["next_cursor"]})
    ).json()
    assert [job["id"] for job in first["items"] + second["items"]] == [job.id for job in jobs]
    assert second["next_cursor"] is None
    assert [job["id"] for job in (await client.get("/v1/jobs?due=false")).json()["items"]] == ["d"]
    for bad in (
        "limit=0",
        "limit=501",
        "cursor=zz",
        "status=LOST",
        "data=[1]",
        "data={",
        "created_after=noon",
        "due=2",
    ):
        refused = await client.get(f"/v1/jobs?{bad}")
        assert refused.status_code == 422, bad
        assert refused.json()["field"].split(".")[0].split("[")[0] == bad.split("=")[0]


async def test_one_act_meets_all_jobs_that_match_and_a_dry_run_none(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    await backend.enqueue_jobs([Job(id=f"j{n}", type="even" if n % 2 == 0 else "odd") for n in range(700)])
    body = {"action": "cancel", "filter": {"types": ["even"]}}
    dry = (await client.post("/v1/jobs/bulk", json={**body, "dry_run": True})).json()
    assert dry == {"action": "cancel", "dry_run": True, "matched": 350, "changed": 0, "more": False}
    bounded = (await client.post("/v1/jobs/bulk", json={**body, "limit": 100})).json()
    assert (bounded["changed"], bounded["more"]) == (100, True)
    rest = (await client.post("/v1/jobs/bulk", json=body)).json()
    assert (rest["matched"], rest["changed"], rest["more"]) == (250, 250, False)
    deleted = (await client.post("/v1/jobs/bulk", json={**body, "action": "delete"})).json()
    assert deleted["changed"] == 350
    assert (await backend.count_jobs())[JobStatus.INITIAL_PENDING] == 350
    refused = await client.post("/v1/jobs/bulk", json={"action": "delete", "filter": {}})
    assert (refused.status_code, refused.json()["field"]) == (422, "filter")


async def test_dead_letters_are_listed_and_brought_back(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.enqueue_jobs([Job(id=f"j{n}", type="pay" if n < 3 else "mail") for n in range(5)])
    claimed = await backend.dequeue_jobs("w", limit=5)
    await backend.settle_jobs([Outcome(job.id, job.lease, "bury", error=f"no {job.id}") for job in claimed])
    listed = (await client.get("/v1/dead-letters?type=pay")).json()["items"]
    assert [job["id"] for job in listed] == ["j2", "j1", "j0"]
    refused = await client.get("/v1/dead-letters?status=COMPLETED")
    assert (refused.status_code, refused.json()["field"]) == (422, "status"), "they are all DEAD"
    dry = (await client.post("/v1/dead-letters/retry", json={"filter": {"types": ["pay"]}, "dry_run": True})).json()
    assert (dry["matched"], dry["changed"]) == (3, 0)
    done = (await client.post("/v1/dead-letters/retry", json={"filter": {"error": "no j1"}})).json()
    assert (done["matched"], done["changed"]) == (1, 1)
    assert (await client.post("/v1/dead-letters/retry", json={"all": True})).json()["changed"] == 4
    assert (await backend.count_jobs())[JobStatus.FAILED_RETRY] == 5


def test_every_act_has_statuses_it_applies_to() -> None:
    assert set(APPLIES_TO) == set(get_args(Act))
    assert {status for status in JobStatus if status.final} == APPLIES_TO["delete"]
    assert JobStatus.RUNNING not in APPLIES_TO["delete"]
    assert APPLIES_TO["retry"] == {JobStatus.DEAD}
    assert not APPLIES_TO["cancel"] & APPLIES_TO["delete"]


async def test_explain_returns_the_reasons(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.enqueue_job(Job(id="j", type="t", delay=60))
    await client.post("/v1/queues/default/pause")
    told = (await client.get("/v1/jobs/j/explain")).json()
    assert [reason["kind"] for reason in told["reasons"]] == ["not_due", "queue_paused", "no_worker"]
    assert told["reasons"][1]["text"] == "Its queue default is paused; resume it."


@pytest.mark.parametrize("said", [None, {}, {"filter": {}}, {"dry_run": True}, {"all": False}])
async def test_no_slip_of_the_hand_brings_every_dead_letter_back(
    said: dict[str, Any] | None, quick: httpx.AsyncClient, memory: Backend
) -> None:
    await memory.enqueue_job(Job(id="j", type="t"))
    (job,) = await memory.dequeue_jobs("w")
    await memory.bury_job("j", "broken", lease=job.lease)
    refused = await quick.post("/v1/dead-letters/retry", json=said)
    assert (refused.status_code, refused.json()["field"]) == (422, "filter")
    assert '{"all": true}' in refused.json()["detail"]
    assert (await quick.post("/v1/dead-letters/retry", json={"all": True, "dry_run": True})).json()["matched"] == 1
    assert (await quick.post("/v1/dead-letters/retry", json={"all": True})).json()["changed"] == 1


async def test_a_status_in_an_address_may_be_written_small(quick: httpx.AsyncClient, memory: Backend) -> None:
    await memory.enqueue_job(Job(id="j", type="t"))
    found = (await quick.get("/v1/jobs?status=initial_pending&status=Dead")).json()["items"]
    assert [job["id"] for job in found] == ["j"]
    refused = (await quick.get("/v1/jobs?status=late")).json()
    assert (refused["field"], "DEAD" in refused["detail"]) == ("status[0]", True)


@pytest.mark.parametrize("data", ["say=hello", "[1]", "{"])
async def test_data_in_an_address_that_is_no_object_is_refused_with_an_example(
    data: str, quick: httpx.AsyncClient
) -> None:
    refused = await quick.get("/v1/jobs", params={"data": data})
    assert (refused.status_code, refused.json()["field"]) == (422, "data")
    assert 'such as {"address.city":"Bergen"}' in refused.json()["detail"]


async def test_the_fingerprint_of_a_request_is_kept_and_not_shown(quick: httpx.AsyncClient, memory: Backend) -> None:
    body = {"type": "t", "id": "j", "remove_on_complete": 10}
    await quick.post("/v1/jobs", json=body)
    assert set((await memory.get_job("j")).options) == {"request", "remove_on_complete"}
    assert (await quick.get("/v1/jobs/j")).json()["options"] == {"remove_on_complete": 10}
    assert (await quick.post("/v1/jobs", json=body)).json()["replayed"] is True


async def test_times_in_the_details_of_events_are_times(quick: httpx.AsyncClient, memory: Backend) -> None:
    await memory.enqueue_job(Job(id="j", type="t", delay=3600))
    planned = (await quick.get("/v1/jobs/j")).json()["run_at"]
    events = (await quick.get("/v1/jobs/j/events")).json()["items"]
    assert [event["detail"] for event in events if event["event"] == "job.delayed"] == [{"until": planned}]
    wire = (await quick.post("/v1/store/read_events", json={"job_id": "j"})).json()
    assert [type(event["detail"]["until"]) for event in wire["events"] if event["event"] == "job.delayed"] == [int]
