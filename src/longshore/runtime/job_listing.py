"""Lists of jobs: BullMQ's words, ranges, counts and clean-up; pages of a filter; dead letters."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from longshore.backends.base import Backend, Page
from longshore.core.errors import InvalidArgument, InvalidTransition, JobNotFound
from longshore.core.filters import JobFilter, check_filter
from longshore.core.job import Job
from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, JobStatus
from longshore.core.times import Duration, check_duration
from longshore.core.validation import SMALLEST, check_number
from longshore.core.vocabulary import statuses_for, word_for

_FIRST = 16
"""Jobs in the first page, before their size is known; each next page is up to four times as long."""
_MOST_BYTES = 32 * 1024 * 1024
"""Of what the jobs of one page carry, if all are as large as the largest so far."""

_FOUND_AT_ONCE = 1_000


async def pages(
    backend: Backend,
    where: JobFilter,
    *,
    at_once: int,
    most: int = sys.maxsize,
    oldest_first: bool = False,
    due: bool | None = None,
) -> AsyncIterator[Page]:
    """All of them, or `most`: then the last page has a cursor, where there are more. Those of large jobs are short."""
    cursor: str | None = None
    following, largest = _FIRST, 1
    while most > 0:
        page = await backend.list_jobs(
            where, limit=min(at_once, following, most), cursor=cursor, oldest_first=oldest_first, due=due
        )
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        most -= len(page.items)
        largest = max([largest, *map(_size, page.items)])
        following = max(1, min(4 * following, _MOST_BYTES // largest))


async def jobs_by_id(backend: Backend, ids: Sequence[str]) -> list[Job]:
    """Those of these jobs that there are."""
    found: list[Job] = []
    for first in range(0, len(ids), _FOUND_AT_ONCE):
        wanted = ids[first : first + _FOUND_AT_ONCE]
        found += (await backend.list_jobs(JobFilter(ids=wanted), limit=len(wanted))).items
    return found


def _size(job: Job) -> int:
    return len(job.payload) + len(job.result or b"")


_CHANGED_AT_ONCE = 200
UNFINISHED = frozenset(JobStatus) - FINAL


def alone(where: JobFilter, tags: object, job_ids: object, queue: object) -> JobFilter:
    """The filter, if it means something and nothing else is given beside it."""
    if tags or job_ids or queue is not None:
        raise InvalidArgument("where", "stands alone: put tags, ids and queues into the JobFilter")
    if check_filter(where) == JobFilter():
        raise InvalidArgument("where", "is empty: name something in it, for this would mean every job")
    return where


def refuse_filter(tags: object) -> None:
    """Refuses a filter that is given as `tags`: it belongs into `where`."""
    if isinstance(tags, JobFilter):
        raise InvalidArgument("tags", "must be a list of names; give a JobFilter as where=JobFilter(…)")


def within(where: JobFilter, statuses: frozenset[JobStatus]) -> JobFilter | None:
    """The filter, for jobs in these statuses only; None if it asks for none of them."""
    wanted = statuses & frozenset(where.statuses or statuses)
    return dataclasses.replace(where, statuses=tuple(sorted(wanted))) if wanted else None


async def ids_of(backend: Backend, where: JobFilter, statuses: frozenset[JobStatus]) -> AsyncIterator[list[str]]:
    """The jobs that match and are in one of these statuses, some hundreds at a time."""
    wanted = within(where, statuses)
    if wanted is None:
        return
    async for page in pages(backend, wanted, at_once=_CHANGED_AT_ONCE):
        if page.items:
            yield [job.id for job in page.items]


async def delete_final(backend: Backend, ids: Sequence[str]) -> int:
    """All at once; if one of them came back to life meanwhile, the others one by one. Returns how many went."""
    try:
        await backend.delete_jobs(job_ids=ids)
    except InvalidTransition:
        if len(ids) == 1:
            return 0
        return sum([await delete_final(backend, [job_id]) for job_id in ids])
    return len(ids)


async def each(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """Side by side: a store that commits in groups makes few commits of them. Returns how many it could be done to."""

    async def one(job_id: str) -> bool:
        try:
            await act(job_id)
        except (JobNotFound, InvalidTransition):  # another process was first
            return False
        return True

    acting = [asyncio.ensure_future(one(job_id)) for job_id in ids]
    if acting:
        await asyncio.wait(acting)  # all of them, so that none is left behind when one fails
    return sum([done.result() for done in acting])


_RETRIED_AT_ONCE = 200


async def retry_jobs(backend: Backend, wanted: JobFilter, *, dry_run: bool, reset: bool, actor: str) -> int:
    """Retries the dead jobs that match, and returns how many; with `dry_run` it only counts them."""
    if any(status is not JobStatus.DEAD for status in check_filter(wanted).statuses):
        raise InvalidArgument("filter.statuses", "must be left out, or DEAD: no other job can be retried")
    dead = dataclasses.replace(wanted, statuses=(JobStatus.DEAD,))

    async def retry(job_id: str) -> None:
        await backend.retry_job(job_id, reset=reset, actor=actor)

    retried = 0
    async for page in pages(backend, dead, at_once=_RETRIED_AT_ONCE):
        retried += len(page.items) if dry_run else await each([job.id for job in page.items], retry)
    return retried


WORDS = ("PENDING", "DELAYED", "ACTIVE", "COMPLETED", "FAILED", "WAITING_CHILDREN", "CANCELLED")
WAITING = "waiting"
"""What a count calls PENDING once more, as BullMQ does; also understood as a status."""
_LISTED_AT_ONCE = 500

Standings = dict[JobStatus, bool | None]
"""Statuses that are wanted; of an eligible one perhaps only the due (True) or those still to come (False)."""
StatusLike = JobStatus | str


def standings(field: str, statuses: StatusLike | Iterable[StatusLike]) -> Standings:
    """The statuses for JobStatus members, their names, and BullMQ's words, in any case of letters."""
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
    return {found: word == "PENDING" if found in ELIGIBLE else None for found in statuses_for(word, "bullmq")}


