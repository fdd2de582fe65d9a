"""Over the wire, one look at all that may keep a job from running."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from longshore.backends.remote.forms import FLAG, TIME, Form, Json, stored_time, write_time
from longshore.backends.remote.records.jobs import JOB, read_job, write_job
from longshore.backends.remote.records.queues import read_rate, write_rate
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.clock import ClockStep
from longshore.core.explain import Dependency, Facts, Holder, Usage, WorkerSeen
from longshore.core.status import JobStatus


def _write_usage(usage: Usage) -> dict[str, Any]:
    return {
        "limit": usage.limit,
        "running": usage.running,
        "holders": [
            {"job_id": one.job_id, "worker": one.worker, "since": None if one.since is None else write_time(one.since)}
            for one in usage.holders
        ],
        "rate": write_rate(usage.rate),
        "started": usage.started,
        "window_ends": None if usage.window_ends is None else write_time(usage.window_ends),
    }


def _read_usage(told: Json) -> Usage:
    return Usage(
        told["limit"],
        told["running"],
        tuple(Holder(one["job_id"], one["worker"], stored_time(one["since"])) for one in told["holders"]),
        read_rate("rate", told["rate"]),
        told["started"],
        stored_time(told["window_ends"]),
    )


def _write_facts(_: str, facts: Facts) -> dict[str, Any]:
    return {
        "now": write_time(facts.now),
        "job": write_job(facts.job),
        "eligible_at": write_time(facts.eligible_at),
        "paused": facts.paused,
        "queue": _write_usage(facts.queue),
        "key": _write_usage(facts.key),
        "waits_for": [{"job_id": one.job_id, "status": one.status, "step": one.step} for one in facts.waits_for],
        "deps_left": facts.deps_left,
        "ahead": facts.ahead,
        "workers": [
            {
                **{
                    name: getattr(one, name)
                    for name in ("id", "queues", "tags", "concurrency", "running", "state", "types")
                },
                "seen_at": None if one.seen_at is None else write_time(one.seen_at),
            }
            for one in facts.workers
        ],
        "recent_ends": [write_time(end) for end in facts.recent_ends],
        "given_back": facts.given_back,
        "clock_step": None
        if facts.clock_step is None
        else {"at": write_time(facts.clock_step.at), "seconds": facts.clock_step.by.total_seconds()},
    }


def _read_facts(_: str, told: Json) -> Facts:
    return Facts(
        datetime.fromisoformat(told["now"]),
        read_job("", told["job"]),
        datetime.fromisoformat(told["eligible_at"]),
        told["paused"],
        _read_usage(told["queue"]),
        _read_usage(told["key"]),
        tuple(
            Dependency(one["job_id"], None if one["status"] is None else JobStatus(one["status"]), one["step"])
            for one in told["waits_for"]
        ),
        told["deps_left"],
        told["ahead"],
        tuple(
            WorkerSeen(
                one["id"],
                tuple(one["queues"]),
                tuple(one["tags"]),
                one["concurrency"],
                one["running"],
                one["state"],
                stored_time(one["seen_at"]),
                None if one.get("types") is None else tuple(one["types"]),
            )
            for one in told["workers"]
        ),
        given_back=told.get("given_back", ""),
        recent_ends=tuple(datetime.fromisoformat(end) for end in told.get("recent_ends", ())),
        clock_step=_read_clock_step(told.get("clock_step")),
    )


def _read_clock_step(told: Json) -> ClockStep | None:
    return None if told is None else ClockStep(datetime.fromisoformat(told["at"]), timedelta(seconds=told["seconds"]))


FACTS: Form[Facts] = Form(
    _write_facts,
    _read_facts,
    a_record(
        "JobFacts",
        "One look at all that may keep a job from running.",
        ["now", "job", "eligible_at", "paused", "queue", "key", "waits_for", "deps_left", "ahead", "workers"],
        now=TIME.schema,
        job=JOB.schema,
        eligible_at=TIME.schema,
        paused=FLAG.schema,
        queue={"type": "object"},
        key={"type": "object"},
        waits_for={"type": "array", "items": {"type": "object"}},
        deps_left=NUMBER,
        ahead=NUMBER,
        workers={"type": "array", "items": {"type": "object"}},
        recent_ends={"type": "array", "items": TIME.schema},
        given_back=WORD,
        clock_step=or_null({"type": "object"}),
    ),
)
