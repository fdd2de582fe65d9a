"""The public records: immutable and independent of any store."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any, cast

import pytest

from longshore.core.errors import InvalidArgument
from longshore.core.job import DEFAULT_QUEUE, Job, JobEvent, JobStats, Lease, LogEntry
from longshore.core.status import JobStatus
from tests.core.staging import NOON


def test_the_smallest_job_that_can_be_written_is_a_good_one() -> None:
    job = Job(type="email")
    assert (job.queue, job.status, job.priority, job.lifo) == ("default", JobStatus.INITIAL_PENDING, 0, False)
    assert (job.max_attempts, job.max_crashes, job.uid) == (0, None, 0)
    assert (job.tags, job.depends_on, job.on_dependency_failure) == ((), (), "wait")
    assert job.data is None


def test_a_job_without_an_id_gets_a_new_one() -> None:
    # M-OPT-07
    assert Job(type="email").id != Job(type="email").id


def test_tags_and_dependencies_may_be_written_as_lists_and_are_kept_as_tuples() -> None:
    # Q-JOB-05
    job = Job(id="j1", type="email", payload=b"{}", tags=cast(Any, ["a", "b"]), depends_on=cast(Any, ["j0"]))
    assert (job.tags, job.depends_on) == (("a", "b"), ("j0",))
    assert isinstance(Job(type="t", tags=cast(Any, {"a"})).tags, tuple)


def test_a_job_with_invalid_tags_can_be_created() -> None:
    # the job is checked when it is stored, by the one rule for names
    Job(type="email", tags=cast(Any, [["a"]]), depends_on=cast(Any, [{"a": 1}]))


def test_changing_the_list_later_does_not_change_the_job() -> None:
    tags = ["a"]
    job = Job(type="email", tags=cast(Any, tags))
    tags.append("b")
    assert job.tags == ("a",)


def test_a_job_decodes_its_data() -> None:
    # M-JOB-04
    assert Job(type="email", payload=b'{"to":"a@b.c"}').data == {"to": "a@b.c"}


def test_data_that_is_not_json_is_refused_under_the_name_of_the_payload() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        _ = Job(type="email", payload=b"\xff").data
    assert refusal.value.field == "payload"


def test_a_job_cannot_be_changed_but_copied() -> None:
    job = Job(id="j1", type="email")
    with pytest.raises(dataclasses.FrozenInstanceError):
        cast(Any, job).priority = 5
    copy = job.replace(priority=5, tags=["x"])
    assert (copy.id, copy.priority, copy.tags) == ("j1", 5, ("x",))
    assert (job.priority, job.tags) == (0, ())


def test_a_job_says_whether_its_queue_was_written_or_left_to_others() -> None:
    assert Job(type="email").queue is DEFAULT_QUEUE
    assert Job(type="email", queue="default").queue is not DEFAULT_QUEUE
    assert Job(type="email").queue == Job(type="email", queue="default").queue == "default"


def test_a_job_comes_whole_out_of_another_process() -> None:
    job = Job(id="j1", type="email", tags=("a",), lease=Lease("t", 1, NOON), options={"a": [1]}, run_at=NOON)
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.parametrize(
    "record",
    [
        Lease("token", 1, NOON),
        JobStats((), 0, 0, 0, 0, 0, 0, 0),
        LogEntry(1, NOON, "info", "hello"),
        JobEvent("c", 1, "j", 1, "q", "t", "job.added", None, None, 0, 0, None, "", NOON, {}),
    ],
    ids=lambda record: type(record).__name__,
)
def test_every_public_record_is_immutable(record: Any) -> None:
    name = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, "changed")


def test_a_lease_asks_for_no_cancellation_unless_it_says_so() -> None:
    assert Lease("token", 1, None).cancel_requested is False
