"""Other systems' names for a job's current status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import pytest

from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.vocabulary import Vocabulary, statuses_for, word_for, word_for_job
from tests.core.staging import NOON, STATUSES

# By hand: (status, due) -> (orchestration platform, TaskHarbor, BullMQ-style)
WORDS: dict[tuple[str, bool], tuple[str | None, str | None, str | None]] = {
    ("CREATED", True): ("CREATED", None, None),
    ("CREATED", False): ("CREATED", None, None),
    ("WAITING_CHILDREN", True): ("CREATED", "scheduled", "WAITING_CHILDREN"),
    ("WAITING_CHILDREN", False): ("CREATED", "scheduled", "WAITING_CHILDREN"),
    ("INITIAL_PENDING", True): ("QUEUED", "ready", "PENDING"),
    ("INITIAL_PENDING", False): ("QUEUED", "scheduled", "DELAYED"),
    ("RUNNING", True): ("RUNNING", "inflight", "ACTIVE"),
    ("RUNNING", False): ("RUNNING", "inflight", "ACTIVE"),
    ("CANCELLING", True): ("RUNNING", "inflight", "ACTIVE"),
    ("CANCELLING", False): ("RUNNING", "inflight", "ACTIVE"),
    ("FAILED_RETRY", True): ("QUEUED", "ready", "PENDING"),
    ("FAILED_RETRY", False): ("RETRY", "scheduled", "DELAYED"),
    ("UNKNOWN_RETRY", True): ("QUEUED", "ready", "PENDING"),
    ("UNKNOWN_RETRY", False): ("RETRY", "scheduled", "DELAYED"),
    ("COMPLETED", True): ("SUCCESS", "done", "COMPLETED"),
    ("COMPLETED", False): ("SUCCESS", "done", "COMPLETED"),
    ("DEAD", True): ("DEAD", "dlq", "FAILED"),
    ("DEAD", False): ("DEAD", "dlq", "FAILED"),
    ("STOPPED", True): ("CANCELLED", "cancelled", "CANCELLED"),
    ("STOPPED", False): ("CANCELLED", "cancelled", "CANCELLED"),
    ("UNSCHEDULED", True): ("CANCELLED", "cancelled", "CANCELLED"),
    ("UNSCHEDULED", False): ("CANCELLED", "cancelled", "CANCELLED"),
    ("UNKNOWN_STOPPED", True): ("CANCELLED", "cancelled", "CANCELLED"),
    ("UNKNOWN_STOPPED", False): ("CANCELLED", "cancelled", "CANCELLED"),
}
VOCABULARIES: tuple[Vocabulary, ...] = ("orchestrator", "taskharbor", "bullmq")


def test_the_table_here_speaks_of_every_status_and_every_vocabulary() -> None:
    assert {status for status, _ in WORDS} == set(STATUSES)
    assert set(get_args(Vocabulary)) == set(VOCABULARIES)


@pytest.mark.parametrize(("status", "due"), WORDS)
def test_each_system_has_its_word_for_a_status_due_or_not(status: str, due: bool) -> None:
    # T-ST-01 T-ST-02 T-ST-03 T-ST-04 M-STS-01 M-STS-02 M-STS-03 M-STS-04 M-STS-05 M-STS-06 O-ST-03 O-ST-07 X-104
    reported = tuple(word_for(JobStatus(status), vocabulary, due=due) for vocabulary in VOCABULARIES)
    assert reported == WORDS[status, due]


def test_a_job_is_taken_for_due_unless_said_otherwise() -> None:
    assert word_for(JobStatus.INITIAL_PENDING, "bullmq") == "PENDING"


@pytest.mark.parametrize(
    ("run_at", "word"),
    [
        (None, "PENDING"),
        (NOON - timedelta(microseconds=1), "PENDING"),
        (NOON, "PENDING"),
        (NOON + timedelta(microseconds=1), "DELAYED"),
    ],
)
def test_a_job_is_due_from_the_instant_of_its_time_on(run_at: Any, word: str) -> None:
    # T-ST-01 T-ST-02 M-STS-05 X-74
    assert word_for_job(Job(type="t", run_at=run_at), "bullmq", NOON) == word


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_statuses_behind_a_word_are_all_that_may_be_called_by_it(vocabulary: Vocabulary) -> None:
    column = VOCABULARIES.index(vocabulary)
    words = {row[column] for row in WORDS.values()} - {None}
    for word in words:
        assert word is not None
        wanted = {status for (status, _), row in WORDS.items() if row[column] == word}
        assert statuses_for(word, vocabulary) == wanted


def test_a_word_of_another_system_stands_for_nothing_here() -> None:
    # M-STS-07 M-STS-08 X-73
    for word in ("PRIORITIZED", "STALLED", "dlq", "pending", ""):
        assert statuses_for(word, "bullmq") == frozenset()
