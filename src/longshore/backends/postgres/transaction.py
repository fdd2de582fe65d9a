"""The write transaction on PostgreSQL: it locks every row that it changes, queues first."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NoReturn

from longshore.backends.port import KEY_TTL, Completion, Edge, Ended, keys_by_queue
from longshore.backends.postgres.claim import PostgresClaimQueries
from longshore.backends.postgres.connection import Session
from longshore.backends.postgres.locks import RestartTransaction, lock_number
from longshore.backends.postgres.reads import position_of, records_by_key
from longshore.backends.rows import firing_columns, schedule_of, schedule_row
from longshore.backends.sql.rows import Queries, Row, deltas_of, inserted_row, record_of_row, saved_row, tag_rows
from longshore.backends.sql.statements import Statements
from longshore.backends.sql.writes import ChangedUnderneath, SQLStaging
from longshore.core import transitions
from longshore.core.actor import actor
from longshore.core.errors import DuplicateJob
from longshore.core.job_record import Record, Tombstone
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.transitions import Change, EventRow, may_be_accepted_in_bulk, origin

_WORTH_A_COPY = 50
"""The number of rows from which COPY is faster than single statements."""
_SAVED_FIELDS = (
    "deps_left", "status", "run_at", "eligible_at", "sort_key", "blocked", "executions", "retry_count", "crashes",
    "epoch", "job_seq", "updated_at", "started_at", "finalized_at", "last_retry_at", "assigned_at", "assignee_id",
    "lease_owner", "lease_token", "lease_expires_at", "announce_at", "cancel_asked_at", "result", "error_message",
    "uid", "was_seq",
)  # fmt: skip
_RESULT = _SAVED_FIELDS.index("result")


class PostgresTransaction(PostgresClaimQueries):
    """One write transaction. `now` is set when it begins.

    `careful` inserts so that a conflict does not end the transaction: for the caller's transaction, and for a second
    try after a conflict. `shares_locks` is False in the caller's transaction: it may stay open for long, so it locks
    nothing that others need. Its snapshot may be old: `known_keys` are jobs of idempotency keys that it cannot see, and
    `read_elsewhere` reads the current state.
    """

    @property
    def staging(self) -> PostgresStaging:
        return PostgresStaging(self._sql, self._queries, self.now, self._session, self._count)

    def _pruned_through(self, row: Row) -> tuple[int, int]:
        return position_of(*row[:2]), position_of(*row[2:])

    # -- jobs

    def lock_dependents(self, job_ids: Sequence[str], tags: Sequence[str], queue: str | None) -> None:
        """Lock queues first, like claims; then running jobs, like settlements; then the other jobs, like dependency
        changes."""
        tagged = (
            [uid for (uid,) in self._rows(self._sql.uids_with_tags, tags[0], queue, self._listed(tags[1:]))]
            if tags
            else []
        )
        values = (self._listed(job_ids), self._listed(tagged))
        concerned = list(self._rows(self._sql.jobs_and_dependents, *values))
        queues = self.lock_queues(sorted({name for _, name, _ in concerned}))
        if any(queue.limited for queue in queues.values()):  # it may have waited, and other jobs may run now
            concerned = list(self._rows(self._sql.jobs_and_dependents, *values))
        for running in (True, False):
            uids = [uid for uid, _, is_held in concerned if is_held is running]
            if uids:
                self._rows(self._sql.lock_jobs, self._listed(uids))

    def leases_ended(self, limit: int) -> list[Record]:
        return self._records(self._rows(self._sql.leases_ended, self.now, limit))

    def jobs_beyond(self, keep: int, status: JobStatus, queue: str, limit: int) -> list[Record]:
        """Plan for the actual values, also in a claim's transaction: a generic plan sorts all ended jobs."""
        self._run("SET LOCAL plan_cache_mode = auto")
        return super().jobs_beyond(keep, status, queue, limit)

    def new_uids(self, count: int) -> Sequence[int]:
        return [uid for (uid,) in self._session.rows(self._sql.new_uids, (count,))]

    def insert(self, records: Sequence[Record], events: Sequence[EventRow]) -> None:
        if not records:
            return
        if self._careful or len(records) < _WORTH_A_COPY:
            # in the order of ids, so that two transactions with the same ids do not deadlock
            rows = [inserted_row(record) for record in sorted(records, key=attrgetter("id"))]
            if self._session.many(self._sql.insert_job, rows) != len(rows):
                self._refuse_taken(records)
            self._run(self._sql.insert_added_events, self._listed(record.uid for record in records), self.now, actor())
        else:
            signed = actor()
            self._session.copy(self._sql.copy_jobs, map(inserted_row, records))
            self._session.copy(self._sql.copy_events, (_added_row(record, self.now, signed) for record in records))
        tags = [row for record in records if record.tags for row in tag_rows(record)]
        if tags:
            self._insert_tags(tags)
        if events:
            self._append(events)
        counts = Counter((record.queue, record.status) for record in records)
        self._count((*key, jobs, 0) for key, jobs in counts.items())
        self._verified.update(record.id for record in records)

    def _refuse_taken(self, records: Sequence[Record]) -> NoReturn:
        """Find out why some rows were not inserted: their ids or keys are in use."""
        taken = self.ids_taken([record.id for record in records], [record.uid for record in records])
        keys = [(r.queue, r.idempotency_key) for r in records if r.id in taken and r.idempotency_key is not None]
        if not taken or (keys and self.jobs_by_key(keys)):  # a key that was stored meanwhile answers for its job
            raise RestartTransaction
        raise DuplicateJob([record.id for record in records if record.id in taken])

    def _insert_tags(self, rows: Sequence[Row]) -> None:
        if self._careful or len(rows) < _WORTH_A_COPY:
            self._many(self._sql.insert_tag, rows)
        else:
            self._session.copy(self._sql.copy_tags, rows)

    def complete(self, completions: Sequence[Completion], among: Sequence[str]) -> Ended:
        if not completions:
            return Ended([], Counter(), {})
        ids, epochs, tokens, results = zip(*completions, strict=True)
        arrays = (self._listed(ids), self._listed(epochs), self._listed(tokens), self._listed(results))
        values = (*arrays, self.now, self._listed(set(among)), self._listed(self._held))
        rows = list(self._rows(self._sql.complete_jobs, *values))
        queues = {queue for _, _, queue, _, _, _ in rows}
        self.counted += 2 * len(queues)
        tagged = [uid for uid, _, _, _, _, is_tagged in rows if is_tagged]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))
        if rows:
            self._note_changes(queues)
        owners = Counter(owner for _, _, _, owner, _, _ in rows)
        self._up_to_date -= queues
        keyed = [(queue, key) for _, _, queue, _, key, _ in rows if key is not None and queue not in self._held]
        return Ended([job_id for _, job_id, *_ in rows], owners, keys_by_queue(keyed) if keyed else {})

    def accept(self, job_ids: Sequence[str]) -> bool:
        """Read and save in two statements, for any number of jobs."""
        records = list(self.jobs_by_id(job_ids).values())
        if len(records) < len(job_ids) or not all(may_be_accepted_in_bulk(record) for record in records):
            return False
        by_id = {record.id: Change(record, self.now) for record in records}
        changes = [by_id[job_id] for job_id in job_ids]
        for change in changes:
            transitions.accept(change)
        self.save(changes)
        return True

    def save(self, changes: Sequence[Change]) -> None:
        rows = [dict(zip(_SAVED_FIELDS, _as_json(saved_row(change)), strict=True)) for change in changes]
        uids = self._listed(change.record.uid for change in changes)
        self._expect(self._run(self._sql.save_job, json.dumps(rows), uids), len(changes))
        self._append([event for change in changes for event in change.events])
        self._count(deltas_of(changes))
        self._save_tags(changes)
        self._note_changes({change.record.queue for change in changes})

    def announce_due(self, limit: int) -> list[str]:
        due = list(self._rows(self._sql.announce_jobs, self.now, limit))
        if due:
            self._note_changes({queue for _, queue in due})
        return [job_id for job_id, _ in due]

    def _expect(self, changed: int, expected: int) -> None:
        if changed != expected:
            raise ChangedUnderneath(f"{changed} of {expected} locked jobs were written")

    def _save_tags(self, changes: Sequence[Change]) -> None:
        tagged = [change.record.uid for change in changes if change.record.tags]
        if tagged:
            self._run(self._sql.save_tag, self._listed(tagged))

    def remove(self, changes: Sequence[Change]) -> None:
        uids = self._listed(change.record.uid for change in changes)
        self._run(self._sql.insert_tombstone, uids, self.now, self._listed(change.record.request for change in changes))
        self._append([event for change in changes for event in change.events])
        for statement in (self._sql.delete_tag, self._sql.delete_logs, self._sql.delete_edges, self._sql.delete_job):
            self._run(statement, uids)
        self._count(deltas_of(changes, removed=True))

    def _count(self, deltas: Iterable[Row]) -> None:
        """Add to the counts, record their queues as changed, and store names of queues that are new to this process."""
        rows = list(deltas)
        if not rows:
            return
        self.counted += len(rows)
        self._up_to_date.clear()
        self._run(self._sql.add_to_count, *map(self._listed, zip(*rows, strict=True)))
        names = {queue for queue, *_ in rows}
        self.changed = True
        self.queues |= names
        fresh = names - self._known_queues - self.new_queues
        if fresh:
            self.new_queues |= fresh
            self._run(self._sql.remember_queues, self._listed(sorted(fresh)))

    def _note_changes(self, queues: Iterable[str]) -> None:
        self.changed = True
        self.queues.update(queues)

    # -- identity

    def ids_taken(self, job_ids: Sequence[str], besides: Sequence[int] = ()) -> set[str]:
        """The ids among these that other stored jobs have; `besides` are the uids to ignore."""
        rows = self._rows(self._sql.ids_taken, self._listed(job_ids), self._listed(besides))
        taken = {job_id for (job_id,) in rows}
        unseen = [job_id for job_id in job_ids if job_id not in taken]
        if unseen and self._read_elsewhere is not None:  # the caller's snapshot may be older than these jobs
            taken |= self._read_elsewhere(lambda view: set(view.jobs_seen(unseen)))
        return taken

    def jobs_by_key(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        wanted = [self._listed(names) for names in zip(*pairs, strict=True)]
        removed = self._rows(self._sql.tombstones_behind_keys, *wanted, self.now - KEY_TTL)
        known = {(queue, key): job_id for _, job_id, queue, _, _, key, _ in removed}
        known |= {(queue, key): job_id for queue, key, job_id in self._rows(self._sql.jobs_of_keys, *wanted)}
        return known | {pair: self._known_keys[pair] for pair in pairs if pair in self._known_keys}

    def records_by_key(self, pairs: Sequence[tuple[str, str]], since: int) -> dict[tuple[str, str], Record | Tombstone]:
        found = records_by_key(self, self._sql, pairs, since)
        unseen = [pair for pair in pairs if pair in self._known_keys and pair not in found]
        if unseen and self._read_elsewhere is not None:
            found |= self._read_elsewhere(lambda view: view.records_by_key(unseen, since))
        return found

    def jobs_seen(self, job_ids: Sequence[str]) -> dict[str, Record]:
        found = super().jobs_seen(job_ids)
        unseen = [job_id for job_id in job_ids if job_id not in found]
        if unseen and self._read_elsewhere is not None:
            found |= self._read_elsewhere(lambda view: view.jobs_seen(unseen))
        return found

    def statuses(self, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, JobStatus]:
        if lock and self._shares_locks:
            self._verified |= {job_id for job_id, _ in self._rows(self._sql.held_statuses, self._listed(job_ids))}
        found = super().statuses(job_ids)
        if lock and not self._shares_locks:
            # left to the sweep: a failed dependency may stop many jobs, which would stay locked until the caller
            # commits
            return {job_id: status for job_id, status in found.items() if status is JobStatus.COMPLETED}
        return found

    # -- dependencies

    def put_edges(self, edges: Sequence[Edge]) -> None:
        rows = [{**edge._asdict(), "unsure": edge.depends_on not in self._verified} for edge in edges]
        self._run(self._sql.put_edge, json.dumps(rows))

    def count_down(self, fewer: Mapping[int, int]) -> dict[int, int]:
        uids = sorted(fewer)
        return dict(self._rows(self._sql.count_down, self._listed(uids), self._listed(fewer[uid] for uid in uids)))

    def unverified_edges(self, limit: int) -> list[Edge]:
        return [Edge(*row) for row in self._rows(self._sql.unverified_edges, limit)]

    # -- leases, events, schedules

    def jobs_by_id(self, job_ids: Sequence[str], *, renew: bool = False) -> dict[str, Record]:
        statement = self._sql.jobs_to_renew if renew else self._sql.jobs_by_ids
        found = map(record_of_row, self._rows(statement, self._listed(job_ids)))
        return {record.id: record for record in found}

    def write_leases(self, records: Sequence[Record]) -> None:
        ends = self._listed(record.lease_expires_at for record in records)
        uids, epochs = (
            self._listed(record.uid for record in records),
            self._listed(record.epoch for record in records),
        )
        self._run(self._sql.save_lease, ends, uids, epochs)

    def _append(self, events: Sequence[EventRow]) -> None:
        if events:
            self._run(self._sql.insert_event, json.dumps([event._asdict() for event in events]))
            self._note_changes({event.queue for event in events})

    def schedules(self, ids: Sequence[str] | None) -> list[Schedule]:
        assert ids is not None  # no transaction locks all of them
        return self._hold_schedules(self._rows(self._sql.held_schedules, self._listed(ids)))

    def schedules_due(self, after: int, until: int, limit: int) -> list[Schedule]:
        return self._hold_schedules(self._rows(self._sql.schedules_due, after, until, limit))

    def schedules_ahead(self, moment: int, limit: int) -> list[Schedule]:
        return self._hold_schedules(self._rows(self._sql.schedules_ahead, moment, limit))

    def _hold_schedules(self, rows: Iterable[Row]) -> list[Schedule]:
        found = [schedule_of(*row) for row in rows]
        self._held_schedules.update(schedule.id for schedule in found)
        return found

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        self.changed = True
        for statement, rows in (
            (self._sql.put_schedules, [schedule_row(one) for one in schedules if one.id in self._held_schedules]),
            (
                self._sql.insert_schedules,
                [schedule_row(one) for one in schedules if one.id not in self._held_schedules],
            ),
        ):
            if rows and self._run(statement, *map(self._listed, zip(*rows, strict=True))) != len(rows):
                raise RestartTransaction  # another transaction stored a new one with the same id

    def move_schedules(self, schedules: Sequence[Schedule]) -> None:
        self.changed = True
        self._run(self._sql.move_schedules, *map(self._listed, zip(*map(firing_columns, schedules), strict=True)))

    def prune_events(self, queue: str, moment: int, limit: int, through: int | None = None) -> int:
        ((alone,),) = self._rows(self._sql.try_lock, self._locks.queues, lock_number(f"events of {queue}"))
        return super().prune_events(queue, moment, limit, through) if alone else 0


def _added_row(record: Record, now: int, signed: str) -> Row:
    """The first event of a new job, like those of `insert_added_events`."""
    uid, status = record.uid, record.status
    found = origin(record)
    detail = None if found is None else json.dumps(found, ensure_ascii=False)
    return (uid, record.id, 1, record.queue, record.type, "job.added", None, status, 0, 0, None, signed, now, detail)


def _as_json(row: Row) -> Iterator[Any]:
    for index, value in enumerate(row):
        yield b64encode(value).decode() if index == _RESULT and value is not None else value


class PostgresStaging(SQLStaging):
    """Stages many jobs by COPY, and inserts plain ones without reading them."""

    def __init__(
        self, sql: Statements, queries: Queries, now: int, session: Session, count: Callable[[Iterable[Row]], None]
    ) -> None:
        super().__init__(sql, queries, now)
        self._session = session
        self._count = count

    def _stage(self, rows: Sequence[Row]) -> None:
        if len(rows) < _WORTH_A_COPY:
            super()._stage(rows)
        else:
            self._session.copy(self._sql.copy_staged_jobs, rows)

    def insert_plain(self, run: str, parts: Sequence[str]) -> int:
        """Insert on the server: hundreds of thousands of jobs are not sent to this process and back."""
        found = list(self._rows(self._sql.insert_plain_jobs, run, self._listed(parts), self.now))
        self._count((queue, JobStatus.INITIAL_PENDING, jobs, 0) for queue, jobs in found)
        return sum(jobs for _, jobs in found)
