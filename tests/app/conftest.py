"""A harbor on each store, closed when its test ends."""

from collections.abc import AsyncIterator

import pytest

from longshore import Harbor


@pytest.fixture
async def harbor() -> AsyncIterator[Harbor]:
    """A harbor in memory, for what does not depend on the store."""
    async with Harbor("memory://") as made:
        yield made


@pytest.fixture
async def stored_harbor(store_url: str) -> AsyncIterator[Harbor]:
    """A harbor on every store."""
    async with Harbor(store_url) as made:
        yield made
