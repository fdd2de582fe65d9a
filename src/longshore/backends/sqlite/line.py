"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

import heapq
import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice

from longshore.backends.sql.claims import MOVES, Claimant, WithinKeys, any_outlived, in_standing_order, type_of
from longshore.backends.sql.columns import Moves, Row
from longshore.backends.sql.line import SQLLine
from longshore.backends.sqlite.statements import SQL
from longshore.backends.sqlite.view import SQLiteView
from longshore.backends.transaction import InLine, KeyState, QueueState
from longshore.core.job import Job
from longshore.core.status import JobStatus

_LEAST_PASSED = 20
"""Jobs of other types that even the smallest claim skips before it uses the index of types."""


class SQLiteLine(SQLiteView, SQLLine):
    """The part of a write transaction that claims lean on."""

    def hold_settings(self, names: Sequence[str]) -> dict[str, QueueState]:
        return self.hold_queues(names)

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:  # noqa: ARG002 - there is one writer, alone in any case
        return self.queue_states(names)

    def claim_in_line(
        self,
        queues: Sequence[str],
        limit: int,
        assignee_id: str,
        token: str,
        expires_at: int | None,
        types: Sequence[str] | None = None,
    ) -> list[Job] | None:
        rows = self._first_in_line(queues, limit) if types is None else self._first_of_types(queues, limit, types)
        if any_outlived(rows, self.now):
            return None  # they are ended on the way, which takes a closer look at each
        claimant = Claimant(assignee_id, token, expires_at, self.now)
        jobs = claimant.jobs(rows, self._dependencies_of)
        if jobs:
            self._write_claim([job.uid for job in jobs], assignee_id, token, expires_at)
            self._follow(MOVES, rows, JobStatus.RUNNING)
        return jobs

    def claim_within_keys(
        self,
        queue: QueueState,
        limit: int,
        passed: int,
        assignee_id: str,
        token: str,
        expires_at: int | None,
        types: Sequence[str] | None = None,
    ) -> list[Job] | None:
        within = WithinKeys(queue, limit, passed, self.now, types)
        with closing(self._line_of(queue.name, limit + passed + 1, SQL.first_with_keys)) as line:
            rows = within.choose(line)
        if not rows or any_outlived(rows, self.now):
            return None
        jobs = Claimant(assignee_id, token, expires_at, self.now).jobs(rows, self._dependencies_of)
        self._write_claim([job.uid for job in jobs], assignee_id, token, expires_at)
        self._follow(MOVES, rows, JobStatus.RUNNING)
        self._use_keys(queue, within.used)
        return jobs

    def _use_keys(self, queue: QueueState, used: Mapping[str, int]) -> None:
        since, until = self._window(queue) or (None, None)
        for jobs, keys in _by_number(used).items():
            self._run(SQL.use_keys, queue.name, jobs, self._listed(keys), since, until)

    def give_back_keys(self, queue: QueueState, given_back: Mapping[str, int]) -> Mapping[str, KeyState] | None:
        """When a key wakes was told when it was used, and stays so."""
        for jobs, keys in _by_number(given_back).items():
            self._run(SQL.give_back_keys, queue.name, jobs, self._listed(keys))
        self._run(SQL.forget_idle_keys, queue.name, self._listed(given_back), *self._window(queue) or (None, None))
        return self.key_states(queue.name, list(given_back)) if self.any_parked(queue.name) else None

    @abstractmethod
    def _write_claim(self, uids: Sequence[int], owner: str | None, token: str | None, expires_at: int | None) -> None:
        """Writes a claim and its events."""

    @abstractmethod
    def _follow(self, moves: Moves, rows: Sequence[Row], status: JobStatus) -> None:
        """Counts and tags, after jobs that all went into one status."""

    def _first_in_line(self, queues: Sequence[str], limit: int) -> list[Row]:
        return list(islice(self._merged(queues, limit), limit))

    def _merged(self, queues: Sequence[str], limit: int) -> Iterator[Row]:
        """The claimable jobs of these queues merged in order, up to a limit for each priority of each queue."""
        lines = [self._line_of(queue, limit) for queue in queues]
        return lines[0] if len(lines) == 1 else heapq.merge(*lines, key=in_standing_order)

    def _first_of_types(self, queues: Sequence[str], limit: int, types: Sequence[str]) -> list[Row]:
        """Reads the plain order, because most jobs usually have these types; falls back to the index of types."""
        known = frozenset(types)
        most_passed = max(limit // 2, _LEAST_PASSED)
        found: list[Row] = []
        passed = 0
        for row in self._merged(queues, limit + most_passed + 1):
            if type_of(row) in known:
                found.append(row)
                if len(found) == limit:
                    return found
            else:
                passed += 1
                if passed > most_passed:
                    break
        else:
            return found
        lines = [line for queue in queues for line in self._lines_of_types(queue, types, SQL.first_of_type, limit)]
        return list(islice(heapq.merge(*lines, key=in_standing_order), limit))

    def _lines_of_types(self, queue: str, types: Sequence[str], statement: str, limit: int) -> list[Iterator[Row]]:
        """One ordered source for each of these types that has a waiting job."""
        first = list(self._rows(SQL.first_priorities_of_types, queue, self._listed(types)))
        return [
            self._line_of_type(queue, job_type, priority, statement, limit)
            for job_type, priority in first
            if priority is not None
        ]

    def _line_of_type(self, queue: str, job_type: str, priority: int, statement: str, limit: int) -> Generator[Row]:
        following: Row | None = (priority,)
        while following is not None:
            (priority,) = following
            yield from self._rows(statement, queue, priority, self.now, job_type, limit)
            following = self._one(SQL.next_priority_of_type, queue, job_type, priority)

    def _line_of(self, queue: str, limit: int, statement: str = SQL.first_in_line) -> Generator[Row]:
        for priority in self._priorities(queue):
            yield from self._rows(statement, queue, priority, self.now, limit)

    def claim_at_once(
        self, chosen: Sequence[InLine], assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job]:
        uids = [entry.uid for entry in chosen]
        rows = sorted(self._rows(SQL.jobs_to_claim, self._listed(uids)), key=in_standing_order)
        self._write_claim(uids, assignee_id, token, expires_at)
        self._follow(MOVES, rows, JobStatus.RUNNING)
        return Claimant(assignee_id, token, expires_at, self.now).jobs(rows, self._dependencies_of)

    def _candidates_of_types(
        self, queue: QueueState, types: Sequence[str], _wanted: Callable[[], int]
    ) -> Iterator[InLine]:
        lines = self._lines_of_types(queue.name, types, SQL.claimable_of_type, -1)
        return map(InLine._make, heapq.merge(*lines))

    def _tagged_candidates(
        self, queue: QueueState, tags: Sequence[str], _wanted: Callable[[], int], types: Sequence[str] | None
    ) -> Iterator[InLine]:
        rarest, *others = self._rarest_first(tags)
        also = json.dumps(others)
        known = None if types is None else self._listed(types)
        for priority in self._tagged_priorities(queue.name, rarest):
            for (uid,) in self._rows(SQL.tagged_claimable, rarest, queue.name, priority, self.now, also):
                if queue.limits_keys:
                    row = self._one(SQL.uid_with_room, queue.name, uid, self.now, *self._limits(queue), known)
                else:
                    row = self._one(SQL.claimable_by_uid, uid, self.now, known)
                if row is not None:
                    yield InLine._make((*row, None, 0, 0))

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self._many(SQL.put_key, rows)

    def unpark(self, queue: str, room: Mapping[str, int]) -> None:
        parked: list[int] = []
        for key, job_type in list(self._rows(SQL.types_with_parked, queue, self._listed(room))):
            parked += [uid for (uid,) in self._rows(SQL.first_parked, queue, key, job_type, room[key])]
        self._unpark(parked)


def _by_number(keys: Mapping[str, int]) -> Mapping[int, list[str]]:
    """Keys by the number that goes with each: mostly it is the same one."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for key, number in keys.items():
        by_number[number].append(key)
    return by_number
