"""Keeps answers for a while, so that a repeated request gets the same answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic

from fastapi import Request

from longshore.backends.remote.protocol import KEY, REMEMBERED
from longshore.core.errors import InvalidArgument, KeyReused, LongshoreError


def no_key(makes: str, look: str) -> Callable[[Request], Awaitable[None]]:
    """Refuses one, and says what a request makes each time, and where to look before it is repeated."""

    async def refuse(request: Request) -> None:
        if KEY in request.headers:
            raise InvalidArgument(
                KEY,
                f"is not taken here, where each request makes {makes}; leave it out, and if an answer is lost {look}",
            )

    return refuse


_MOST = 100_000
_MOST_BYTES = 64 * 1024 * 1024
_MOST_OF_ONE = 4 * 1024 * 1024
"""Bytes of an answer that is kept: a larger one would drive out those of many others, and is told once."""


class AnswerLost(LongshoreError):
    """A repeated request that another server got first, or another life of this one, or whose answer was not kept."""

    def __init__(self, why: str = "the server that got this request first is gone, and with it the answer") -> None:
        super().__init__(why)


@dataclass(slots=True, eq=False)
class _Request:
    began: float
    body: bytes
    """Its digest."""
    answer: bytes | None = None
    """None: not there yet, or not kept."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False


class Replays:
    """Requests by caller and key. What failed is forgotten at once: to repeat it is to try again."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._requests: OrderedDict[tuple[str, str], _Request] = OrderedDict()
        self._bytes = 0
        self._forgot_until = 0.0
        """As long as requests may be repeated that were forgotten before their time."""

    async def once(
        self, caller: str, key: str, sent_to: str, body: bytes, carry_out: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """The answer to this request, carried out now unless it was before; AnswerLost where nobody can tell."""
        self._forget_the_old()
        name, digest = (caller, key), hashlib.blake2b(body, digest_size=16).digest()
        while (known := self._requests.get(name)) is not None:
            if known.body != digest:
                raise KeyReused(key, "")
            await known.done.wait()
            if not known.failed:
                if known.answer is None:
                    raise AnswerLost("the request was carried out, and its answer was too large to be kept")
                return known.answer
        if sent_to and (sent_to != self._server or monotonic() < self._forgot_until):
            raise AnswerLost
        request = self._requests[name] = _Request(monotonic(), digest)
        try:
            answer = await carry_out()
        except BaseException:
            request.failed = True
            del self._requests[name]
            raise
        else:
            if len(answer) <= _MOST_OF_ONE:
                request.answer = answer
                self._bytes += len(answer)
            self._keep_within_bounds()
            return answer
        finally:
            request.done.set()

    def _forget_the_old(self) -> None:
        long_ago = monotonic() - REMEMBERED
        while self._requests:
            name, request = next(iter(self._requests.items()))
            if request.began > long_ago or not request.done.is_set():
                return
            self._forget(name)

    def _keep_within_bounds(self) -> None:
        if self._bytes > _MOST_BYTES:  # the answers go before the keys: whoever repeats one is told
            for request in self._requests.values():
                if request.answer is not None and request.done.is_set():
                    self._bytes -= len(request.answer)
                    request.answer = None
                if self._bytes <= _MOST_BYTES // 2:
                    break
        while len(self._requests) > _MOST:
            name, request = next(iter(self._requests.items()))
            if not request.done.is_set():
                return
            self._forgot_until = max(self._forgot_until, request.began + REMEMBERED)
            self._forget(name)

    def _forget(self, name: tuple[str, str]) -> None:
        answer = self._requests.pop(name).answer
        self._bytes -= len(answer or b"")
