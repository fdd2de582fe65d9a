"""Bad input: one rule for names, ids, numbers, times and payloads, on every backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from longshore.backends.base import Backend, Outcome, WorkerInfo
from longshore.core.clock import HeldClock
from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.validation import DEEPEST, LARGEST_NOTE, LARGEST_PAYLOAD, LONGEST_TEXT, MOST_NAMES, MOST_TAGS, RULE
from longshore.testing.conformance import scenarios as kit
from longshore.testing.conformance.scenarios import S

Call = Callable[[Backend, Any], Awaitable[object]]

COUNTS: dict[str, tuple[str, Call]] = {
    "dequeue_jobs": ("limit", lambda b, v: b.dequeue_jobs("worker-1", limit=v)),
    "reclaim_expired_leases": ("limit", lambda b, v: b.reclaim_expired_leases(v)),
    "time_out_cancellations": ("limit", lambda b, v: b.time_out_cancellations(1, v)),
    "announce_due_jobs": ("limit", lambda b, v: b.announce_due_jobs(v)),
    "list_jobs": ("limit", lambda b, v: b.list_jobs(JobFilter(), limit=v)),
    "read_events": ("limit", lambda b, v: b.read_events(None, v)),
    "fire_due_schedules": ("limit", lambda b, v: b.fire_due_schedules(v)),
    "apply_retention": ("limit", lambda b, v: b.apply_retention(v)),
}

DURATIONS: dict[str, tuple[str, Call]] = {
    "dequeue_jobs": ("lease", lambda b, v: b.dequeue_jobs("worker-1", lease=v)),
    "extend_leases": ("duration", lambda b, v: b.extend_leases({}, v)),
    "cleanup_expired_jobs": ("ttl", lambda b, v: b.cleanup_expired_jobs(v)),
    "enqueue_job(timeout)": ("timeout", lambda b, v: b.enqueue_job(kit.new_job(timeout=v))),
}

MOMENTS: dict[str, tuple[str, Call]] = {
    "enqueue_job(run_at)": ("run_at", lambda b, v: b.enqueue_job(kit.new_job(run_at=v))),
    "enqueue_job(expires_at)": ("expires_at", lambda b, v: b.enqueue_job(kit.new_job(expires_at=v))),
    "fail_job(retry_at)": ("retry_at", lambda b, v: b.fail_job("running", "broken", retry_at=v)),
    "release_lease(run_at)": ("run_at", lambda b, v: b.release_lease("running", kit.STALE, run_at=v)),
}

JSON_FIELDS: dict[str, tuple[str, Call]] = {
    "set_progress": ("progress", lambda b, v: b.set_progress("running", v)),
    "save_checkpoint": ("checkpoint", lambda b, v: b.save_checkpoint("running", v)),
    "enqueue_job(options)": ("options", lambda b, v: b.enqueue_job(kit.new_job(options={"k": v}))),
    "heartbeat_worker(detail)": ("worker.detail", lambda b, v: b.heartbeat_worker(WorkerInfo(id="w", detail={"k": v}))),
}


def nested(depth: int) -> Any:
    """Return nested lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_JSON: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": [1, float("inf")],
    "beyond 64 bits": 2**63,
    "below 64 bits": {"n": -(2**63) - 1},
    "lone surrogate": "\ud800",
    "lone surrogate in a key": {"\udfff": 1},
    "a key that is not text": {1: "one"},
    "a set": {1, 2},
    "a datetime": [datetime(2026, 1, 1, tzinfo=UTC)],
    "too deep": nested(DEEPEST + 1),
    "far too deep": nested(5000),
    "too large": "x" * (LARGEST_NOTE + 1),
}


def every(table: dict[str, Any]) -> pytest.MarkDecorator:
    """Parametrize with one test per row: the field named in the error, and the call."""
    return pytest.mark.parametrize(("field", "call"), table.values(), ids=table.keys())


async def all_refused(backend: Backend, field: str, call: Call, values: list[Any]) -> None:
    """Check that each value is refused by the name of the field and changes nothing."""
    async with kit.nothing_changes(backend):
        for value in values:
            with pytest.raises(InvalidArgument) as caught:
                await call(backend, value)
            assert caught.value.field == field, value


