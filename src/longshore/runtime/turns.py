"""The turns of one worker that are under way, and the room they may fill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Turns:
    """Tasks; `ended` is called after each."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._tell = ended
        self._under_way: dict[asyncio.Task[None], int] = {}
        self.failure: BaseException | None = None
        """What one of them has raised."""

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def spoken_for(self) -> int:
        """How many jobs they may bring, or have not given back yet."""
        return sum(self._under_way.values())

    def begin(self, turn: Coroutine[Any, Any, None], speaks_for: int) -> None:
        """Takes a turn that holds so many jobs at most."""
        task = asyncio.create_task(turn)
        self._under_way[task] = speaks_for
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Lets none of them go any further."""
        for task in self._under_way:
            task.cancel()

    async def ended(self) -> None:
        """Returns when none is under way any more."""
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failure = failure
        self._tell()
