"""Request bodies: measured while they arrive, refused when too large, and parsed strictly."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from fastapi import Request

from longshore.core.errors import InvalidArgument
from longshore.core.validation import DEEPEST, LARGE, loads_incrementally, read_json
from longshore.server.http_errors import NotJson, Overloaded, TooLarge
from longshore.server.response_limits import run_in_thread

MOST_LEVELS = 2 * DEEPEST
"""The most levels of lists and objects in a large body; a payload may have half as many."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)(\\?)', re.DOTALL)
"""Also an unterminated string, which continues in the next chunk. The pattern never backtracks: its time is linear."""
_OPEN, _OPEN_AND_ESCAPED = b"'", b"'\\"
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class ValueCounter:
    """Counts the values, keys and levels of a JSON text chunk by chunk, without parsing it.

    The count is exact for valid JSON. In other text, a parser stops before the count becomes wrong.
    """

    def __init__(self, most_values: int, most_levels: int = MOST_LEVELS) -> None:
        self.values = 1
        self.containers = 0
        self._most_values = most_values
        self._most_levels = most_levels
        self._level = 0
        self._begun = b""
        """The start of a string that continues in the next chunk."""
        self._last = b""

    def feed(self, chunk: bytes) -> None:
        """Count the next chunk; raise TooLarge or InvalidArgument at the first value or level too many."""
        outside = self._without_strings(chunk)
        lists, objects = outside.count(b"["), outside.count(b"{")
        joined = self._last + outside  # to detect an empty list whose brackets are in two chunks
        empty = joined.count(b"[]") + joined.count(b"{}")
        self._last = outside[-1:] or self._last
        self.containers += lists + objects
        self.values += outside.count(b",") + outside.count(b":") + lists + objects - empty
        maybe_empty = self._last in (b"[", b"{")
        if self.values - maybe_empty > self._most_values:
            raise TooLarge(
                f"the body has more than {self._most_values:,} values and keys, the limit of this server; "
                "send it in parts, or send the data as one string"
            )
        if self._level + lists + objects > self._most_levels:
            steps = map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKET))
            if max(accumulate(steps, initial=self._level)) > self._most_levels:
                raise InvalidArgument("body", f"is nested deeper than {self._most_levels} levels")
        self._level += lists + objects - outside.count(b"]") - outside.count(b"}")

    def _without_strings(self, chunk: bytes) -> bytes:
        """The chunk with every string replaced by two marks."""
        outside = _STRING.sub(rb"'\1\2", self._begun + chunk)
        if outside.endswith(_OPEN_AND_ESCAPED):
            self._begun = b'"\\'
        else:
            self._begun = b'"' if outside.endswith(_OPEN) else b""
        return outside


SMALL = 16 * 1024
"""Bytes below which a body may use the reserve; lease renewals, results and most jobs are smaller."""
_RESERVE = 8
"""One part in this many of the memory is for small bodies only."""
_MUCH, _LITTLE = 8 * 1024 * 1024, 1024 * 1024
"""Bytes: after much was held, free memory is returned to the system as soon as little is held."""
_Waiting = deque[tuple[int, asyncio.Future[None]]]


