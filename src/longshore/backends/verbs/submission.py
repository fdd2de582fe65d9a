"""A job comes in: stored once, all or nothing, and accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from longshore.backends.transaction import Transaction
from longshore.backends.verbs.dependencies import edge_state, edges_for
from longshore.backends.verbs.writing import write
from longshore.core import transitions
from longshore.core.change import Change, EventRow
from longshore.core.errors import DuplicateJob, InvalidArgument, JobNotFound
from longshore.core.job import Job
from longshore.core.lifecycle import JobStatus
from longshore.core.record import Record, record_of


def enqueue_job(tx: Transaction, job: Job) -> str:
    """Stores one job, or raises; answers with its id, or with the id its idempotency key stands for."""
    return store_records(tx, [record_of(job, tx.now)])[0]


def enqueue_jobs(tx: Transaction, jobs: Sequence[Job]) -> list[str]:
    """Stores the batch or raises; answers each job with its id, or with the id its idempotency key stands for."""
    return store_records(tx, _records_of(jobs, tx.now))


def _records_of(jobs: Sequence[Job], now: int) -> list[Record]:
    records = []
    for position, job in enumerate(jobs):
        try:
            records.append(record_of(job, now))
        except InvalidArgument as error:
            raise InvalidArgument(f"jobs[{position}].{error.field}", error.problem) from None
    return records


def store_records(tx: Transaction, records: Sequence[Record]) -> list[str]:
    """Stores records that are checked already."""
    fresh, answers = _without_known_keys(tx, records)
    _refuse_twins(fresh)
    for record, uid in zip(fresh, tx.new_uids(len(fresh)), strict=True):
        record.uid = uid
    edges = edges_for(tx, fresh)
    events: list[EventRow] = []
    for record in fresh:
        transitions.arrive(record, tx.now, events)
    tx.insert(fresh, events)
    if edges:
        tx.put_edges(edges)
        doomed = {edge.dependent_uid: edge.depends_on for edge in reversed(edges) if edge.state == "failed"}
        write(tx, _doomed_changes(tx, doomed))
    return answers


def _without_known_keys(tx: Transaction, records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    pairs = [(record.queue, record.idempotency_key) for record in records if record.idempotency_key is not None]
    if not pairs:
        return list(records), [record.id for record in records]
    known = tx.jobs_by_key(list(dict.fromkeys(pairs)))
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


def _refuse_twins(records: Sequence[Record]) -> None:
    """Ids that come twice in the batch; those that are stored already are met when it is inserted."""
    if len({record.id for record in records}) != len(records):
        times = Counter(record.id for record in records)
        raise DuplicateJob([job_id for job_id, count in times.items() if count > 1])


def _doomed_changes(tx: Transaction, doomed: dict[int, str]) -> list[Change]:
    changes = []
    for uid, record in tx.jobs_by_uid(list(doomed)).items():
        if record.status is JobStatus.WAITING_CHILDREN:
            change = Change(record, tx.now)
            transitions.dependency_failed(change, doomed[uid])
            changes.append(change)
    return changes


def accept_jobs(tx: Transaction, job_ids: Iterable[str]) -> None:
    """CREATED jobs join the queue; one that is missing or not CREATED stops all of them."""
    ids = list(dict.fromkeys(job_ids))
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
    """A dependency that failed while the job was not accepted yet, and was not brought back to life since."""
    failed = [edge for edge in tx.edges_from(job_id) if edge.state == "failed"]
    statuses = tx.statuses([edge.depends_on for edge in failed])
    for edge in failed:
        status = statuses.get(edge.depends_on)
        if status is None or edge_state(status, edge.policy) == "failed":
            return edge.depends_on
    return None
