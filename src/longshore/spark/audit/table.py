"""The table of legal transitions, as Spark asks it: SQL made from the same rows that the engine obeys."""

from __future__ import annotations

from collections.abc import Iterable

from longshore.core.status import ELIGIBLE, FINAL, HOLDS_CAPACITY, LEGAL_PAIRS, JobStatus

_FIRST = frozenset({JobStatus.CREATED, JobStatus.INITIAL_PENDING, JobStatus.WAITING_CHILDREN})
"""How a job may arrive."""


def is_legal(source: str, target: str) -> str:
    """Whether the table has this move."""
    arrows = _texts(f"{before}>{after}" for before, after in LEGAL_PAIRS)
    return f"coalesce(concat({source}, '>', {target}) IN ({arrows}), false)"


def is_first(status: str) -> str:
    """Whether a life may begin so."""
    return f"{status} IN ({_texts(_FIRST)})"


def is_final(status: str) -> str:
    """Whether nothing happens to it any more by itself."""
    return f"{status} IN ({_texts(FINAL)})"


def is_held(status: str) -> str:
    """Whether somebody has it."""
    return f"{status} IN ({_texts(HOLDS_CAPACITY)})"


def waits_to_start(status: str) -> str:
    """Whether its start, or its next one, is still to come."""
    return f"{status} IN ({_texts(ELIGIBLE | {JobStatus.WAITING_CHILDREN})})"


def _texts(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
