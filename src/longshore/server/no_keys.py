"""Addresses that take no Idempotency-Key: it is refused, for taken in silence it would promise what nobody keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request

from longshore.backends.remote.protocol import KEY
from longshore.core.errors import InvalidArgument


def no_key(makes: str, look: str) -> Callable[[Request], Awaitable[None]]:
    """Refuses one, and says what a request makes each time, and where to look before it is repeated."""

    async def refuse(request: Request) -> None:
        if KEY in request.headers:
            raise InvalidArgument(
                KEY,
                f"is not taken here, where each request makes {makes}; leave it out, and if an answer is lost {look}",
            )

    return refuse
