"""The fixtures of the kit. A backend's author defines `connect_store` and imports these in a conftest.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
import pytest_asyncio

from longshore.backends.base import Backend
from longshore.core.clock import HeldClock
from longshore.testing.conformance.scenarios import audit

OpenBackend = Callable[[], Backend]
"""Opens one more backend on the test's store; all are closed when the test ends."""

WorkDone = Callable[[], int]
"""The work the store has done so far, in a unit that it can count."""


class BreakableClock(HeldClock):
    """A clock that moves only when a test moves it, counts its reads, and can raise an error inside a store."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0
        self.on_reading: Callable[[], None] | None = None
        """Called at every read, in the store's own thread, to stage a race inside a transaction."""
        self._error: Exception | None = None

    def now(self) -> datetime:
        """Return the time it was last set to, unless it is broken."""
        self.readings += 1
        if self.on_reading is not None:
            self.on_reading()
        if self._error is not None:
            raise self._error
        return super().now()

    @contextmanager
    def broken(self, error: Exception) -> Iterator[None]:
        """Raise the error at every read inside this block."""
        self._error = error
        try:
            yield
        finally:
            self._error = None


@pytest.fixture
def clock() -> BreakableClock:
    """The store's clock, which moves only when a test moves it. See docs/write-a-backend.md."""
    return BreakableClock()


@pytest_asyncio.fixture
async def open_backend(connect_store: OpenBackend) -> AsyncIterator[OpenBackend]:
    """A callable that opens one more backend on the same store. See docs/write-a-backend.md."""
    opened: list[Backend] = []

    def opening() -> Backend:
        opened.append(connect_store())
        return opened[-1]

    yield opening
    for one in reversed(opened):
        await one.close()


@pytest_asyncio.fixture
async def backend(open_backend: OpenBackend) -> AsyncIterator[Backend]:
    """The backend under test; its log and counts are audited after each test. See docs/write-a-backend.md."""
    opened = open_backend()
    yield opened
    await audit(opened)


@pytest.fixture
def work_done() -> WorkDone | None:
    """The work the store has done so far (virtual machine steps, rows read). See docs/write-a-backend.md.

    Override it for a durable store. With None, the tests that compare the work of an operation at two sizes are
    skipped.
    """
    return None
