"""Memory and a durable store in parallel: the steps that may happen, and what must hold after each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from time import perf_counter
from typing import Any, NamedTuple, TypeVar, cast

from longshore.backends.base import UNCHANGED, Backend, Outcome, OutcomeVerb, Page, SettleReport, WorkerInfo
from longshore.backends.memory import MemoryBackend
from longshore.core.clock import HeldClock
from longshore.core.errors import JobNotFound, JobNotInflight, LeaseLost, LongshoreError
from longshore.core.filters import JobFilter
from longshore.core.job import Job, JobEvent, Lease
from longshore.core.limits import Rate
from longshore.core.repeat import Repeat
from longshore.core.schedule import Schedule
from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, LEGAL_PAIRS, JobStatus
from longshore.core.times import to_micros
from tests.backends.second_store import OpenStore
from tests.checker import History, Life

T = TypeVar("T")

# few distinct values, so that they collide often
IDS = tuple("abcdefghij")
KEYED_IDS = tuple("pqrstu")
QUEUES = ("north", "south")
TAGS = ("x", "y")
WORKERS = ("w1", "w2")
SHORT, LONG = 5, 60
KEY_TTL = timedelta(hours=24)
PATIENCE = 10
"""Seconds within which a reader must see committed events."""
LIMITS = (UNCHANGED, None, 1, 1, 2)
RATES = (UNCHANGED, None, Rate(1, 10), Rate(2, LONG))
KEPT = (UNCHANGED, None, SHORT, 3600)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"backoff": {"type": "fixed", "delay": SHORT}},
    {"remove_on_complete": True},
    {"remove_on_complete": 1, "remove_on_fail": True},
    {"remove_on_fail": 2, "backoff": {"type": "fixed", "delay": SHORT}},
)
VERBS: tuple[OutcomeVerb, ...] = ("complete", "fail", "bury", "stop", "release", "crash")
REPEATS = (
    Repeat(every=20),
    Repeat(every=20, limit=2),
    Repeat(every=3600 * 12, catch_up="all"),
    Repeat(cron="*/5 * * * *", catch_up="none"),
    Repeat(cron="0 3 * * *", tz="Europe/Berlin"),
)

Ending = Callable[[str, int | None], tuple[str, tuple[Any, ...], dict[str, Any]]]
ENDINGS: tuple[Ending, ...] = (
    lambda _error, _at: ("complete_job", (b"42",), {}),
    lambda error, at: ("fail_job", (error or "it broke",), {"retry_at": at}),
    lambda error, _at: ("bury_job", (error,), {}),
    lambda error, _at: ("stop_job", (error,), {}),
    lambda error, _at: ("stop_job_with_retry", (error,), {}),
    lambda error, _at: ("mark_job_unknown_stopped", (error,), {}),
    lambda _error, at: ("acknowledge_cancellation", (at is None,), {}),
)


def rarely(chance: Random) -> bool:
    """One time in five."""
    return chance.randrange(5) == 4


def some(chance: Random, among: Sequence[T], most: int) -> list[T]:
    """Up to this many different ones."""
    return chance.sample(among, chance.randint(0, min(most, len(among))))


def soon(chance: Random) -> int | None:
    return chance.choice((None, 0, SHORT, LONG))


def words(chance: Random) -> str:
    return chance.choice(("", "why"))


def new_job(chance: Random) -> Job:
    """Any job; most are plain, and few of their values differ."""
    return Job(
        id=chance.choice(IDS),
        type=chance.choice(("t", "u")),
        payload=chance.choice((b"null", b'{"n": 1}')),
        queue=chance.choice(QUEUES),
        tags=tuple(some(chance, TAGS, 2)),
        status=JobStatus.CREATED if chance.randrange(10) == 9 else JobStatus.INITIAL_PENDING,
        priority=chance.randint(-1, 1),
        lifo=rarely(chance),
        run_at=soon(chance) if rarely(chance) else None,
        delay=soon(chance) if rarely(chance) else None,
        expires_at=chance.choice((SHORT, LONG)) if rarely(chance) else None,
        max_crashes=chance.choice((None, None, 0, 1)),
        idempotency_key=chance.choice("ij") if rarely(chance) else None,
        concurrency_key=chance.choice((None, "k", "k", "l")),
        depends_on=tuple(some(chance, IDS, 2)) if rarely(chance) else (),
        on_dependency_failure=chance.choice(("wait", "stop", "ignore")),
        options=chance.choice(OPTIONS) if rarely(chance) else {},
    )


class Claim(NamedTuple):
    """One lease on one job, as each of the two stores returned it."""

    job_id: str
    uid: int
    epoch: int
    leases: tuple[Lease, Lease]


@dataclass
class Rated:
    """An active rate, and the starts in each of its windows since."""

    rate: Rate
    starts: Counter[tuple[str | None, int]]


class Cursors(NamedTuple):
    """The same position in a listing, as the cursor of each store."""

    of: tuple[str, str]


class Uids:
    """The uids of the second store by those of memory: a store may skip some, but keeps the order."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}

    def learn(self, memory: Sequence[JobEvent], second: Sequence[JobEvent]) -> None:
        """From the events of one step: the added jobs, in the order of their uids."""
        added = [
            sorted((event.job_uid or 0, event.job_id) for event in events if event.event == "job.added")
            for events in (memory, second)
        ]
        newest = max(self._ours, default=0)
        for (uid, job_id), (theirs, their_id) in zip(*added, strict=False):
            assert (job_id, theirs > newest) == (their_id, True), f"memory added {added[0]}, the other {added[1]}"
            self._ours[theirs] = uid

    def __call__(self, value: Any) -> Any:
        """The answer of the second store with memory's uids; an unknown one becomes one that no job has."""
        if isinstance(value, Job):
            return value.replace(uid=self._ours.get(value.uid, -value.uid))
        if isinstance(value, JobEvent):
            return dataclasses.replace(value, job_uid=value.job_uid and self._ours.get(value.job_uid, -value.job_uid))
        if isinstance(value, Page):
            return Page(self(value.items), value.next_cursor)
        if isinstance(value, list | tuple):
            return [self(one) for one in value]
        return value


