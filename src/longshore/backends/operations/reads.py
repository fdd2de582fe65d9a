"""Reads: jobs, lists, counts, events and the facts that explain a job, answered from a store's reader."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from longshore.backends.base import Page, QueueInfo
from longshore.backends.port import (
    KeyState,
    LogEnds,
    QueueState,
    Reader,
    Search,
    Tally,
    event_cursor,
    event_number,
    job_cursor,
    job_number,
    operation,
)
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
from longshore.core.filters import JobFilter
from longshore.core.flows import step_of
from longshore.core.job import Job, JobEvent, JobStats, LogEntry
from longshore.core.job_record import Record, job_of
from longshore.core.limits import Rate, Window, free_slots_in
from longshore.core.status import ELIGIBLE, FINAL, JobStatus
from longshore.core.times import from_micros, optional_moment
from longshore.core.transitions import EventRow

_PAGE, _PAGES_READ = 1_000, 10
"""How much of a job's event history is read for the reason of a release: days of one that is released every minute."""


@operation()
def facts_about(view: Reader, job_id: str) -> Facts:
    """The facts that explain the job; raise JobNotFound."""
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
        given_back=_release_reason(view, record, now),
    )


def _release_reason(view: Reader, record: Record, now: int) -> str:
    """The reason of the last release, which only the event log has; empty if the job is due."""
    if record.status is not JobStatus.UNKNOWN_RETRY or record.eligible_at <= now:
        return ""
    reason, after = "", 0
    for _ in range(_PAGES_READ):
        page = view.events(after, _PAGE, None, record.id)
        for after, event in page:  # noqa: B007 - the next page starts after the last one
            # on PostgreSQL the newest event may not be readable yet; an older one is about another release
            if event.event in ("job.released", "job.stalled") and event.epoch == record.epoch:
                detail = json.loads(event.detail or "{}")
                reason = detail.get("reason", "") if event.event == "job.released" else ""
        if len(page) < _PAGE:
            break
    return str(reason)


def _waits_for(view: Reader, job_id: str) -> tuple[Dependency, ...]:
    names = [edge.depends_on for edge in view.edges_from(job_id) if edge.state != "satisfied"][:MOST_LISTED]
    known = view.jobs_seen(names)
    return tuple(
        Dependency(name, known[name].status, step_of(job_of(known[name]))) if name in known else Dependency(name, None)
        for name in names
    )


def _usage_of_queue(view: Reader, queue: QueueState, now: int) -> Usage:
    holders = _holders(view, queue, None, queue.running_limit, queue.running_count)
    return _usage(queue.running_limit, queue.running_count, holders, queue.rate, queue.window, now)


def _usage_of_key(view: Reader, queue: QueueState, record: Record, now: int) -> Usage:
    key = record.concurrency_key
    if key is None or not queue.limits_keys:
        return Usage()
    state = view.key_states(queue.name, [key]).get(key) or KeyState(queue.name, key)
    holders = _holders(view, queue, key, queue.per_key, state.running_count)
    return _usage(queue.per_key, state.running_count, holders, queue.rate_per_key, state.window, now)


def _holders(view: Reader, queue: QueueState, key: str | None, limit: int | None, running: int) -> tuple[Holder, ...]:
    """The running jobs that use the slots, if none is free."""
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


S = JobStatus


@operation()
def now(view: Reader) -> datetime:
    """The store's time."""
    return from_micros(view.time())


@operation()
def get_job(view: Reader, job_id: str) -> Job:
    """The job; raise JobNotFound."""
    record = view.job(job_id)
    if record is None:
        raise JobNotFound(job_id)
    return job_of(record)


@operation()
def list_jobs(
    view: Reader, wanted: JobFilter, limit: int, cursor: str | None, oldest_first: bool, due: bool | None
) -> Page:
    """One page, and the cursor of the next one."""
    now = 0 if due is None else view.time()
    found = view.page(Search(wanted, None if cursor is None else job_number(cursor), limit + 1, oldest_first, due, now))
    more = len(found) > limit
    shown = found[:limit]
    return Page([job_of(record) for record in shown], job_cursor(shown[-1].uid) if more else None)


