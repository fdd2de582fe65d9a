"""The log as a stream: nothing skipped, nothing doubled, resumed from a cursor, ended when the server stops."""

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from longshore.backends.base import Backend
from longshore.core.job import Job, JobEvent
from longshore.core.status import JobStatus
from longshore.runtime.queue import Queue
from longshore.server.app import create_app
from longshore.server.auth import Gate, TokenGate
from longshore.server.event_tail import Tail, Wanted, events_after
from longshore.server.options import ServerOptions
from longshore.server.uvicorn_server import ApiServer, BoundedProtocol
from tests.runtime.working import until
from tests.server.conftest import Serve
from tests.server.test_tokens import bearer, keeper


class Served:
    """A server on a real socket."""

    def __init__(self, app: FastAPI) -> None:
        self.platform = app.state.platform
        self.server = ApiServer(app)
        self.running = asyncio.create_task(self.server.run())

    async def stop(self) -> None:
        await self.server.close()
        await self.running


@asynccontextmanager
async def served(backend: Backend, gate: Gate | None = None, **options: Any) -> AsyncIterator[Served]:
    """The server, and a keeper so that its end does not close the store."""
    keeper = Queue(backend)
    serving = Served(create_app(backend, options=ServerOptions(**options), gate=gate))
    await serving.server.ready()
    try:
        yield serving
    finally:
        await serving.stop()
        assert not keeper.closed


async def next_event(lines: AsyncIterator[str]) -> dict[str, str]:
    """The fields of the next message that carries data or an id."""
    fields: dict[str, str] = {}
    async for line in lines:
        if not line:
            if "data" in fields or "id" in fields:
                return fields
            fields = {}
            continue
        name, _, value = line.partition(": ")
        fields[name] = value
    return fields