class BodyMemory:
    """The memory for all bodies in flight; the next body waits until there is enough.

    The size of a body is an estimate. Small bodies have a reserve and do not wait behind larger ones. One body of each
    kind is always admitted; other checks limit its size.
    """

    def __init__(self, most: int) -> None:
        # each of these has two entries: for larger bodies and for small ones
        self._most = (most - most // _RESERVE, most)
        self._held = [0, 0]
        self._waiting: tuple[_Waiting, _Waiting] = (deque(), deque())
        self.peak = 0
        self._was_much = False
        self.when_idle: Callable[[], object] | None = None
        """Called when little is held after much was held."""

    @property
    def held(self) -> int:
        """The bytes held for all bodies."""
        return self._held[0] + self._held[1]

    async def take(self, amount: int, timeout: float, *, small: bool = False) -> None:
        """Wait until this amount is free, in the order of requests; raise Overloaded after the timeout."""
        waiting = self._waiting[small]
        if not waiting and self._fits(amount, small):
            self._hold(amount, small)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((amount, turn))
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # granted at the same moment
                self.release(amount, small=small)
            elif (amount, turn) in waiting:
                waiting.remove((amount, turn))
            self._admit()
            if isinstance(error, TimeoutError):
                raise Overloaded(_MEMORY_IN_USE) from None
            raise

    def take_more(self, held: int, amount: int, *, small: bool = False) -> None:
        """Take more for a body that holds `held`, without waiting; raise Overloaded if there is too little."""
        if self._held[small] > held and self.held + amount > self._most[small]:
            raise Overloaded(_MEMORY_IN_USE)
        self._hold(amount, small)

    def release(self, amount: int, *, small: bool = False) -> None:
        """Release the memory of a body or of a part of it."""
        self._held[small] -= amount
        self._admit()
        if self._was_much and self.held < _LITTLE:
            self._was_much = False
            if self.when_idle is not None:
                self.when_idle()

    def _fits(self, amount: int, small: bool) -> bool:
        return self._held[small] == 0 or self.held + amount <= self._most[small]

    def _hold(self, amount: int, small: bool) -> None:
        self._held[small] += amount
        held = self.held
        self.peak = max(self.peak, held)
        self._was_much = self._was_much or held > _MUCH

    def _admit(self) -> None:
        for small in (True, False):
            waiting = self._waiting[small]
            while waiting and self._fits(waiting[0][0], small):
                amount, turn = waiting.popleft()
                if not turn.done():
                    self._hold(amount, small)
                    turn.set_result(None)


_MEMORY_IN_USE = "the memory of this server for request bodies is in use; send the request again in a moment"
PER_BYTE = 6
"""Bytes of memory per byte of a body: as sent, as text, as values, and as written to the store."""
PER_VALUE = 64
PER_CONTAINER = 240
"""Bytes that the interpreter uses for a value, and for a list or an object."""


def most_for_values(text: bytes) -> int:
    """An upper bound of the memory for the values in a part of JSON; values inside strings are counted too.

    It holds in every encoding and takes one microsecond per kilobyte.
    """
    containers = text.count(b"[") + text.count(b"{")
    return PER_CONTAINER * containers + PER_VALUE * (1 + text.count(b",") + text.count(b":"))


class Meter:
    """The memory of one body: an estimate is reserved with the first chunk, and more if it is too low.

    The values of a body of `LARGE` bytes or more are counted exactly and limited.
    """

    def __init__(self, memory: BodyMemory, most_values: int, *, is_json: bool) -> None:
        self._memory = memory
        self._most_values = most_values
        self._is_json = is_json
        self._begun: list[bytes] | None = [] if is_json else None
        """The chunks of a body that is not large yet."""
        self._counter: ValueCounter | None = None
        self._size = 0
        self._for_values = 0
        self._held = 0
        self._small = False

    async def read(self, chunk: bytes, expected: int, timeout: float) -> None:
        """Measure a chunk of a body that is expected to have this many bytes."""
        self._size += len(chunk)
        expected = max(expected, self._size)
        if self._is_json:
            self._for_values += most_for_values(chunk)
        if self._held == 0:
            amount = PER_BYTE * expected
            if expected < LARGE:  # the rest is expected to be like the first chunk
                amount += self._for_values * expected // len(chunk)
            self._small = expected < SMALL
            await self._memory.take(amount, timeout, small=self._small)
            self._held = amount
        if self._is_json:
            self._count_if_large(chunk)
        needed = PER_BYTE * expected + self._for_values
        if needed > self._held:
            self._memory.take_more(self._held, needed - self._held, small=self._small)
            self._held = needed

    def _count_if_large(self, chunk: bytes) -> None:
        if self._begun is not None:
            self._begun.append(chunk)
            if self._size < LARGE:
                return
            chunk, self._begun = b"".join(self._begun), None
            self._counter = ValueCounter(self._most_values)
        counter = self._counter
        if counter is not None:
            counter.feed(chunk)
            self._for_values = PER_VALUE * counter.values + (PER_CONTAINER - PER_VALUE) * counter.containers

    def settle(self) -> None:
        """Release what is reserved beyond the estimate of the complete body."""
        self._begun = None
        self._release_beyond(PER_BYTE * self._size + self._for_values)

    def close(self) -> None:
        """Release all memory."""
        self._release_beyond(0)

    def _release_beyond(self, needed: int) -> None:
        if self._held > needed:
            amount, self._held = self._held - needed, needed
            self._memory.release(amount, small=self._small)


class StrictRequest(Request):
    """A request that refuses JSON with duplicate keys, NaN, numbers beyond 64 bits or invalid text."""

    async def json(self) -> Any:
        """Return the body; raise NotJson, or InvalidArgument with the path of the value."""
        body = await self.body()
        large = self.state.large = len(body) >= LARGE
        read = await run_in_thread(_strict, body) if large else _strict(body)
        self.state.body = read  # the body as it was sent, before it becomes a model
        return read


def release(request: Request) -> None:
    """Clear the parsed body after jobs are made of it; the framework would keep it until the response."""
    request.state.body.clear()


def _strict(body: bytes) -> Any:
    try:
        return read_json("body", body)
    except InvalidArgument as error:
        if isinstance(error.__context__, ValueError):  # it is not JSON
            raise NotJson("body", error.problem) from None
        raise InvalidArgument(error.field.removeprefix("body."), error.problem) from None


def read_body(body: bytes) -> Any:
    """Read the JSON of a request strictly; the store checks its values."""
    try:
        if len(body) < LARGE:
            return json.loads(body, object_pairs_hook=_keys_once, parse_constant=_no_such_number)
        encoding = json.detect_encoding(body)
        if not encoding.startswith("utf-8"):  # its values were counted as UTF-8
            raise NotJson("body", f"is {encoding.upper()}; send a large body as UTF-8")
        text = body.decode(encoding, "surrogatepass")  # as json.loads does
        return loads_incrementally(text, object_pairs_hook=_keys_once, parse_constant=_no_such_number)
    except RecursionError:
        raise InvalidArgument("body", "is nested too deeply") from None
    except InvalidArgument:
        raise
    except ValueError as error:
        raise NotJson("body", f"is not JSON: {error}") from None


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidArgument("body", "has a duplicate key")
    return found


def _no_such_number(word: str) -> Any:
    raise InvalidArgument("body", f"contains {word}, which is not valid JSON")
