"""What the body of a request holds, counted while it arrives: what is too much is refused before it is parsed."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from itertools import accumulate

from longshore.core.errors import InvalidArgument
from longshore.core.patience import LARGE
from longshore.core.payload import DEEPEST
from longshore.server.refusals import Overloaded, TooLarge

MOST_LEVELS = 2 * DEEPEST
"""Levels of lists and objects in a large body; a payload may have half of them."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)(\\?)', re.DOTALL)
"""Also one that goes on in the next chunk: nothing is tried twice, so that no text takes longer than another."""
_OPEN, _OPEN_AND_ESCAPED = b"'", b"'\\"
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class ValueCounter:
    """Counts the values and keys of a JSON text and its levels, chunk by chunk, without parsing it.

    It is exact as long as the text is JSON. Where it is not, a parser stops, and no earlier than the count went wrong.
    """

    def __init__(self, most_values: int, most_levels: int = MOST_LEVELS) -> None:
        self.values = 1
        self.containers = 0
        self._most_values = most_values
        self._most_levels = most_levels
        self._level = 0
        self._begun = b""
        """What stands for a string that has begun and not ended."""
        self._last = b""

    def feed(self, chunk: bytes) -> None:
        """Counts the next chunk; TooLarge or InvalidArgument as soon as there are too many values or levels."""
        outside = self._without_strings(chunk)
        lists, objects = outside.count(b"["), outside.count(b"{")
        joined = self._last + outside  # so that an empty list is seen although its two brackets came apart
        empty = joined.count(b"[]") + joined.count(b"{}")
        self._last = outside[-1:] or self._last
        self.containers += lists + objects
        self.values += outside.count(b",") + outside.count(b":") + lists + objects - empty
        maybe_empty = self._last in (b"[", b"{")
        if self.values - maybe_empty > self._most_values:
            raise TooLarge(
                f"the body has more than {self._most_values:,} values and keys, and this server takes no more; "
                "send it in parts, or the data as one text"
            )
        if self._level + lists + objects > self._most_levels:
            steps = map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKET))
            if max(accumulate(steps, initial=self._level)) > self._most_levels:
                raise InvalidArgument("body", f"is nested deeper than {self._most_levels} levels")
        self._level += lists + objects - outside.count(b"]") - outside.count(b"}")

    def _without_strings(self, chunk: bytes) -> bytes:
        """The chunk with two marks for each string in it."""
        outside = _STRING.sub(rb"'\1\2", self._begun + chunk)
        if outside.endswith(_OPEN_AND_ESCAPED):
            self._begun = b'"\\'
        else:
            self._begun = b'"' if outside.endswith(_OPEN) else b""
        return outside


class BodyMemory:
    """The memory for large bodies that are read or worked on at once: the next one waits until there is enough.

    What a body takes is an estimate. One is always let in: how large it may be is bounded elsewhere.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0
        self.peak = 0
        self.when_idle: Callable[[], object] | None = None
        """Called when nothing is held any more."""

    async def take(self, amount: int, patience: float) -> None:
        """Waits until so much is free, in the order of those who ask; Overloaded after so many seconds."""
        if not self._waiting and self._fits(amount):
            self._hold(amount)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, turn))
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came in the same moment
                self.give_back(amount)
            self._waiting = deque(one for one in self._waiting if one[1] is not turn)
            self._go_on()
            if isinstance(error, TimeoutError):
                raise Overloaded(_SPENT) from None
            raise

    def take_more(self, held: int, amount: int) -> None:
        """More for a body that holds so much already, without waiting; Overloaded if others take the rest."""
        if self.held > held and self.held + amount > self._most:
            raise Overloaded(_SPENT)
        self._hold(amount)

    def give_back(self, amount: int) -> None:
        """A body is done with."""
        self.held -= amount
        self._go_on()
        if self.held == 0 and self.when_idle is not None:
            self.when_idle()

    def _fits(self, amount: int) -> bool:
        return self.held == 0 or self.held + amount <= self._most

    def _hold(self, amount: int) -> None:
        self.held += amount
        self.peak = max(self.peak, self.held)

    def _go_on(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            amount, turn = self._waiting.popleft()
            if not turn.done():
                self._hold(amount)
                turn.set_result(None)


_SPENT = "the memory of this server for large bodies is in use; send it again in a moment"
PER_BYTE = 6
"""Bytes of memory for each byte of a body: as sent, as text, as values, and as written for the store."""
PER_VALUE = 64
PER_CONTAINER = 240
"""Bytes of memory for a value, and for a list or an object: what the interpreter takes for each."""


class Meter:
    """One body: its bytes are taken from the memory before they are read, and its values as they are counted.

    A body of less than `LARGE` takes nothing: there are no more of these than connections.
    """

    def __init__(self, memory: BodyMemory, most_values: int, *, is_json: bool) -> None:
        self._memory = memory
        self._counter = ValueCounter(most_values) if is_json else None
        self._small: list[bytes] | None = []
        self._size = 0
        self._bytes = 0
        self._held = 0

    async def read(self, chunk: bytes, expected: int, patience: float) -> None:
        """One more chunk of a body that is announced to have so many bytes; 0 if that is unknown."""
        self._size += len(chunk)
        if self._small is not None:
            self._small.append(chunk)
            if self._size < LARGE:
                return
            chunk, self._small = b"".join(self._small), None
            self._bytes = max(expected, self._size)
            await self._memory.take(PER_BYTE * self._bytes, patience)
            self._held = PER_BYTE * self._bytes
        if self._size > self._bytes:  # its length was not announced
            self._take_more(PER_BYTE * (self._size - self._bytes))
            self._bytes = self._size
        if self._counter is not None:
            before = self._counter.values, self._counter.containers
            self._counter.feed(chunk)
            values, containers = self._counter.values - before[0], self._counter.containers - before[1]
            self._take_more(PER_VALUE * values + (PER_CONTAINER - PER_VALUE) * containers)

    def _take_more(self, amount: int) -> None:
        self._memory.take_more(self._held, amount)
        self._held += amount

    def close(self) -> None:
        """Gives back all that it took."""
        if self._held:
            self._memory.give_back(self._held)
            self._held = 0
