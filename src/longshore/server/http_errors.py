"""Errors that only a server raises: authentication, limits, unknown paths and media types."""

from __future__ import annotations

from longshore.core.errors import InvalidArgument, LongshoreError


class NotJson(InvalidArgument):
    """The body is not JSON."""


class TooLarge(LongshoreError):
    """The request is larger than this server allows."""


class WrongMediaType(LongshoreError):
    """The body has an unsupported media type."""


class WrongHost(LongshoreError):
    """The Host header names a host that is not allowed."""


class TooSlow(LongshoreError):
    """The request did not arrive in time."""


class TooMany(LongshoreError):
    """Too many requests or connections; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(LongshoreError):
    """Too many connections, or too little memory for request bodies."""


class ShuttingDown(LongshoreError):
    """The server is shutting down; send the request to another server, or again in a moment."""
