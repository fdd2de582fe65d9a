"""A harbor on each store, closed when its test ends."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longshore import Harbor


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of the test's own store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


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
