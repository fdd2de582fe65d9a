"""The actor of a change: set once around a call and written to each event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_actor: ContextVar[str] = ContextVar("actor", default="")

actor: Callable[[], str] = _actor.get
"""Who is acting here; empty for nobody in particular."""


@contextmanager
def acting(name: str) -> Iterator[None]:
    """Inside, whatever is changed is recorded with this name."""
    before = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(before)


def on_behalf(verb: Callable[[T], R]) -> Callable[[T], R]:
    """The verb to be called in another thread, as whoever is acting here."""
    name = _actor.get()
    if not name:
        return verb

    def signed(given: T) -> R:
        with acting(name):
            return verb(given)

    return signed
