"""A value that is out of bounds is refused over HTTP with the same message as in the SDK."""

from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.limits import Rate
from longshore.core.repeat import Repeat
from longshore.core.validation import MOST_NAMES, MOST_TAGS
from longshore.runtime.queue import Queue

OF_JOBS: list[dict[str, Any]] = [
    *({"priority": value} for value in (2**31, -(2**31) - 1, 2**63 - 1, -(2**63))),
    *({"attempts": value} for value in (-1, 2**31, 2**63 - 1)),
    *({"max_crashes": value} for value in (-1, 2**63 - 1)),
    *({"delay": value} for value in (-1, 2**63 - 1, 10**15, 1e300)),
    *({"timeout": value} for value in (0, -1, 2**63 - 1, 1e300)),
    *({"backoff": {"type": "fixed", "delay": value}} for value in (-1, 2**63 - 1)),
    *({"backoff": {"type": "fixed", "delay": 1, "jitter": value}} for value in (-0.5, 1.5)),
    {"tags": ["x"] * (MOST_TAGS + 1)},
    {"depends_on": [f"j{number}" for number in range(MOST_NAMES + 1)]},
    *({"concurrency_key": value} for value in ("", "x" * 256, "a\nb")),
    *({"parent_id": value} for value in ("", "x" * 256, "\x85")),
]


@pytest.mark.parametrize("fields", OF_JOBS, ids=lambda fields: str(fields)[:60])
async def test_a_job_is_refused_with_the_same_message(
    quick: httpx.AsyncClient, memory: Backend, fields: dict[str, Any]
) -> None:
    # R8
    refused = await quick.post("/v1/jobs", json={"type": "t", **fields})
    with pytest.raises(InvalidArgument) as told:
        await Queue(memory).add("t", **fields)
    assert (refused.status_code, refused.json()["field"]) == (422, told.value.field), refused.text
    assert refused.json()["detail"] == str(told.value)
    assert sum((await memory.count_jobs()).values()) == 0


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**63 - 1])
async def test_limits_are_refused_with_the_same_message(quick: httpx.AsyncClient, memory: Backend, value: int) -> None:
    # R8
    for name in ("running", "per_key"):
        given: dict[str, Any] = {name: value}
        refused = await quick.patch("/v1/queues/q/limits", json=given)
        with pytest.raises(InvalidArgument) as told:
            await memory.set_limits("q", **given)
        assert refused.json()["detail"] == str(told.value)
    refused = await quick.patch("/v1/queues/q/limits", json={"rate": {"count": value, "per": 1}})
    with pytest.raises(InvalidArgument) as told:
        Rate(value, 1)
    assert refused.json()["detail"] == str(told.value)
    refused = await quick.put("/v1/schedules/s", json={"job": {"type": "t"}, "repeat": {"every": 1, "limit": value}})
    with pytest.raises(InvalidArgument) as told:
        Repeat(every=1, limit=value)
    assert refused.json()["detail"] == str(told.value)


async def test_the_maximum_of_tags_and_dependencies_is_accepted(quick: httpx.AsyncClient) -> None:
    # R8
    body = {"type": "t", "tags": [f"t{n}" for n in range(MOST_TAGS)], "depends_on": [f"j{n}" for n in range(2_000)]}
    assert (await quick.post("/v1/jobs", json=body)).status_code == 202


async def test_an_integer_beyond_64_bits_is_refused_anywhere_in_a_body(quick: httpx.AsyncClient) -> None:
    # R8
    for fields, field in (({"priority": 2**63}, "priority"), ({"data": {"n": -(2**63) - 1}}, "data.n")):
        refused = await quick.post("/v1/jobs", json={"type": "t", **fields})
        assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert "is an integer beyond 64 bits" in refused.json()["detail"]


async def test_an_immediate_schedule_is_due_when_it_is_stored(quick: httpx.AsyncClient) -> None:
    # M8 M-OPT-15
    body = {"job": {"type": "t"}, "repeat": {"cron": "0 0 1 1 *", "immediate": True}}
    put = (await quick.put("/v1/schedules/s", json=body)).json()
    assert put["repeat"]["immediate"] is True
    assert put["next_run_at"] == put["created_at"]
