"""The stores of the runtime tests, and a clock that a test may hold."""

from collections.abc import AsyncIterator, Callable

import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import QueueClosed
from longshore.runtime.queue import Queue
from longshore.testing.conformance.scenarios import audit

OpenBackend = Callable[[], Backend]
"""Opens one more backend on the test's store, as another process would; all are closed when the test ends."""


@pytest.fixture
def clock() -> HeldClock:
    """The store's clock, held: backends of a test that requests it use it, others use the real time."""
    return HeldClock()


@pytest.fixture
async def open_backend(store_url: str, request: pytest.FixtureRequest) -> AsyncIterator[OpenBackend]:
    """Return a function that opens one more backend on the same store."""
    held = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    opened: list[Backend] = []

    def opening() -> Backend:
        opened.append(connect(store_url, clock=held))
        return opened[-1]

    yield opening
    for one in reversed(opened):
        await one.close()


@pytest.fixture
async def backend(open_backend: OpenBackend) -> AsyncIterator[Backend]:
    """The backend under test; its log and counts are audited after each test, even if a queue closed it."""
    opened = open_backend()
    yield opened
    try:
        await opened.count_jobs()
    except QueueClosed:
        if not opened.capabilities.shared:
            return
        opened = open_backend()
    await audit(opened)


@pytest.fixture
async def other_backend(backend: Backend, open_backend: OpenBackend) -> Backend:
    """A second backend on the same store, as in another process; skips stores that cannot be shared."""
    if not backend.capabilities.shared:
        pytest.skip("no other process can open this store")
    return open_backend()


@pytest.fixture
async def queue(backend: Backend) -> AsyncIterator[Queue]:
    """A queue that sees all jobs; the backend stays open for the audit, because another queue is open on it."""
    keeper = Queue(backend)
    opened = Queue(backend)
    yield opened
    await opened.close()
    assert not keeper.closed


@pytest.fixture
async def mail(backend: Backend, queue: Queue) -> AsyncIterator[Queue]:
    """The queue "mail", beside the one that sees all."""
    opened = Queue(backend, "mail")
    yield opened
    await opened.close()
