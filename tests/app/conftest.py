"""A harbor on each store, closed when its test ends."""

from collections.abc import AsyncIterator

import pytest

from longshore import Harbor


@pytest.fixture
async def harbor() -> AsyncIterator[Harbor]:
    """In memory, for what has nothing to do with the store."""
    async with Harbor("memory://") as made:
        yield made


@pytest.fixture
async def stored_harbor(store_url: str) -> AsyncIterator[Harbor]:
    """On every store."""
    async with Harbor(store_url) as made:
        yield made
