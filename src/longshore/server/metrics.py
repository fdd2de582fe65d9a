"""Metrics for Prometheus: counters follow the event log, gauges are read from the store for each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as Counted

from longshore.backends.base import Backend, QueueInfo, WorkerInfo
from longshore.core.explain import HEARTBEAT_WITHIN
from longshore.core.job import JobEvent
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.times import from_micros
from longshore.core.transitions import LEASE_RAN_OUT
from longshore.server.rate_limit import LRU

MOST_QUEUES = 100
OTHERS = "(others)"
"""The label of all further queues: clients choose queue names, so the number of labels must be limited."""
_MOST_REMEMBERED = 50_000
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)

_ENDS = {
    "job.completed": "completed",
    "job.failed": "failed",
    "job.stopped": "stopped",
    "job.stalled": "crashed",
    "job.released": "released",
}
"""The outcome of an attempt, by its event."""


class Seen(NamedTuple):
    """A snapshot of the store."""

    at: datetime
    queues: Sequence[QueueInfo]
    oldest: dict[str, datetime | None]
    """For each label, the time since which the oldest job of its queues is due."""
    workers: Sequence[WorkerInfo]


async def look(backend: Backend, label: Callable[[str], str]) -> Seen:
    """Read the store for one request: a few index lookups per queue."""
    queues = await backend.list_queues()
    waiting: dict[str, list[str]] = {}
    for queue in queues:
        alike = waiting.setdefault(label(queue.name), [])
        if any(queue.counts.get(status) for status in ELIGIBLE):
            alike.append(queue.name)
    oldest = {name: await backend.next_due(alike, after=_ALWAYS) if alike else None for name, alike in waiting.items()}
    return Seen(await backend.now(), queues, oldest, await backend.list_workers())


class Figures:
    """The metrics of one server. Counters start with the server and count the events of all processes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._labels: set[str] = set()
        self._since: LRU[int, datetime] = LRU(_MOST_REMEMBERED)
        self._active: LRU[int, datetime] = LRU(_MOST_REMEMBERED)
        self._events = self._counter("longshore_events", "Events in the log", "event")
        self._added = self._counter("longshore_jobs_added", "Jobs stored", "queue")
        self._runs = self._counter("longshore_runs", "Attempts that ended, by outcome", "queue", "outcome")
        self._dead = self._counter("longshore_jobs_dead", "Jobs that failed permanently", "queue")
        self._lost = self._counter("longshore_leases_lost", "Leases that expired while a job was running", "queue")
        self._wait = self._histogram(
            "longshore_job_wait_seconds", "Seconds from due to the start of the attempt", "queue"
        )
        self._run = self._histogram(
            "longshore_job_run_seconds", "Seconds from the start of an attempt to its end", "queue"
        )
        self._requests = self._counter("longshore_http_requests", "Requests", "method", "route", "status")
        self._seconds = self._histogram(
            "longshore_http_request_seconds", "Seconds until the response was complete", "route"
        )
        self._jobs = self._gauge("longshore_jobs", "Jobs in each status", "queue", "status")
        self._oldest = self._gauge("longshore_oldest_waiting_seconds", "Age of the oldest due job", "queue")
        self._paused = self._gauge("longshore_queue_paused", "1 while a queue is paused", "queue")
        self._workers = self._gauge("longshore_workers", "Workers with a heartbeat in the last minute", "state")
        self._streams = self._gauge("longshore_streams", "Open streams and long polls")
        self._lag = self._gauge("longshore_log_silence_seconds", "Seconds since the event log was last read")

    def _counter(self, name: str, text: str, *labels: str) -> Counted:
        return Counted(name, text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=_BUCKETS, registry=self._registry)

    def label(self, queue: str) -> str:
        """Return the queue's name if it is one of the first 100 seen, otherwise `OTHERS`."""
        if queue in self._labels:
            return queue
        if len(self._labels) >= MOST_QUEUES:
            return OTHERS
        self._labels.add(queue)
        return queue

    # -- counters

    def served(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        known = method if method in _METHODS else "OTHER"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def heard(self, events: Sequence[JobEvent]) -> None:
        """Count new events."""
        for (name, queue), times in Counter((event.event, event.queue) for event in events).items():
            self._events.labels(name).inc(times)
            if name == "job.added":
                self._added.labels(self.label(queue)).inc(times)
            elif name == "job.dead":
                self._dead.labels(self.label(queue)).inc(times)
        for event in events:
            if event.job_uid is not None and event.event not in _NOTES:
                self._time(event, event.job_uid, self.label(event.queue))

    def _time(self, event: JobEvent, uid: int, queue: str) -> None:
        """Observe waits and run times."""
        name = event.event
        if name == "job.active":
            since = self._since.pop(uid, None)
            if since is not None:
                self._wait.labels(queue).observe(max(0.0, (event.occurred_at - since).total_seconds()))
            self._active.put(uid, event.occurred_at)
        elif event.from_status in HOLDS_CAPACITY and event.to_status not in HOLDS_CAPACITY and event.to_status:
            self._runs.labels(queue, _ENDS.get(name, "other")).inc()
            began = self._active.pop(uid, None)
            if began is not None:
                self._run.labels(queue).observe(max(0.0, (event.occurred_at - began).total_seconds()))
            if name == "job.stalled" and event.detail.get("reason") == LEASE_RAN_OUT:
                self._lost.labels(queue).inc()
        if event.to_status in ELIGIBLE:
            self._since.put(uid, event.occurred_at)
        elif name == "job.delayed" and "until" in event.detail:  # the wait begins when the job is due
            self._since.put(uid, from_micros(event.detail["until"]))
        elif name == "job.promoted":  # promoted by a caller, or due and announced late
            self._since.put(uid, min(event.occurred_at, self._since.get(uid, event.occurred_at)))

    # -- gauges

    def written(self, seen: Seen, *, streams: int, silence: float) -> bytes:
        """Return all metrics in the format of Prometheus."""
        for gauge in (self._jobs, self._oldest, self._paused, self._workers):
            gauge.clear()
        paused: dict[str, bool] = {}
        for queue in seen.queues:
            label = self.label(queue.name)
            for status in JobStatus:
                self._jobs.labels(label, status.value).inc(queue.counts.get(status, 0))
            paused[label] = queue.paused or paused.get(label, False)
        for label, is_paused in paused.items():
            self._paused.labels(label).set(is_paused)
        for label, since in seen.oldest.items():
            age = 0.0 if since is None else max(0.0, (seen.at - since).total_seconds())
            self._oldest.labels(label).set(age)
        for worker in seen.workers:
            if worker.seen_at is not None and seen.at - worker.seen_at <= HEARTBEAT_WITHIN:
                self._workers.labels(worker.state if worker.state in _STATES else "other").inc()
        self._streams.set(streams)
        self._lag.set(silence)
        return generate_latest(self._registry)


_STATES = frozenset({"running", "draining", "stopped"})
"""States with their own label; other states share one, so that no worker can add metrics."""
_NOTES = frozenset({"job.log_added", "job.progress"})
"""Events during an attempt that neither start nor end it."""
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
