"""Shared setup: the seed, the long-form switch, Hypothesis profiles, stores and the specification."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres_run import Clones, PostgresRun, template_from
from tests.repo import specification

DEFAULT_SEED = 20_240_229
SEED = int(os.environ.get("LONGSHORE_TEST_SEED", DEFAULT_SEED))
PROVING = os.environ.get("LONGSHORE_PROVE", "") == "1"
WRITE_SNAPSHOTS = os.environ.get("LONGSHORE_WRITE_SNAPSHOTS", "") == "1"
STORES = os.environ.get("LONGSHORE_TEST_STORES", "memory sqlite postgres remote").split()
"""The stores on which tests for every store run; `make check` names one, and the others are not collected."""
POSTGRES = os.environ.get("LONGSHORE_TEST_POSTGRES") or None
POSTGRES_VERSION = int(os.environ.get("LONGSHORE_TEST_POSTGRES_VERSION") or 0) or None
POSTGRES_RUN = pytest.StashKey[PostgresRun]()

# Deadlines and the too-slow check measure the machine, not the code; every test has a timeout instead.
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
    """The seed of a test's random numbers; set LONGSHORE_TEST_SEED to repeat or vary a run."""
    return SEED


@pytest.fixture(scope="session")
def proving() -> bool:
    """True in `make prove`: a test marked `prove` runs its long form."""
    return PROVING


# --- PostgreSQL: pytest-xdist's controller owns the server, and the workers know its address ---


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[POSTGRES_RUN] = PostgresRun(POSTGRES, POSTGRES_VERSION)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_address"] = node.config.stash[POSTGRES_RUN].address()


def pytest_unconfigure(config: pytest.Config) -> None:
    if POSTGRES_RUN in config.stash:
        config.stash[POSTGRES_RUN].close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_clones" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


@pytest.fixture(scope="session")
def postgres_clones(pytestconfig: pytest.Config) -> Iterator[Clones]:
    """Clones of the template, for a test that needs more than one; the first use starts the server."""
    if hasattr(pytestconfig, "workerinput"):
        template = template_from(tuple(pytestconfig.workerinput["postgres_address"]))
    else:
        template = pytestconfig.stash[POSTGRES_RUN].template()
    clones = Clones(template)
    yield clones
    clones.close()


@pytest.fixture
def postgres_url(postgres_clones: Clones) -> Iterator[str]:
    """The address of the test's own database, cloned from the template and dropped after the test."""
    url = postgres_clones.add()
    yield url
    postgres_clones.drop(url)


@pytest.fixture(params=[store for store in STORES if store != "remote"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of the test's own store, of every kind in turn; each memory:// is a new store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