def shown(value: Any) -> Any:
    """An answer without what may differ between stores: lease tokens and the form of cursors."""
    if isinstance(value, LongshoreError):
        return (type(value), str(value))
    if isinstance(value, Lease):
        return dataclasses.replace(value, token="*")
    if isinstance(value, Job):
        return value.replace(lease=shown(value.lease))
    if isinstance(value, JobEvent):
        return dataclasses.replace(value, cursor="*")
    if isinstance(value, Page):
        return (shown(value.items), value.next_cursor is None)
    if isinstance(value, SettleReport):
        return (value.settled, shown(value.refused), value.freed)
    if isinstance(value, Mapping):
        return {key: shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    return value


def brief(value: Any) -> str:
    """An argument as shown for a failure: of a job only the unusual fields."""
    if isinstance(value, Claim):
        return f"<claim {value.epoch} of {value.job_id}>"
    if isinstance(value, Outcome):
        return f"Outcome({value.job_id!r}, {brief(value.lease)}, {value.verb!r}, retry_at={value.retry_at})"
    if isinstance(value, Job):
        plain = Job(id="", type="")
        reported = {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value)}
        return f"Job({', '.join(f'{n}={v!r}' for n, v in reported.items() if v != getattr(plain, n))})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {brief(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(brief, value)) + "]"
    return repr(value)


def for_store(value: Any, which: int) -> Any:
    """An argument with each claim replaced by the lease of this store, and each position by its cursor."""
    if isinstance(value, Claim):
        return value.leases[which]
    if isinstance(value, Cursors):
        return value.of[which]
    if isinstance(value, Outcome):
        return dataclasses.replace(value, lease=for_store(value.lease, which))
    if isinstance(value, dict):
        return {key: for_store(one, which) for key, one in value.items()}
    if isinstance(value, list):
        return [for_store(one, which) for one in value]
    return value


STEPS: dict[str, int] = {}
"""The steps that may happen, by method name, and how often."""
M = TypeVar("M", bound=Callable[..., None])


def step(weight: int) -> Callable[[M], M]:
    """Register a method as a step."""

    def register(method: M) -> M:
        STEPS[method.__name__] = weight
        return method

    return register


