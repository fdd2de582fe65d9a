"""The statements of the SQLite store check their own conditions, whatever their callers assume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from longshore import Job, JobStatus, Outcome, connect
from longshore.backends.operations.enqueue import enqueue_jobs
from longshore.backends.port import Candidate, Completion, NewLease, QueueState, Undecided
from longshore.backends.sql.writes import ChangedUnderneath
from longshore.backends.sqlite.connection import open_connection, prepare
from longshore.backends.sqlite.transaction import SQLiteTransaction
from longshore.core import transitions
from longshore.core.clock import HeldClock, StoreClock
from longshore.core.transitions import Change

NOW = 1_767_268_800_000_000
LEASE = NewLease("w", "token", None)


@pytest.fixture
def transaction(tmp_path: Path) -> Iterator[SQLiteTransaction]:
    """An open write transaction with one job waiting."""
    path = tmp_path / "jobs.db"
    prepare(path, busy_seconds=1)
    connection = open_connection(path, busy_seconds=1)
    connection.execute("BEGIN IMMEDIATE")
    transaction = SQLiteTransaction(connection, StoreClock(HeldClock()))
    transaction.begin()
    transaction.now = NOW
    enqueue_jobs.run(transaction, [Job(id="j1", type="t")])
    yield transaction
    connection.execute("ROLLBACK")
    connection.close()


def claimed(transaction: SQLiteTransaction, worker: str) -> Change:
    """A claim of the stored job, not yet written."""
    change = Change(transaction.jobs_by_id(["j1"])["j1"], NOW)
    transitions.claim(change, worker, f"token of {worker}", NOW + 30_000_000)
    return change


def test_a_change_made_from_an_older_version_of_the_row_is_not_written(transaction: SQLiteTransaction) -> None:
    # B-IMP-02 X-33
    first, second = claimed(transaction, "worker-1"), claimed(transaction, "worker-2")
    transaction.save([first])
    with pytest.raises(ChangedUnderneath):
        transaction.save([second])
    assert transaction.jobs_by_id(["j1"])["j1"].lease_owner == "worker-1"


def test_a_job_that_was_claimed_is_not_claimed_again_by_a_statement(transaction: SQLiteTransaction) -> None:
    # B-DEQ-12 B-IMP-03
    [chosen] = transaction.candidates(QueueState("default"), (), lambda: 1)
    [claimed] = transaction.claim_chosen([chosen], NewLease("worker-1", "a token", None))
    with pytest.raises(ChangedUnderneath):
        transaction.claim_chosen([chosen], NewLease("worker-2", "a token", None))
    assert claimed.assignee_id == "worker-1"
    record = transaction.jobs_by_id(["j1"])["j1"]
    assert (record.lease_owner, record.epoch) == ("worker-1", 1)


async def test_jobs_that_complete_alike_are_written_together_and_each_keeps_its_own_history(tmp_path: Path) -> None:
    async with connect(f"sqlite:///{tmp_path / 'jobs.db'}") as backend:
        await backend.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(12)])
        held = await backend.dequeue_jobs("w", limit=12)
        outcomes = [Outcome(job.id, job.lease, result=b"even" if n % 2 else None) for n, job in enumerate(held)]
        released = [Outcome("j0", held[0].lease, "release"), Outcome("j0", None, "complete")]
        report = await backend.settle_jobs([*released, *outcomes[1:]])
        assert set(report.settled.values()) == {JobStatus.COMPLETED}
        for number, job in enumerate(held):
            stored = await backend.get_job(job.id)
            assert (stored.status, stored.result) == (JobStatus.COMPLETED, b"even" if number % 2 else None)
            history = await backend.read_events(job_id=job.id)
            assert [event.job_seq for event in history] == list(range(1, len(history) + 1))
            ends = ["job.completed"] if number else ["job.released", "job.completed"]
            assert [event.event for event in history] == ["job.added", "job.active", *ends]


@pytest.mark.parametrize(
    "numbers", [range(6), [0, 1, 2, 4, 5], [5, 4, 3], [1]], ids=["all", "a gap", "backwards", "one"]
)
def test_jobs_one_after_the_other_or_not_are_claimed_and_completed_alike(
    transaction: SQLiteTransaction, numbers: Sequence[int]
) -> None:
    """A range of uids is written by another statement than a list: jobs next to it must not change."""
    ids = [f"s{number}" for number in range(6)]
    enqueue_jobs.run(transaction, [Job(id=job_id, type="t", queue="spans") for job_id in ids])
    chosen = [ids[number] for number in numbers]
    records = transaction.jobs_by_id(chosen)
    entries = [Candidate(0, NOW, records[job_id].uid, "spans", None, None, False) for job_id in chosen]
    jobs = transaction.claim_chosen(entries, NewLease("w", "token", None))
    assert {job.id for job in jobs} == set(chosen)
    running = [job_id for job_id, record in transaction.jobs_by_id(ids).items() if record.status is JobStatus.RUNNING]
    assert sorted(running) == sorted(chosen)
    transaction.complete([Completion(job_id, 1, "token", None) for job_id in chosen], chosen)
    after = transaction.jobs_by_id(ids)
    assert {job_id for job_id in ids if after[job_id].status is JobStatus.COMPLETED} == set(chosen)
    assert {after[job_id].status for job_id in set(ids) - set(chosen)} <= {JobStatus.INITIAL_PENDING}


def test_a_claim_within_keys_is_made_in_bulk_unless_it_would_skip_too_many(transaction: SQLiteTransaction) -> None:
    queue = QueueState("keyed", per_key=1)
    jobs = [Job(id=f"k{n}", type="t", queue="keyed", concurrency_key=key) for n, key in enumerate("aabbc")]
    enqueue_jobs.run(transaction, jobs)
    assert transaction.claim([queue], 3, LEASE, None, 1) is Undecided.FULL_KEYS  # it would skip two
    assert transaction.key_states("keyed", ["a"])["a"].running_count == 0
    claimed_now = transaction.claim([queue], 3, LEASE, None, 2)
    assert not isinstance(claimed_now, Undecided)
    assert [job.id for job in claimed_now] == ["k0", "k2", "k4"]
    assert {key: state.running_count for key, state in transaction.key_states("keyed", ["a", "b", "c"]).items()} == {
        "a": 1,
        "b": 1,
        "c": 1,
    }
    assert transaction.claim([queue], 3, LEASE, None, 5) is Undecided.FULL_KEYS  # no key has free slots
    assert transaction.release_keys(queue, {"a": 1, "c": 1}) is None  # no job is blocked
    assert {state.running_count for state in transaction.key_states("keyed", ["a", "c"]).values()} == {0}
