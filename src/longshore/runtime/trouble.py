"""A worker's trouble with its store: waited out, a little longer each time, and told as soon as it can be."""

from __future__ import annotations

import asyncio

from longshore.runtime.failures import describe
from longshore.runtime.voice import Voice
from longshore.safe_logging import logger

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_log = logger("longshore.worker")


class Trouble:
    """What has gone wrong and was not told yet; true while there is something to tell."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._text = ""
        self._pause = _FIRST_PAUSE

    def __bool__(self) -> bool:
        return bool(self._text)

    def note(self, what: Exception | str) -> None:
        """To be told with the next turn."""
        self._text = what if isinstance(what, str) else describe(what).partition("\n")[0]

    async def wait_for_better_times(self, error: Exception) -> None:
        """Leaves the store alone for a while, longer each time until it answers."""
        self.note(error)
        _log.error(
            "worker %s cannot use its store, trying again in %.1f s: %s", self._voice.worker_id, self._pause, self._text
        )
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        await self.tell()

    def store_answers(self) -> None:
        """The next pause is a short one again."""
        self._pause = _FIRST_PAUSE

    async def tell(self) -> None:
        """Writes worker.error; what cannot be written now is told later."""
        if self and await self._voice.has_trouble(self._text):
            self._text = ""