class TwoStores:
    """Every step calls both stores and checks: same answer, same events, a legal history."""

    LOOK_EVERY = 8

    def __init__(self, open_store: OpenStore) -> None:
        self.clock = HeldClock()
        self.loop = asyncio.new_event_loop()
        self.second = open_store(self.clock)
        self.stores: tuple[Backend, Backend] = (MemoryBackend(self.clock), self.second.backend)
        self.uids = Uids()
        self.reported: list[str] = []
        self.history = History()
        self.cursors: list[dict[str, str | None]] = [dict.fromkeys(QUEUES), dict.fromkeys(QUEUES)]
        self.known: dict[int, Job] = {}
        self.counters: dict[int, tuple[int, ...]] = {}
        self.retried: set[int] = set()
        self.claims: list[Claim] = []
        self.lease_ends: dict[tuple[int, int], datetime | None] = {}
        self.settled: set[tuple[int, int]] = set()
        self.keys_given: dict[tuple[str, str], str] = {}
        self.keys_removed: dict[tuple[str, str], datetime] = {}
        self.paused: set[str] = set()
        self.limits: dict[str, dict[str, Any]] = {name: {"running": None, "per_key": None} for name in QUEUES}
        self.rates: dict[str, Rated] = {}
        self.key_rates: dict[str, Rated] = {}
        self.ever_rated = False
        self.steps = 0

    def happen(self, name: str, chance: Random) -> None:
        """One step; from time to time everything is compared after it."""
        getattr(self, name)(chance)
        self.steps += 1
        if self.steps % self.LOOK_EVERY == 0:
            self.look_at_everything()

    def finish(self) -> None:
        """The last comparison; then all limits and pauses are removed, and every job must end."""
        self.look_at_everything()
        self.all_can_come_to_an_end()

    def close(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        self.second.clear()

    # -- calls to both stores

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def look(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """The answer of both stores if they agree, or their error."""
        self.give_to_both(verb, args, kwargs)
        return self.agreed(verb)

    def give_to_both(self, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        answers: list[Any] = []
        for which, store in enumerate(self.stores):
            given = [for_store(value, which) for value in args]
            named = {name: for_store(value, which) for name, value in kwargs.items()}
            try:
                answers.append(self.run(getattr(store, verb)(*given, **named)))
            except LongshoreError as error:
                answers.append(error)
        self.answers = (answers[0], answers[1])

    def agreed(self, verb: str) -> Any:
        memory, second = self.answers[0], self.uids(self.answers[1])
        assert shown(second) == shown(memory), f"{verb}: {self.second.name} {shown(second)}, memory {shown(memory)}"
        return memory

    def ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Like `look`, for a call that may change something: it is judged by its events."""
        self.reported.append(f"{verb} {', '.join(map(brief, args))} {brief(kwargs) if kwargs else ''}")
        self.give_to_both(verb, args, kwargs)
        written = [self.read_on(0), self.read_on(1, self.second.events_written())]
        self.uids.learn(*written)
        answer = self.agreed(verb)
        events = self.judged(written[0], self.uids(written[1]))
        if isinstance(answer, LongshoreError):
            assert not events, f"{verb} was refused ({answer}) and yet wrote {events}"
        return answer

    def judged(self, memory: list[JobEvent], second: list[JobEvent]) -> list[JobEvent]:
        """The events of both logs since the last step; the same for each job."""

        def by_job(events: Sequence[JobEvent]) -> list[Any]:
            return sorted((shown(event) for event in events), key=lambda e: (e.queue, e.job_uid or 0, e.job_seq))

        ours, theirs = by_job(second), by_job(memory)
        odd = [event for event in ours if event not in theirs], [event for event in theirs if event not in ours]
        assert ours == theirs, f"only {self.second.name} wrote {odd[0]}, only memory {odd[1]}"
        fresh = [event.job_id for event in second if event.event == "job.added"]
        if fresh:
            stored = [self.uids(self.run(self.second.backend.get_job(job_id))) for job_id in fresh if job_id]
            self.known |= {job.uid: job for job in stored}
            self.history.keyed(stored)
        self.history.feed(second)
        self.history.verify()
        for event in second:
            self.note_event(event)
        return second

    def read_on(self, which: int, written: int | None = None) -> list[JobEvent]:
        """A reader for each queue: pruning one queue's events must not hide another's.

        If the number of events is known, they are waited for: a store may show them a moment later.
        """
        found: list[JobEvent] = []
        until = perf_counter() + PATIENCE
        while written is None or len(found) < written:
            for queue in QUEUES:
                after = self.cursors[which][queue]
                while events := self.run(self.stores[which].read_events(after, queue=queue)):
                    after = events[-1].cursor
                    found += events
                self.cursors[which][queue] = after
            if written is None:
                break
            assert perf_counter() < until, f"{written} events were written, and followers see {shown(found)}"
        return found

    def note_event(self, event: JobEvent) -> None:
        """Record what later answers are judged by."""
        if event.job_uid is None:
            return
        job = self.known[event.job_uid]
        if event.event == "job.active":
            self.count_start(event, job.concurrency_key)
        elif event.event == "job.retried":
            self.counters.pop(event.job_uid, None)
            self.retried.add(event.job_uid)
        elif event.event == "job.removed" and job.idempotency_key is not None:
            pair = (job.queue, job.idempotency_key)
            if self.keys_given.get(pair) == job.id:
                self.keys_removed[pair] = self.clock.now()

    def count_start(self, event: JobEvent, key: str | None) -> None:
        """No window of an active rate may have more starts than it allows."""
        of_key = self.key_rates.get(event.queue) if key is not None else None
        for rated, name in ((self.rates.get(event.queue), None), (of_key, key)):
            if rated is not None:
                slot = (name, to_micros(event.occurred_at) // rated.rate.per_micros)
                rated.starts[slot] += 1
                assert rated.starts[slot] <= rated.rate.count, (
                    f"{slot}: {rated.starts[slot]} starts within {rated.rate}"
                )

    # -- the expected state

    def life_of(self, job_id: str) -> tuple[int, Life] | None:
        lives = self.history.lives.items()
        return next(((uid, life) for uid, life in lives if life.id == job_id and not life.removed), None)

    def stale(self, claim: Claim) -> type[LongshoreError] | None:
        """Why a write with this lease must be rejected, by the history alone."""
        found = self.life_of(claim.job_id)
        if found is None:
            return JobNotFound
        uid, life = found
        if life.status not in HOLDS_CAPACITY:
            return JobNotInflight
        ends = self.lease_ends.get((uid, life.epoch))
        if ends is not None and ends <= self.clock.now():
            return LeaseLost
        return None if (uid, life.epoch) == (claim.uid, claim.epoch) else LeaseLost

    def fenced(self, claim: Claim, verb: str, *args: Any, settles: bool = True, **kwargs: Any) -> None:
        """A stale lease is rejected; a valid one settles its claim exactly once."""
        stale = self.stale(claim)
        answer = self.ask(verb, *args, **kwargs)
        if stale is not None:
            assert isinstance(answer, stale), f"{verb} with a stale lease gave {answer!r}, not {stale.__name__}"
            return
        assert not isinstance(answer, LeaseLost | JobNotFound | JobNotInflight), f"a live lease gave {answer!r}"
        if settles and not isinstance(answer, LongshoreError):
            self.settles(claim)

    def settles(self, claim: Claim) -> None:
        assert (claim.uid, claim.epoch) not in self.settled, f"{claim} was settled twice"
        self.settled.add((claim.uid, claim.epoch))

    def claim(self, chance: Random) -> Claim | None:
        """A claim, mostly a valid one."""
        live = [claim for claim in self.claims[-12:] if self.stale(claim) is None]
        among = self.claims if rarely(chance) or not live else live
        return chance.choice(among) if among else None

    def job(self, chance: Random, wanted: Collection[JobStatus]) -> str:
        """The id of a job, mostly of one in these statuses."""
        lives = [life for life in self.history.lives.values() if not life.removed]
        fitting = [life.id for life in lives if life.status in wanted]
        return chance.choice(IDS if rarely(chance) or not fitting else fitting)

    def all_jobs(self, which: int) -> list[Job]:
        jobs: list[Job] = []
        cursor = None
        while True:
            page = self.run(self.stores[which].list_jobs(JobFilter(), limit=50, cursor=cursor))
            jobs += page.items
            cursor = page.next_cursor
            if cursor is None:
                return cast("list[Job]", self.uids(jobs)) if which else jobs

    def claimable_now(
        self, wanted: Sequence[str], among: Sequence[str] | None, types: Sequence[str] | None
    ) -> list[Job] | None:
        """A reference for the claim: the jobs that may start, in order, from the readable jobs.

        None where that is not enough: with rates, and if a job is past its `expires_at` (the claim ends it, and its
        dependents may start).
        """
        now = self.clock.now()

        def moment(value: Any) -> datetime:
            return cast("datetime", value)

        def due(job: Job) -> bool:
            return job.status in ELIGIBLE and (job.run_at is None or moment(job.run_at) <= now)

        def order(job: Job) -> tuple[Any, ...]:
            came = job.last_retry_at or job.created_at
            eligible = max(moment(came), moment(job.run_at or came))
            return (job.priority, 0, -job.uid) if job.lifo else (job.priority, 1, eligible, job.uid)

        jobs = self.all_jobs(0)
        outlived = [job for job in jobs if job.status in ELIGIBLE and job.expires_at and moment(job.expires_at) <= now]
        if self.ever_rated or outlived:
            return None
        line = [job for job in jobs if due(job) and set(wanted) <= set(job.tags)]
        line = [job for job in line if types is None or job.type in types]
        line = [job for job in line if job.queue not in self.paused and (among is None or job.queue in among)]
        holding = Counter(job.queue for job in jobs if job.status in HOLDS_CAPACITY)
        by_key = Counter((job.queue, job.concurrency_key) for job in jobs if job.status in HOLDS_CAPACITY)
        chosen = []
        for job in sorted(line, key=order):
            limits, pair = self.limits[job.queue], (job.queue, job.concurrency_key)
            if limits["running"] is not None and holding[job.queue] >= limits["running"]:
                continue
            if job.concurrency_key and limits["per_key"] is not None and by_key[pair] >= limits["per_key"]:
                continue
            holding[job.queue] += 1
            by_key[pair] += 1
            chosen.append(job)
        return chosen

    # -- enqueue

    @step(6)
    def enqueue(self, chance: Random) -> None:
        jobs = [new_job(chance) for _ in range(chance.randint(1, 4))]
        if not rarely(chance):
            lives = [life for life in self.history.lives.values() if not life.removed]
            over = [life.id for life in lives if life.status in FINAL]
            if len(lives) > len(IDS) - 3 and over:
                self.ask("delete_jobs", (), over[:4])
            free = [name for name in IDS if self.life_of(name) is None]
            jobs = [job.replace(id=name) for job, name in zip(jobs, free, strict=False)]
        answer = self.ask("enqueue_jobs", jobs)
        if isinstance(answer, LongshoreError):
            return
        for job, job_id in zip(jobs, answer, strict=True):
            if job.idempotency_key is not None:
                self.check_key((job.queue, job.idempotency_key), job_id)

    @step(2)
    def fill_a_key(self, chance: Random) -> None:
        """Jobs of several types wait under one key with a limit, and a claim reads those that may not start."""
        # S5
        queue, key = chance.choice(QUEUES), chance.choice(("k", "l"))
        if self.limits[queue]["per_key"] is None and queue not in self.key_rates:
            self.limit(queue, UNCHANGED, chance.choice((1, 1, 2)))
        over = [name for name in KEYED_IDS if (known := self.life_of(name)) is not None and known[1].status in FINAL]
        if over:
            self.ask("delete_jobs", (), over)
        free = [name for name in KEYED_IDS if self.life_of(name) is None]
        jobs = [
            Job(id=name, type=chance.choice("ttu"), queue=queue, concurrency_key=key, priority=chance.choice((0, 0, 1)))
            for name in free
        ]
        self.ask("enqueue_jobs", jobs)
        for _ in range(3):
            self.take(chance, [], [queue], chance.randint(1, 2), None)
            held = [claim for claim in self.claims if claim.job_id in KEYED_IDS and self.stale(claim) is None]
            if held:
                claim = chance.choice(held)
                name, args, kwargs = chance.choice(ENDINGS[:2])("", LONG)
                self.fenced(claim, name, claim.job_id, *args, lease=claim, **kwargs)
            self.take(chance, [], [queue], chance.randint(1, 2), chance.choice((["t"], ["u"])))

    @step(2)
    def add(self, chance: Random) -> None:
        jobs = [new_job(chance) for _ in range(chance.randint(1, 4))]
        answer = self.ask("add_jobs", jobs)
        if isinstance(answer, LongshoreError):
            return
        for job, known in zip(jobs, answer, strict=True):
            pair = (job.queue, job.idempotency_key)
            assert job.id == known.id or pair == (known.queue, known.idempotency_key), f"{job} is answered with {known}"
            if job.idempotency_key is not None and pair == (known.queue, known.idempotency_key):
                self.check_key((job.queue, job.idempotency_key), known.id)

    def check_key(self, pair: tuple[str, str], job_id: str) -> None:
        removed = self.keys_removed.get(pair)
        if pair in self.keys_given and (removed is None or removed > self.clock.now() - KEY_TTL):
            assert job_id == self.keys_given[pair], f"key {pair} stood for {self.keys_given[pair]!r}, now {job_id!r}"
        else:
            self.keys_given[pair] = job_id
            self.keys_removed.pop(pair, None)

    # -- claim

    @step(8)
    def dequeue(self, chance: Random) -> None:
        wanted = some(chance, TAGS, 2) if chance.randrange(2) else []
        among = some(chance, QUEUES, 2) or None if rarely(chance) else None
        types = chance.choice((None, None, ["t"], ["u", "unheard of"], ["t", "u"], []))  # S5
        self.take(chance, wanted, among, chance.randint(1, 4), types)

    def take(
        self,
        chance: Random,
        wanted: Sequence[str],
        among: Sequence[str] | None,
        limit: int,
        types: Sequence[str] | None,
    ) -> None:
        worker, lease = chance.choice(WORKERS), chance.choice((10, 30, 30, None))
        expected = self.claimable_now(wanted, among, types)
        jobs = self.ask("dequeue_jobs", worker, wanted, limit, queues=among, lease=lease, types=types)
        if expected is not None:
            taken, wanted_ids = [job.id for job in jobs], [job.id for job in expected[:limit]]
            assert taken == wanted_ids, f"claimed {taken}, but {wanted_ids} stand first in line"
        self.note_claims(*self.answers)
        for job in jobs:
            fits = set(wanted) <= set(job.tags) and (among is None or job.queue in among)
            assert fits, f"claimed {brief(job)} for {wanted} in {among}"
            assert types is None or job.type in types, f"claimed {brief(job)} for the types {types}"

    def note_claims(self, memory: Sequence[Job], second: Sequence[Job]) -> None:
        for job, theirs in zip(memory, second, strict=True):
            assert job.status is JobStatus.RUNNING, f"claimed {brief(job)}"
            assert job.lease is not None
            assert theirs.lease is not None
            self.lease_ends[job.uid, job.epoch] = job.lease.expires_at
            self.claims.append(Claim(job.id, job.uid, job.epoch, (job.lease, theirs.lease)))

    @step(2)
    def extend(self, chance: Random) -> None:
        held = [claim for _ in range(chance.randint(1, 3)) if (claim := self.claim(chance)) is not None]
        by_id = {claim.job_id: claim for claim in held}
        live = {job_id for job_id, claim in by_id.items() if self.stale(claim) is None}
        renewed = self.ask("extend_leases", by_id, chance.choice((10, LONG)))
        assert renewed.keys() == live, f"renewed {renewed.keys()}, live are {live}"
        for job_id, lease in renewed.items():
            self.lease_ends[by_id[job_id].uid, by_id[job_id].epoch] = lease.expires_at

    @step(2)
    def write_note(self, chance: Random) -> None:
        claim = self.claim(chance)
        verb, value = chance.choice((("set_progress", 5), ("append_log", "a line"), ("save_checkpoint", {"at": 1})))
        if claim is None or rarely(chance):
            self.ask(verb, chance.choice(IDS), value)
        else:
            self.fenced(claim, verb, claim.job_id, value, lease=claim, settles=False)

    # -- settle

    @step(8)
    def settle(self, chance: Random) -> None:
        claim = self.claim(chance)
        error, retry_at = words(chance), soon(chance)
        if claim is None:
            return
        name, args, kwargs = chance.choice((ENDINGS[0], *ENDINGS))(error, retry_at)
        if rarely(chance):
            self.fenced(claim, "release_lease", claim.job_id, claim, run_at=retry_at, reason=error)
        else:
            self.fenced(claim, name, claim.job_id, *args, lease=claim, **kwargs)

    @step(3)
    def settle_many(self, chance: Random) -> None:
        held = [claim for _ in range(chance.randint(1, 4)) if (claim := self.claim(chance)) is not None]
        reports = [(claim, not rarely(chance)) for claim in held]
        outcomes = [
            Outcome(
                claim.job_id,
                cast("Lease", claim) if fenced else None,  # each store gets its own lease in place of the claim
                chance.choice(VERBS),
                b"1",
                words(chance),
                soon(chance),
            )
            for claim, fenced in reports
        ]
        stale = {claim.job_id for claim, fenced in reports if fenced and self.stale(claim) is not None}
        times = Counter(claim.job_id for claim, _ in reports)
        if chance.random() < 0.5:
            report = self.ask("settle_jobs", outcomes)
        else:
            limit, types = chance.randint(0, 3), chance.choice((None, ["t"], ["t", "u"]))
            worker = chance.choice(WORKERS)
            report, _ = self.ask("settle_and_dequeue", outcomes, worker, limit=limit, lease=30, types=types)
            self.note_claims(*(jobs for _, jobs in self.answers))
        for claim, fenced in reports:
            if fenced and times[claim.job_id] == 1:
                if claim.job_id in stale:
                    assert claim.job_id in report.refused, f"{claim} is stale and settled"
                elif claim.job_id in report.settled:
                    self.settles(claim)

    @step(3)
    def settle_without_a_lease(self, chance: Random) -> None:
        name, args, kwargs = chance.choice(ENDINGS)(words(chance), soon(chance))
        self.ask(name, self.job(chance, {JobStatus.UNKNOWN_RETRY, *HOLDS_CAPACITY}), *args, **kwargs)

    @step(3)
    def move_by_hand(self, chance: Random) -> None:
        status = chance.choice(list(JobStatus))
        job_id = self.job(chance, {source for source, target in LEGAL_PAIRS if target is status})
        answer = self.ask("update_job_status", job_id, status, b"by hand", words(chance))
        if not isinstance(answer, LongshoreError) and status is JobStatus.RUNNING:
            now = self.run(self.stores[0].get_job(job_id))
            assert now.lease is not None
            self.lease_ends[now.uid, now.epoch] = now.lease.expires_at

    # -- cancellation and crashes

    @step(3)
    def cancel(self, chance: Random) -> None:
        wanted = {JobStatus.RUNNING, JobStatus.WAITING_CHILDREN, *ELIGIBLE}
        named = [self.job(chance, wanted) for _ in range(chance.randint(0, 2))]
        queue = chance.choice((None, *QUEUES))
        tags = some(chance, TAGS, 2) if rarely(chance) else []
        self.ask("cancel_jobs", tags, named, queue=queue, held=not rarely(chance))

    @step(1)
    def acknowledge(self, chance: Random) -> None:
        claim = self.claim(chance)
        if claim is not None:
            self.ask("cancel_jobs", (), [claim.job_id])
            self.fenced(claim, "acknowledge_cancellation", claim.job_id, rarely(chance), lease=claim)

    @step(3)
    def sweep(self, chance: Random) -> None:
        self.ask("reclaim_expired_leases", chance.choice((1, 1000)))

    @step(1)
    def vanish(self, chance: Random) -> None:
        if rarely(chance):
            self.ask("reset_running_jobs", queue=chance.choice((None, *QUEUES)))
        else:
            self.ask("mark_worker_unresponsive", chance.choice(WORKERS))

    # -- operators

    @step(4)
    def operate(self, chance: Random) -> None:
        verb = chance.randrange(4)
        if verb == 0:
            self.ask("retry_job", self.job(chance, {JobStatus.DEAD}), reset=chance.random() < 0.5, actor="operator")
        elif verb == 1:
            self.ask("promote_job", self.job(chance, ELIGIBLE))
        elif verb == 2:
            self.ask("accept_jobs", [self.job(chance, {JobStatus.CREATED}) for _ in range(chance.randint(1, 2))])
        else:
            self.ask("delete_jobs", (), [self.job(chance, FINAL) for _ in range(chance.randint(1, 3))])

    @step(2)
    def set_limits(self, chance: Random) -> None:
        self.limit(chance.choice(QUEUES), chance.choice(LIMITS), chance.choice(LIMITS))

    def limit(self, queue: str, running: Any, per_key: Any) -> None:
        self.ask("set_limits", queue, running=running, per_key=per_key)
        for name, value in (("running", running), ("per_key", per_key)):
            if value is not UNCHANGED:
                self.limits[queue][name] = value
        self.history.limit(queue, **self.limits[queue])

    @step(1)
    def set_rates(self, chance: Random) -> None:
        if self.ever_rated or rarely(chance):  # without rates the claim has a reference: see `claimable_now`
            self.rate(chance.choice(QUEUES), chance.choice(RATES), chance.choice(RATES))

    def rate(self, queue: str, rate: Any, per_key: Any) -> None:
        self.ask("set_limits", queue, rate=rate, rate_per_key=per_key)
        for rated, value in ((self.rates, rate), (self.key_rates, per_key)):
            if value is None:
                rated.pop(queue, None)
            elif value is not UNCHANGED:
                self.ever_rated = True
                rated[queue] = Rated(value, Counter())

    @step(2)
    def pause_or_resume(self, chance: Random) -> None:
        self.pause(chance.choice(QUEUES), rarely(chance) and rarely(chance))

    def pause(self, queue: str, paused: bool) -> None:
        self.ask("pause_queue" if paused else "resume_queue", queue)
        (self.paused.add if paused else self.paused.discard)(queue)

    # -- schedules and time

    @step(6)
    def time_passes(self, chance: Random) -> None:
        days = chance.choice((1, 8, 31)) if rarely(chance) and rarely(chance) else 0
        by = timedelta(days=days, seconds=chance.choice((1, SHORT, 10, 31, LONG)))
        self.reported.append(f"clock.advance({by!r})")
        self.clock.advance(by)

    @step(1)
    def plan(self, chance: Random) -> None:
        name, queue, tags = chance.choice(("s1", "s2")), chance.choice(QUEUES), tuple(some(chance, TAGS, 2))
        pattern = Job(type="t", queue=queue, tags=tags, expires_at=LONG, concurrency_key="k")
        if rarely(chance):
            self.ask("remove_schedule", name)
        else:
            planned = Schedule(id=name, job=pattern, repeat=chance.choice(REPEATS), paused=rarely(chance))
            self.ask("put_schedule", planned, keep_pause=chance.random() < 0.5)
        if rarely(chance):
            self.ask(chance.choice(("pause_schedule", "resume_schedule", "get_schedule")), name)

    @step(2)
    def fire(self, chance: Random) -> None:
        limit = chance.choice((1, 100))
        self.ask("fire_due_schedules", limit)
        self.ask("fire_due_schedules", limit)

    @step(2)
    def keep_house(self, chance: Random) -> None:
        chore, queue = chance.randrange(5), chance.choice(QUEUES)
        if chore == 0:
            finished, dead, events = (chance.choice(KEPT) for _ in range(3))
            self.ask("set_retention", queue, finished=finished, dead=dead, events=events)
        elif chore == 1:
            self.ask("cleanup_expired_jobs", LONG, queue=queue)
        elif chore == 2:
            self.ask("delete_jobs", some(chance, TAGS, 2), queue=queue)
        elif chore == 3:
            self.ask("heartbeat_worker", WorkerInfo(id=chance.choice(WORKERS), running=chance.randrange(3)))
            self.ask("record_worker_event", "worker.drained", chance.choice(WORKERS), queue=queue)
        else:
            self.ask("apply_retention")

    # -- reads

    @step(2)
    def search(self, chance: Random) -> None:
        wanted = JobFilter(
            statuses=some(chance, list(JobStatus), 2),
            queues=some(chance, QUEUES, 1),
            tags=some(chance, TAGS, 2) if rarely(chance) else (),
            ids=some(chance, IDS, 3) if rarely(chance) else (),
            text=chance.choice(("a", "n")) if rarely(chance) else "",
            data={"n": 1} if rarely(chance) else {},
            concurrency_key="k" if rarely(chance) else None,
            assignee_id="w1" if rarely(chance) else None,
        )
        how = {"oldest_first": rarely(chance), "due": chance.choice((None, None, True, False))}
        cursor = None
        for _ in range(3):
            page = self.look("list_jobs", wanted, limit=chance.randint(1, 3), cursor=cursor, **how)
            if page.next_cursor is None:
                break
            memory, second = self.answers
            cursor = Cursors((memory.next_cursor, second.next_cursor))

    def look_at_everything(self) -> None:
        """Everything readable is equal and adds up, and the second store is consistent inside."""
        jobs = self.all_jobs(0)
        for memory, second in zip(jobs, self.all_jobs(1), strict=True):
            assert shown(second) == shown(memory), f"{self.second.name} has {brief(second)}, memory {brief(memory)}"
        for job in jobs:
            self.look("get_job", job.id)
            self.look("read_logs", job.id)
            self.check_counters(job)
        counts = self.look("count_jobs")
        recount = Counter(job.status for job in jobs)
        assert all(count == recount[status] for status, count in counts.items()), f"{counts} are really {recount}"
        coming = self.look("list_jobs", JobFilter(statuses=tuple(ELIGIBLE)), due=False).items
        assert self.look("count_delayed") == len(coming), f"delayed are really {[job.id for job in coming]}"
        for queue in QUEUES:
            self.look("count_jobs", queue)
            self.look("count_delayed", queue)
            self.look("next_due", [queue])
            self.look("get_job_stats", ["x"], queue=queue)
        for tagged in ([], ["x"], ["x", "y"]):
            self.look("get_job_stats", tagged)
        for verb in ("list_queues", "get_schedules", "list_workers"):
            self.look(verb)
        faults = self.second.faults()
        assert not faults, "\n".join(faults)

    def check_counters(self, job: Job) -> None:
        now = (job.executions, job.epoch, job.retry_count, job.crashes)
        before = self.counters.get(job.uid, (0, 0, 0, 0))
        assert all(new >= old for new, old in zip(now, before, strict=True)), f"{job.id}: {before} became {now}"
        bounded = job.max_crashes is None or job.crashes <= job.max_crashes + 1
        assert bounded or job.uid in self.retried, f"{job.id}: {job.crashes} crashes"
        self.counters[job.uid] = now

    def all_can_come_to_an_end(self) -> None:
        """Without limits and pauses, every accepted job can be claimed or has ended."""
        for queue in QUEUES:
            self.pause(queue, False)
            self.limit(queue, None, None)
            self.rate(queue, None, None)
        for _ in range(2):
            self.clock.advance(2 * LONG)
            self.ask("reclaim_expired_leases", 1000)
        while self.ask("dequeue_jobs", "w1", limit=100, lease=None):
            pass
        jobs = self.all_jobs(1)
        left = [job.id for job in jobs if job.status in ELIGIBLE]
        assert not left, f"no worker can claim {left}"
        self.history.at_rest(jobs, self.clock.now(), self.run(self.second.backend.count_jobs()))
        self.history.verify()


WEIGHTED: Sequence[str] = [name for name, weight in STEPS.items() for _ in range(weight)]


def walk(open_store: OpenStore, steps: Iterable[tuple[str, int]]) -> tuple[str, list[str]] | None:
    """Run these steps from the start; return the failure and the calls that led to it, or None."""
    stores = TwoStores(open_store)
    try:
        for name, seed in steps:
            stores.happen(name, Random(seed))
        stores.finish()
    except AssertionError as error:
        return str(error), stores.reported
    finally:
        stores.close()
    return None


def random_steps(seed: int, count: int) -> list[tuple[str, int]]:
    """This many steps, each with its own seed, so that any of them can be left out."""
    chance = Random(seed)
    return [(chance.choice(WEIGHTED), chance.randrange(2**32)) for _ in range(count)]


def fewest(open_store: OpenStore, steps: list[tuple[str, int]], wrong: str, tries: int) -> list[tuple[str, int]]:
    """Fewer steps with the same failure: halves, quarters and so on are left out while it still fails."""

    def kind(reported: str) -> str:
        return "".join(letter for letter in reported[:24] if letter.isalpha())

    size = len(steps) // 2
    while size and tries:
        start = 0
        while start < len(steps) and tries:
            tries -= 1
            fewer = steps[:start] + steps[start + size :]
            found = walk(open_store, fewer)
            if found is not None and kind(found[0]) == kind(wrong):
                steps = fewer
            else:
                start += size
        size //= 2
    return steps