@operation()
def job_stats(view: Reader, tags: Sequence[str], queue: str | None) -> JobStats:
    """The counts of `JobStats`."""
    tallies = view.tallies(tags, queue)

    def jobs(*statuses: JobStatus) -> int:
        return sum(tallies.get(status, Tally(0, 0)).jobs for status in statuses)

    return JobStats(
        tags=tuple(tags),
        total_jobs=sum(tally.jobs for tally in tallies.values()),
        pending_jobs=jobs(S.INITIAL_PENDING),
        running_jobs=jobs(S.RUNNING),
        completed_jobs=jobs(S.COMPLETED),
        stopped_jobs=jobs(*(FINAL - {S.COMPLETED})),
        failed_jobs=jobs(S.FAILED_RETRY, S.UNKNOWN_RETRY),
        total_retries=sum(tally.retries for tally in tallies.values()),
    )


@operation()
def count_jobs(view: Reader, queue: str | None) -> dict[JobStatus, int]:
    """The count of every status, also if it is 0."""
    totals = dict.fromkeys(JobStatus, 0)
    for name, counts in view.counts_by_queue().items():
        if queue is None or name == queue:
            for status, jobs in counts.items():
                totals[status] += jobs
    return totals


@operation()
def count_delayed(view: Reader, queue: str | None) -> int:
    """The number of delayed jobs."""
    return view.count_delayed(None if queue is None else [queue], view.time())


@operation()
def next_due(view: Reader, queues: Sequence[str] | None, after: int | None) -> datetime | None:
    """When the first delayed job is due after this time, or a used-up rate has a new window."""
    since = view.time() if after is None else after
    coming = [view.next_due(queues, since)]
    for state in view.rated_queues():  # few queues have a rate
        if queues is not None and state.name not in queues:
            continue
        if state.rate is not None and free_slots_in(state.rate, state.window, since) == 0:
            coming.append(state.window.end(state.rate))
        if state.rate_per_key is not None:
            coming.append(view.next_window_end(state.name, since))
    return optional_moment(min((moment for moment in coming if moment is not None and moment > since), default=None))


@operation()
def list_queues(view: Reader) -> list[QueueInfo]:
    """Every queue, by name."""
    counts = view.counts_by_queue()
    return [
        QueueInfo(
            name=name,
            paused=state.paused,
            running=state.running_limit,
            per_key=state.per_key,
            rate=state.rate,
            rate_per_key=state.rate_per_key,
            counts=dict.fromkeys(JobStatus, 0) | counts.get(name, {}),
        )
        for name, state in sorted(view.queue_states(None).items())
    ]


@operation()
def next_firing(view: Reader) -> datetime | None:
    """When a schedule fires next."""
    return optional_moment(view.next_firing())


@operation()
def read_logs(view: Reader, job_id: str, after: int) -> list[LogEntry]:
    """The job's log; raise JobNotFound."""
    lines = view.logs(job_id, after)
    if lines is None:
        raise JobNotFound(job_id)
    return lines


@operation(follows_log=True)
def read_events(view: Reader, after: str | None, limit: int, queue: str | None, job_id: str | None) -> list[JobEvent]:
    """Events after a cursor."""
    ends = view.log_ends(queue)
    rows = view.events(event_number(after, ends), limit, queue, job_id)
    return [_event_of(ends, number, row) for number, row in rows]


@operation(follows_log=True)
def end_of_events(view: Reader) -> str:
    """The cursor of the last event that can be read now."""
    ends = view.log_ends(None)
    return event_cursor(ends, ends.last)


@operation(follows_log=True)
def has_events_after(view: Reader, after: str) -> bool:
    """Whether the log has events after this cursor, pruned or not: reading reports a pruned one."""
    ends = view.log_ends(None)
    return ends.last > event_number(after, ends._replace(pruned_through=0))


_MutableEvent = dataclasses.make_dataclass(
    "_MutableEvent", [(spec.name, spec.type) for spec in dataclasses.fields(JobEvent)], slots=True
)
"""A `JobEvent` that is not frozen: filled at once and then turned into one, in a third of the time."""


def _event_of(ends: LogEnds, number: int, row: EventRow) -> JobEvent:
    detail = {} if row.detail is None else json.loads(row.detail)
    event = _MutableEvent(event_cursor(ends, number), *row[:-2], from_micros(row.occurred_at), detail)
    event.__class__ = JobEvent
    return cast(JobEvent, event)
