"""Lists of jobs: BullMQ's words, ranges, counts and clean-up; pages of a filter; dead letters."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
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
"""The most bytes of one page, if every job is as large as the largest so far."""

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
    """Yield pages of all matching jobs, or of `most`. Pages of large jobs are short; a cursor means that more match."""
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
    """Return the jobs with these ids that exist."""
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
    """Return the filter if it has a condition and is the only argument."""
    if tags or job_ids or queue is not None:
        raise InvalidArgument("where", "cannot be combined with tags, job_ids or queue; put them into the JobFilter")
    if check_filter(where) == JobFilter():
        raise InvalidArgument("where", "has no condition and would match every job; set at least one field")
    return where


def refuse_filter(tags: object) -> None:
    """Refuse a filter that is passed as `tags`."""
    if isinstance(tags, JobFilter):
        raise InvalidArgument("tags", "must be a list of names; pass a JobFilter as where=JobFilter(…)")


def within(where: JobFilter, statuses: frozenset[JobStatus]) -> JobFilter | None:
    """Return the filter limited to these statuses, or None if it matches none of them."""
    wanted = statuses & frozenset(where.statuses or statuses)
    return dataclasses.replace(where, statuses=tuple(sorted(wanted))) if wanted else None


async def ids_of(backend: Backend, where: JobFilter, statuses: frozenset[JobStatus]) -> AsyncIterator[list[str]]:
    """Yield the ids of matching jobs in these statuses, some hundreds at a time."""
    wanted = within(where, statuses)
    if wanted is None:
        return
    async for page in pages(backend, wanted, at_once=_CHANGED_AT_ONCE):
        if page.items:
            yield [job.id for job in page.items]


async def delete_final(backend: Backend, ids: Sequence[str]) -> int:
    """Delete all at once; if one is no longer final, delete the rest one by one. Return how many were deleted."""
    try:
        await backend.delete_jobs(job_ids=ids)
    except InvalidTransition:
        if len(ids) == 1:
            return 0
        return sum([await delete_final(backend, [job_id]) for job_id in ids])
    return len(ids)


async def each(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """Apply the action to all concurrently, so that a store can group the commits. Return how many succeeded."""

    async def one(job_id: str) -> bool:
        try:
            await act(job_id)
        except (JobNotFound, InvalidTransition):  # another process was first
            return False
        return True

    acting = [asyncio.ensure_future(one(job_id)) for job_id in ids]
    if acting:
        await asyncio.wait(acting)  # all of them, so that none is left running when one fails
    return sum([done.result() for done in acting])


_RETRIED_AT_ONCE = 200


async def retry_jobs(backend: Backend, wanted: JobFilter, *, dry_run: bool, reset: bool, actor: str) -> int:
    """Retry the matching dead jobs and return how many; with `dry_run` only count them."""
    if any(status is not JobStatus.DEAD for status in check_filter(wanted).statuses):
        raise InvalidArgument("filter.statuses", "must be empty or DEAD; only dead jobs can be retried")
    dead = dataclasses.replace(wanted, statuses=(JobStatus.DEAD,))

    async def retry(job_id: str) -> None:
        await backend.retry_job(job_id, reset=reset, actor=actor)

    retried = 0
    async for page in pages(backend, dead, at_once=_RETRIED_AT_ONCE):
        retried += len(page.items) if dry_run else await each([job.id for job in page.items], retry)
    return retried


WORDS = ("PENDING", "DELAYED", "ACTIVE", "COMPLETED", "FAILED", "WAITING_CHILDREN", "CANCELLED")
WAITING = "waiting"
"""The second name of PENDING in counts, as in BullMQ; also accepted as a status."""
_LISTED_AT_ONCE = 500

StatusFilter = dict[JobStatus, bool | None]
"""Requested statuses; an eligible one may be limited to due jobs (True) or delayed jobs (False)."""
StatusLike = JobStatus | str


def requested_statuses(field: str, statuses: StatusLike | Iterable[StatusLike]) -> StatusFilter:
    """Return the statuses for JobStatus members, their names and BullMQ's words, in upper or lower case."""
    wanted: StatusFilter = {}
    for status in [statuses] if isinstance(statuses, str) or not isinstance(statuses, Iterable) else statuses:
        for found, due in _statuses_of(field, status).items():
            wanted[found] = due if wanted.get(found, due) == due else None
    return wanted


