"""Claimed jobs straight from their rows: a claim changes all of them alike, so none needs a record on the way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import cast

from longshore.backends.sql.columns import Moves, Row
from longshore.backends.transaction import KeyState, QueueState
from longshore.core.job import Job, Lease
from longshore.core.job_record import JobInTheMaking
from longshore.core.limits import window_of
from longshore.core.status import JobStatus
from longshore.core.times import from_micros, optional_moment, optional_span
from longshore.core.validation import unpack

CLAIM_COLUMNS = ["place" if spec.name == "updated_at" else spec.name for spec in dataclasses.fields(Job)]
"""The fields of Job; but the status is what it was, and for `updated_at`, which a claim sets, stands the place."""

MOVES = Moves(CLAIM_COLUMNS)
_KEY = CLAIM_COLUMNS.index("concurrency_key")
type_of = itemgetter(CLAIM_COLUMNS.index("type"))
_expires_at = itemgetter(CLAIM_COLUMNS.index("expires_at"))
in_standing_order = itemgetter(*map(CLAIM_COLUMNS.index, ("priority", "place", "uid")))
"""The order in which jobs are claimed, as a key for rows of `claim_columns`."""


def any_outlived(rows: Iterable[Row], now: int) -> bool:
    """Whether one of the jobs is past its `expires_at`, and must not start."""
    return any(end is not None and end <= now for end in map(_expires_at, rows))


class WithinKeys:
    """Chooses the first in line whose keys have room, from rows of `claim_columns` with what is known of each key."""

    def __init__(
        self, queue: QueueState, limit: int, most_passed: int, now: int, types: Sequence[str] | None = None
    ) -> None:
        self.used: dict[str, int] = {}
        """How many were chosen of each key."""
        self._queue = queue
        self._limit = limit
        self._most_passed = most_passed
        self._now = now
        self._types = None if types is None else frozenset(types)

    def choose(self, rows: Iterable[Row]) -> list[Row]:
        """At most `limit` of them, in their order, as rows of `claim_columns`; none if too many are in the way."""
        chosen: list[Row] = []
        passed = 0
        left: dict[str, int] = {}
        used = self.used
        types = self._types
        for *columns, holding, start, count in rows:
            if types is not None and type_of(columns) not in types:
                passed += 1
                if passed > self._most_passed:
                    return []
                continue
            key = columns[_KEY]
            if key is not None:
                room = left.get(key)
                if room is None:
                    state = KeyState(self._queue.name, key, holding, window_of(start, count))
                    room = state.room(self._queue, self._now)
                if room <= 0:
                    left[key] = 0
                    passed += 1
                    if passed > self._most_passed:
                        return []
                    continue
                left[key] = room - 1
                used[key] = used.get(key, 0) + 1
            chosen.append(tuple(columns))
            if len(chosen) == self._limit:
                break
        return chosen


class Claimant:
    """Who claims, and under which lease; one for all jobs of a claim."""

    def __init__(self, assignee_id: str, token: str, expires_at: int | None, now: int) -> None:
        self.assignee_id = assignee_id
        self.token = token
        self.expires_at = expires_at
        self.now = now
        self._moment = from_micros(now)
        self._leases: dict[int, Lease] = {}

    def jobs(
        self, rows: Iterable[Row], dependencies_of: Callable[[Sequence[int]], Mapping[int, tuple[str, ...]]]
    ) -> list[Job]:
        """The jobs as they are once this claim is written, from rows of `claim_columns`."""
        now = self._moment
        jobs = []
        dependent = []
        for row in rows:
            job = JobInTheMaking(*row)
            job.status = JobStatus.RUNNING
            job.tags = tuple(json.loads(job.tags)) if job.tags else ()
            job.lifo = job.lifo == 1
            job.options = {} if job.options == "{}" else json.loads(job.options)
            if job.depends_on:  # how many they are, until here
                dependent.append(job)
            else:
                job.depends_on = ()
            job.created_at = from_micros(job.created_at)
            at = now if job.assigned_at is None else from_micros(job.assigned_at)
            job.updated_at = job.assigned_at = at
            job.started_at = at if job.started_at is None else from_micros(job.started_at)
            job.assignee_id = self.assignee_id
            job.lease = self._leases.get(job.epoch) or self._lease(job.epoch)
            if job.run_at is not None:
                job.run_at = from_micros(job.run_at)
            if job.delay is not None:
                job.delay = optional_span(job.delay)
            if job.expires_at is not None:
                job.expires_at = from_micros(job.expires_at)
            if job.timeout is not None:
                job.timeout = optional_span(job.timeout)
            if job.finalized_at is not None:
                job.finalized_at = from_micros(job.finalized_at)
            if job.last_retry_at is not None:
                job.last_retry_at = from_micros(job.last_retry_at)
            if job.progress is not None:
                job.progress = json.loads(job.progress)
            if job.checkpoint is not None:
                job.checkpoint = unpack(job.checkpoint)
            job.__class__ = Job
            jobs.append(cast(Job, job))
        if dependent:
            names = dependencies_of([job.uid for job in dependent])
            for job in dependent:
                object.__setattr__(job, "depends_on", names.get(job.uid, ()))
        return jobs

    def _lease(self, epoch: int) -> Lease:
        lease = self._leases[epoch] = Lease(self.token, epoch, optional_moment(self.expires_at))
        return lease
