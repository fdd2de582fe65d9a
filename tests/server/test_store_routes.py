"""Workers over HTTP without the SDK: claims, leases, fencing, and refusals of hostile requests."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend, WorkerInfo
from longshore.backends.connect import connect
from longshore.backends.remote.codecs import read_bytes
from longshore.backends.remote.protocol import OPERATIONS
from longshore.core.clock import HeldClock
from longshore.core.job import Job, JobEvent
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.runtime.queue import Queue
from longshore.server import rate_limit
from longshore.server.app import create_app
from longshore.server.auth import Caller
from longshore.server.options import ServerOptions
from longshore.server.queue_scoping import RULES, for_all_queues, of_one_job, of_one_queue, of_one_schedule
from longshore.server.routes import store
from longshore.server.uvicorn_server import ApiServer
from tests.runtime.working import until
from tests.server.conftest import Serve, platform_of
from tests.server.test_access import NameGate, as_caller

S = JobStatus
WORKER = Caller("worker", frozenset({Scope.WORK}))
MAILER = Caller("mailer", frozenset({Scope.WORK, Scope.READ, Scope.SUBMIT}), frozenset({"mail"}))
MAIL_ADMIN = Caller("mail-admin", frozenset({Scope.ADMIN}), frozenset({"mail"}))
READER = Caller("reader", frozenset({Scope.READ}))
ADMIN = Caller("admin", frozenset({Scope.ADMIN}))
LARGE = b"7" * 2_000_000


async def asked(client: httpx.AsyncClient, path: str, caller: Caller | None = None, /, **body: Any) -> httpx.Response:
    headers = {} if caller is None else as_caller(caller)
    return await client.post(f"/v1/{path}", json=body, headers=headers)


@pytest.fixture
async def guarded(memory: Backend, serve: Serve) -> httpx.AsyncClient:
    """A server that asks who is calling, on a store with a job in each of two queues."""
    await memory.enqueue_jobs([Job(id="m", type="x", queue="mail"), Job(id="b", type="x", queue="bills")])
    client: httpx.AsyncClient = await serve(memory, gate=NameGate(WORKER, MAILER, MAIL_ADMIN, READER, ADMIN))
    return client


# -- a worker in any language


async def test_a_worker_without_the_sdk_claims_renews_and_settles(client: httpx.AsyncClient, backend: Backend) -> None:
    await backend.enqueue_job(Job(id="a", type="mail", payload=b'{"to": "ada"}'))
    [job] = (await asked(client, "work/claim", assignee_id="w", limit=5)).json()["jobs"]
    assert (job["id"], job["payload"], job["status"]) == ("a", '{"to": "ada"}', "RUNNING")
    renewed = await asked(client, "work/renew", leases={"a": job["lease"], "gone": job["lease"]}, duration=60)
    assert list(renewed.json()["leases"]) == ["a"]
    for path, more in (("progress", {"value": 0.5}), ("log", {"message": "half"}), ("checkpoint", {"data": [1]})):
        assert (await asked(client, f"work/{path}", job_id="a", lease=job["lease"], **more)).status_code == 204
    assert (await asked(client, "work/heartbeat", worker={"id": "w"})).status_code == 204
    outcome = {"job_id": "a", "lease": job["lease"], "result": '{"sent": true}'}
    report = (await asked(client, "work/settle-and-claim", outcomes=[outcome], assignee_id="w")).json()
    assert report == {"settled": {"a": "COMPLETED"}, "refused": {}, "freed": {"w": 1}, "jobs": []}
    again = (await asked(client, "work/settle", outcomes=[outcome])).json()["refused"]["a"]
    assert (again["type"], again["status_of_job"]) == ("urn:longshore:job-not-inflight", "COMPLETED")
    done = await backend.get_job("a")
    assert (done.result, done.progress, done.checkpoint) == (b'{"sent": true}', 0.5, [1])


async def test_a_claim_waits_for_a_job_and_for_its_time(client: httpx.AsyncClient, backend: Backend) -> None:
    waiting = asyncio.create_task(asked(client, "work/claim", assignee_id="w", wait=25))
    await until(lambda: platform_of(client).streams == 1)
    await backend.enqueue_job(Job(id="a", type="x", delay=0.1))
    assert [job["id"] for job in (await waiting).json()["jobs"]] == ["a"]
    assert (await asked(client, "work/claim", assignee_id="w", wait=0.01)).json() == {"jobs": []}


async def test_the_same_key_claims_once_and_another_body_is_refused(quick: httpx.AsyncClient, memory: Backend) -> None:
    # F59
    await memory.enqueue_jobs([Job(id=f"j{number}", type="x") for number in range(3)])
    key = {"Idempotency-Key": "k"}
    body = {"assignee_id": "w", "limit": 1}
    first, second = await asyncio.gather(*(quick.post("/v1/work/claim", json=body, headers=key) for _ in range(2)))
    assert first.json() == second.json()
    assert (await memory.count_jobs())[S.RUNNING] == 1
    other = await quick.post("/v1/work/claim", json={**body, "limit": 2}, headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "urn:longshore:idempotency-key-reused")
    strange = await quick.post("/v1/work/claim", json=body, headers={**key, "Longshore-Sent-To": "another"})
    assert strange.json() == first.json()  # it is known here
    lost = await quick.post(
        "/v1/work/claim", json=body, headers={"Idempotency-Key": "k2", "Longshore-Sent-To": "another"}
    )
    assert (lost.status_code, lost.json()["type"]) == (409, "urn:longshore:answer-lost")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("work/claim", {}, "assignee_id"),
        ("work/claim", {"assignee_id": "w", "limits": 3}, "limits"),
        ("work/claim", {"assignee_id": "w", "wait": -1}, "wait"),
        ("work/claim", {"assignee_id": "w", "lease": "soon"}, "lease"),
        ("work/settle", {"outcomes": [{"job_id": "a", "lease": {"token": 1}}]}, "outcomes[0].lease"),
        ("work/settle", {"outcomes": [{"job_id": "a", "lase": None}]}, "outcomes[0].lase"),
        ("store/enqueue_job", {"job": {"id": "a", "type": "x", "payload": {"base64": "?"}}}, "payload"),
        ("store/enqueue_job", {"job": {"type": "x"}}, "job.id"),
        ("store/enqueue_jobs", {"jobs": [{"id": "a", "type": "x", "run_at": "soon"}]}, "run_at"),
        ("store/list_jobs", {"filter": {"statuses": ["DONE"]}}, "filter.statuses"),
        ("store/put_schedule", {"schedule": {"id": "s", "job": {"id": "s", "type": "x"}, "repeat": {}}}, "repeat"),
    ],
)
async def test_an_invalid_argument_is_refused_with_its_name(
    quick: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    refused = await asked(quick, path, **body)
    assert (refused.status_code, refused.json().get("field")) == (422, field), refused.text


async def test_a_body_that_is_no_json_or_says_a_thing_twice_is_refused(quick: httpx.AsyncClient) -> None:
    for body, status in ((b"{", 400), (b'{"assignee_id":"a","assignee_id":"b"}', 422), (b"[1]", 422), (b"NaN", 422)):
        json = {"content-type": "application/json"}
        assert (await quick.post("/v1/work/claim", content=body, headers=json)).status_code == status


async def test_a_long_poll_ends_when_the_server_stops(memory: Backend, serve: Serve) -> None:
    # F21
    client: httpx.AsyncClient = await serve(memory)
    platform = platform_of(client)
    mark = (await asked(client, "store/changes")).json()["mark"]
    waiting = [asyncio.create_task(asked(client, "work/claim", assignee_id=f"w{n}", wait=50)) for n in range(20)]
    waiting += [asyncio.create_task(asked(client, "store/changes", mark=mark, timeout=50)) for _ in range(20)]
    await until(lambda: platform.streams == 40)
    platform.begin_to_close()
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert [answer.status_code for answer in answers] == [200] * 40
    refused = await asked(client, "work/claim", assignee_id="w", wait=50)
    assert refused.status_code == 503


async def test_calls_that_wait_are_bounded(memory: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(memory, options=ServerOptions(max_streams=1))
    waiting = asyncio.create_task(asked(client, "work/claim", assignee_id="w", wait=50))
    await until(lambda: platform_of(client).streams == 1)
    refused = await asked(client, "work/claim", assignee_id="v", wait=50)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    await memory.enqueue_job(Job(type="x"))
    assert len((await waiting).json()["jobs"]) == 1


# -- who may do what


async def test_without_a_lease_it_is_for_operators(guarded: httpx.AsyncClient) -> None:
    # F60
    [job] = (await asked(guarded, "work/claim", WORKER, assignee_id="w", queues=["mail"])).json()["jobs"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("store/complete_job", {"job_id": "m"}),
        ("work/progress", {"job_id": "m", "value": 1}),
        ("work/settle", {"outcomes": [{"job_id": "m"}]}),
        ("work/settle-and-claim", {"outcomes": [{"job_id": "m"}], "assignee_id": "w"}),
    ]
    for path, body in calls:
        refused = await asked(guarded, path, WORKER, **body)
        assert (refused.status_code, "scope admin" in refused.json()["detail"]) == (403, True), path
    kept = await asked(guarded, "work/progress", WORKER, job_id="m", value=1, lease=job["lease"])
    assert kept.status_code == 204
    assert (await asked(guarded, "store/complete_job", ADMIN, job_id="m")).status_code == 200


async def test_a_worker_limited_to_a_queue_cannot_use_others(guarded: httpx.AsyncClient, memory: Backend) -> None:
    # F60
    await memory.put_schedule(Schedule(id="s", job=Job(type="x", queue="bills"), repeat=Repeat(every=60)))
    assert (await asked(guarded, "work/claim", MAILER, assignee_id="w", queues=["bills"])).status_code == 403
    [theirs] = (await asked(guarded, "work/claim", ADMIN, assignee_id="other", queues=["bills"])).json()["jobs"]
    [mine] = (await asked(guarded, "work/claim", MAILER, assignee_id="w", limit=10)).json()["jobs"]
    assert (mine["id"], theirs["id"]) == ("m", "b")
    stolen = {"b": theirs["lease"]}
    assert (await asked(guarded, "work/renew", MAILER, leases=stolen, duration=30)).json() == {"leases": {}}
    outcomes = [{"job_id": one["id"], "lease": one["lease"]} for one in (mine, theirs)]
    report = (await asked(guarded, "work/settle", MAILER, outcomes=outcomes)).json()
    assert (list(report["settled"]), report["refused"]["b"]["type"]) == (["m"], "urn:longshore:job-not-found")
    for path, body in (
        ("work/progress", {"job_id": "b", "value": 1, "lease": theirs["lease"]}),
        ("store/get_job", {"job_id": "b"}),
        ("store/facts_about", {"job_id": "b"}),
        ("store/read_logs", {"job_id": "b"}),
        ("store/accept_jobs", {"job_ids": ["b"]}),
        ("store/get_schedule", {"schedule_id": "s"}),
    ):
        assert (await asked(guarded, path, MAILER, **body)).status_code == 404, path
    for path, body in (
        ("store/enqueue_job", {"job": {"id": "n", "type": "x", "queue": "bills"}}),
        ("store/list_jobs", {"filter": {"queues": ["bills"]}}),
        ("store/count_jobs", {"queue": "bills"}),
        ("work/heartbeat", {"worker": {"id": "w", "queues": ["bills"]}}),
    ):
        assert (await asked(guarded, path, MAILER, **body)).status_code == 403, path
    assert (await asked(guarded, "store/cancel_jobs", MAILER, job_ids=["b", "m"])).json()["unknown"] == ["b", "m"]
    assert [event["job_id"] for event in (await asked(guarded, "store/read_events", MAILER)).json()["events"]] == (
        ["m"] * 3
    )
    counts = (await asked(guarded, "store/count_jobs", MAILER)).json()["counts"]
    assert (counts["COMPLETED"], counts["RUNNING"]) == (1, 0)
    assert (await asked(guarded, "store/get_job_stats", MAILER)).json()["total_jobs"] == 1
    assert (await asked(guarded, "store/get_schedules", MAILER)).json() == {"schedules": []}
    assert [one["name"] for one in (await asked(guarded, "store/list_queues", MAILER)).json()["queues"]] == ["mail"]
    assert (await asked(guarded, "work/heartbeat", MAILER, worker={"id": "w"})).status_code == 204
    assert (await memory.list_workers())[0].queues == ("mail",)
    await memory.heartbeat_worker(WorkerInfo(id="biller", queues=("bills",)))
    for path, body in (("facts_about", {"job_id": "m"}), ("list_workers", {})):
        told = (await asked(guarded, f"store/{path}", MAILER, **body)).json()["workers"]
        assert "biller" not in [worker["id"] for worker in told], path
    assert (await memory.get_job("b")).status is S.RUNNING


async def test_an_operator_of_one_queue_cannot_change_others(guarded: httpx.AsyncClient) -> None:
    # F60
    assert (await asked(guarded, "store/pause_queue", MAIL_ADMIN, queue="mail")).status_code == 204
    assert (await asked(guarded, "store/pause_queue", MAIL_ADMIN, queue="bills")).status_code == 403
    for verb, body in (
        ("reset_running_jobs", {}),
        ("apply_retention", {}),
        ("mark_worker_unresponsive", {"assignee_id": "w"}),
        ("fire_due_schedules", {}),
    ):
        assert (await asked(guarded, f"store/{verb}", MAIL_ADMIN, **body)).status_code == 403, verb
    assert (await asked(guarded, "store/delete_jobs", MAIL_ADMIN, job_ids=["b"])).status_code == 204


async def test_how_long_the_log_is_kept_is_not_for_an_operator_of_one_queue(
    guarded: httpx.AsyncClient, memory: Backend
) -> None:
    # F60: the log records the operator's action
    refused = await asked(guarded, "store/set_retention", MAIL_ADMIN, queue="mail", finished=60, events=0.001)
    assert (refused.status_code, "events" in refused.json()["detail"]) == (403, True), refused.text
    assert (await asked(guarded, "store/set_retention", MAIL_ADMIN, queue="mail", events=None)).status_code == 403
    for kept in ({"finished": 60}, {"dead": None}):
        assert (await asked(guarded, "store/set_retention", MAIL_ADMIN, queue="mail", **kept)).status_code == 204
    assert (await asked(guarded, "store/set_retention", MAIL_ADMIN, queue="bills", dead=60)).status_code == 403
    assert (await asked(guarded, "store/set_retention", ADMIN, queue="mail", events=60)).status_code == 204


def test_every_verb_of_the_contract_crosses_the_wire_with_all_it_takes() -> None:
    assert set(OPERATIONS) == Backend.__abstractmethods__ - {"close"} | {"settle_and_dequeue"}
    for name, verb in OPERATIONS.items():
        takes = set(inspect.signature(getattr(Backend, name)).parameters) - {"self", "connection"}
        assert set(verb.takes) == takes, name


def test_every_verb_has_a_rule_for_callers_of_some_queues_or_is_for_all() -> None:
    one_job = {
        *("release_lease", "set_progress", "append_log", "save_checkpoint", "complete_job", "fail_job", "bury_job"),
        *("stop_job", "stop_job_with_retry", "mark_job_unknown_stopped", "update_job_status"),
        *("acknowledge_cancellation", "get_job", "read_logs", "retry_job", "promote_job"),
    }
    one_queue = {"reset_running_jobs", "pause_queue", "resume_queue", "set_limits", "cleanup_expired_jobs"}
    one_schedule = {"get_schedule", "pause_schedule", "resume_schedule", "run_schedule"}
    everywhere = {
        *("mark_worker_unresponsive", "time_out_cancellations", "next_firing", "fire_due_schedules"),
        *("announce_due_jobs", "apply_retention"),
    }
    for rule, names in (
        (of_one_job, one_job),
        (of_one_queue, one_queue),
        (of_one_schedule, one_schedule),
        (for_all_queues, everywhere),
    ):
        assert {name for name in OPERATIONS if RULES[name] is rule} == names


async def test_the_proof_of_a_lease_is_shown_to_workers_only(guarded: httpx.AsyncClient, memory: Backend) -> None:
    # F60
    [job] = await memory.dequeue_jobs("w", queues=["mail"])
    assert job.lease is not None
    for path, body in (("get_job", {"job_id": "m"}), ("list_jobs", {"filter": {}}), ("facts_about", {"job_id": "m"})):
        assert job.lease.token not in (await asked(guarded, f"store/{path}", READER, **body)).text, path
        assert job.lease.token in (await asked(guarded, f"store/{path}", ADMIN, **body)).text, path


async def test_the_actor_is_the_name_of_the_token(guarded: httpx.AsyncClient, memory: Backend) -> None:
    await memory.dequeue_jobs("w", queues=["mail"])
    await memory.bury_job("m", "hopeless")
    assert (await asked(guarded, "store/retry_job", ADMIN, job_id="m", actor="another name")).status_code == 204
    assert [event.actor for event in await memory.read_events(job_id="m")][-1] == "admin"


async def test_a_flood_of_notes_is_held_up_and_others_go_on(
    guarded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F60
    now = 1_000.0
    monkeypatch.setattr(rate_limit, "monotonic", lambda: now)
    monkeypatch.setattr(rate_limit, "_AT_ONCE", 20.0)
    [job] = (await asked(guarded, "work/claim", WORKER, assignee_id="w", queues=["mail"])).json()["jobs"]
    [other] = (await asked(guarded, "work/claim", WORKER, assignee_id="w", queues=["bills"])).json()["jobs"]

    async def notes(of: Any, count: int) -> list[int]:
        return [
            (await asked(guarded, "work/progress", WORKER, job_id=of["id"], value=n, lease=of["lease"])).status_code
            for n in range(count)
        ]

    assert await notes(job, 22) == [204] * 20 + [429] * 2
    assert await notes(other, 1) == [204]
    now += 0.0525  # ten more, and a half
    assert await notes(job, 12) == [204] * 10 + [429] * 2


async def test_a_worker_that_floods_the_log_with_its_troubles_is_held_up_and_another_is_not(
    guarded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F60
    monkeypatch.setattr(rate_limit, "_AT_ONCE", 3.0)
    monkeypatch.setattr(rate_limit, "_PER_SECOND", 0.0)

    async def troubles(worker: str, count: int) -> list[int]:
        body = {"event": "worker.error", "worker_id": worker}
        return [(await asked(guarded, "store/record_worker_event", WORKER, **body)).status_code for _ in range(count)]

    assert await troubles("w", 5) == [204] * 3 + [429] * 2
    assert await troubles("v", 1) == [204]


def test_every_limit_is_bounded_and_every_update_names_its_subject() -> None:
    assert {name for name, verb in OPERATIONS.items() if verb.bounded} == {
        *("dequeue_jobs", "settle_and_dequeue", "list_jobs", "read_events", "reclaim_expired_leases"),
        *("time_out_cancellations", "fire_due_schedules", "announce_due_jobs", "apply_retention"),
    }
    assert {name: verb.note_of for name, verb in OPERATIONS.items() if verb.note_of} == {
        **dict.fromkeys(("set_progress", "append_log", "save_checkpoint"), "job_id"),
        "record_worker_event": "worker_id",
    }


async def test_one_request_changes_at_most_1000_things(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.backends.remote.protocol.MOST_AT_ONCE", 3)
    asked_for: list[int] = []

    async def apply_retention(limit: int = 1000) -> int:
        asked_for.append(limit)
        return 0

    monkeypatch.setattr(memory, "apply_retention", apply_retention)
    assert (await asked(quick, "store/apply_retention", limit=10**9)).status_code == 200
    assert asked_for == [3]


async def test_an_outcome_of_no_kind_is_refused_alone(quick: httpx.AsyncClient) -> None:
    answered = await asked(quick, "work/settle", outcomes=[{"job_id": "a", "verb": []}, {"job_id": "b", "verb": {}}])
    assert answered.status_code == 200, answered.text
    assert {one["field"] for one in answered.json()["refused"].values()} == {"verb"}


async def test_a_caller_limited_to_a_queue_does_not_see_workers_of_others(
    guarded: httpx.AsyncClient, memory: Backend
) -> None:
    # F60
    for name, queues in (("payroll-7", ("bills", "payroll")), ("both", ("mail", "bills")), ("any", ())):
        await memory.heartbeat_worker(WorkerInfo(id=name, queues=queues, concurrency=1, running=1))
    facts = (await asked(guarded, "store/facts_about", MAILER, job_id="m")).json()
    assert {one["id"]: one["queues"] for one in facts["workers"]} == {"any": [], "both": ["mail"]}
    explained = await guarded.get("/v1/jobs/m/explain", headers=as_caller(MAILER))
    assert explained.json()["reasons"][0]["details"] == {"workers": {"any": 1, "both": 1}}
    assert "bills" not in explained.text
    assert len((await asked(guarded, "store/facts_about", READER, job_id="m")).json()["workers"]) == 3


async def test_a_worker_cannot_use_the_id_of_a_worker_of_another_queue(serve: Serve) -> None:
    # F60: its row would tell people that it stopped, and that it works for the other's queue
    clock = HeldClock()
    async with connect("memory://", clock=clock) as store:
        keeper = Queue(store)
        client: httpx.AsyncClient = await serve(store, gate=NameGate(MAILER))
        for name, queues in (("biller", ("bills",)), ("both", ("mail", "bills")), ("any", ()), ("own", ("mail",))):
            await store.heartbeat_worker(WorkerInfo(id=name, queues=queues))
        before = await store.list_workers()
        for name in ("biller", "both", "any"):
            told = await asked(client, "work/heartbeat", MAILER, worker={"id": name, "state": "stopped"})
            assert (told.status_code, "choose another" in told.text) == (403, True), name
            assert "bills" not in told.text
        assert await store.list_workers() == before
        assert (await asked(client, "work/heartbeat", MAILER, worker={"id": "own"})).status_code == 204
        clock.advance(61)  # without heartbeats its id is free again
        assert (await asked(client, "work/heartbeat", MAILER, worker={"id": "biller"})).status_code == 204
        await store.heartbeat_worker(WorkerInfo(id="both", queues=("bills",), state="stopped"))
        assert (await asked(client, "work/heartbeat", MAILER, worker={"id": "both"})).status_code == 204
        assert not keeper.closed


async def test_waiting_reveals_nothing_about_jobs_of_other_queues(guarded: httpx.AsyncClient, memory: Backend) -> None:
    # F60
    for job_id, waits_for in (("1", "b"), ("2", "nothing"), ("3", "m")):
        job = {"id": job_id, "type": "x", "queue": "mail", "depends_on": [waits_for]}
        assert (await asked(guarded, "store/enqueue_job", MAILER, job=job)).status_code == 200
    explained = [
        str((await guarded.get(f"/v1/jobs/{job_id}/explain", headers=as_caller(MAILER))).json()["reasons"])
        for job_id in ("1", "2", "3")
    ]
    assert "nothing (unknown)" in explained[1]
    assert explained[0].replace("b (unknown)", "nothing (unknown)").replace("'b'", "'nothing'") == explained[1]
    assert "INITIAL_PENDING" in explained[2]
    for caller, status in ((MAILER, None), (ADMIN, "INITIAL_PENDING")):
        facts = (await asked(guarded, "store/facts_about", caller, job_id="1")).json()
        assert facts["waits_for"] == [{"job_id": "b", "status": status, "step": ""}]


async def test_a_flood_of_updates_does_not_slow_down_another_caller(
    guarded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F60
    monkeypatch.setattr(rate_limit, "_AT_ONCE", 3.0)
    monkeypatch.setattr(rate_limit, "_PER_SECOND", 0.0)
    [job] = (await asked(guarded, "work/claim", WORKER, assignee_id="w", queues=["bills"])).json()["jobs"]
    note = {"job_id": "b", "value": 1, "lease": job["lease"]}
    assert [(await asked(guarded, "work/progress", MAILER, **note)).status_code for _ in range(5)] == [404] * 3 + [
        429
    ] * 2
    assert (await asked(guarded, "work/progress", WORKER, **note)).status_code == 204


async def test_of_a_job_that_was_removed_the_document_promises_no_more_than_is_remembered(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # F52
    key: dict[str, Any] = {"type": "mail", "queue": "mail", "idempotency_key": "order-1"}
    await backend.enqueue_job(Job(id="gone", **key))
    await backend.cancel_jobs(job_ids=["gone"])
    await backend.delete_jobs(job_ids=["gone"])
    [known] = (await asked(client, "store/add_jobs", jobs=[{"id": "new", **key}])).json()["jobs"]
    assert (known["id"], known["status"]) == ("gone", "UNSCHEDULED")
    document = (await client.get("/v1/openapi.json")).json()
    required = set(document["components"]["schemas"]["StoredJob"]["required"])
    assert required <= known.keys()


# -- large answers


async def test_a_page_of_large_jobs_ends_early_and_its_cursor_leads_on(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.server.response_limits.MOST_BYTES", 10_000)
    for number in range(20):
        payload = f'"{"x" * 4_000}"'.encode() if 5 <= number < 15 else b""
        await memory.enqueue_job(Job(id=f"j{number}", type="x", payload=payload))
    sizes, ids, cursor = [], [], None
    while True:
        page = (await asked(quick, "store/list_jobs", filter={}, limit=1000, cursor=cursor, oldest_first=True)).json()
        sizes.append(len(page["items"]))
        ids += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert ids == [f"j{number}" for number in range(20)]
    assert max(sizes) <= 8
    [one] = (await asked(quick, "store/list_jobs", filter={"ids": ["j7"]}, limit=1)).json()["items"]
    assert len(one["payload"]) == 4_002  # one job is returned, however large it is


async def test_of_many_large_jobs_no_more_are_read_than_a_page_holds(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.server.response_limits.MOST_BYTES", 10_000)
    await memory.enqueue_jobs([Job(id=f"j{number}", type="x", payload=b"7" * 4_000) for number in range(500)])
    real, read = memory.list_jobs, 0

    async def list_jobs(filter: Any, **options: Any) -> Any:
        nonlocal read
        page = await real(filter, **options)
        read += len(page.items)
        return page

    monkeypatch.setattr(memory, "list_jobs", list_jobs)
    page = (await asked(quick, "store/list_jobs", filter={}, limit=1000)).json()
    assert (len(page["items"]), page["next_cursor"] is None) == (2, False)
    assert read < 50


async def test_large_responses_are_serialized_on_a_thread(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, threads = threading.get_ident(), []
    real = store._written

    def written(*arguments: Any) -> bytes:
        threads.append(threading.get_ident() == here)
        return real(*arguments)

    monkeypatch.setattr(store, "_written", written)
    await memory.enqueue_jobs(
        [Job(id="small", type="x", queue="s"), Job(id="large", type="x", queue="l", payload=LARGE)]
    )
    for queue in ("s", "l"):
        body = {"assignee_id": "w", "queues": [queue]}
        [job] = (await asked(quick, "work/claim", **body)).json()["jobs"]
        assert job["queue"] == queue
    page = await asked(quick, "store/list_jobs", filter={})
    told = {job["id"]: read_bytes("payload", job["payload"]) for job in page.json()["items"]}
    assert told == {"small": b"null", "large": LARGE}
    await asked(quick, "store/get_job", job_id="small")
    turn = {"outcomes": [{"job_id": "large"}], "assignee_id": "w"}
    assert (await asked(quick, "work/settle-and-claim", **turn)).json()["settled"] == {"large": "COMPLETED"}
    assert threads == [True, False, False, True, True]


def test_incremental_serialization_equals_plain_serialization() -> None:
    for told in (
        {"jobs": [{"id": "a", "n": None}, {}], "next": 'x"'},
        [],
        {},
        {"a": {"b": [1, [2]]}},
        None,
        "é",
        [1.5],
    ):
        assert store._write_incrementally(told) == store._write(told)


async def test_one_request_looks_through_so_much_of_a_log_of_others_and_the_remote_backend_reads_on(
    memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F60
    monkeypatch.setattr("longshore.server.queue_scoping.AT_ONCE", 10)
    monkeypatch.setattr("longshore.server.queue_scoping.MOST_LOOKS", 3)
    for number in range(4):
        await memory.enqueue_job(Job(id=f"m{number}", type="x", queue="mail" if number % 2 else "letters"))
        await memory.enqueue_jobs([Job(type="x", queue="bills") for _ in range(100)])
    looks: list[int] = []
    read = memory.read_events

    async def counted(after: str | None = None, limit: int = 1000, **rest: Any) -> list[JobEvent]:
        looks.append(limit)
        return await read(after, limit, **rest)

    two = Caller("two", frozenset({Scope.READ}), frozenset({"mail", "letters"}))
    server = ApiServer(create_app(memory, gate=NameGate(two)))
    serving = asyncio.create_task(server.run())
    await server.ready()
    monkeypatch.setattr(memory, "read_events", counted)
    try:
        async with httpx.AsyncClient(base_url=server.address, headers=as_caller(two)) as client:
            told = (await client.post("/v1/store/read_events", json={"limit": 2})).json()
            assert [event["job_id"] for event in told["events"]] == ["m0"]
            assert [limit for limit in looks if limit <= 10] == [2, 10, 10]
            on = {"after": told["next_cursor"], "limit": 2}
            assert (await client.post("/v1/store/read_events", json=on)).json()["events"] == []
        async with connect(server.address, token="two") as remote:
            for limit in (1, 2, 3, 4, 1000):
                found = await remote.read_events(limit=limit)
                assert [event.job_id for event in found] == [f"m{number}" for number in range(min(limit, 4))]
            assert [event.job_id for event in await remote.read_events(found[1].cursor)] == ["m2", "m3"]
    finally:
        await server.close()
        await serving


async def test_a_list_in_a_request_that_is_too_long_is_refused_whole(
    quick: httpx.AsyncClient, memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"id": str(number), "type": "x"} for number in range(20_001)]
    for verb in ("enqueue_jobs", "enqueue_new_jobs", "add_jobs"):
        refused = await asked(quick, f"store/{verb}", jobs=jobs)
        assert (refused.status_code, refused.json()["field"]) == (422, "jobs")
        assert "at most 20,000 in one request, not 20,001; send several requests" in refused.text
    assert (await asked(quick, "store/enqueue_jobs", jobs=jobs[1:])).status_code == 200, "as many as the error names"
    monkeypatch.setattr("longshore.backends.remote.codecs.MOST_LISTED", 3)
    before = await memory.count_jobs()
    ids, lease = ["1", "2", "3", "4"], {"token": "t", "epoch": 1}
    for path, field, body in (
        ("store/accept_jobs", "job_ids", {"job_ids": ids}),
        ("store/cancel_jobs", "job_ids", {"job_ids": ids}),
        ("store/delete_jobs", "tags", {"tags": ids}),
        ("store/list_jobs", "filter.ids", {"filter": {"ids": ids}}),
        ("store/enqueue_job", "depends_on", {"job": {"id": "new", "type": "x", "depends_on": ids}}),
        ("work/claim", "queues", {"assignee_id": "w", "queues": ids}),
        ("work/renew", "leases", {"leases": dict.fromkeys(ids, lease), "duration": 30}),
        ("work/settle", "outcomes", {"outcomes": [{"job_id": one, "lease": lease} for one in ids]}),
    ):
        refused = await asked(quick, path, **body)
        assert (refused.status_code, refused.json().get("field")) == (422, field), f"{path}: {refused.text}"
    assert await memory.count_jobs() == before
