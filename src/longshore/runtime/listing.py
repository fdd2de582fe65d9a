"""Jobs by the words of BullMQ: listed by range, counted, cleaned up; and removed whatever they wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import ELIGIBLE, HOLDS_CAPACITY, JobStatus
from longshore.core.times import Duration, check_duration
from longshore.core.validation import SMALLEST, check_number
from longshore.core.vocabulary import statuses_for, word_for
from longshore.runtime.paging import pages

WORDS = ("PENDING", "DELAYED", "ACTIVE", "COMPLETED", "FAILED", "WAITING_CHILDREN", "CANCELLED")
WAITING = "waiting"
"""What a count calls PENDING once more, as BullMQ does; also understood as a status."""
_AT_ONCE = 500

Standings = dict[JobStatus, bool | None]
"""Statuses that are wanted; of an eligible one perhaps only the due (True) or those still to come (False)."""
StatusLike = JobStatus | str


def standings(field: str, statuses: StatusLike | Iterable[StatusLike]) -> Standings:
    """What is meant by JobStatus members, their names, and BullMQ's words in any case."""
    wanted: Standings = {}
    for status in [statuses] if isinstance(statuses, str) or not isinstance(statuses, Iterable) else statuses:
        for found, due in _standing(field, status).items():
            wanted[found] = due if wanted.get(found, due) == due else None
    return wanted


def _standing(field: str, status: object) -> Standings:
    if isinstance(status, JobStatus):
        return {status: None}
    word = status.upper() if isinstance(status, str) else ""
    if word in JobStatus.__members__:
        return {JobStatus(word): None}
    word = "PENDING" if word == WAITING.upper() else word
    if word not in WORDS:
        raise InvalidArgument(field, f"must be a JobStatus or one of {', '.join(WORDS)}, not {status!r}")
    return {found: _due(word) if found in ELIGIBLE else None for found in statuses_for(word, "bullmq")}


def _due(word: str) -> bool:
    return word == "PENDING"


async def jobs_standing(
    backend: Backend, queue: str | None, wanted: Standings, *, oldest_first: bool = False
) -> AsyncIterator[Job]:
    """The jobs meant, newest first or oldest first."""
    lines = [_line(backend, queue, statuses, due, oldest_first) for due, statuses in _by_time(wanted).items()]
    heads = [(job, line) for line in lines if (job := await anext(line, None)) is not None]
    while heads:
        choose = min if oldest_first else max
        job, line = head = choose(heads, key=lambda head: head[0].uid)
        yield job
        heads.remove(head)
        following = await anext(line, None)
        if following is not None:
            heads.append((following, line))


def _by_time(wanted: Standings) -> dict[bool | None, list[JobStatus]]:
    """Statuses that one listing can show together: what is not eligible goes with whatever is."""
    by_time: dict[bool | None, list[JobStatus]] = {}
    for status, due in wanted.items():
        if status in ELIGIBLE:
            by_time.setdefault(due, []).append(status)
    others = [status for status in wanted if status not in ELIGIBLE]
    if others:
        by_time.setdefault(next(iter(by_time), None), []).extend(others)
    return by_time


async def _line(
    backend: Backend, queue: str | None, statuses: Sequence[JobStatus], due: bool | None, oldest_first: bool
) -> AsyncIterator[Job]:
    filter = JobFilter(statuses=statuses, queues=() if queue is None else (queue,))
    async for page in pages(backend, filter, at_once=_AT_ONCE, oldest_first=oldest_first, due=due):
        for job in page.items:
            yield job


