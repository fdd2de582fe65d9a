"""Checks a history of events: it reads the log in order, and reports what is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from longshore.core.flows import policy_of
from longshore.core.job import Job, JobEvent
from longshore.core.status import FINAL, HOLDS_CAPACITY, LEGAL_PAIRS, JobStatus
from longshore.core.times import to_micros

FIRST_STATUSES = frozenset({JobStatus.INITIAL_PENDING, JobStatus.CREATED, JobStatus.WAITING_CHILDREN})
_NEW_TIME = frozenset({"job.failed", "job.stalled", "job.released", "job.retried", "job.promoted"})
"""Events after which an earlier `job.delayed` no longer applies; a new one follows if the job must wait again."""


@dataclass(slots=True)
class Life:
    """The history of one record so far, by its uid."""

    id: str
    queue: str
    key: str | None = None
    status: JobStatus | None = None
    seq: int = 0
    epoch: int = 0
    execution: int = 0
    failures: int = 0
    crashes: int = 0
    crashes_told: bool = True
    """False after a crash during a cancellation: that event has no number."""
    not_before: int | None = None
    ended: Counter[int] = field(default_factory=Counter)
    """How often each claim ended."""
    removed: bool = False


@dataclass(slots=True)
class Limits:
    """The current limits of a queue."""

    running: int | None = None
    per_key: int | None = None


class History:
    """Checks a log event by event. `wrong` holds a sentence for each violation."""

    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}
        self.wrong: list[str] = []
        self.events = 0
        self._limits: dict[str, Limits] = defaultdict(Limits)
        self._holding: Counter[str] = Counter()
        self._holding_key: Counter[tuple[str, str]] = Counter()
        self._keys: dict[int, str | None] = {}

    # -- what the log does not contain

    def limit(self, queue: str, *, running: int | None, per_key: int | None) -> None:
        """Apply these limits from here on; jobs that already run may exceed them."""
        self._limits[queue] = Limits(running, per_key)

    def keyed(self, jobs: Iterable[Job]) -> None:
        """Set the concurrency keys of jobs, before their claims are read."""
        for job in jobs:
            self._keys[job.uid] = job.concurrency_key
            if job.uid in self.lives:
                self.lives[job.uid].key = job.concurrency_key

    # -- the log

    def feed(self, events: Iterable[JobEvent]) -> None:
        """Check these events, which follow the earlier ones."""
        for event in events:
            self.events += 1
            if event.job_uid is not None:
                self._judge(event, event.job_uid)

    def _judge(self, event: JobEvent, uid: int) -> None:
        life = self.lives.get(uid)
        if life is None:
            life = self.lives[uid] = Life(event.job_id or "", event.queue, self._keys.get(uid))
        event_text = f"job {life.id!r} (uid {uid}), event {event.job_seq} {event.event}"
        if event.job_seq != life.seq + 1:
            self.wrong.append(f"{event_text}: follows event {life.seq}")
        life.seq = event.job_seq
        if (event.job_id, event.queue) != (life.id, life.queue):
            self.wrong.append(f"{event_text}: names job {event.job_id!r} of {event.queue!r}, was of {life.queue!r}")
        if life.removed:
            self.wrong.append(f"{event_text}: came after the job was removed")
        if event.to_status is not None:
            self._judge_move(event, life, event_text)
        self._judge_counters(event, life, event_text)
        self._judge_time(event, life, event_text)
        life.removed = event.event == "job.removed"
        if life.removed and life.status not in FINAL:
            self.wrong.append(f"{event_text}: it was {life.status}, and only a final job is removed")

    def _judge_move(self, event: JobEvent, life: Life, event_text: str) -> None:
        source, target = event.from_status, event.to_status
        assert target is not None  # checked by the caller
        if life.status is None:
            if source is not None or target not in FIRST_STATUSES:
                self.wrong.append(f"{event_text}: the history begins with {source} -> {target}")
        elif source is not life.status:
            self.wrong.append(f"{event_text}: moves from {source}, but it was {life.status}")
        elif (source, target) not in LEGAL_PAIRS:
            self.wrong.append(f"{event_text}: {source} -> {target} is not a legal transition")
        held, holds = life.status in HOLDS_CAPACITY, target in HOLDS_CAPACITY
        if target is JobStatus.RUNNING:
            if event.epoch <= life.epoch:
                self.wrong.append(f"{event_text}: claimed with epoch {event.epoch}, the last was {life.epoch}")
        elif event.epoch != life.epoch:
            self.wrong.append(f"{event_text}: carries epoch {event.epoch}, the job's is {life.epoch}")
        life.epoch = event.epoch
        if held and not holds:
            life.ended[event.epoch] += 1
            if life.ended[event.epoch] > 1:
                self.wrong.append(f"{event_text}: claim {event.epoch} ended {life.ended[event.epoch]} times")
        life.status = target
        self._hold(life, holds - held, event_text)

    def _hold(self, life: Life, more: int, event_text: str) -> None:
        if not more:
            return
        limits = self._limits[life.queue]
        self._holding[life.queue] += more
        if more > 0 and limits.running is not None and self._holding[life.queue] > limits.running:
            self.wrong.append(
                f"{event_text}: {self._holding[life.queue]} run in {life.queue!r}, its limit is {limits.running}"
            )
        if life.key is not None:
            key = (life.queue, life.key)
            self._holding_key[key] += more
            if more > 0 and limits.per_key is not None and self._holding_key[key] > limits.per_key:
                self.wrong.append(
                    f"{event_text}: {self._holding_key[key]} run with key {key}, its limit is {limits.per_key}"
                )
        if self._holding[life.queue] < 0:
            self.wrong.append(f"{event_text}: the capacity of {life.queue!r} fell below zero")

    def _judge_counters(self, event: JobEvent, life: Life, event_text: str) -> None:
        claimed = event.event == "job.active"
        if event.execution != life.execution + claimed:
            self.wrong.append(f"{event_text}: execution {event.execution} after {life.execution}")
        life.execution = event.execution
        if event.event == "job.retried" and event.detail.get("reset"):
            life.failures = life.crashes = 0
        # a crash that buries the job reports the earlier failures, and is not one itself
        failed = "failures" in event.detail and event.to_status is not None
        for name, known in (("failures", life.failures + failed), ("crashes", life.crashes + 1)):
            if event.detail.get(name, known) != known:
                self.wrong.append(f"{event_text}: {name} are {event.detail[name]}, should be {known}")
        life.failures = event.detail.get("failures", life.failures)
        life.crashes = event.detail.get("crashes", life.crashes)
        if event.from_status is JobStatus.CANCELLING and event.to_status is JobStatus.UNKNOWN_STOPPED:
            life.crashes_told = False

    def _judge_time(self, event: JobEvent, life: Life, event_text: str) -> None:
        if event.event == "job.active":
            if life.not_before is not None and to_micros(event.occurred_at) < life.not_before:
                self.wrong.append(f"{event_text}: started before its time")
        elif event.event in _NEW_TIME:
            life.not_before = None
        elif event.event == "job.delayed":
            life.not_before = int(event.detail["until"])

    # -- at rest

    def at_rest(self, jobs: Iterable[Job], now: datetime, counts: Mapping[JobStatus, int] | None = None) -> None:
        """Compare the log with the stored jobs, and check that each job can still end.

        Call it after a sweep, when no lease is expired.
        """
        stored = {job.uid: job for job in jobs}
        by_id = {job.id: job for job in stored.values()}
        alive = {uid for uid, life in self.lives.items() if not life.removed}
        for uid in sorted(alive ^ stored.keys()):
            where = "in the log but not stored" if uid in alive else "stored but not in the log"
            self.wrong.append(f"uid {uid} is {where}")
        for uid in alive & stored.keys():
            self._judge_standing(stored[uid], self.lives[uid], by_id, now)
        recount = Counter(job.status for job in stored.values())
        if counts is not None and any(counts.get(status, 0) != recount[status] for status in JobStatus):
            self.wrong.append(f"the counts are {dict(counts)}, but there are {dict(recount)}")
        times = Counter(life.id for life in self.lives.values())
        for job in stored.values():
            if job.schedule_id is not None and times[job.id] > 1:
                self.wrong.append(f"the occurrence {job.id!r} was created {times[job.id]} times")

    def _judge_standing(self, job: Job, life: Life, by_id: Mapping[str, Job], now: datetime) -> None:
        event_text = f"job {job.id!r} (uid {job.uid})"
        if (job.status, job.epoch, job.executions) != (life.status, life.epoch, life.execution):
            self.wrong.append(f"{event_text}: is {job.status}, claim {job.epoch}; the log ends at {life.status}")
        if job.retry_count != life.failures or (life.crashes_told and job.crashes != life.crashes):
            self.wrong.append(f"{event_text}: {job.retry_count} failures and {job.crashes} crashes, not as in the log")
        if job.status in HOLDS_CAPACITY:
            if job.lease is None:
                self.wrong.append(f"{event_text}: is {job.status} with no lease")
            elif job.lease.expires_at is not None and job.lease.expires_at <= now:
                self.wrong.append(f"{event_text}: its lease expired at {job.lease.expires_at} and was not reclaimed")
        elif job.lease is not None:
            self.wrong.append(f"{event_text}: is {job.status} and has a lease")
        if job.status in FINAL and job.finalized_at is None:
            self.wrong.append(f"{event_text}: is {job.status} and has no end time")
        if job.status is JobStatus.WAITING_CHILDREN:
            waits = {name: by_id[name].status for name in job.depends_on if name in by_id}
            done = {
                name: status in (FINAL if policy_of(job, name) == "ignore" else {JobStatus.COMPLETED})
                for name, status in waits.items()
            }
            if len(waits) == len(job.depends_on) and all(done.values()):
                self.wrong.append(f"{event_text}: waits for jobs that have all ended: {waits}")

    def verify(self) -> None:
        """Fail with every violation."""
        assert not self.wrong, "\n".join(self.wrong[:20])