class TestBadInput:
    """The same acceptance and the same messages on every backend."""

    # -- numbers

    @every(COUNTS)
    async def test_a_limit_is_a_whole_number_of_at_least_one(self, backend: Backend, field: str, call: Call) -> None:
        # B-DEQ-02 B-ERR-05
        await kit.enqueue(backend, "bystander")
        await all_refused(backend, field, call, [0, -1, True, 1.0, 2.5, "3", 2**40])

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("priority", value) for value in (2**31, -(2**31) - 1, True, 1.5, "1", None)),
            *(("max_attempts", value) for value in (-1, 2**31, True, 1.5, None)),
            *(("max_crashes", value) for value in (-1, 2**31, True, 1.5)),
            *(("lifo", value) for value in (1, 0, "yes", None)),
            *(("on_dependency_failure", value) for value in ("", "fail", None)),
            *(("options", value) for value in ((), "{}", 5)),
        ],
    )
    async def test_a_field_of_the_wrong_kind_is_refused_by_name(self, backend: Backend, field: str, value: Any) -> None:
        await kit.refused(backend, backend.enqueue_job(kit.new_job(**{field: value})), field=field)

    @pytest.mark.parametrize("value", [2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400])
    async def test_numbers_beyond_64_bits_are_refused(self, backend: Backend, value: int) -> None:
        # R8
        await kit.job_in(backend, S.RUNNING, "running")
        async with kit.nothing_changes(backend):
            for name in ("priority", "max_attempts", "max_crashes"):
                given: dict[str, Any] = {name: value}
                with pytest.raises(InvalidArgument, match=f"{name}: must be between") as caught:
                    await backend.enqueue_job(kit.new_job(**given))
                assert caught.value.field == name
            for field, call in (*COUNTS.values(), ("after", lambda b, v: b.read_logs("running", v))):
                with pytest.raises(InvalidArgument, match=f"{field}: must be between"):
                    await call(backend, value)
            for cursor in (f"j{value}", f"j-{value}"):
                if value > 2**63 - 1 or "-" in cursor:
                    with pytest.raises(InvalidArgument, match="cursor: must be the next_cursor of a page"):
                        await backend.list_jobs(JobFilter(), cursor=cursor)

    async def test_lists_of_names_are_bounded(self, backend: Backend) -> None:
        # R8
        tags = [f"t{number}" for number in range(MOST_TAGS)]
        assert (await kit.enqueue(backend, "tagged", tags=tags)).tags == tuple(tags)
        many = ["x"] * (MOST_TAGS + 1)
        lists: dict[str, Call] = {
            "enqueue": lambda b, v: b.enqueue_job(kit.new_job(tags=v)),
            "claim": lambda b, v: b.dequeue_jobs("w", v),
            "cancel": lambda b, v: b.cancel_jobs(v),
            "delete": lambda b, v: b.delete_jobs(v),
            "stats": lambda b, v: b.get_job_stats(v),
        }
        async with kit.nothing_changes(backend):
            for call in lists.values():
                with pytest.raises(InvalidArgument, match=f"tags: must have at most {MOST_TAGS} names, not 101"):
                    await call(backend, many)
            with pytest.raises(InvalidArgument, match=rf"filter\.tags: must have at most {MOST_TAGS} names"):
                await backend.list_jobs(JobFilter(tags=many))
            too_many = [str(number) for number in range(MOST_NAMES + 1)]
            for field, call in {
                "job_ids": lambda b, v: b.cancel_jobs(job_ids=v),
                "depends_on": lambda b, v: b.enqueue_job(kit.new_job(depends_on=v)),
                "queues": lambda b, v: b.dequeue_jobs("w", queues=v),
                "filter.ids": lambda b, v: b.list_jobs(JobFilter(ids=v)),
            }.items():
                with pytest.raises(InvalidArgument, match=f"must have at most {MOST_NAMES} names") as caught:
                    await call(backend, too_many)
                assert caught.value.field == field

    @pytest.mark.parametrize(
        "backoff", [5, {}, {"type": "fixed"}, {"type": "linear", "delay": 1}, {"type": "fixed", "delay": -1}]
    )
    async def test_a_malformed_backoff_is_refused_at_enqueue(self, backend: Backend, backoff: object) -> None:
        await kit.refused(backend, backend.enqueue_job(kit.new_job(options={"backoff": backoff})))

    @pytest.mark.parametrize("value", [1, "yes", None])
    async def test_a_flag_is_true_or_false(self, backend: Backend, value: Any) -> None:
        job = await kit.job_in(backend, S.CANCELLING)
        dead = await kit.job_in(backend, S.DEAD)
        await kit.refused(backend, backend.acknowledge_cancellation(job.id, value), field="was_executing")
        await kit.refused(backend, backend.retry_job(dead.id, reset=value), field="reset")

    async def test_an_unknown_status_is_refused(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await kit.refused(backend, backend.update_job_status(job.id, "SUCCESS"), field="status")  # type: ignore[arg-type]  # a wrong word on purpose
        await kit.refused(backend, backend.list_jobs(JobFilter(statuses=["DONE"])), field="filter.statuses")  # type: ignore[list-item]  # a wrong word on purpose

    async def test_only_leases_outcomes_and_filters_are_accepted(self, backend: Backend) -> None:
        job: Any = await kit.job_in(backend, S.RUNNING)
        wrong: Any = "token"
        await kit.refused(backend, backend.complete_job(job.id, lease=wrong), field="lease")
        await kit.refused(backend, backend.extend_leases({job.id: wrong}, 30), field="leases")
        await kit.refused(backend, backend.settle_jobs([wrong]), field="outcomes")
        await kit.refused(backend, backend.list_jobs(wrong), field="filter")
        await kit.refused(backend, backend.heartbeat_worker(wrong), field="worker")

    async def test_a_store_that_cannot_join_a_transaction_says_so(self, backend: Backend) -> None:
        await kit.refused(backend, backend.enqueue_jobs([kit.new_job()], connection=object()), field="connection")

    # -- times

    @every(DURATIONS)
    async def test_a_duration_outside_its_range_is_refused(self, backend: Backend, field: str, call: Call) -> None:
        # X-45
        await kit.enqueue(backend, "bystander")
        bad = [0, -1, True, float("nan"), float("inf"), "30", timedelta(0), timedelta(seconds=-1), 10**15]
        await all_refused(backend, field, call, bad)

    @every(MOMENTS)
    async def test_a_naive_or_distant_time_is_refused(self, backend: Backend, field: str, call: Call) -> None:
        await kit.job_in(backend, S.RUNNING, "running")
        await all_refused(
            backend,
            field,
            call,
            [
                datetime(2026, 1, 1),  # noqa: DTZ001  # without a time zone on purpose
                datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5))),
                datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
                -1,
                float("nan"),
                True,
                "tomorrow",
                timedelta(days=-1),
                timedelta(days=8000 * 366),
            ],
        )

    async def test_a_lease_that_would_end_after_the_year_9999_is_refused(self, backend: Backend) -> None:
        await kit.enqueue(backend, "bystander")
        await kit.refused(backend, backend.dequeue_jobs("worker-1", lease=timedelta(days=8000 * 365)), field="lease")
        job = await kit.claim(backend)
        too_long = timedelta(days=8000 * 365)
        await kit.refused(backend, backend.extend_leases({job.id: kit.lease_of(job)}, too_long), field="duration")

    @pytest.mark.parametrize("field", ["created_after", "created_before"])
    async def test_a_filter_compares_aware_times_only(self, backend: Backend, field: str) -> None:
        naive: dict[str, Any] = {field: datetime(2026, 1, 1)}  # noqa: DTZ001 - naive is the point
        await kit.refused(backend, backend.list_jobs(JobFilter(**naive)), field=f"filter.{field}")

    async def test_a_moment_in_another_zone_is_the_same_moment(self, backend: Backend, clock: HeldClock) -> None:
        there = timezone(timedelta(hours=5, minutes=45))
        job = await kit.enqueue(backend, run_at=(clock.now() + timedelta(hours=1)).astimezone(there))
        assert job.run_at == clock.now() + timedelta(hours=1)

    # -- payloads and results

    async def test_a_payload_or_result_has_a_size_limit(self, backend: Backend) -> None:
        largest = b"x" * LARGEST_PAYLOAD
        job = await kit.enqueue(backend, "largest", payload=largest)
        assert job.payload == largest
        await kit.refused(backend, backend.enqueue_job(kit.new_job(payload=largest + b"x")), field="payload")
        await kit.claim(backend)
        await kit.refused(backend, backend.complete_job("largest", largest + b"x"), field="result")
        await backend.complete_job("largest", largest)
        assert (await backend.get_job("largest")).result == largest

    @pytest.mark.parametrize("value", ["text", None, 5, {"a": 1}])
    async def test_a_payload_is_bytes(self, backend: Backend, value: Any) -> None:
        await kit.refused(backend, backend.enqueue_job(kit.new_job(payload=value)), field="payload")

    @pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256)), '{"a": "🐙"}'.encode(), b'{"a": 1, "a": 2}'])
    async def test_payload_and_result_are_opaque(self, backend: Backend, value: bytes) -> None:
        job = await kit.enqueue(backend, payload=value)
        assert (await kit.claim(backend)).payload == value
        await backend.complete_job(job.id, value)
        done = await backend.get_job(job.id)
        assert (done.payload, done.result) == (value, value)

    @pytest.mark.parametrize("value", ["text", 5, {"a": 1}])
    async def test_a_result_is_bytes(self, backend: Backend, value: Any) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        await kit.refused(backend, backend.complete_job(job.id, value), field="result")

    @pytest.mark.parametrize("payload", [b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"not json", b"[" * 5000])
    async def test_ambiguous_json_is_refused_when_decoded(self, backend: Backend, payload: bytes) -> None:
        job = await kit.enqueue(backend, payload=payload)
        with pytest.raises(InvalidArgument) as caught:
            _ = job.data
        assert caught.value.field.startswith("payload")

    # -- JSON that every store and language reads back unchanged

    @every(JSON_FIELDS)
    async def test_unportable_json_is_refused_with_its_path(self, backend: Backend, field: str, call: Call) -> None:
        await kit.job_in(backend, S.RUNNING, "running")
        async with kit.nothing_changes(backend):
            for kind, value in BAD_JSON.items():
                with pytest.raises(InvalidArgument) as caught:
                    await call(backend, value)
                assert caught.value.field.startswith(field), kind

    async def test_the_path_inside_the_value_is_named(self, backend: Backend) -> None:
        await kit.job_in(backend, S.RUNNING, "running")
        await kit.refused(
            backend,
            backend.set_progress("running", {"items": [{}, {"price": float("nan")}]}),
            field="progress.items[1].price",
        )

    async def test_json_of_the_largest_depth_and_size_is_stored_unchanged(self, backend: Backend) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        for value in (nested(DEEPEST), "x" * (LARGEST_NOTE - 2), [2**63 - 1, -(2**63), 1e308, 0.1]):
            await backend.set_progress(job.id, value)
            await backend.save_checkpoint(job.id, value)
            read = await backend.get_job(job.id)
            assert read.progress == value
            assert read.checkpoint == value

    # -- error texts are never refused for their content

    @pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "\x1b[31m\r\n\t", "🐙 עולם", "'; DROP TABLE jobs; --"])
    async def test_any_error_of_a_handler_can_be_recorded(self, backend: Backend, text: str) -> None:
        # T-CORE-03
        expected = text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
        job = await kit.job_in(backend, S.RUNNING)
        await backend.append_log(job.id, text)
        await backend.fail_job(job.id, text)
        failed = await backend.get_job(job.id)
        assert (failed.error_message, failed.status) == (expected, S.FAILED_RETRY)
        assert [line.message for line in await backend.read_logs(job.id)] == [expected]
        await kit.claim(backend)
        await backend.bury_job(job.id, text)
        assert (await backend.get_job(job.id)).error_message == expected

    async def test_a_huge_traceback_is_cut_with_a_mark(self, backend: Backend) -> None:
        # T-CORE-03
        job = await kit.job_in(backend, S.RUNNING)
        huge = "no such thing. " * 100_000
        await backend.append_log(job.id, huge)
        await backend.fail_job(job.id, huge)
        failed = await backend.get_job(job.id)
        assert len(failed.error_message) < LONGEST_TEXT + 100
        assert failed.error_message.startswith("no such thing. no such thing.")
        assert str(len(huge)) in failed.error_message[-60:]
        [line] = await backend.read_logs(job.id)
        assert len(line.message) < LONGEST_TEXT + 100

    @pytest.mark.parametrize("error", [None, 5, b"bytes", ValueError("no")])
    async def test_an_error_is_text(self, backend: Backend, error: Any) -> None:
        job = await kit.job_in(backend, S.RUNNING)
        for call in (backend.fail_job, backend.bury_job, backend.stop_job, backend.mark_job_unknown_stopped):
            await kit.refused(backend, call(job.id, error), field="error")


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
"""All different: names are compared exactly, without folding of case or form."""

