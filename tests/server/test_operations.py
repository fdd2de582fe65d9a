"""Operations: health, readiness, metrics, the status page, logs and traces."""

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from longshore.app import tracing
from longshore.app.harbor import Harbor, builtin_harbor
from longshore.backends.base import Backend, WorkerInfo
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable
from longshore.core.job import Job, JobEvent
from longshore.core.status import JobStatus
from longshore.runtime.logs import JsonLines, TextLines
from longshore.runtime.queue import Queue
from longshore.server.app import create_app
from longshore.server.console.status_page import ago
from longshore.server.metrics import MOST_QUEUES, OTHERS, Figures
from longshore.server.options import ServerOptions
from tests.runtime.working import until
from tests.server.conftest import Serve

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Each figure by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figure(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


async def says(client: httpx.AsyncClient, status: int) -> bool:
    """Whether the server answers so, when it is asked whether it is ready."""
    return (await client.get("/readyz")).status_code == status


async def heard(client: httpx.AsyncClient, event: str, times: int) -> Samples:
    """The metrics, after the server has read this many events."""
    while True:
        found = samples((await client.get("/metrics")).text)
        if found.get(("longshore_events_total", (("event", event),)), 0) >= times:
            return found
        await asyncio.sleep(0.01)


async def test_figures_tell_of_depth_age_throughput_latency_failures_crashes_and_leases(
    client: httpx.AsyncClient, backend: Backend, clock: HeldClock
) -> None:
    await until(lambda: says(client, 200))
    await backend.enqueue_jobs([Job(id=f"j{n}", type="t", queue="mail") for n in range(5)])
    clock.advance(10)
    done, failed, lost, _ = await backend.dequeue_jobs("w", limit=4, lease=30)
    clock.advance(2)
    await backend.complete_job(done.id, lease=done.lease)
    await backend.fail_job(failed.id, "no", lease=failed.lease, retry_at=3600)
    await backend.bury_job(lost.id, "gone", lease=lost.lease)
    clock.advance(60)
    await backend.reclaim_expired_leases()
    await backend.heartbeat_worker(WorkerInfo(id="w"))
    found = await heard(client, "job.stalled", 1)
    assert figure(found, "longshore_jobs", queue="mail", status="INITIAL_PENDING") == 1
    assert figure(found, "longshore_jobs", queue="mail", status="DEAD") == 1
    assert figure(found, "longshore_oldest_waiting_seconds", queue="mail") == 72
    assert figure(found, "longshore_jobs_added_total", queue="mail") == 5
    assert figure(found, "longshore_runs_total", queue="mail", outcome="completed") == 1
    assert figure(found, "longshore_runs_total", queue="mail", outcome="failed") == 2
    assert figure(found, "longshore_runs_total", queue="mail", outcome="crashed") == 1
    assert figure(found, "longshore_jobs_dead_total", queue="mail") == 1
    assert figure(found, "longshore_leases_lost_total", queue="mail") == 1
    assert figure(found, "longshore_job_wait_seconds_count", queue="mail") == 4
    assert figure(found, "longshore_job_wait_seconds_sum", queue="mail") == 40
    assert figure(found, "longshore_job_run_seconds_bucket", queue="mail", le="2.5") == 3
    assert figure(found, "longshore_workers", state="running") == 1
    assert figure(found, "longshore_http_requests_total", method="GET", route="/readyz", status="200") >= 1


async def test_the_wait_of_a_delayed_job_begins_when_it_is_due(
    client: httpx.AsyncClient, backend: Backend, clock: HeldClock
) -> None:
    await until(lambda: says(client, 200))
    await backend.enqueue_jobs([Job(id=f"j{n}", type="t", queue="mail", run_at=60) for n in range(3)])
    await backend.promote_job("j0")
    clock.advance(2)
    (early,) = await backend.dequeue_jobs("w", limit=3)  # after 2 s
    await backend.fail_job(early.id, "no", lease=early.lease, retry_at=60)
    clock.advance(60)
    for job in await backend.dequeue_jobs("w", limit=3):  # after 0 s and, twice, 2 s; no process announced them
        await backend.fail_job(job.id, "no", lease=job.lease, retry_at=100)
    clock.advance(110)
    await backend.announce_due_jobs()
    clock.advance(5)
    assert len(await backend.dequeue_jobs("w", limit=3)) == 3  # after 15 s, announced after 10
    found = await heard(client, "job.active", 7)
    assert figure(found, "longshore_job_wait_seconds_count", queue="mail") == 7
    assert figure(found, "longshore_job_wait_seconds_sum", queue="mail") == 2 + 0 + 2 + 2 + 3 * 15


async def test_no_client_can_make_up_figures_without_end(quick: httpx.AsyncClient, memory: Backend) -> None:
    await memory.enqueue_jobs([Job(type="t", queue=f"q{n:04}") for n in range(MOST_QUEUES + 50)])
    for n in range(30):
        await quick.request(f"X{n}", f"/nothing/{n}")
        await memory.heartbeat_worker(WorkerInfo(id=f"w{n}", state=f"state {n}"))
    found = await heard(quick, "job.added", MOST_QUEUES + 50)
    queues = {dict(labels)["queue"] for (name, labels) in found if name == "longshore_jobs"}
    assert len(queues) == MOST_QUEUES + 1
    assert figure(found, "longshore_jobs", queue=OTHERS, status="INITIAL_PENDING") == 50
    assert figure(found, "longshore_workers", state="other") == 30
    methods = {dict(labels)["method"] for (name, labels) in found if name == "longshore_http_requests_total"}
    assert methods <= {"GET", "OTHER"}
    routes = {dict(labels)["route"] for (name, labels) in found if name == "longshore_http_requests_total"}
    assert routes == {"unknown", "/metrics"}


async def test_a_queue_keeps_its_age_whichever_queues_come_and_all_others_have_that_of_the_oldest(
    serve: Serve, clock: HeldClock
) -> None:
    async with connect("memory://", clock=clock) as store:
        keeper = Queue(store)
        client: httpx.AsyncClient = await serve(store)
        await store.enqueue_job(Job(type="t", queue="zebra"))
        await heard(client, "job.added", 1)
        clock.advance(10)
        await store.enqueue_jobs([Job(type="t", queue=f"q{n:04}") for n in range(MOST_QUEUES - 1)])
        await heard(client, "job.added", MOST_QUEUES)
        await store.enqueue_job(Job(type="t", queue="an old one"))
        clock.advance(30)
        await store.enqueue_job(Job(type="t", queue="new"))
        await store.pause_queue("an old one")
        clock.advance(2)
        found = await heard(client, "job.added", MOST_QUEUES + 2)
        ages = {
            dict(labels)["queue"]: age
            for (name, labels), age in found.items()
            if name == "longshore_oldest_waiting_seconds"
        }
        assert len(ages) == MOST_QUEUES + 1
        assert (ages["zebra"], ages["q0000"], ages[OTHERS]) == (42, 32, 32)
        assert figure(found, "longshore_queue_paused", queue=OTHERS) == 1
        assert not keeper.closed


def test_the_memory_of_job_times_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore.server.metrics._MOST_REMEMBERED", 3)
    figures = Figures()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    fresh = [
        JobEvent(str(n), n, str(n), 1, "q", "t", "job.added", None, JobStatus.INITIAL_PENDING, 0, 0, None, "", at, {})
        for n in range(10)
    ]
    figures.heard(fresh)
    assert len(figures._since) == 3


async def test_alive_is_not_ready(memory: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(memory, options=ServerOptions(ready_within=0.2))
    await until(lambda: says(client, 200))

    async def unreachable(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable("the database is gone")

    memory.read_events = unreachable  # type: ignore[method-assign]  # as when the network is down
    await until(lambda: says(client, 503))
    assert (await client.get("/readyz")).json() == {
        "status": "not ready",
        "reason": "the store has not answered for too long",
    }
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    del memory.read_events
    await until(lambda: says(client, 200))


async def test_a_server_that_stops_is_not_ready(memory: Backend) -> None:
    app = create_app(memory)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            app.state.platform.begin_to_close()
            assert (await client.get("/readyz")).json()["reason"] == "the server is shutting down"


# -- the status page

HOSTILE = "<script>alert(1)</script>\"'&{{7777*7777}}"


async def test_names_of_jobs_and_workers_are_escaped_on_the_page(quick: httpx.AsyncClient, memory: Backend) -> None:
    # F56, F57
    await memory.enqueue_job(Job(id=HOSTILE, type=HOSTILE, queue=HOSTILE, tags=[HOSTILE]))
    (job,) = await memory.dequeue_jobs("w")
    await memory.fail_job(job.id, HOSTILE, lease=job.lease)
    await memory.heartbeat_worker(WorkerInfo(id=HOSTILE, host=HOSTILE, queues=(HOSTILE,), state=HOSTILE))
    await memory.pause_queue(HOSTILE)
    page = await quick.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" not in page.text
    assert str(7777 * 7777) not in page.text
    assert page.text.count("&lt;script&gt;") >= 8
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "form-action 'self'" in policy
    assert "<form" not in page.text, "there is nothing on it that a foreign page could send"


async def test_an_empty_page_teaches_the_first_request(quick: httpx.AsyncClient) -> None:
    page = (await quick.get("/")).text
    assert "curl" in page
    assert "longshore up" in page


def test_ages_use_the_largest_unit_that_fits(clock: HeldClock) -> None:
    now = clock.now()
    assert ago(now - timedelta(days=3, hours=1), now) == "3 d ago"
    assert ago(now, now) == "0 s ago"
    assert ago(None, now) == ""


# -- logs


def line(logger: str, message: str, **fields: Any) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": logger, "msg": message, "levelname": "INFO"})
    vars(record).update(fields)
    return record


async def test_a_line_knows_the_job_it_was_written_for(memory: Backend) -> None:
    harbor = Harbor(memory)
    lines: list[str] = []

    @harbor.task
    async def speak() -> None:
        lines.append(JsonLines().format(line("app", "hello\nworld", extra_field=3)))

    @harbor.task
    def shout() -> None:
        lines.append(TextLines().format(line("app", "a\nb\x1b[31m")))

    handle = await speak.enqueue()
    other = await shout.enqueue()
    await harbor.run_until_empty(concurrency=1)
    told = json.loads(lines[0])
    assert (told["job_id"], told["job_type"], told["queue"], told["execution"]) == (handle.id, "speak", "default", 1)
    assert (told["message"], told["extra_field"], told["level"]) == ("hello\nworld", 3, "info")
    assert lines[1].endswith(f"app: a\\nb\\x1b[31m job_id={other.id} job_type=shout queue=default execution=1 epoch=1")
    assert "job_id" not in json.loads(JsonLines().format(line("app", "outside")))


def test_an_error_in_the_log_has_its_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        record = line("app", "failed", exc_info=(ValueError, error, error.__traceback__))
    assert "ValueError: why" in json.loads(JsonLines().format(record))["error"]
    assert "ValueError: why" in TextLines().format(record)


# -- traces


async def test_a_trace_goes_from_the_request_to_the_run(
    memory: Backend, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("longshore"))
    client: httpx.AsyncClient = await serve(memory, options=ServerOptions(tracing=True))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"type": "echo", "data": {"say": "hello"}}
    sent = await client.post("/v1/jobs", json=body, headers={"traceparent": parent, "Idempotency-Key": "k"})
    again = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert again.json() == {**sent.json(), "replayed": True}, "another trace does not make another request"
    await client.post("/v1/jobs/batch", json={"jobs": [{"type": "fail"}, {"type": "echo"}]})
    harbor = builtin_harbor(memory)
    harbor.add_middleware(tracing.Tracing())
    await harbor.run_until_empty()
    await harbor.tasks["echo"].enqueue()
    spans = {span.name: span for span in exporter.get_finished_spans() if span.context.trace_id == TRACE_ID}
    assert set(spans) == {"enqueue echo", "run echo"}
    run, enqueue = spans["run echo"], spans["enqueue echo"]
    assert run.parent is not None
    assert run.parent.span_id == enqueue.context.span_id
    assert run.attributes is not None
    assert run.attributes["longshore.job.id"] == sent.json()["id"]
    failed = next(span for span in exporter.get_finished_spans() if span.name == "run fail")
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.status.description == "RuntimeError"
    assert "hello" not in str([span.to_json() for span in exporter.get_finished_spans()]), "data may be secret"


TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
