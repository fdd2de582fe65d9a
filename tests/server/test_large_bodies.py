"""Large bodies are parsed, checked and written on threads; small ones on the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.job import Job
from longshore.core.validation import LARGE
from longshore.server import accept, body_limits, response_limits
from longshore.server.models import jobs as models
from longshore.server.routes import enqueue, store

MANY = [1.5, "é", {"a": [None, True, -(2**63)]}, []] * 12_000
assert len(json.dumps(MANY)) > LARGE


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether each kind of work was last done in the loop's own thread."""
    loop, found = threading.get_ident(), {}

    def spy(part: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(part, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            found[name] = threading.get_ident() == loop
            return real(*args, **kwargs)

        monkeypatch.setattr(part, name, watched)

    spy(body_limits, "read_json")
    spy(store, "read_body")
    spy(enqueue, "fingerprint")
    spy(accept, "written_json")
    spy(models, "read_json")
    return found


@pytest.mark.parametrize(("data", "small"), [(MANY[:8], True), (MANY, False)])
async def test_a_large_submission_is_processed_on_a_thread_and_a_small_one_on_the_loop(
    quick: httpx.AsyncClient, memory: Backend, on_the_loop: dict[str, bool], data: Any, small: bool
) -> None:
    body = {"type": "t", "id": "j", "data": data}
    assert (await quick.post("/v1/jobs", json=body)).status_code == 202
    assert on_the_loop == {"read_json": small, "fingerprint": small, "written_json": small}
    on_the_loop.clear()
    batch = {"jobs": [{"type": "t", "data": data}, {"type": "t", "id": "k"}]}
    headers = {"Idempotency-Key": "batch"}
    assert (await quick.post("/v1/jobs/batch", json=batch, headers=headers)).status_code == 202
    assert on_the_loop == {"read_json": small, "fingerprint": small, "written_json": small}
    assert json.loads((await memory.get_job("j")).payload) == data
    again = await quick.post(
        "/v1/jobs", content=json.dumps(body, indent=1), headers={"content-type": "application/json"}
    )
    assert again.json()["replayed"], "its fingerprint is the same, however it is spaced"


@pytest.mark.parametrize(("tags", "small"), [([[]], True), ([[]] * 200_000, False)])
async def test_a_large_body_of_an_operation_is_parsed_on_a_thread(
    quick: httpx.AsyncClient, on_the_loop: dict[str, bool], tags: Any, small: bool
) -> None:
    answer = await quick.post("/v1/work/claim", json={"assignee_id": "w", "tags": tags})
    assert (answer.status_code, answer.json()["field"]) == (422, "tags")
    assert on_the_loop == {"read_body": small}
    waiting = await quick.post("/v1/store/changes", json={"mark": "", "tags": tags})
    assert (waiting.status_code, on_the_loop) == (422, {"read_body": small})


@pytest.mark.parametrize(("payload", "small"), [(MANY[:8], True), (MANY, False)])
async def test_a_large_job_is_serialized_on_a_thread(
    quick: httpx.AsyncClient, memory: Backend, on_the_loop: dict[str, bool], payload: Any, small: bool
) -> None:
    await memory.enqueue_job(Job(id="j", type="t", payload=json.dumps(payload).encode(), tags=("é",)))
    (job,) = await memory.dequeue_jobs("w")
    shown = await quick.get("/v1/jobs/j")
    assert (shown.headers["content-type"], on_the_loop) == ("application/json", {"read_json": small})
    assert shown.json() == json.loads(models.view(job, await memory.now()).model_dump_json())
    await memory.complete_job("j", b"\xff" * (10 if small else LARGE), lease=job.lease)
    ended = (await quick.get("/v1/jobs/j")).json()
    assert (ended["data"], ended["result"], ended["result_base64"][:4]) == (payload, None, "////")


async def test_large_bodies_wait_for_a_thread_and_small_ones_do_not(quick: httpx.AsyncClient) -> None:
    free = threading.Event()
    busy = [asyncio.ensure_future(response_limits.run_in_thread(free.wait)) for _ in range(response_limits.AT_ONCE)]
    try:
        large = asyncio.ensure_future(quick.post("/v1/jobs", json={"type": "t", "data": MANY}))
        small = await quick.post("/v1/jobs", json={"type": "t", "data": 1})
        assert (small.status_code, large.done()) == (202, False)
    finally:
        free.set()
    await asyncio.gather(*busy)
    assert (await large).status_code == 202


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":1', b'{"a":"\\ud800"}', b"{" * 9])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/work/claim"])
async def test_a_large_body_is_refused_in_the_words_in_which_a_small_one_is(
    quick: httpx.AsyncClient, path: str, body: bytes
) -> None:
    sent = {"content-type": "application/json"}
    small = (await quick.post(path, content=body, headers=sent)).json()
    large = (await quick.post(path, content=body + b" " * LARGE, headers=sent)).json()
    for told in (small, large):
        del told["request_id"]
        told["detail"] = told["detail"].split(":")[0]
        told.pop("problem", None)
    assert large == small