JOB_ID: dict[str, Call] = {
    "complete_job": lambda b, v: b.complete_job(v),
    "fail_job": lambda b, v: b.fail_job(v, "broken"),
    "bury_job": lambda b, v: b.bury_job(v, "broken"),
    "stop_job": lambda b, v: b.stop_job(v),
    "stop_job_with_retry": lambda b, v: b.stop_job_with_retry(v, "broken"),
    "mark_job_unknown_stopped": lambda b, v: b.mark_job_unknown_stopped(v),
    "update_job_status": lambda b, v: b.update_job_status(v, S.STOPPED),
    "acknowledge_cancellation": lambda b, v: b.acknowledge_cancellation(v, True),
    "release_lease": lambda b, v: b.release_lease(v, kit.STALE),
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
    "enqueue_job(id)": ("id", lambda b, v: b.enqueue_job(kit.new_job(id=v))),
    "enqueue_job(type)": ("type", lambda b, v: b.enqueue_job(kit.new_job(type=v))),
    "enqueue_job(queue)": ("queue", lambda b, v: b.enqueue_job(kit.new_job(queue=v))),
    "enqueue_job(tags)": ("tags", lambda b, v: b.enqueue_job(kit.new_job(tags=("fine", v)))),
    "enqueue_job(idempotency_key)": ("idempotency_key", lambda b, v: b.enqueue_job(kit.new_job(idempotency_key=v))),
    "enqueue_job(concurrency_key)": ("concurrency_key", lambda b, v: b.enqueue_job(kit.new_job(concurrency_key=v))),
    "enqueue_job(parent_id)": ("parent_id", lambda b, v: b.enqueue_job(kit.new_job(parent_id=v))),
    "enqueue_job(schedule_id)": ("schedule_id", lambda b, v: b.enqueue_job(kit.new_job(schedule_id=v))),
    "enqueue_job(depends_on)": ("depends_on", lambda b, v: b.enqueue_job(kit.new_job(depends_on=("fine", v)))),
    "accept_jobs(job_ids)": ("job_ids", lambda b, v: b.accept_jobs(["fine", v])),
    "dequeue_jobs(assignee_id)": ("assignee_id", lambda b, v: b.dequeue_jobs(v)),
    "dequeue_jobs(tags)": ("tags", lambda b, v: b.dequeue_jobs("worker-1", ["fine", v])),
    "dequeue_jobs(queues)": ("queues", lambda b, v: b.dequeue_jobs("worker-1", queues=["fine", v])),
    "extend_leases(leases)": ("leases", lambda b, v: b.extend_leases({v: kit.STALE}, 30)),
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
    "put_schedule": ("schedule.id", lambda b, v: b.put_schedule(kit.schedule(v))),
    "get_schedule": ("schedule_id", lambda b, v: b.get_schedule(v)),
    "pause_schedule": ("schedule_id", lambda b, v: b.pause_schedule(v)),
    "resume_schedule": ("schedule_id", lambda b, v: b.resume_schedule(v)),
    "run_schedule": ("schedule_id", lambda b, v: b.run_schedule(v)),
    "remove_schedule": ("schedule_id", lambda b, v: b.remove_schedule(v)),
    "record_worker_event(worker_id)": ("worker_id", lambda b, v: b.record_worker_event("worker.drained", v)),
    "heartbeat_worker": ("worker.id", lambda b, v: b.heartbeat_worker(WorkerInfo(id=v))),
}


