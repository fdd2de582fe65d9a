"""The wait before the next attempt."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.retry import Backoff, backoff_of, exponential, fixed

SECONDS = st.floats(0, 1e6).map(lambda seconds: round(seconds, 6))


@pytest.mark.parametrize("failures", [0, 1, 2, 10, 10_000])
def test_a_fixed_wait_is_the_same_after_every_failure(failures: int) -> None:
    # M-OPT-05 M-RTY-05
    assert fixed(5).seconds(failures) == 5.0


@pytest.mark.parametrize(("failures", "wait"), [(1, 3.0), (2, 6.0), (3, 12.0), (4, 24.0), (11, 3.0 * 1024)])
def test_an_exponential_wait_doubles_with_every_failure_after_the_first(failures: int, wait: float) -> None:
    # M-OPT-05 M-RTY-05
    assert exponential(3).seconds(failures) == wait


@pytest.mark.parametrize("failures", [0, -1])
def test_before_the_first_failure_the_wait_is_that_after_the_first(failures: int) -> None:
    assert exponential(3).seconds(failures) == 3.0


@pytest.mark.parametrize(("failures", "wait"), [(1, 3.0), (2, 6.0), (3, 10.0), (4, 10.0), (10**9, 10.0)])
def test_an_exponential_wait_never_exceeds_its_cap(failures: int, wait: float) -> None:
    # X-65
    assert exponential(3, cap=10).seconds(failures) == wait


def test_a_cap_below_the_delay_is_the_wait() -> None:
    assert exponential(10, cap=3).seconds(1) == 3.0


@pytest.mark.parametrize("failures", [64, 1024, 10**6, 10**18])
def test_a_very_large_number_of_failures_is_a_long_wait_and_no_overflow(failures: int) -> None:
    wait = exponential(1).seconds(failures)
    assert math.isfinite(wait)
    assert wait >= 2.0**60


@pytest.mark.parametrize(("roll", "wait"), [(0.0, 8.0), (0.5, 7.0), (1.0, 6.0)])
def test_jitter_takes_away_its_share_of_the_wait_by_the_roll(roll: float, wait: float) -> None:
    # X-65
    assert fixed(8, jitter=0.25).seconds(1, roll) == wait
    assert exponential(8, jitter=0.25).seconds(1, roll) == wait


def test_jitter_is_taken_from_the_capped_wait() -> None:
    assert exponential(100, cap=10, jitter=0.5).seconds(5, 1.0) == 5.0


@given(SECONDS, st.none() | SECONDS, st.floats(0, 1), st.integers(1, 200), st.floats(0, 1))
def test_a_wait_is_never_negative_never_above_the_cap_and_never_shorter_than_jitter_allows(
    delay: float, cap: float | None, jitter: float, failures: int, roll: float
) -> None:
    backoff = exponential(delay, cap=cap, jitter=jitter)
    whole = backoff.seconds(failures)
    wait = backoff.seconds(failures, roll)
    assert 0 <= wait <= whole
    assert wait >= whole * (1 - jitter) * 0.999_999
    if cap is not None:
        assert whole <= cap


@given(SECONDS, st.floats(0, 1), st.integers(1, 100))
def test_a_wait_never_shrinks_with_more_failures(delay: float, jitter: float, failures: int) -> None:
    backoff = exponential(delay, cap=3600, jitter=jitter)
    assert backoff.seconds(failures + 1) >= backoff.seconds(failures)


def test_a_duration_may_be_written_as_a_timedelta_or_in_seconds() -> None:
    assert fixed(timedelta(minutes=2)) == fixed(120) == fixed(120.0)
    assert exponential(timedelta(seconds=1), cap=timedelta(minutes=1)) == exponential(1, cap=60)


@given(st.sampled_from(["fixed", "exponential"]), SECONDS, st.none() | SECONDS, st.floats(0, 1))
def test_a_backoff_survives_being_kept_in_a_jobs_options(
    kind: str, delay: float, cap: float | None, jitter: float
) -> None:
    # M-JOB-05
    backoff = fixed(delay, jitter=jitter) if kind == "fixed" else exponential(delay, cap=cap, jitter=jitter)
    kept = json.loads(json.dumps({"backoff": backoff.as_options()}))
    assert backoff_of(kept) == backoff


def test_a_backoff_as_the_other_system_writes_it_is_understood() -> None:
    # M-OPT-05
    assert backoff_of({"backoff": {"type": "exponential", "delay": 3}}) == exponential(3)


@pytest.mark.parametrize("options", [{}, {"backoff": None}, {"other": 1}])
def test_options_without_a_backoff_have_none(options: dict[str, Any]) -> None:
    assert backoff_of(options) is None


@pytest.mark.parametrize(
    ("kept", "field"),
    [
        (5, "options.backoff"),
        ("fixed", "options.backoff"),
        ([], "options.backoff"),
        ({}, "options.backoff"),
        ({"type": "fixed"}, "options.backoff"),
        ({"delay": 5}, "options.backoff"),
        ({"type": "fixed", "delay": 5, "dely": 5}, "options.backoff"),
        ({"type": "linear", "delay": 5}, "backoff.type"),
        ({"type": None, "delay": 5}, "backoff.type"),
        ({"type": "fixed", "delay": "5"}, "backoff.delay"),
        ({"type": "fixed", "delay": None}, "backoff.delay"),
        ({"type": "fixed", "delay": -1}, "backoff.delay"),
        ({"type": "exponential", "delay": 1, "cap": -1}, "backoff.cap"),
        ({"type": "exponential", "delay": 1, "cap": "1"}, "backoff.cap"),
        ({"type": "fixed", "delay": 1, "jitter": 1.5}, "backoff.jitter"),
        ({"type": "fixed", "delay": 1, "jitter": -0.1}, "backoff.jitter"),
        ({"type": "fixed", "delay": 1, "jitter": True}, "backoff.jitter"),
        ({"type": "fixed", "delay": 1, "jitter": "0.5"}, "backoff.jitter"),
        ({"type": "fixed", "delay": 1, "jitter": ""}, "backoff.jitter"),
        ({"type": "fixed", "delay": 1, "jitter": []}, "backoff.jitter"),
    ],
)
def test_an_odd_backoff_is_refused_where_it_is_odd(kept: object, field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        backoff_of({"backoff": kept})
    assert refusal.value.field == field


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), -1, "5", True, None])
def test_a_delay_must_be_a_duration(delay: object) -> None:
    with pytest.raises(InvalidArgument):
        fixed(cast(Any, delay))
    with pytest.raises(InvalidArgument):
        exponential(cast(Any, delay))


@pytest.mark.parametrize("jitter", [float("nan"), -0.1, 1.1])
def test_jitter_must_be_a_share(jitter: float) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        fixed(1, jitter=jitter)
    assert refusal.value.field == "backoff.jitter"


def test_a_backoff_made_by_hand_counts_in_seconds_or_is_refused() -> None:
    try:
        backoff = Backoff("fixed", cast(Any, timedelta(seconds=5)))
    except InvalidArgument:
        return
    assert backoff.seconds(1) == 5.0
