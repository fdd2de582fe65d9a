"""What every test may lean on: the seed, the long-form switch, Hypothesis profiles, the specification's tally."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.house import specification

DEFAULT_SEED = 20_240_229
SEED = int(os.environ.get("LONGSHORE_TEST_SEED", DEFAULT_SEED))
PROVING = os.environ.get("LONGSHORE_PROVE", "") == "1"

# Deadlines and the too-slow check measure the machine, not the code; the timeout on every test is the bound.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    max_examples=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "prove",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("prove" if PROVING else "ci")


def pytest_report_header() -> str:
    form = "long" if PROVING else "short"
    return f"longshore: LONGSHORE_TEST_SEED={SEED}, {form} form of the proofs"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tally = specification.tally()
    terminalreporter.write_line(f"specification ids cited by tests: {specification.in_one_line(tally)}")


@pytest.fixture(scope="session")
def seed() -> int:
    """The number from which a test draws its randomness; set LONGSHORE_TEST_SEED to repeat or vary a run."""
    return SEED


@pytest.fixture(scope="session")
def proving() -> bool:
    """True in `make prove`: a test marked `prove` then runs its long form."""
    return PROVING
