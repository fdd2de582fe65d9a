"""Whether limits held, reconstructed from the event log alone: at every instant, and in every window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from longshore.core.job import JobEvent
from longshore.core.limits import Limits, Rate
from longshore.core.times import to_micros


@dataclass(frozen=True, slots=True)
class InForce:
    """Limits that were certainly active from one time to another, by the store's clock."""

    begin: datetime
    end: datetime
    limits: Limits


@dataclass(frozen=True, slots=True)
class Held:
    """One attempt: from its claim to the event that released its slot (None: it still runs)."""

    job_id: str
    start: int
    end: int | None


def executions(events: Iterable[JobEvent]) -> list[Held]:
    """Every interval in which a job was held. The events of a job are ordered by number, never by time."""
    by_job: dict[int, list[JobEvent]] = defaultdict(list)
    for event in events:
        if event.job_uid is not None and event.to_status is not None:
            by_job[event.job_uid].append(event)
    held = []
    for history in by_job.values():
        start: int | None = None
        for event in sorted(history, key=lambda event: event.job_seq):
            holds = event.to_status is not None and event.to_status.holds_capacity
            at = to_micros(event.occurred_at)
            if holds and start is None:
                start = at
            elif not holds and start is not None:
                held.append(Held(event.job_id or "", start, at))
                start = None
        if start is not None:
            held.append(Held(history[0].job_id or "", start, None))
    return held


def faults_of_limits(
    events: Sequence[JobEvent], in_force: Sequence[InForce], key_of: Callable[[str], str | None]
) -> list[str]:
    """Every start above a concurrency limit, and every window with too many starts; empty if all limits held.

    Lowering a limit stops no job: only starts are judged, each by the limits at its time. Starts while limits were
    being changed are not judged.
    """
    held = executions(events)
    found: list[str] = []
    found += _too_many_at_once(held, in_force, lambda _: "the queue", lambda limits: limits.running)
    found += _too_many_at_once(held, in_force, key_of, lambda limits: limits.per_key)
    found += _too_many_started(held, in_force, lambda _: "the queue", lambda limits: limits.rate)
    found += _too_many_started(held, in_force, key_of, lambda limits: limits.rate_per_key)
    return found


def most_at_once(events: Iterable[JobEvent], key_of: Callable[[str], str | None]) -> Mapping[str, int]:
    """The most jobs that ever ran at once, by key."""
    most: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for _, change, job_id in _steps(executions(events)):
        name = key_of(job_id)
        if name is not None:
            running[name] += change
            most[name] = max(most[name], running[name])
    return most


def _steps(held: Iterable[Held]) -> list[tuple[int, int, str]]:
    """Starts and ends in order. Ends come first at equal times, because a released slot may be used at once."""
    steps = [(each.start, 1, each.job_id) for each in held]
    steps += [(each.end, -1, each.job_id) for each in held if each.end is not None]
    return sorted(steps, key=lambda step: (step[0], step[1]))


def _limits_at(in_force: Sequence[InForce], at: int) -> Limits | None:
    for span in in_force:
        if to_micros(span.begin) <= at <= to_micros(span.end):
            return span.limits
    return None


def _too_many_at_once(
    held: Sequence[Held],
    in_force: Sequence[InForce],
    name_of: Callable[[str], str | None],
    limit_of: Callable[[Limits], int | None],
) -> list[str]:
    found = []
    running: Counter[str] = Counter()
    for at, change, job_id in _steps(held):
        name = name_of(job_id)
        if name is None:
            continue
        running[name] += change
        limits = _limits_at(in_force, at)
        limit = None if limits is None else limit_of(limits)
        if change > 0 and limit is not None and running[name] > limit:
            found.append(f"{running[name]} of {name} ran at {at} when {job_id} started, and {limit} may")
    return found


def _too_many_started(
    held: Sequence[Held],
    in_force: Sequence[InForce],
    name_of: Callable[[str], str | None],
    rate_of: Callable[[Limits], Rate | None],
) -> list[str]:
    """Only windows entirely within the time of one rate are judged."""
    found = []
    for span in in_force:
        rate = rate_of(span.limits)
        if rate is None:
            continue
        begin, end, per = to_micros(span.begin), to_micros(span.end), rate.per_micros
        windows: Counter[tuple[str, int]] = Counter()
        for each in held:
            name, window = name_of(each.job_id), each.start - each.start % per
            if name is not None and begin <= window and window + per <= end:
                windows[name, window] += 1
        found += [
            f"{starts} of {name} started in the window at {window}, and {rate.count} may"
            for (name, window), starts in windows.items()
            if starts > rate.count
        ]
    return found
