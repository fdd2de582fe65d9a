"""The decision after a failure, a timeout, a cancellation or a crash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.retry import CrashDecision, Decision, Ending, after_crash, decide, exponential, fixed
from longshore.core.times import SECOND

FAILURE = Ending("failure", "broken")
TIMEOUT = Ending("timeout", "took too long")
FATAL = Ending("failure", "broken beyond repair", fatal=True)
CANCELLED = Ending("cancelled")

# ending, failures (this one counted), max_attempts, keywords -> verb, delay
DECISIONS: list[tuple[Ending, int, int, dict[str, Any], str, float]] = [
    # 0 means no limit: retried forever, at once
    (FAILURE, 1, 0, {}, "fail", 0.0),
    (FAILURE, 1_000_000, 0, {}, "fail", 0.0),
    # 3 means three attempts
    (FAILURE, 1, 3, {}, "fail", 0.0),
    (FAILURE, 2, 3, {}, "fail", 0.0),
    (FAILURE, 3, 3, {}, "bury", 0.0),
    (FAILURE, 4, 3, {}, "bury", 0.0),
    # 1 means no retry
    (FAILURE, 1, 1, {}, "bury", 0.0),
    # the backoff sets the wait
    (FAILURE, 1, 3, {"backoff": fixed(7)}, "fail", 7.0),
    (FAILURE, 2, 3, {"backoff": fixed(7)}, "fail", 7.0),
    (FAILURE, 2, 3, {"backoff": exponential(7)}, "fail", 14.0),
    (FAILURE, 3, 3, {"backoff": fixed(7)}, "bury", 0.0),
    (FAILURE, 1, 3, {"backoff": fixed(8, jitter=0.5), "roll": 0.5}, "fail", 6.0),
    # a strategy overrides the backoff
    (FAILURE, 1, 3, {"strategy": 2.5}, "fail", 2.5),
    (FAILURE, 1, 3, {"strategy": 2.5, "backoff": fixed(7)}, "fail", 2.5),
    (FAILURE, 1, 3, {"strategy": 0, "backoff": fixed(7)}, "fail", 0.0),
    (FAILURE, 1, 3, {"strategy": -1.0}, "fail", 0.0),
    (FAILURE, 1, 3, {"strategy": False}, "bury", 0.0),
    (FAILURE, 1, 3, {"strategy": None}, "bury", 0.0),
    (FAILURE, 1, 0, {"strategy": False}, "bury", 0.0),
    (FAILURE, 1, 3, {"strategy": True}, "bury", 0.0),
    (FAILURE, 1, 3, {"strategy": float("inf")}, "bury", 0.0),
    (FAILURE, 1, 3, {"strategy": float("nan")}, "bury", 0.0),
    # and adds no attempt beyond the limit
    (FAILURE, 3, 3, {"strategy": 1.0}, "bury", 0.0),
    # a timeout is a failure
    (TIMEOUT, 1, 3, {"backoff": fixed(7)}, "fail", 7.0),
    (TIMEOUT, 3, 3, {}, "bury", 0.0),
    # a fatal error is final
    (FATAL, 1, 0, {}, "bury", 0.0),
    (FATAL, 1, 3, {"strategy": 1.0, "backoff": fixed(7)}, "bury", 0.0),
    # a cancelled job is stopped in any case
    (CANCELLED, 1, 3, {}, "stop", 0.0),
    (CANCELLED, 9, 3, {"strategy": False}, "stop", 0.0),
    (Ending("cancelled", fatal=True), 1, 3, {}, "stop", 0.0),
]


@pytest.mark.parametrize(("ending", "failures", "max_attempts", "given_more", "verb", "delay"), DECISIONS)
def test_the_decision_after_an_execution_that_did_not_complete(
    ending: Ending, failures: int, max_attempts: int, given_more: dict[str, Any], verb: str, delay: float
) -> None:
    # M-RTY-02 M-RTY-03 M-RTY-04 M-RTY-08 M-OPT-03 M-OPT-04 X-40 X-42 X-72 X-78 X-110 T-CORE-01 T-FAIL-02 T-RTY-03
    decision = decide(ending, failures=failures, max_attempts=max_attempts, **given_more)
    assert (decision.verb, decision.delay) == (verb, delay)


@pytest.mark.parametrize("ending", [FAILURE, TIMEOUT, FATAL, CANCELLED])
def test_a_decision_that_ends_a_job_says_why(ending: Ending) -> None:
    decision = decide(ending, failures=1, max_attempts=1)
    assert decision.verb != "fail"
    assert decision.why


@pytest.mark.parametrize("answer", [1e12, 1e300])
def test_a_strategy_that_asks_for_a_wait_beyond_all_time_gets_one_that_a_store_can_keep(answer: float) -> None:
    decision = decide(FAILURE, failures=1, max_attempts=3, strategy=answer)
    assert decision.verb == "fail"
    assert 86_400 < decision.delay < 7000 * 366 * 86_400


@pytest.mark.parametrize("failures", [40, 64, 10**6])
def test_a_backoff_without_a_cap_still_leads_to_a_wait_that_can_be_kept(failures: int) -> None:
    decision = decide(FAILURE, failures=failures, max_attempts=0, backoff=exponential(1))
    assert decision.verb == "fail"
    assert 86_400 < decision.delay < 7000 * 366 * 86_400


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_job_is_buried_after_exactly_as_many_failures_as_it_has_attempts(max_attempts: int, failures: int) -> None:
    # X-40 X-63 M-RTY-02
    decision = decide(FAILURE, failures=failures, max_attempts=max_attempts)
    assert (decision.verb == "bury") == (failures >= max_attempts)


def test_deciding_twice_decides_the_same() -> None:
    first = decide(FAILURE, failures=2, max_attempts=5, backoff=exponential(1, jitter=0.5), roll=0.25)
    assert first == decide(FAILURE, failures=2, max_attempts=5, backoff=exponential(1, jitter=0.5), roll=0.25)
    assert first == Decision("fail", 2 * (1 - 0.125))


# crashes (this one counted), max_crashes -> buried
CRASHES = [
    (1, None, False),
    (1_000_000, None, False),
    (1, 0, True),
    (1, 1, False),
    (2, 1, True),
    (3, 3, False),
    (4, 3, True),
]


@pytest.mark.parametrize(("crashes", "max_crashes", "buried"), CRASHES)
def test_a_crash_buries_a_job_once_there_are_more_than_its_limit(
    crashes: int, max_crashes: int | None, buried: bool
) -> None:
    # X-62 M-TR-12
    assert after_crash(crashes, max_crashes, {}) == CrashDecision(bury=buried, delay=0)


def test_a_crash_takes_the_jobs_own_backoff_with_no_dice() -> None:
    #
    options = {"backoff": exponential(2, jitter=1.0).as_options()}
    assert [after_crash(crashes, None, options).delay for crashes in (1, 2, 3)] == [2 * SECOND, 4 * SECOND, 8 * SECOND]


def test_a_buried_crash_waits_for_nothing() -> None:
    assert after_crash(2, 1, {"backoff": fixed(5).as_options()}) == CrashDecision(bury=True, delay=0)
