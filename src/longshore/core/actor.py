"""The actor of a change: set once around a call and written to each event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_actor: ContextVar[str] = ContextVar("actor", default="")

actor: Callable[[], str] = _actor.get
"""The actor of this context; empty if none is set."""


@contextmanager
def acting(name: str) -> Iterator[None]:
    """Record every change made inside the block with this name as its actor. `with acting("ada"): …`"""
    before = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(before)
