"""What one look tells of a job and of all that may keep it from running."""

from __future__ import annotations

import json
from datetime import timedelta

from longshore.backends.transaction import KeyState, QueueState
from longshore.backends.view import View
from longshore.core.errors import JobNotFound
from longshore.core.explain import (
    MOST_COUNTED,
    MOST_ENDS,
    MOST_LISTED,
    RECENT,
    Dependency,
    Facts,
    Holder,
    Usage,
    WorkerSeen,
)
from longshore.core.flows import step_of
from longshore.core.job_record import Record, job_of
from longshore.core.limits import Rate, Window
from longshore.core.status import ELIGIBLE, JobStatus
from longshore.core.times import from_micros

_PAGE, _PAGES_READ = 1_000, 10
"""How much of a job's history is read to tell why it was given back: days of one that comes back every minute."""


def facts_about(view: View, job_id: str) -> Facts:
    """The facts, or JobNotFound."""
    record = view.job(job_id)
    if record is None:
        raise JobNotFound(job_id)
    now = view.time()
    job, moment, eligible_at = job_of(record), from_micros(now), from_micros(record.eligible_at)
    if record.status is JobStatus.WAITING_CHILDREN:
        return Facts(moment, job, eligible_at, waits_for=_waits_for(view, job_id), deps_left=record.deps_left)
    if record.status not in ELIGIBLE:
        return Facts(moment, job, eligible_at, clock_step=view.clock_step())
    queue = view.queue_states([record.queue])[record.queue]
    return Facts(
        moment,
        job,
        eligible_at,
        paused=queue.paused,
        queue=_usage_of_queue(view, queue, now),
        key=_usage_of_key(view, queue, record, now),
        ahead=view.ahead_of(record, now, MOST_COUNTED),
        workers=tuple(
            WorkerSeen(w.id, w.queues, w.tags, w.concurrency, w.running, w.state, w.seen_at, w.types)
            for w in view.workers()
        ),
        clock_step=view.clock_step(),
        recent_ends=tuple(
            map(from_micros, view.recent_ends(record.queue, now - RECENT // timedelta(microseconds=1), MOST_ENDS))
        ),
        given_back=_why_given_back(view, record, now),
    )


def _why_given_back(view: View, record: Record, now: int) -> str:
    """The reason that stands in the log, which is the only place where it is kept; nothing if it is due."""
    if record.status is not JobStatus.UNKNOWN_RETRY or record.eligible_at <= now:
        return ""
    reason, after = "", 0
    for _ in range(_PAGES_READ):
        page = view.events(after, _PAGE, None, record.id)
        for after, event in page:  # noqa: B007 - the last one is where the next page begins
            # on PostgreSQL the newest event may not be readable yet: an older one says nothing about this release
            if event.event in ("job.released", "job.stalled") and event.epoch == record.epoch:
                detail = json.loads(event.detail or "{}")
                reason = detail.get("reason", "") if event.event == "job.released" else ""
        if len(page) < _PAGE:
            break
    return str(reason)


def _waits_for(view: View, job_id: str) -> tuple[Dependency, ...]:
    names = [edge.depends_on for edge in view.edges_from(job_id) if edge.state != "satisfied"][:MOST_LISTED]
    known = view.jobs_seen(names)
    return tuple(
        Dependency(name, known[name].status, step_of(job_of(known[name]))) if name in known else Dependency(name, None)
        for name in names
    )


def _usage_of_queue(view: View, queue: QueueState, now: int) -> Usage:
    holders = _holders(view, queue, None, queue.running_limit, queue.holding)
    return _usage(queue.running_limit, queue.holding, holders, queue.rate, queue.window, now)


def _usage_of_key(view: View, queue: QueueState, record: Record, now: int) -> Usage:
    key = record.concurrency_key
    if key is None or not queue.limits_keys:
        return Usage()
    state = view.key_states(queue.name, [key]).get(key) or KeyState(queue.name, key)
    holders = _holders(view, queue, key, queue.per_key, state.holding)
    return _usage(queue.per_key, state.holding, holders, queue.rate_per_key, state.window, now)


def _holders(view: View, queue: QueueState, key: str | None, limit: int | None, running: int) -> tuple[Holder, ...]:
    """Who has the room, if there is none left."""
    full = limit is not None and running >= limit
    return tuple(view.holders(queue.name, key, MOST_LISTED)) if full else ()


def _usage(
    limit: int | None, running: int, holders: tuple[Holder, ...], rate: Rate | None, window: Window, now: int
) -> Usage:
    if rate is None:
        return Usage(limit=limit, running=running, holders=holders)
    present = window.at(rate, now)
    ends = from_micros(present.end(rate))
    return Usage(limit=limit, running=running, holders=holders, rate=rate, started=present.count, window_ends=ends)
