"""Names that nobody knows here, refused with the one that was meant: a slip of the hand must not be overlooked."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 100


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """What is wrong with a name that is no such thing here."""
    names = list(known)
    near = get_close_matches(name[:_LONGEST], names, 1)
    if near:
        return f"is no {kind} here; did you mean {near[0]}?"
    return f"is no {kind} here; there are {', '.join(names)}" if names else f"is no {kind} here, and there are none"