async def test_events_are_streamed_and_a_broken_stream_resumes(backend: Backend) -> None:
    async with served(backend) as serving, httpx.AsyncClient(base_url=serving.server.address) as client:
        async with client.stream("GET", "/v1/events/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            await until(lambda: serving.platform.tail.cursor is not None)
            await client.post("/v1/jobs", json={"type": "t", "id": "a"})
            first, second = await next_event(lines), await next_event(lines)
            assert [first["event"], second["event"]] == ["job.added", "job.accepted"]
            assert json.loads(second["data"])["to_status"] == "INITIAL_PENDING"
        await client.post("/v1/jobs", json={"type": "t", "id": "b"})
        async with client.stream("GET", "/v1/events/stream", headers={"Last-Event-ID": first["id"]}) as stream:
            lines = stream.aiter_lines()
            told = [await next_event(lines) for _ in range(3)]
            assert [(json.loads(one["data"])["job_id"], one["event"]) for one in told] == [
                ("a", "job.accepted"),
                ("b", "job.added"),
                ("b", "job.accepted"),
            ]
            await client.post("/v1/jobs/b/cancel")
            assert (await next_event(lines))["event"] == "job.stopped", "from the store, and on as it happens"


async def test_a_stream_has_only_the_requested_events(memory: Backend) -> None:
    async with served(memory) as serving, httpx.AsyncClient(base_url=serving.server.address) as client:
        await client.post("/v1/jobs", json={"type": "t", "id": "other"})
        await client.post("/v1/jobs", json={"type": "t", "id": "mine", "queue": "mail"})
        cursor = (await client.get("/v1/events?limit=1")).json()["next_cursor"]
        for address, expected in [
            (f"/v1/events/stream?queue=mail&after={cursor}", ["job.added", "job.accepted"]),
            (f"/v1/events/stream?event=job.accepted&job_id=mine&after={cursor}", ["job.accepted"]),
            (f"/v1/jobs/mine/events/stream?after={cursor}", ["job.added", "job.accepted"]),
        ]:
            async with client.stream("GET", address) as stream:
                lines = stream.aiter_lines()
                told = [await next_event(lines) for _ in expected]
                assert [one["event"] for one in told] == expected
                assert {json.loads(one["data"])["job_id"] for one in told} == {"mine"}


async def test_a_stream_that_requests_jobs_gets_them_and_their_results(backend: Backend) -> None:
    # M3 M-EV-02 M-EV-03 M-EV-04
    async with (
        served(backend) as serving,
        httpx.AsyncClient(base_url=serving.server.address) as client,
        client.stream("GET", "/v1/events/stream?jobs=true") as stream,
    ):
        lines = stream.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        await until(lambda: serving.platform.tail.cursor is not None)
        await backend.enqueue_job(Job(id="a", type="t", payload=b'{"to": "ada"}'))
        added = json.loads((await next_event(lines))["data"])
        [job] = await backend.dequeue_jobs("w")
        active = json.loads((await next_event(lines))["data"])
        await backend.complete_job("a", b'{"sent": 1}', lease=job.lease)
        completed = json.loads((await next_event(lines))["data"])
    assert (added["detail"]["job"]["id"], added["detail"]["job"]["data"]) == ("a", {"to": "ada"})
    assert active["detail"]["job"]["status"] == "RUNNING"
    assert completed["detail"] == {"result": {"sent": 1}}


async def test_fifty_open_streams_do_not_hold_up_the_end(memory: Backend) -> None:
    # F21
    async with (
        served(memory, grace=30) as serving,
        httpx.AsyncClient(
            base_url=serving.server.address, limits=httpx.Limits(max_connections=None), timeout=30
        ) as client,
    ):
        opened = asyncio.Semaphore(0)

        async def follow() -> list[str]:
            async with client.stream("GET", "/v1/events/stream") as stream:
                opened.release()
                return [line async for line in stream.aiter_lines()]

        await memory.enqueue_job(Job(id="j", type="t"))
        followers = [asyncio.create_task(follow()) for _ in range(50)]
        waiting = asyncio.create_task(client.get("/v1/jobs/j?wait=60"))
        for _ in followers:
            await opened.acquire()
        await until(lambda: serving.platform.streams == 51)
        began = asyncio.get_running_loop().time()
        await serving.stop()
        took = asyncio.get_running_loop().time() - began
        endings = await asyncio.gather(*followers)
        assert took < 5, f"it took {took:.1f} s"
        assert {lines[-2] for lines in endings} == {": the server is shutting down; reconnect in a moment"}
        assert (await waiting).json()["status"] == "INITIAL_PENDING"
        assert serving.platform.streams == 0


@pytest.mark.parametrize("what_ends_it", ["its token", "the server"])
async def test_a_client_that_does_not_read_holds_its_place_no_longer_than_any_other(
    memory: Backend, what_ends_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    # F21
    made, secret = await keeper(memory).issue_token("viewer", ["read"])
    start = await memory.end_of_events()
    for number in range(2_000):  # more than fits on the way
        await memory.record_worker_event("worker.error", f"w{number}", detail={"error": "x" * 8_000})
    async with served(memory, TokenGate(memory), grace=30) as serving:
        connections = serving.server._server.server_state.connections
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", int(serving.server.address.rpartition(":")[2])))
            asked = f"GET /v1/events/stream?after={start} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            deaf.sendall(f"{asked}Authorization: Bearer {secret}\r\n\r\n".encode())
            await until(lambda: any(isinstance(one, BoundedProtocol) and one.flow.write_paused for one in connections))
            assert serving.platform.streams == 1
            async with asyncio.timeout(10):
                if what_ends_it == "the server":
                    await serving.stop()
                else:
                    await keeper(memory).revoke_token(made.id)
                await until(lambda: not serving.platform.streams and not connections)
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_silent_stream_says_that_it_lives_and_how_far_it_has_looked(memory: Backend) -> None:
    async with (
        served(memory, heartbeat=0.05) as serving,
        httpx.AsyncClient(base_url=serving.server.address) as client,
        client.stream("GET", "/v1/events/stream?queue=quiet") as stream,
    ):
        lines = stream.aiter_lines()
        before = (await next_event(lines))["id"]
        await client.post("/v1/jobs", json={"type": "t"})
        last = (await memory.read_events())[-1].cursor
        while (after := (await next_event(lines))["id"]) != last:
            assert after == before or after < last


async def test_an_idle_stream_gets_keep_alives_with_a_cursor(
    memory: Backend,
) -> None:
    tail = Tail(memory, lambda _: None)
    await tail.open()
    await until(lambda: tail.cursor is not None)
    start = await memory.end_of_events()
    quiet = events_after(tail, memory, None, Wanted(frozenset({"quiet"})), 0.2)
    coming = asyncio.ensure_future(anext(quiet))
    async with asyncio.timeout(10):
        while not coming.done():
            await memory.enqueue_job(Job(type="t", queue="busy"))
            await tail.beyond(tail.end, 1)
    told = coming.result()
    assert isinstance(told, str)
    assert len(await memory.read_events(told)) < len(await memory.read_events(start))
    await tail.close()


async def test_too_many_streams_get_a_429(memory: Backend) -> None:
    async with (
        served(memory, max_streams=1) as serving,
        httpx.AsyncClient(base_url=serving.server.address) as client,
        client.stream("GET", "/v1/events/stream"),
    ):
        await memory.enqueue_job(Job(id="j", type="t"))
        for address in ("/v1/events/stream", "/v1/jobs/j?wait=1"):
            refused = await client.get(address)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert (await client.get("/v1/jobs/j")).status_code == 200


@pytest.mark.parametrize(("cursor", "status"), [("nonsense", 422), ("00000000-1", 410), ("x" * 1001, 422)])
async def test_a_cursor_of_another_log_is_refused_before_the_stream_begins(
    memory: Backend, serve: Serve, cursor: str, status: int
) -> None:
    client: httpx.AsyncClient = await serve(memory)
    refused = await client.get("/v1/events/stream", headers={"Last-Event-ID": cursor})
    assert refused.status_code == status
    if status == 422:
        assert refused.json()["field"] == "Last-Event-ID"
        assert (await client.get("/v1/events/stream", params={"after": cursor})).json()["field"] == "after"
    assert (await client.get("/v1/events", params={"after": cursor})).status_code == status
    assert (await client.get("/v1/events/stream?event=job.nonsense")).status_code == 422


# -- the tail itself


async def collected(events: AsyncIterator[JobEvent | str], count: int) -> list[str]:
    found: list[str] = []
    async for event in events:
        if isinstance(event, JobEvent):
            found.append(f"{event.job_id} {event.event}")
            if len(found) == count:
                return found
    return found


async def test_a_stream_behind_the_tail_reads_the_store(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore.server.event_tail._KEPT", 5)
    tail = Tail(memory, lambda _: None)
    await tail.open()
    await until(lambda: tail.cursor is not None)
    start = await memory.end_of_events()
    slow = events_after(tail, memory, start, Wanted(), 1)
    await memory.enqueue_job(Job(id="first", type="t"))
    assert await collected(slow, 1) == ["first job.added"]
    await memory.enqueue_jobs([Job(id=f"j{n}", type="t") for n in range(50)])
    await until(lambda: tail.end >= 51)
    assert await collected(slow, 50) == [f"j{n} job.added" for n in range(50)]
    await tail.close()


@pytest.mark.parametrize("behind", [5, 10, 25])
async def test_a_stream_that_resumes_before_the_tail_gets_no_event_twice(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    monkeypatch.setattr("longshore.server.event_tail._AT_ONCE", 10)
    tail = Tail(backend, lambda _: None)
    await tail.open()
    await until(lambda: tail.cursor is not None)
    start = await backend.end_of_events()
    await tail.close()  # as if its look at the store took long
    await backend.enqueue_jobs([Job(id=f"j{n:02}", type="t") for n in range(behind)])
    written = [f"j{n:02} job.added" for n in range(behind)]
    whole = events_after(tail, backend, start, Wanted(), 1)
    assert await collected(whole, behind) == written
    at_the_end = events_after(tail, backend, await backend.end_of_events(), Wanted(), 0.01)
    assert isinstance(await anext(at_the_end), str)  # it has seen all there was, by another server's stream
    await tail.open()
    await backend.enqueue_job(Job(id="next", type="t"))
    assert await collected(whole, 1) == ["next job.added"]
    assert await collected(at_the_end, 1) == ["next job.added"]
    await tail.close()


@pytest.mark.parametrize("seed", range(20))
async def test_each_matching_event_is_streamed_once_and_in_order(
    memory: Backend, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("longshore.server.event_tail._AT_ONCE", 3)
    monkeypatch.setattr("longshore.server.event_tail._KEPT", chance.choice([2, 5, 50]))
    tail = Tail(memory, lambda _: None)
    await tail.catch_up()
    wanted = Wanted(*chance.choice([(None,), (frozenset({"a"}),), (frozenset({"a", "b"}),)]))
    start, told, cursor = await memory.end_of_events(), list[JobEvent](), ""
    stream = events_after(tail, memory, start, wanted, 0)
    for number in range(150):
        match chance.choice(["write", "write", "write", "follow", "hear", "hear", "come back"]):
            case "write":
                for part in range(chance.choice([1, 1, 4, 12])):
                    await memory.enqueue_job(Job(id=f"{number}.{part}", type="t", queue=chance.choice("abc")))
            case "follow":
                await tail.catch_up()
            case "hear":
                found = await anext(stream)
                if isinstance(found, JobEvent):
                    told.append(found)
                cursor = found.cursor if isinstance(found, JobEvent) else found
            case "come back":  # it resumes from the last id, of an event or a keep-alive
                stream = events_after(tail, memory, cursor or start, wanted, 0)
    while len(told) < sum(map(wanted.has, await memory.read_events(start, 10_000))):
        found = await anext(stream)
        if isinstance(found, JobEvent):
            told.append(found)
    assert isinstance(await anext(stream), str)
    assert [one.job_id for one in told] == [
        one.job_id for one in await memory.read_events(start, 10_000) if wanted.has(one)
    ]


async def test_the_tail_keeps_few_large_events_and_streams_read_the_store(
    memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.server.event_tail._MOST_BYTES", 10_000)
    tail = Tail(memory, lambda _: None)
    await tail.open()
    await until(lambda: tail.cursor is not None)
    start, place = await memory.end_of_events(), tail.end
    for number in range(6):
        await memory.record_worker_event("worker.error", f"w{number}", detail={"error": "x" * 4_000})
        await memory.enqueue_job(Job(id=f"j{number}", type="t"))
    await until(lambda: tail.end >= place + 12)
    assert tail.since(place) is None
    kept = tail.since(tail.end - 4)
    assert kept is not None
    assert [event.job_id or event.assignee_id for event in kept] == ["w4", "j4", "w5", "j5"]
    assert tail.since(tail.end - 6) is None  # three large ones would be too many
    found = await collected(events_after(tail, memory, start, Wanted(), 1), 12)
    assert found[1::2] == [f"j{number} job.added" for number in range(6)]
    await memory.enqueue_jobs([Job(type="t") for _ in range(100)])
    await until(lambda: tail.end >= place + 112)
    assert tail.since(tail.end - 104) is not None  # small ones push out nothing but by their number
    await memory.record_worker_event("worker.error", "w", detail={"error": ["x" * 12_000]})
    await until(lambda: tail.end >= place + 113)
    assert tail.since(tail.end - 1) is None
    await memory.enqueue_job(Job(id="last", type="t"))
    await until(lambda: tail.end >= place + 114)
    assert [event.job_id for event in tail.since(tail.end - 1) or ()] == ["last"]
    await tail.close()


async def test_many_followers_hear_each_event_once_while_it_is_written_by_many(backend: Backend) -> None:
    tail = Tail(backend, lambda _: None)
    await tail.open()
    start = await backend.end_of_events()

    async def write(writer: int) -> None:
        for number in range(10):
            await backend.enqueue_job(Job(id=f"{writer}-{number}", type="t"))

    followers = [asyncio.create_task(collected(events_after(tail, backend, start, Wanted(), 1), 50)) for _ in range(5)]
    await asyncio.gather(*(write(writer) for writer in range(5)))
    for heard in await asyncio.gather(*followers):
        assert len(set(heard)) == 50
        for writer in range(5):
            own = [one for one in heard if one.startswith(f"{writer}-")]
            assert own == [f"{writer}-{number} job.added" for number in range(10)]
    await tail.close()


async def test_the_history_of_a_job_is_not_that_of_one_in_another_queue_which_had_its_id(memory: Backend) -> None:
    # F60
    secret = (await keeper(memory).issue_token("mailer", ["read"], queues=["mail"])).secret
    await memory.enqueue_job(Job(id="a", type="x", queue="bills"))
    [job] = await memory.dequeue_jobs("w")
    await memory.bury_job("a", "card 4111", lease=job.lease)
    await memory.delete_jobs(job_ids=["a"])
    await memory.enqueue_job(Job(id="a", type="x", queue="mail"))
    async with (
        served(memory, gate=TokenGate(memory)) as serving,
        httpx.AsyncClient(base_url=serving.server.address, headers=bearer(secret)) as client,
    ):
        told = (await client.get("/v1/jobs/a/events")).json()["items"]
        assert [(one["queue"], one["event"]) for one in told] == [("mail", "job.added")]
        async with client.stream("GET", "/v1/jobs/a/events/stream") as stream:
            first = await next_event(stream.aiter_lines())
        assert json.loads(first["data"])["queue"] == "mail"


async def test_a_followed_job_shows_its_end_with_any_outcome(quick: httpx.AsyncClient, memory: Backend) -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    over = set(re.findall(r"\w+", re.findall(r"FINAL = {(.+)}", page)[0]))
    assert over == {status.value for status in JobStatus if status.final}
    await memory.enqueue_job(Job(id="j", type="t"))
    (job,) = await memory.dequeue_jobs("w")
    await memory.bury_job("j", "broken", lease=job.lease)
    told = (await quick.get("/v1/jobs/j/events")).json()["items"]
    assert [event["event"] for event in told if event["to_status"] in over] == ["job.dead"]
