"""Enqueues and accepts jobs: each is stored once, and a batch is stored as a whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from longshore.backends.operations.dependencies import edge_state, edges_for
from longshore.backends.operations.persist import write
from longshore.backends.port import KEY_TTL, Transaction, operation
from longshore.core import transitions
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument, JobNotFound, KeyReused
from longshore.core.job import Job
from longshore.core.job_record import REQUEST, Record, Tombstone, is_repeat, job_of, record_of
from longshore.core.status import JobStatus
from longshore.core.transitions import Change, EventRow
from longshore.core.validation import LAST_NUMBER, USED_UP


@operation()
def enqueue_job(tx: Transaction, job: Job) -> str:
    """Store one job; return its id, or the id of the job that has its idempotency key."""
    return store_records(tx, [record_of(job, tx.now)])[0]


@operation()
def enqueue_jobs(tx: Transaction, jobs: Sequence[Job]) -> list[str]:
    """Store the batch; return for each job its id, or the id of the job that has its idempotency key."""
    return store_records(tx, _records_of(jobs, tx.now))


@operation()
def enqueue_new_jobs(tx: Transaction, jobs: Sequence[Job]) -> list[str]:
    """Store the batch; a known idempotency key is a duplicate like a known id."""
    records = _records_of(jobs, tx.now)
    fresh, answers = _without_known_keys(tx, records)
    if len(fresh) != len(records):
        new = {id(record) for record in fresh}
        taken = _conflicting_ids(tx, fresh)
        named = {
            answer: None
            for record, answer in zip(records, answers, strict=True)
            if id(record) not in new or record.id in taken
        }
        raise DuplicateJob(list(named))
    _reject_duplicates(tx, fresh)
    _store_fresh(tx, fresh)
    return answers


@operation()
def add_jobs(tx: Transaction, jobs: Sequence[Job], in_use: Collection[str], same_only: bool = False) -> list[Job]:
    """Store the jobs that do not exist yet; return each as stored, or the existing job with its key or id.

    Only the ids in `in_use` are looked up: new ids are rarely in use, and DuplicateJob names those that are. With
    `same_only`, an existing job must be the given one: KeyReused or DuplicateJob if it differs.
    """
    records = _records_of(jobs, tx.now)
    by_id: dict[str, Record] = tx.jobs_seen(list(in_use)) if in_use else {}
    pairs = [(record.queue, record.idempotency_key) for record in records if record.idempotency_key is not None]
    by_key = tx.records_by_key(list(dict.fromkeys(pairs)), tx.now - KEY_TTL) if pairs else {}
    fresh: list[Record] = []
    answers: list[Record | Tombstone] = []
    taken: list[str] = []
    for record in records:
        key = record.idempotency_key
        behind_key = by_key.get((record.queue, key)) if key is not None else None
        found = behind_key or by_id.get(record.id)
        if found is not None and same_only and not is_repeat(record, found):
            if behind_key is not None:
                raise KeyReused(str(key), found.id)
            taken.append(found.id)
        if found is None:
            found = by_id[record.id] = record
            if key is not None:
                by_key[record.queue, key] = record
            fresh.append(record)
        answers.append(found)
    if taken:
        raise DuplicateJob(list(dict.fromkeys(taken)))
    changed = _store_fresh(tx, fresh)
    return [_as_job(answer if not changed else changed.get(answer.uid, answer)) for answer in answers]


def _as_job(known: Record | Tombstone) -> Job:
    if isinstance(known, Record):
        return job_of(known)
    uid, job_id, queue, type_, status, key, request = known
    options = {} if request is None else {REQUEST: request}
    return Job(id=job_id, uid=uid, queue=queue, type=type_, status=status, idempotency_key=key, options=options)


def _records_of(jobs: Sequence[Job], now: int) -> list[Record]:
    records = []
    for position, job in enumerate(jobs):
        try:
            records.append(record_of(job, now))
        except InvalidArgument as error:
            raise InvalidArgument(f"jobs[{position}].{error.field}", error.problem) from None
    return records


def store_records(tx: Transaction, records: Sequence[Record]) -> list[str]:
    """Store checked records."""
    fresh, answers = records, [record.id for record in records]
    if any(record.idempotency_key is not None for record in records):
        fresh, answers = _without_known_keys(tx, records)
    if len(fresh) > 1:
        _reject_duplicates(tx, fresh)
    _store_fresh(tx, fresh)
    return answers


def _store_fresh(tx: Transaction, fresh: Sequence[Record]) -> dict[int, Record]:
    """Store new records; return those that may have changed since, by uid."""
    for record, uid in zip(fresh, tx.new_uids(len(fresh)), strict=True):
        record.uid = uid
    if fresh and fresh[-1].uid > LAST_NUMBER:
        raise BackendUnavailable(f"this store {USED_UP}")
    edges = edges_for(tx, fresh) if any(record.depends_on for record in fresh) else []
    events: list[EventRow] = []
    for record in fresh:
        transitions.arrive(record, tx.now, events)
    tx.insert(fresh, events)
    if edges:
        tx.put_edges(edges)
        to_stop = {edge.dependent_uid: edge.depends_on for edge in reversed(edges) if edge.state == "failed"}
        if to_stop:
            write(tx, _stop_changes(tx, to_stop))
            changed = tx.jobs_by_uid([record.uid for record in fresh])
            for record in fresh:
                changed[record.uid].depends_on = record.depends_on
            return changed
    return {}


def _without_known_keys(tx: Transaction, records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    pairs = [(record.queue, record.idempotency_key) for record in records if record.idempotency_key is not None]
    known = tx.jobs_by_key(list(dict.fromkeys(pairs))) if pairs else {}
    fresh: list[Record] = []
    answers: list[str] = []
    for record in records:
        if record.idempotency_key is None:
            fresh.append(record)
            answers.append(record.id)
            continue
        pair = (record.queue, record.idempotency_key)
        if pair not in known:
            known[pair] = record.id
            fresh.append(record)
        answers.append(known[pair])
    return fresh, answers


def _reject_duplicates(tx: Transaction, records: Sequence[Record]) -> None:
    """Reject a batch with a repeated id. `insert` finds stored ids."""
    if len({record.id for record in records}) != len(records):
        raise DuplicateJob(_conflicting_ids(tx, records))


def _conflicting_ids(tx: Transaction, records: Sequence[Record]) -> list[str]:
    """The ids that are repeated in the batch or that stored jobs have, each once, in input order."""
    times = Counter(record.id for record in records)
    stored = tx.ids_taken(list(times))
    return [job_id for job_id, count in times.items() if count > 1 or job_id in stored]


def _stop_changes(tx: Transaction, to_stop: dict[int, str]) -> list[Change]:
    changes = []
    for uid, record in tx.jobs_by_uid(list(to_stop)).items():
        if record.status is JobStatus.WAITING_CHILDREN:
            change = Change(record, tx.now)
            transitions.dependency_failed(change, to_stop[uid])
            changes.append(change)
    return changes


@operation()
def accept_jobs(tx: Transaction, job_ids: Iterable[str]) -> None:
    """Accept CREATED jobs, all or none: one that is missing or not CREATED raises.

    The store accepts them in bulk if all of them may run at once; otherwise each is decided separately.
    """
    ids = list(dict.fromkeys(job_ids))
    if tx.accept(ids):
        return
    records = tx.jobs_by_id(ids)
    changes = []
    for job_id in ids:
        if job_id not in records:
            raise JobNotFound(job_id)
        change = Change(records[job_id], tx.now)
        transitions.accept(change)
        if change.record.status is JobStatus.WAITING_CHILDREN:
            failed = _failed_since(tx, job_id)
            if failed is not None:
                transitions.dependency_failed(change, failed)
        changes.append(change)
    write(tx, changes)


def _failed_since(tx: Transaction, job_id: str) -> str | None:
    """A dependency that failed while the job was not accepted yet, and has not been retried since."""
    failed = [edge for edge in tx.edges_from(job_id) if edge.state == "failed"]
    statuses = tx.statuses([edge.depends_on for edge in failed])
    for edge in failed:
        status = statuses.get(edge.depends_on)
        if status is None or edge_state(status, edge.policy) == "failed":
            return edge.depends_on
    return None