async def jobs_in_range(
    backend: Backend, queue: str | None, wanted: Standings, start: int, end: int, *, asc: bool
) -> list[Job]:
    """Those from `start` to `end`, both included, newest first or oldest first; a negative one counts from the end."""
    check_number("start", start, least=SMALLEST)
    check_number("end", end, least=SMALLEST)
    if start < 0 and end < 0:  # from the other end, where they are soon met
        return (await jobs_in_range(backend, queue, wanted, ~end, ~start, asc=not asc))[::-1]
    enough = end + 1 if start >= 0 and end >= 0 else None
    if enough is not None and start >= enough:
        return []
    found: list[Job] = []
    async for job in jobs_standing(backend, queue, wanted, oldest_first=asc):
        found.append(job)
        if len(found) == enough:
            break
    first = max(start + len(found), 0) if start < 0 else start
    last = end + len(found) if end < 0 else end
    return found[first : last + 1] if last >= 0 else []


async def count_by_word(backend: Backend, queue: str | None) -> dict[str, int]:
    """Every word with its count, and `waiting` for PENDING once more."""
    counts = dict.fromkeys(WORDS, 0)
    for status, jobs in (await backend.count_jobs(queue)).items():
        word = word_for(status, "bullmq")
        if word is not None:
            counts[word] += jobs
    delayed = 0
    if counts["PENDING"]:
        delayed = min(await backend.count_delayed(queue), counts["PENDING"])  # some may have come meanwhile
    return counts | {"PENDING": counts["PENDING"] - delayed, "DELAYED": delayed, WAITING: counts["PENDING"] - delayed}


# -- removing


async def remove_job(backend: Backend, job: Job) -> None:
    """Removes one job for good; a job that waits is called off first, one that somebody holds is refused."""
    if await remove_all(backend, [job]):
        return
    with suppress(JobNotFound):
        status = (await backend.get_job(job.id)).status
        raise InvalidTransition(job.id, status, "removed", "a worker has it; cancel it, and remove it when it ended")


async def remove_all(backend: Backend, jobs: Sequence[Job]) -> list[str]:
    """Removes those that nobody holds; waiting ones are called off first. Returns the ids of those that are gone."""
    called_off = [job.id for job in jobs if not job.status.final and not job.status.holds_capacity]
    if called_off:
        await backend.cancel_jobs(job_ids=called_off, held=False)
    ids = [job.id for job in jobs if not job.status.holds_capacity]
    if not ids:
        return []
    try:
        await backend.delete_jobs(job_ids=ids)
    except InvalidTransition:  # somebody claimed or revived one of them meanwhile: the others are removed one by one
        if len(jobs) == 1:
            return []
        return [gone for job in jobs for gone in await remove_all(backend, [job])]
    return ids


async def clean(backend: Backend, queue: str | None, grace: Duration, status: StatusLike, limit: int) -> list[str]:
    """Removes jobs of this status that ended (or, if they have not, were made) at least `grace` ago, oldest first."""
    wanted = standings("status", status)
    if HOLDS_CAPACITY & wanted.keys():
        raise InvalidArgument("status", f"{status} jobs are held by workers; cancel them first")
    most = check_number("limit", limit)
    before = await backend.now() - timedelta(microseconds=check_duration("grace", grace, positive=False))
    old = [
        (since, job.uid, job) async for job in jobs_standing(backend, queue, wanted) if (since := _since(job)) <= before
    ]
    old.sort(key=lambda entry: entry[:2])
    chosen = [job for _, _, job in (old[:most] if most else old)]
    return await _remove_in_batches(backend, chosen)


def _since(job: Job) -> datetime:
    since = job.created_at if job.finalized_at is None else job.finalized_at
    assert since is not None  # every stored job has a beginning
    return since


async def empty(backend: Backend, queue: str | None) -> None:
    """Removes everything that waits: for its turn, its time or other jobs. What runs and what has ended stays."""
    waiting = {**dict.fromkeys(ELIGIBLE, None), JobStatus.WAITING_CHILDREN: None}
    await _remove_in_batches(backend, [job async for job in jobs_standing(backend, queue, waiting)])


async def _remove_in_batches(backend: Backend, jobs: Sequence[Job]) -> list[str]:
    removed: list[str] = []
    for first in range(0, len(jobs), _AT_ONCE):
        removed += await remove_all(backend, jobs[first : first + _AT_ONCE])
    return removed
