"""The line of waiting jobs: who is next, with which tags, and who is parked because a key is full."""

from __future__ import annotations

import heapq
import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice

from longshore.backends.sql.claims import MOVES, Claimant, WithinKeys, any_outlived, in_standing_order
from longshore.backends.sql.columns import Moves, Row
from longshore.backends.sql.line import SQLLine
from longshore.backends.sqlite.statements import SQL
from longshore.backends.sqlite.view import SQLiteView
from longshore.backends.transaction import InLine, KeyState, QueueState
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus


class SQLiteLine(SQLiteView, SQLLine):
    """The part of a write transaction that claims lean on."""

    def hold_settings(self, names: Sequence[str]) -> dict[str, QueueState]:
        return self.hold_queues(names)

    def hold_queues(self, names: Sequence[str] | None, *, alone: bool = False) -> dict[str, QueueState]:  # noqa: ARG002 - there is one writer, alone in any case
        return self.queue_states(names)

    def claim_in_line(
        self, queues: Sequence[str], limit: int, assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job] | None:
        rows = self._first_in_line(queues, limit)
        if any_outlived(rows, self.now):
            return None  # they are ended on the way, which takes a closer look at each
        claimant = Claimant(assignee_id, token, expires_at, self.now)
        jobs = claimant.jobs(rows, self._dependencies_of)
        if jobs:
            self._write_claim([job.uid for job in jobs], assignee_id, token, expires_at)
            self._follow(MOVES, rows, JobStatus.RUNNING)
        return jobs

    def claim_within_keys(
        self, queue: QueueState, limit: int, passed: int, assignee_id: str, token: str, expires_at: int | None
    ) -> list[Job] | None:
        within = WithinKeys(queue, limit, passed, self.now)
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
        lines = [self._line_of(queue, limit) for queue in queues]
        merged = lines[0] if len(lines) == 1 else heapq.merge(*lines, key=in_standing_order)
        return list(islice(merged, limit))

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

    def _tagged_candidates(
        self, queue: QueueState, tags: Sequence[str], _wanted: Callable[[], int]
    ) -> Iterator[InLine]:
        rarest, *others = self._rarest_first(tags)
        also = json.dumps(others)
        for priority in self._tagged_priorities(queue.name, rarest):
            for (uid,) in self._rows(SQL.tagged_claimable, rarest, queue.name, priority, self.now, also):
                if queue.limits_keys:
                    row = self._one(SQL.uid_with_room, queue.name, uid, self.now, *self._limits(queue))
                else:
                    row = self._one(SQL.claimable_by_uid, uid, self.now)
                if row is not None:
                    yield InLine._make((*row, None, 0, 0))

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self._many(SQL.put_key, rows)

    def unpark(self, queue: str, room: Mapping[str, int]) -> None:
        parked: list[int] = []
        for (key,) in list(self._rows(SQL.keys_with_parked, queue, self._listed(room))):
            parked += [uid for (uid,) in self._rows(SQL.first_parked, queue, key, room[key])]
        self._unpark(parked)


def _by_number(keys: Mapping[str, int]) -> Mapping[int, list[str]]:
    """Keys by the number that goes with each: mostly it is the same one."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for key, number in keys.items():
        by_number[number].append(key)
    return by_number
