"""The stores the conformance kit is run on here, and how SQLite's work is counted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.backends.contract import Backend
from longshore.backends.opening import connect
from longshore.testing.conformance.fixtures import BreakableClock, WorkDone, backend, clock, open_backend

__all__ = ["backend", "clock", "connect_store", "open_backend", "work_done"]

STEPS_PER_COUNT = 10


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def connect_store(request: pytest.FixtureRequest, tmp_path: Path, clock: BreakableClock) -> Callable[[], Backend]:
    """Opens one more backend on the test's store; each memory:// is a store of its own."""
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    else:
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    return lambda: connect(url, clock=clock)


@pytest.fixture
def work_done() -> Iterator[WorkDone]:
    """Steps of SQLite's virtual machine, over all connections opened from now on."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += STEPS_PER_COUNT
        return False

    def watch(connection: Any) -> None:
        connection.set_progress_handler(count, STEPS_PER_COUNT)

    apsw.connection_hooks.append(watch)
    yield lambda: steps
    apsw.connection_hooks.remove(watch)
