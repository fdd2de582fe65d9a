"""Tasks that are there before anybody wrote one: something to send a first job to, and to try failures with."""

from __future__ import annotations

import asyncio
from typing import Any

from longshore.app.harbor import Harbor
from longshore.backends.base import Backend


def builtin_harbor(store: str | Backend) -> Harbor:
    """A harbor with `echo`, `sleep` and `fail`."""
    harbor = Harbor(store, name="builtin")

    @harbor.task
    async def echo(**data: Any) -> Any:
        """Gives back what it was given, whatever it is called."""
        return data

    @harbor.task
    async def sleep(seconds: float = 1.0) -> float:
        """Takes so long, and gives back how long."""
        await asyncio.sleep(seconds)
        return seconds

    @harbor.task
    async def fail(why: str = "it was asked to") -> None:
        """Fails, as often as it is tried."""
        raise RuntimeError(why)

    return harbor
