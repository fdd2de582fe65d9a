"""Errors carry what a caller needs, in attributes and in the message."""

from __future__ import annotations

import pickle

import pytest

import longshore.errors
from longshore.core.errors import (
    BackendUnavailable,
    CursorExpired,
    DuplicateJob,
    Fatal,
    Forbidden,
    InvalidArgument,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobNotInflight,
    KeyReused,
    LeaseLost,
    LongshoreError,
    MissingExtra,
    MoveRefused,
    QueueClosed,
    ScheduleNotFound,
    Snooze,
    TokenNotFound,
    Unauthenticated,
)
from longshore.core.status import JobStatus

S = JobStatus
# one of each, with the attributes it must carry
EACH: list[tuple[LongshoreError, dict[str, object]]] = [
    (InvalidArgument("queue", "must not be empty"), {"field": "queue"}),
    (JobNotFound("j1"), {"job_id": "j1"}),
    (ScheduleNotFound("s1"), {"schedule_id": "s1"}),
    (TokenNotFound("t1"), {"token_id": "t1"}),
    (MissingExtra("The server", "server"), {"extra": "server"}),
    (DuplicateJob(["j1", "j2"]), {"job_ids": ["j1", "j2"]}),
    (KeyReused("once", "j1"), {"job_id": "j1"}),
    (InvalidTransition("j1", S.RUNNING, S.DEAD), {"job_id": "j1", "status": S.RUNNING, "target": S.DEAD}),
    (JobNotInflight("j1", S.DEAD, S.COMPLETED), {"job_id": "j1", "status": S.DEAD, "target": S.COMPLETED}),
    (LeaseLost("j1", "expired"), {"job_id": "j1", "reason": "expired"}),
    (LeaseLost("j1", "mismatch"), {"job_id": "j1", "reason": "mismatch"}),
    (QueueClosed("closed"), {}),
    (BackendUnavailable("locked"), {}),
    (CursorExpired("pruned"), {}),
    (Fatal("no such customer"), {}),
    (Unauthenticated("send a token"), {}),
    (Forbidden("this needs the scope admin"), {}),
    (MoveRefused("workers are alive"), {}),
    (Snooze(30, "the other side is busy"), {"reason": "the other side is busy"}),
    (JobFailed("j1", "ValueError: no address"), {"job_id": "j1", "error": "ValueError: no address"}),
    (JobCancelled("j1", S.STOPPED), {"job_id": "j1", "status": S.STOPPED}),
]
NAMES = [f"{type(error).__name__} {attributes.get('reason', '')}".strip() for error, attributes in EACH]


@pytest.mark.parametrize(("error", "attributes"), EACH, ids=NAMES)
def test_an_error_carries_its_attributes(error: LongshoreError, attributes: dict[str, object]) -> None:
    assert {name: getattr(error, name) for name in attributes} == attributes


@pytest.mark.parametrize(("error", "attributes"), EACH, ids=NAMES)
def test_an_error_says_in_words_what_it_carries(error: LongshoreError, attributes: dict[str, object]) -> None:
    # B-ENQS-10
    reported = str(error)
    for name, value in attributes.items():
        if name != "reason":
            assert all(str(part) in reported for part in (value if isinstance(value, list) else (value,)))


def test_the_two_ways_to_lose_a_lease_have_different_messages() -> None:
    assert "expired" in str(LeaseLost("j1", "expired"))
    assert "claimed again" in str(LeaseLost("j1", "mismatch"))


@pytest.mark.parametrize(("error", "attributes"), EACH, ids=NAMES)
def test_every_error_is_caught_as_one_of_longshores(error: LongshoreError, attributes: dict[str, object]) -> None:
    assert isinstance(error, LongshoreError)


def test_a_bad_argument_is_a_value_error_and_a_job_not_in_flight_is_an_invalid_transition() -> None:
    # T-ERR-02
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(JobNotInflight, InvalidTransition)
    assert not issubclass(LeaseLost, InvalidTransition)
    assert not issubclass(JobNotFound, InvalidTransition)


def test_a_transition_says_why_when_there_is_a_reason() -> None:
    assert str(InvalidTransition("j1", S.RUNNING, S.DEAD, "first fail it")).endswith(": first fail it")
    assert str(InvalidTransition("j1", S.RUNNING, S.DEAD)) == "job 'j1' is RUNNING and cannot become DEAD"


def test_all_duplicates_are_attributes_and_the_first_ten_are_in_the_message() -> None:
    # B-ENQS-10 X-02
    ids = [f"job-{number}" for number in range(100)]
    error = DuplicateJob(ids)
    assert error.job_ids == list(ids)
    assert "'job-9'" in str(error)
    assert "'job-10'" not in str(error)
    assert "90 more" in str(error)
    assert "more" not in str(DuplicateJob(ids[:10]))


@pytest.mark.parametrize(("error", "attributes"), EACH, ids=NAMES)
def test_an_error_comes_whole_out_of_another_process(error: LongshoreError, attributes: dict[str, object]) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {name: getattr(back, name) for name in attributes} == attributes


def test_users_import_every_error_from_one_place() -> None:
    promised = {
        "LongshoreError",
        "Forbidden",
        "InvalidArgument",
        "MissingExtra",
        "Unauthenticated",
        "JobCancelled",
        "JobFailed",
        "JobNotFound",
        "DuplicateJob",
        "InvalidTransition",
        "JobNotInflight",
        "KeyReused",
        "LeaseLost",
        "QueueClosed",
        "ScheduleNotFound",
        "BackendUnavailable",
        "CursorExpired",
        "Fatal",
        "MoveRefused",
        "Snooze",
        "TokenNotFound",
    }
    assert set(longshore.errors.__all__) == promised | {"JobInterrupted"}  # a CancelledError, raised only in tasks
    assert {type(error).__name__ for error, _ in EACH} | {"LongshoreError"} == promised
    for name in promised:
        assert issubclass(getattr(longshore.errors, name), LongshoreError)
