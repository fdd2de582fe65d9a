"""The public surface is fixed: verbs, parameters, defaults and fields, written here a second time by hand."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import longshore
from longshore.backends.base import UNCHANGED, Backend, Outcome, Page, SettleReport
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, JobStats, Lease
from longshore.core.limits import Rate
from longshore.core.repeat import Repeat

NEEDED = inspect.Parameter.empty

# verb: (parameters by position or name, keywords), each with its default
Parameters = dict[str, Any]
SIGNATURES: dict[str, tuple[Parameters, Parameters]] = {
    "enqueue_job": ({"job": NEEDED}, {}),
    "enqueue_jobs": ({"jobs": NEEDED}, {"connection": None}),
    "add_jobs": ({"jobs": NEEDED}, {"connection": None}),
    "accept_jobs": ({"job_ids": NEEDED}, {}),
    "dequeue_jobs": ({"assignee_id": NEEDED, "tags": (), "limit": 1}, {"queues": None, "lease": 30}),
    "extend_leases": ({"leases": NEEDED, "duration": NEEDED}, {}),
    "release_lease": ({"job_id": NEEDED, "lease": NEEDED}, {"run_at": None, "reason": ""}),
    "complete_job": ({"job_id": NEEDED, "result": None}, {"lease": None}),
    "fail_job": ({"job_id": NEEDED, "error": NEEDED}, {"retry_at": None, "lease": None}),
    "bury_job": ({"job_id": NEEDED, "error": NEEDED}, {"lease": None}),
    "stop_job": ({"job_id": NEEDED, "error": ""}, {"lease": None}),
    "stop_job_with_retry": ({"job_id": NEEDED, "error": NEEDED}, {"lease": None}),
    "mark_job_unknown_stopped": ({"job_id": NEEDED, "error": ""}, {"lease": None}),
    "update_job_status": ({"job_id": NEEDED, "status": NEEDED, "result": None, "error": ""}, {}),
    "settle_jobs": ({"outcomes": NEEDED}, {}),
    "settle_and_dequeue": (
        {"outcomes": NEEDED, "assignee_id": NEEDED, "tags": (), "limit": 1},
        {"queues": None, "lease": 30},
    ),
    "cancel_jobs": ({"tags": (), "job_ids": ()}, {"queue": None, "held": True}),
    "acknowledge_cancellation": ({"job_id": NEEDED, "was_executing": NEEDED}, {"lease": None}),
    "mark_worker_unresponsive": ({"assignee_id": NEEDED}, {}),
    "reclaim_expired_leases": ({"limit": 1000}, {}),
    "time_out_cancellations": ({"timeout": NEEDED, "limit": 1000}, {}),
    "now": ({}, {}),
    "get_job": ({"job_id": NEEDED}, {}),
    "facts_about": ({"job_id": NEEDED}, {}),
    "list_jobs": ({"filter": NEEDED}, {"limit": 100, "cursor": None, "oldest_first": False, "due": None}),
    "get_job_stats": ({"tags": ()}, {"queue": None}),
    "count_jobs": ({"queue": None}, {}),
    "count_delayed": ({"queue": None}, {}),
    "next_due": ({"queues": None}, {"after": None}),
    "retry_job": ({"job_id": NEEDED}, {"reset": True, "actor": ""}),
    "promote_job": ({"job_id": NEEDED}, {}),
    "set_progress": ({"job_id": NEEDED, "value": NEEDED}, {"lease": None}),
    "append_log": ({"job_id": NEEDED, "message": NEEDED, "level": "info"}, {"lease": None}),
    "read_logs": ({"job_id": NEEDED, "after": 0}, {}),
    "save_checkpoint": ({"job_id": NEEDED, "data": NEEDED}, {"lease": None}),
    "reset_running_jobs": ({}, {"queue": None}),
    "cleanup_expired_jobs": ({"ttl": NEEDED}, {"queue": None}),
    "delete_jobs": ({"tags": (), "job_ids": ()}, {"queue": None}),
    "read_events": ({"after": None, "limit": 1000}, {"queue": None}),
    "end_of_events": ({}, {}),
    "wait_for_change": ({"timeout": NEEDED, "after": None}, {}),
    "pause_queue": ({"queue": NEEDED}, {}),
    "resume_queue": ({"queue": NEEDED}, {}),
    # a limit that is not named stays as it is; None is no limit
    "set_limits": (
        {"queue": NEEDED},
        {"running": UNCHANGED, "per_key": UNCHANGED, "rate": UNCHANGED, "rate_per_key": UNCHANGED},
    ),
    "list_queues": ({}, {}),
    "next_firing": ({}, {}),
    "announce_due_jobs": ({"limit": 1000}, {}),
    "record_worker_event": ({"event": NEEDED, "worker_id": NEEDED}, {"queue": "", "detail": None}),
    "close": ({}, {}),
}
# the surface names these verbs and leaves their parameters open
VERBS_BY_NAME_ONLY = {
    "put_schedule",
    "get_schedules",
    "get_schedule",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "remove_schedule",
    "fire_due_schedules",
    "heartbeat_worker",
    "list_workers",
}

# fields in any order, with their defaults where the surface gives one
FIELDS: dict[type, dict[str, Any]] = {
    Job: {
        "id": ...,
        "uid": ...,
        "queue": "default",
        "type": ...,
        "payload": ...,
        "tags": ...,
        "status": ...,
        "priority": 0,
        "lifo": False,
        "run_at": None,
        "delay": None,
        "expires_at": None,
        "timeout": None,
        "max_attempts": 0,
        "max_crashes": None,
        "executions": 0,
        "retry_count": 0,
        "crashes": 0,
        "epoch": 0,
        "created_at": None,
        "updated_at": None,
        "started_at": None,
        "finalized_at": None,
        "last_retry_at": None,
        "assigned_at": None,
        "assignee_id": None,
        "lease": None,
        "result": None,
        "error_message": "",
        "progress": None,
        "checkpoint": None,
        "idempotency_key": None,
        "concurrency_key": None,
        "parent_id": None,
        "depends_on": (),
        "on_dependency_failure": "wait",
        "schedule_id": None,
        "options": ...,
    },
    Lease: {"token": ..., "epoch": ..., "expires_at": ..., "cancel_requested": False},
    JobStats: dict.fromkeys(
        (
            "tags",
            "total_jobs",
            "pending_jobs",
            "running_jobs",
            "completed_jobs",
            "stopped_jobs",
            "failed_jobs",
            "total_retries",
        ),
        ...,
    ),
    JobEvent: dict.fromkeys(
        (
            "cursor",
            "job_uid",
            "job_id",
            "job_seq",
            "queue",
            "type",
            "event",
            "from_status",
            "to_status",
            "epoch",
            "execution",
            "assignee_id",
            "actor",
            "occurred_at",
            "detail",
        ),
        ...,
    ),
    # no condition is the default of every one of them
    JobFilter: {
        "statuses": (),
        "queues": (),
        "types": (),
        "tags": (),
        "ids": (),
        "text": "",
        "data": {},
        "error": "",
        "assignee_id": None,
        "parent_id": None,
        "schedule_id": None,
        "concurrency_key": None,
        "created_after": None,
        "created_before": None,
    },
    Outcome: {"job_id": ..., "lease": ..., "verb": ..., "result": None, "error": "", "retry_at": None},
    SettleReport: {"settled": ..., "refused": ..., "freed": ...},
    Page: {"items": ..., "next_cursor": ...},
    Rate: {"count": ..., "per": ...},
    Repeat: {
        "cron": None,
        "every": None,
        "tz": "UTC",
        "limit": None,
        "start": None,
        "end": None,
        "on_gap": "next",
        "on_overlap": "first",
        "catch_up": "last",
        "immediate": False,
    },
}
# records that callers write by position, in this order
WRITTEN_BY_POSITION = (Lease, Outcome, Page, Rate, JobStats, JobEvent, SettleReport)

IMPORTED_FROM_LONGSHORE = {
    "Dependency",
    "Harbor",
    "Queue",
    "Worker",
    "Scheduler",
    "Job",
    "JobStatus",
    "JobStats",
    "JobEvent",
    "JobFilter",
    "Lease",
    "Outcome",
    "Repeat",
    "Rate",
    "connect",
    "current_job",
    "exponential",
    "fixed",
    "by_error",
    "Snooze",
    "Middleware",
    "HeldClock",
    "Call",
    "Flow",
    "FlowHandle",
    "JobHandle",
    "ProcessExecutor",
    "RunningJob",
    "Schedule",
    "Step",
    "Supervisor",
    "Task",
    "Tracing",
    "acting",
    "run_until_stopped",
    "set_up_logging",
}


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# -- the verbs of a backend


@pytest.mark.parametrize("verb", [*SIGNATURES, *sorted(VERBS_BY_NAME_ONLY)])
def test_every_verb_of_a_backend_exists_and_is_awaited(verb: str) -> None:
    # B-API-01
    assert inspect.iscoroutinefunction(getattr(Backend, verb))


@pytest.mark.parametrize("verb", SIGNATURES)
def test_a_verb_takes_what_the_surface_says_and_anything_more_is_an_optional_keyword(verb: str) -> None:
    # B-API-01
    positional, keywords = SIGNATURES[verb]
    found = list(inspect.signature(getattr(Backend, verb)).parameters.values())[1:]
    by_position = {p.name: p.default for p in found if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
    by_keyword = {p.name: p.default for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert list(by_position.items()) == list(positional.items())
    assert {name: by_keyword.get(name, "absent") for name in keywords} == keywords
    more = by_keyword.keys() - keywords.keys()
    assert [name for name in more if by_keyword[name] is NEEDED] == []
    assert len(by_position) + len(by_keyword) == len(found), "no *args, no **kwargs, nothing by position only"


def test_every_operation_of_a_backend_is_abstract() -> None:
    verbs = set(SIGNATURES) | VERBS_BY_NAME_ONLY
    assert verbs - Backend.__abstractmethods__ == {"settle_and_dequeue"}, "two verbs one after the other will do"


def test_every_public_method_of_a_backend_is_async() -> None:
    methods = [name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in methods if not inspect.iscoroutinefunction(getattr(Backend, name))] == []


def test_a_backend_is_closed_by_leaving_it() -> None:
    assert inspect.iscoroutinefunction(Backend.__aenter__)
    assert inspect.iscoroutinefunction(Backend.__aexit__)


def test_connect_takes_a_url_a_clock_and_options() -> None:
    parameters = inspect.signature(longshore.connect).parameters
    assert list(parameters)[:2] == ["url", "clock"]
    assert parameters["clock"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["clock"].default is None
    assert [p.name for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD] == ["options"]


# -- the records


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_a_record_has_the_fields_and_defaults_that_are_promised_and_no_others(record: type) -> None:
    # Q-JOB-01 Q-JOB-02 Q-JOB-03 Q-JOB-04 Q-JOB-05 Q-JOB-06 Q-JOB-09 Q-JOB-10 Q-JOB-11 Q-JOB-12 Q-STT-01 B-CON-10
    fields = {field.name: default_of(field) for field in dataclasses.fields(record)}
    assert set(fields) == set(FIELDS[record])
    promised = {name: default for name, default in FIELDS[record].items() if default is not ...}
    assert {name: fields[name] for name in promised} == promised


@pytest.mark.parametrize("record", WRITTEN_BY_POSITION, ids=lambda record: record.__name__)
def test_the_fields_of_a_small_record_stand_in_the_order_they_are_promised_in(record: type) -> None:
    assert [field.name for field in dataclasses.fields(record)] == list(FIELDS[record])


@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_a_record_is_immutable(record: type) -> None:
    assert record.__dataclass_params__.frozen  # type: ignore[attr-defined]  # every dataclass has it


def test_the_job_of_the_first_page_of_the_manual_is_a_good_one() -> None:
    tags: Any = ["a"]
    job = longshore.Job(id="j1", type="email", payload=b"{}", tags=tags)
    assert (job.tags, job.data) == (("a",), {})
    assert job.replace(priority=1).priority == 1


# -- the names


@pytest.mark.parametrize("name", sorted(IMPORTED_FROM_LONGSHORE))
def test_a_promised_name_is_imported_from_longshore(name: str) -> None:
    assert getattr(longshore, name) is not None
    assert name in longshore.__all__


def test_longshore_offers_no_name_that_is_not_promised() -> None:
    assert set(longshore.__all__) - IMPORTED_FROM_LONGSHORE == set()


def test_a_name_that_does_not_exist_is_an_attribute_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="Hrabor"):
        _ = longshore.Hrabor