class TestNames:
    """Ids, queues, types, tags, keys and workers: the same acceptance and the same messages on every backend."""

    @every(NAMES)
    async def test_a_bad_name_is_refused(self, backend: Backend, field: str, call: Call) -> None:
        # B-ERR-05 B-ENQ-02 B-DEQ-01 B-MWU-01 B-COMP-01 B-FAIL-01 B-STOP-01 B-MUS-01
        await kit.enqueue(backend, "bystander")
        async with kit.nothing_changes(backend):
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
        assert [job.id for job in reversed(await kit.all_jobs(backend))] == GOOD_NAMES
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
                assert [found.id for found in await kit.all_jobs(backend, wanted)] == [name]
            assert (await kit.claim(backend, name, queues=[name])).assignee_id == name
        assert await kit.claimable(backend) == []
        assert [queue.name for queue in await backend.list_queues()] == sorted(GOOD_NAMES)
        for name in GOOD_NAMES:
            assert [event.job_id for event in await backend.read_events(queue=name)] == [name, name]
            assert await backend.enqueue_job(kit.new_job(queue=name, idempotency_key=name)) == name
            await backend.mark_worker_unresponsive(name)
            assert [found.id for found in await backend.dequeue_jobs("w", limit=100)] == [name]

    @pytest.mark.parametrize("names", ["a bare string", b"bytes", 5])
    async def test_a_bare_string_is_not_a_list_of_names(self, backend: Backend, names: Any) -> None:
        await kit.enqueue(backend, "bystander", tags=["a"])
        async with kit.nothing_changes(backend):
            for call in (
                backend.enqueue_job(kit.new_job(tags=names)),
                backend.enqueue_job(kit.new_job(depends_on=names)),
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
        job = await kit.job_in(backend, S.DEAD)
        await kit.refused(backend, backend.retry_job(job.id, actor="a\x00b"), field="actor")