async def jobs_standing(
    backend: Backend, queue: str | None, wanted: Standings, *, oldest_first: bool = False
) -> AsyncIterator[Job]:
    """Returns the jobs of a range, newest first or oldest first."""
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
    """Groups the statuses that one listing can show together."""
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
    async for page in pages(backend, filter, at_once=_LISTED_AT_ONCE, oldest_first=oldest_first, due=due):
        for job in page.items:
            yield job


async def jobs_in_range(
    backend: Backend, queue: str | None, wanted: Standings, start: int, end: int, *, asc: bool
) -> list[Job]:
    """Those from `start` to `end`, both included, newest first or oldest first; a negative one counts from the end."""
    check_number("start", start, least=SMALLEST)
    check_number("end", end, least=SMALLEST)
    if start < 0 and end < 0:  # count from the other end, which is nearer
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
    """Removes one job for good. A waiting job is cancelled first; a job that a worker holds is refused."""
    if await remove_all(backend, [job]):
        return
    with suppress(JobNotFound):
        status = (await backend.get_job(job.id)).status
        raise InvalidTransition(job.id, status, "removed", "a worker has it; cancel it, and remove it when it ended")


async def remove_all(backend: Backend, jobs: Sequence[Job]) -> list[str]:
    """Removes the jobs that no worker holds; waiting ones are cancelled first. Returns the removed ids."""
    called_off = [job.id for job in jobs if not job.status.final and not job.status.holds_capacity]
    if called_off:
        await backend.cancel_jobs(job_ids=called_off, held=False)
    ids = [job.id for job in jobs if not job.status.holds_capacity]
    if not ids:
        return []
    try:
        await backend.delete_jobs(job_ids=ids)
    except InvalidTransition:  # one of them was claimed or retried meanwhile: remove the others one by one
        if len(jobs) == 1:
            return []
        return [gone for job in jobs for gone in await remove_all(backend, [job])]
    return ids


async def clean(backend: Backend, queue: str | None, grace: Duration, status: StatusLike, limit: int) -> list[str]:
    """Removes jobs of this status that ended (or were created) at least `grace` ago, oldest first."""
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
    for first in range(0, len(jobs), _LISTED_AT_ONCE):
        removed += await remove_all(backend, jobs[first : first + _LISTED_AT_ONCE])
    return removed
