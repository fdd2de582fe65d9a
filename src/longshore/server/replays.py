"""Recent responses, so that a repeated request gets the same response."""

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


def reject_idempotency_key(creates: str, find: str) -> Callable[[Request], Awaitable[None]]:
    """Refuse an idempotency key on a route that is not idempotent; `find` says how to find a lost result."""

    async def refuse(request: Request) -> None:
        if KEY in request.headers:
            raise InvalidArgument(
                KEY, f"is not supported: each request creates {creates}; leave it out, and after a lost response {find}"
            )

    return refuse


_MOST = 100_000
_MOST_BYTES = 64 * 1024 * 1024
_MOST_OF_ONE = 4 * 1024 * 1024
"""Bytes of the largest response that is kept; a larger one would displace many others."""


class AnswerLost(LongshoreError):
    """The first request went to another or a stopped server, or its response was not kept."""

    def __init__(
        self, why: str = "the response is lost because the server that got the first request has gone"
    ) -> None:
        super().__init__(why)


@dataclass(slots=True, eq=False)
class _Request:
    began: float
    body: bytes
    """Its digest."""
    answer: bytes | None = None
    """None if it is not ready or was not kept."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False


class Replays:
    """Requests by caller and key. A failed request is forgotten, so that the client can try again."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._requests: OrderedDict[tuple[str, str], _Request] = OrderedDict()
        self._bytes = 0
        self._forgot_until = 0.0
        """The time until which requests that were forgotten early may still be repeated."""

    async def once(
        self, caller: str, key: str, sent_to: str, body: bytes, carry_out: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the response to the first request with this key; raise AnswerLost if it is lost."""
        self._forget_the_old()
        name, digest = (caller, key), hashlib.blake2b(body, digest_size=16).digest()
        while (known := self._requests.get(name)) is not None:
            if known.body != digest:
                raise KeyReused(key, "")
            await known.done.wait()
            if not known.failed:
                if known.answer is None:
                    raise AnswerLost("the request succeeded, but its response was too large to keep")
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
        if self._bytes > _MOST_BYTES:  # drop responses before keys, so that a repeated request gets AnswerLost
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
