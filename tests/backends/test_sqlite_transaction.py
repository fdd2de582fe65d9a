"""The statements of the SQLite store guard themselves, whatever the code above them believes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore import Job, JobStatus, Outcome, connect
from longshore.backends.sql.transaction import ChangedUnderneath
from longshore.backends.sqlite.connection import open_connection, prepare
from longshore.backends.sqlite.transaction import SQLiteTransaction
from longshore.backends.transaction import QueueState
from longshore.backends.verbs.submission import enqueue_jobs
from longshore.core import transitions
from longshore.core.change import Change

NOW = 1_767_268_800_000_000


@pytest.fixture
def transaction(tmp_path: Path) -> Iterator[SQLiteTransaction]:
    """An open write transaction with one job waiting."""
    path = tmp_path / "jobs.db"
    prepare(path, busy_seconds=1)
    connection = open_connection(path, busy_seconds=1)
    connection.execute("BEGIN IMMEDIATE")
    transaction = SQLiteTransaction(connection)
    transaction.begin()
    transaction.now = NOW
    enqueue_jobs(transaction, [Job(id="j1", type="t")])
    yield transaction
    connection.execute("ROLLBACK")
    connection.close()


def claimed(transaction: SQLiteTransaction, worker: str) -> Change:
    """A claim of the job as it is stored now, not yet written."""
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
    [claimed] = transaction.claim_at_once([chosen], "worker-1", "a token", None)
    with pytest.raises(ChangedUnderneath):
        transaction.claim_at_once([chosen], "worker-2", "a token", None)
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
