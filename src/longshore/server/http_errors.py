"""Errors that only a server raises: authentication, limits, unknown paths and media types."""

from __future__ import annotations

from longshore.core.errors import InvalidArgument, LongshoreError


class NotJson(InvalidArgument):
    """The body is not JSON at all."""


class TooLarge(LongshoreError):
    """The request is larger than this server takes."""


class WrongMediaType(LongshoreError):
    """The body has a media type that this server does not read."""


class WrongHost(LongshoreError):
    """The request names a host that is not this server."""


class TooSlow(LongshoreError):
    """The request did not arrive in time."""


class TooMany(LongshoreError):
    """More at once, or more often, than this server allows; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(LongshoreError):
    """More connections than this server takes."""


class ShuttingDown(LongshoreError):
    """The server is about to stop; ask another one, or this one again in a moment."""