def _statuses_of(field: str, status: object) -> StatusFilter:
    if isinstance(status, JobStatus):
        return {status: None}
    word = status.upper() if isinstance(status, str) else ""
    if word in JobStatus.__members__:
        return {JobStatus(word): None}
    word = "PENDING" if word == WAITING.upper() else word
    if word not in WORDS:
        near = difflib.get_close_matches(word[:50], [*JobStatus.__members__, *WORDS], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgument(field, f"must be a JobStatus or one of {', '.join(WORDS)}, not {status!r}{hint}")
    return {found: word == "PENDING" if found in ELIGIBLE else None for found in statuses_for(word, "bullmq")}


async def jobs_with(
    backend: Backend, queue: str | None, wanted: StatusFilter, *, oldest_first: bool = False
) -> AsyncIterator[Job]:
    """Yield the jobs in these statuses, newest first or oldest first."""
    listings = [_listing(backend, queue, statuses, due, oldest_first) for due, statuses in _by_time(wanted).items()]
    heads = [(job, listing) for listing in listings if (job := await anext(listing, None)) is not None]
    while heads:
        choose = min if oldest_first else max
        job, listing = head = choose(heads, key=lambda head: head[0].uid)
        yield job
        heads.remove(head)
        following = await anext(listing, None)
        if following is not None:
            heads.append((following, listing))


def _by_time(wanted: StatusFilter) -> dict[bool | None, list[JobStatus]]:
    """Group the statuses that one listing can return together."""
    by_time: dict[bool | None, list[JobStatus]] = {}
    for status, due in wanted.items():
        if status in ELIGIBLE:
            by_time.setdefault(due, []).append(status)
    others = [status for status in wanted if status not in ELIGIBLE]
    if others:
        by_time.setdefault(next(iter(by_time), None), []).extend(others)
    return by_time


async def _listing(
    backend: Backend, queue: str | None, statuses: Sequence[JobStatus], due: bool | None, oldest_first: bool
) -> AsyncIterator[Job]:
    filter = JobFilter(statuses=statuses, queues=() if queue is None else (queue,))
    async for page in pages(backend, filter, at_once=_LISTED_AT_ONCE, oldest_first=oldest_first, due=due):
        for job in page.items:
            yield job


async def jobs_in_range(
    backend: Backend, queue: str | None, wanted: StatusFilter, start: int, end: int, *, asc: bool
) -> list[Job]:
    """Return the jobs from `start` to `end` inclusive, newest or oldest first; negative ones count from the end."""
    check_number("start", start, least=SMALLEST)
    check_number("end", end, least=SMALLEST)
    if start < 0 and end < 0:  # count from the other end, which is nearer
        return (await jobs_in_range(backend, queue, wanted, ~end, ~start, asc=not asc))[::-1]
    enough = end + 1 if start >= 0 and end >= 0 else None
    if enough is not None and start >= enough:
        return []
    found: list[Job] = []
    async for job in jobs_with(backend, queue, wanted, oldest_first=asc):
        found.append(job)
        if len(found) == enough:
            break
    first = max(start + len(found), 0) if start < 0 else start
    last = end + len(found) if end < 0 else end
    return found[first : last + 1] if last >= 0 else []


async def count_by_word(backend: Backend, queue: str | None) -> dict[str, int]:
    """Return the count of every word, and `waiting` as a second name of PENDING."""
    counts = dict.fromkeys(WORDS, 0)
    for status, jobs in (await backend.count_jobs(queue)).items():
        word = word_for(status, "bullmq")
        if word is not None:
            counts[word] += jobs
    delayed = 0
    if counts["PENDING"]:
        delayed = min(await backend.count_delayed(queue), counts["PENDING"])  # some may have been added meanwhile
    return counts | {"PENDING": counts["PENDING"] - delayed, "DELAYED": delayed, WAITING: counts["PENDING"] - delayed}


# -- remove


async def remove_job(backend: Backend, job: Job) -> None:
    """Remove one job permanently. A waiting job is cancelled first; a job that a worker holds is refused."""
    if await remove_all(backend, [job]):
        return
    with suppress(JobNotFound):
        status = (await backend.get_job(job.id)).status
        raise InvalidTransition(job.id, status, "removed", "a worker holds it; cancel it first")


async def remove_all(backend: Backend, jobs: Sequence[Job]) -> list[str]:
    """Remove the jobs that no worker holds; cancel waiting ones first. Return the removed ids."""
    to_cancel = [job.id for job in jobs if not job.status.final and not job.status.holds_capacity]
    if to_cancel:
        await backend.cancel_jobs(job_ids=to_cancel, held=False)
    ids = [job.id for job in jobs if not job.status.holds_capacity]
    if not ids:
        return []
    try:
        await backend.delete_jobs(job_ids=ids)
    except InvalidTransition:  # one was claimed or retried meanwhile: remove the others one by one
        if len(jobs) == 1:
            return []
        return [gone for job in jobs for gone in await remove_all(backend, [job])]
    return ids


async def clean(backend: Backend, queue: str | None, grace: Duration, status: StatusLike, limit: int) -> list[str]:
    """Remove jobs of this status that ended (or were created) at least `grace` ago, oldest first."""
    wanted = requested_statuses("status", status)
    if HOLDS_CAPACITY & wanted.keys():
        raise InvalidArgument("status", f"{status} jobs are held by workers; cancel them first")
    most = check_number("limit", limit)
    before = await backend.now() - timedelta(microseconds=check_duration("grace", grace, positive=False))
    old = [(since, job.uid, job) async for job in jobs_with(backend, queue, wanted) if (since := _since(job)) <= before]
    old.sort(key=lambda entry: entry[:2])
    chosen = [job for _, _, job in (old[:most] if most else old)]
    return await _remove_in_batches(backend, chosen)


def _since(job: Job) -> datetime:
    since = job.created_at if job.finalized_at is None else job.finalized_at
    assert since is not None  # every stored job has a creation time
    return since


async def empty(backend: Backend, queue: str | None) -> None:
    """Remove all waiting jobs: due, delayed or waiting for dependencies. Running and final jobs stay."""
    waiting = {**dict.fromkeys(ELIGIBLE, None), JobStatus.WAITING_CHILDREN: None}
    await _remove_in_batches(backend, [job async for job in jobs_with(backend, queue, waiting)])


async def _remove_in_batches(backend: Backend, jobs: Sequence[Job]) -> list[str]:
    removed: list[str] = []
    for first in range(0, len(jobs), _LISTED_AT_ONCE):
        removed += await remove_all(backend, jobs[first : first + _LISTED_AT_ONCE])
    return removed
