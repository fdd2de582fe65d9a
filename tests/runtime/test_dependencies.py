"""Dependencies of a queue's jobs: every form of `depends_on`, and their results."""

from __future__ import annotations

from typing import Any

import pytest

from longshore import Dependency, Job, Queue
from longshore.backends.base import Backend
from longshore.core.errors import Fatal, InvalidArgument
from longshore.core.status import JobStatus as S
from longshore.runtime.running_job import RunningJob
from tests.runtime.working import comes_to, working


@pytest.mark.parametrize("way", ["id", "job", "dependency", "dependency on a job", "mapping"])
async def test_a_job_to_wait_for_may_be_named_in_any_way(queue: Queue, backend: Backend, way: str) -> None:
    # M-OPT-16 M-TR-03
    first: Job = await queue.add("x")
    ways: dict[str, Any] = {
        "id": [first.id],
        "job": (first,),
        "dependency": [Dependency(first.id)],
        "dependency on a job": iter([Dependency(first)]),
        "mapping": {first.id: "wait"},
    }
    second = await queue.add("x", depends_on=ways[way])
    assert (second.depends_on, second.status, second.options) == ((first.id,), S.WAITING_CHILDREN, {})
    await backend.update_job_status(first.id, S.RUNNING)
    await backend.complete_job(first.id)
    assert (await queue.get_job(second.id)).status is S.INITIAL_PENDING


async def test_each_edge_may_have_a_policy_of_its_own_in_a_batch_too(queue: Queue, backend: Backend) -> None:
    # M-OPT-16 M-OPT-17 X-88
    await queue.add_bulk([("x", None, {"job_id": name}) for name in "ab"])
    added = await queue.add_bulk(
        [
            {"type": "x", "job_id": "c", "depends_on": ["a", Dependency("b", on_failure="ignore")], "parent_id": "p"},
            {"type": "x", "job_id": "d", "depends_on": {"b": "stop", "a": "wait"}, "on_dependency_failure": "ignore"},
        ]
    )
    assert [(job.id, job.status, job.depends_on, job.parent_id) for job in added] == [
        ("c", S.WAITING_CHILDREN, ("a", "b"), "p"),
        ("d", S.WAITING_CHILDREN, ("b", "a"), None),
    ]
    await queue.cancel_jobs(job_ids=["b"])
    assert [(await queue.get_job(name)).status for name in "cd"] == [S.WAITING_CHILDREN, S.UNSCHEDULED]
    await backend.update_job_status("a", S.RUNNING)
    await backend.complete_job("a")
    assert (await queue.get_job("c")).status is S.INITIAL_PENDING


@pytest.mark.parametrize("given", ["abc", 5, [5], {"a": "explode"}, ["a", Dependency("a", on_failure="stop")], [""]])
async def test_an_invalid_dependency_is_refused_and_nothing_is_stored(queue: Queue, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^depends_on"):
        await queue.add("x", depends_on=given)
    with pytest.raises(InvalidArgument, match=r"^specs\[1\]\.depends_on"):
        await queue.add_bulk([("x",), ("x", None, {"depends_on": given})])
    assert set((await queue.count_jobs()).values()) <= {0}


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_an_ignored_dependency_that_did_not_complete_has_no_result(
    queue: Queue, backend: Backend, in_thread: bool
) -> None:
    # M-OPT-16 X-88
    def part(job: RunningJob) -> Any:
        if job.data == "bad":
            raise Fatal("hopeless")
        return job.data

    async def on_loop(job: RunningJob) -> Any:
        return await job.dependency_results() if job.type == "sum" else part(job)

    def thread(job: RunningJob) -> Any:
        return dict(job.dependency_results()) if job.type == "sum" else part(job)

    bad = Dependency("bad", on_failure="ignore")
    gone = Dependency("gone", on_failure="ignore")
    async with working(queue, thread if in_thread else on_loop):
        await queue.add("part", "bad", job_id="bad")
        await queue.add("part", "gone", job_id="gone", remove_on_complete=True)
        await queue.add("part", 5, job_id="good")
        await queue.add("sum", job_id="sum", depends_on=["good", bad, gone])
        job = await comes_to(backend, "sum")
    assert job.result == b'{"good":5}'


async def test_many_results_keep_the_requested_order(queue: Queue, backend: Backend) -> None:
    # M-OPT-16
    async def process(job: RunningJob) -> Any:
        if job.type != "sum":
            return job.data
        results = await job.dependency_results()
        return [list(results) == list(job.depends_on), sum(results.values()), len(results)]

    parts = await queue.add_bulk([("part", number) for number in range(1200)])
    await queue.add("sum", job_id="sum", depends_on=parts[::-1], priority=-1)
    async with working(queue, process, concurrency=200):
        job = await comes_to(backend, "sum")
    assert job.result == b"[true,719400,1200]"
