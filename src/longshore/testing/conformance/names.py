"""Names and ids: one documented rule refuses the bad ones everywhere, and the odd ones are only data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome, WorkerInfo
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.validation import RULE
from longshore.testing.conformance.staging import (
    STALE,
    S,
    all_jobs,
    claim,
    claimable,
    enqueue,
    job_in,
    new_job,
    nothing_changes,
    refused,
)

Call = Callable[[Backend, Any], Awaitable[object]]

BAD_NAMES: dict[str, object] = {
    "empty": "",
    "NUL": "a\x00b",
    "new line": "a\nb",
    "escape": "\x1b[31m",
    "delete": "a\x7f",
    "C1 control": "a\x85b",
    "lone surrogate": "a\ud800",
    "reversed surrogates": "\udc00\ud800",
    "256 characters": "x" * 256,
    "10 kB": "x" * 10_000,
    "a number": 5,
    "bytes": b"name",
}

GOOD_NAMES = [
    " ",
    "0",
    "None",
    "../../etc/passwd",
    "%2e%2e",
    "a/b\\c",
    "trailing.",
    "case",
    "CASE",
    "caf\u00e9",
    "cafe\u0301",
    "👩‍👩‍👧 🐙",
    "שלום עולם",
    "'; DROP TABLE jobs; --",
    "100%_?*[a-z]",
    "x" * 255,
    "🐙" * 255,
]
"""All of them different: names are compared as they are, with no folding of case or form."""

JOB_ID: dict[str, Call] = {
    "complete_job": lambda b, v: b.complete_job(v),
    "fail_job": lambda b, v: b.fail_job(v, "broken"),
    "bury_job": lambda b, v: b.bury_job(v, "broken"),
    "stop_job": lambda b, v: b.stop_job(v),
    "stop_job_with_retry": lambda b, v: b.stop_job_with_retry(v, "broken"),
    "mark_job_unknown_stopped": lambda b, v: b.mark_job_unknown_stopped(v),
    "update_job_status": lambda b, v: b.update_job_status(v, S.STOPPED),
    "acknowledge_cancellation": lambda b, v: b.acknowledge_cancellation(v, True),
    "release_lease": lambda b, v: b.release_lease(v, STALE),
    "set_progress": lambda b, v: b.set_progress(v, 1),
    "append_log": lambda b, v: b.append_log(v, "line"),
    "save_checkpoint": lambda b, v: b.save_checkpoint(v, 1),
    "get_job": lambda b, v: b.get_job(v),
    "read_logs": lambda b, v: b.read_logs(v),
    "read_events": lambda b, v: b.read_events(job_id=v),
    "retry_job": lambda b, v: b.retry_job(v),
    "promote_job": lambda b, v: b.promote_job(v),
    "settle_jobs": lambda b, v: b.settle_jobs([Outcome(v, None)]),
}

NAMES: dict[str, tuple[str, Call]] = {
    **{f"{verb}(job_id)": ("job_id", call) for verb, call in JOB_ID.items()},
    "enqueue_job(id)": ("id", lambda b, v: b.enqueue_job(new_job(id=v))),
    "enqueue_job(type)": ("type", lambda b, v: b.enqueue_job(new_job(type=v))),
    "enqueue_job(queue)": ("queue", lambda b, v: b.enqueue_job(new_job(queue=v))),
    "enqueue_job(tags)": ("tags", lambda b, v: b.enqueue_job(new_job(tags=("fine", v)))),
    "enqueue_job(idempotency_key)": ("idempotency_key", lambda b, v: b.enqueue_job(new_job(idempotency_key=v))),
    "enqueue_job(concurrency_key)": ("concurrency_key", lambda b, v: b.enqueue_job(new_job(concurrency_key=v))),
    "enqueue_job(parent_id)": ("parent_id", lambda b, v: b.enqueue_job(new_job(parent_id=v))),
    "enqueue_job(schedule_id)": ("schedule_id", lambda b, v: b.enqueue_job(new_job(schedule_id=v))),
    "enqueue_job(depends_on)": ("depends_on", lambda b, v: b.enqueue_job(new_job(depends_on=("fine", v)))),
    "accept_jobs(job_ids)": ("job_ids", lambda b, v: b.accept_jobs(["fine", v])),
    "dequeue_jobs(assignee_id)": ("assignee_id", lambda b, v: b.dequeue_jobs(v)),
    "dequeue_jobs(tags)": ("tags", lambda b, v: b.dequeue_jobs("worker-1", ["fine", v])),
    "dequeue_jobs(queues)": ("queues", lambda b, v: b.dequeue_jobs("worker-1", queues=["fine", v])),
    "extend_leases(leases)": ("leases", lambda b, v: b.extend_leases({v: STALE}, 30)),
    "cancel_jobs(tags)": ("tags", lambda b, v: b.cancel_jobs(["fine", v])),
    "cancel_jobs(job_ids)": ("job_ids", lambda b, v: b.cancel_jobs(job_ids=["fine", v])),
    "cancel_jobs(queue)": ("queue", lambda b, v: b.cancel_jobs(["fine"], queue=v)),
    "delete_jobs(tags)": ("tags", lambda b, v: b.delete_jobs(["fine", v])),
    "delete_jobs(job_ids)": ("job_ids", lambda b, v: b.delete_jobs(job_ids=["fine", v])),
    "delete_jobs(queue)": ("queue", lambda b, v: b.delete_jobs(["fine"], queue=v)),
    "mark_worker_unresponsive": ("assignee_id", lambda b, v: b.mark_worker_unresponsive(v)),
    "reset_running_jobs(queue)": ("queue", lambda b, v: b.reset_running_jobs(queue=v)),
    "get_job_stats(tags)": ("tags", lambda b, v: b.get_job_stats(["fine", v])),
    "get_job_stats(queue)": ("queue", lambda b, v: b.get_job_stats(queue=v)),
    "count_jobs(queue)": ("queue", lambda b, v: b.count_jobs(v)),
    "list_jobs(queues)": ("filter.queues", lambda b, v: b.list_jobs(JobFilter(queues=[v]))),
    "list_jobs(types)": ("filter.types", lambda b, v: b.list_jobs(JobFilter(types=[v]))),
    "list_jobs(tags)": ("filter.tags", lambda b, v: b.list_jobs(JobFilter(tags=[v]))),
    "list_jobs(ids)": ("filter.ids", lambda b, v: b.list_jobs(JobFilter(ids=[v]))),
    "list_jobs(assignee_id)": ("filter.assignee_id", lambda b, v: b.list_jobs(JobFilter(assignee_id=v))),
    "read_events(queue)": ("queue", lambda b, v: b.read_events(queue=v)),
    "pause_queue": ("queue", lambda b, v: b.pause_queue(v)),
    "resume_queue": ("queue", lambda b, v: b.resume_queue(v)),
    "set_limits": ("queue", lambda b, v: b.set_limits(v, running=1)),
    "set_retention": ("queue", lambda b, v: b.set_retention(v, finished=1)),
    "cleanup_expired_jobs(queue)": ("queue", lambda b, v: b.cleanup_expired_jobs(1, queue=v)),
    "put_schedule": ("schedule.id", lambda b, v: b.put_schedule(_schedule(v))),
    "get_schedule": ("schedule_id", lambda b, v: b.get_schedule(v)),
    "pause_schedule": ("schedule_id", lambda b, v: b.pause_schedule(v)),
    "resume_schedule": ("schedule_id", lambda b, v: b.resume_schedule(v)),
    "run_schedule": ("schedule_id", lambda b, v: b.run_schedule(v)),
    "remove_schedule": ("schedule_id", lambda b, v: b.remove_schedule(v)),
    "record_worker_event(worker_id)": ("worker_id", lambda b, v: b.record_worker_event("worker.drained", v)),
    "heartbeat_worker": ("worker.id", lambda b, v: b.heartbeat_worker(WorkerInfo(id=v))),
}


def _schedule(schedule_id: str) -> Schedule:
    return Schedule(id=schedule_id, job=new_job(), repeat=Repeat(every=60))


def every(table: dict[str, Any]) -> pytest.MarkDecorator:
    """One test for each row: the field that is named in the error, and the call."""
    return pytest.mark.parametrize(("field", "call"), table.values(), ids=table.keys())


class TestNames:
    """Ids, queues, types, tags, keys and workers: the same acceptance and the same words on every backend."""

    @every(NAMES)
    async def test_a_bad_name_is_refused_by_the_one_rule_and_nothing_changes(
        self, backend: Backend, field: str, call: Call
    ) -> None:
        # B-ERR-05 B-ENQ-02 B-DEQ-01 B-MWU-01 B-COMP-01 B-FAIL-01 B-STOP-01 B-MUS-01
        await enqueue(backend, "bystander")
        async with nothing_changes(backend):
            for kind, value in BAD_NAMES.items():
                with pytest.raises(InvalidArgument) as caught:
                    await call(backend, value)
                assert caught.value.field == field, kind
                assert RULE in str(caught.value), kind
                assert isinstance(caught.value, ValueError)

    async def test_odd_names_are_accepted_everywhere_and_stay_different(self, backend: Backend) -> None:
        for name in GOOD_NAMES:
            await backend.enqueue_job(
                Job(
                    id=name,
                    type=name,
                    queue=name,
                    tags=(name,),
                    idempotency_key=name,
                    concurrency_key=name,
                    parent_id=name,
                    schedule_id=name,
                )
            )
        assert [job.id for job in reversed(await all_jobs(backend))] == GOOD_NAMES
        for name in GOOD_NAMES:
            job = await backend.get_job(name)
            assert (job.type, job.queue, job.tags, job.idempotency_key) == (name, name, (name,), name)
            assert (job.concurrency_key, job.parent_id, job.schedule_id) == (name, name, name)
            assert (await backend.get_job_stats([name])).total_jobs == 1
            assert sum((await backend.count_jobs(name)).values()) == 1
            for wanted in (
                JobFilter(ids=[name]),
                JobFilter(queues=[name]),
                JobFilter(types=[name]),
                JobFilter(tags=[name]),
                JobFilter(parent_id=name),
                JobFilter(schedule_id=name),
                JobFilter(concurrency_key=name),
            ):
                assert [found.id for found in await all_jobs(backend, wanted)] == [name]
            assert (await claim(backend, name, queues=[name])).assignee_id == name
        assert await claimable(backend) == []
        assert [queue.name for queue in await backend.list_queues()] == sorted(GOOD_NAMES)
        for name in GOOD_NAMES:
            assert [event.job_id for event in await backend.read_events(queue=name)] == [name, name]
            assert await backend.enqueue_job(new_job(queue=name, idempotency_key=name)) == name
            await backend.mark_worker_unresponsive(name)
            assert [found.id for found in await backend.dequeue_jobs("w", limit=100)] == [name]

    @pytest.mark.parametrize("names", ["a bare string", b"bytes", 5])
    async def test_a_bare_string_is_no_list_of_names(self, backend: Backend, names: Any) -> None:
        await enqueue(backend, "bystander", tags=["a"])
        async with nothing_changes(backend):
            for call in (
                backend.enqueue_job(new_job(tags=names)),
                backend.enqueue_job(new_job(depends_on=names)),
                backend.dequeue_jobs("worker-1", names),
                backend.dequeue_jobs("worker-1", queues=names),
                backend.cancel_jobs(names),
                backend.cancel_jobs(job_ids=names),
                backend.delete_jobs(names),
                backend.delete_jobs(job_ids=names),
                backend.get_job_stats(names),
                backend.accept_jobs(names),
                backend.list_jobs(JobFilter(tags=names)),
            ):
                with pytest.raises(InvalidArgument):
                    await call

    async def test_an_actor_may_be_empty_but_not_malformed(self, backend: Backend) -> None:
        job = await job_in(backend, S.DEAD)
        async with refused(backend, InvalidArgument, field="actor"):
            await backend.retry_job(job.id, actor="a\x00b")
