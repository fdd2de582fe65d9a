"""The manifest of a lake: a numbered list of the files of each table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from longshore.core.errors import LongshoreError

OPEN = "open"
"""The day of what has not ended yet."""
LAYOUT = 1
"""Of this form; a lake of another is refused."""


class LakeError(LongshoreError):
    """The lake cannot be used, or a run was stopped; the message says why, and the lake is as it was."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The files of one write to a table: their path, and the rows of each day."""

    path: str
    days: Mapping[str, int]

    @property
    def rows(self) -> int:
        """All it holds."""
        return sum(self.days.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the lake."""

    version: int = 0
    format: str = "parquet"
    log: str = ""
    """Which event log it is the history of."""
    last_batch: int = -1
    totals: Mapping[str, int] = field(default_factory=dict)
    """Sums over all that ever landed: events, job.added, claims."""
    newest: int = 0
    """The time of the newest event, in microseconds."""
    reached: Sequence[int] = (0, 0)
    """The place of the last event in the log: transaction, number."""
    made_at: str = ""
    tables: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    def pieces(self, table: str) -> tuple[Piece, ...]:
        """Of a table, oldest first."""
        return self.tables.get(table, ())

    def days(self, table: str) -> dict[str, int]:
        """Rows of each day of a table."""
        days: dict[str, int] = {}
        for piece in self.pieces(table):
            for day, rows in piece.days.items():
                days[day] = days.get(day, 0) + rows
        return dict(sorted(days.items()))

    def rows(self, table: str) -> int:
        """All rows of a table."""
        return sum(piece.rows for piece in self.pieces(table))

    @property
    def paths(self) -> set[str]:
        """Everything that this version consists of."""
        return {piece.path for pieces in self.tables.values() for piece in pieces}


@dataclass(frozen=True, slots=True)
class Receipt:
    """The record of one batch, counted on disk."""

    batch: int
    rows: int
    events: Piece
    added: int = 0
    claims: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)
    """The place of its first event in the log: transaction (0 where there is none), number."""
    last: list[int] = field(default_factory=list)
    newest: int = 0
    """The time of its newest event, in microseconds."""


def with_other_days(pieces: Sequence[Piece], days: Collection[str], new: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same table with nothing in these days, and with new pieces; a piece without rows is left out."""
    left = (Piece(piece.path, {day: rows for day, rows in piece.days.items() if day not in days}) for piece in pieces)
    return tuple(piece for piece in (*left, *new) if piece.days)


def to_text(manifest: Manifest) -> str:
    """As it is stored."""
    body: dict[str, Any] = {"layout": LAYOUT, **asdict(manifest)}
    body["tables"] = dict(sorted(body["tables"].items()))
    return json.dumps(body, indent=1)


def from_text(text: str, where: str) -> Manifest:
    """As it was stored; one of another form is refused."""
    try:
        body = json.loads(text)
        layout = body.pop("layout")
        if layout != LAYOUT:
            raise LakeError(f"{where} is of layout {layout}, and this Longshore knows {LAYOUT}: use the one it is from")
        tables = {
            name: tuple(Piece(piece["path"], piece["days"]) for piece in pieces)
            for name, pieces in body.pop("tables").items()
        }
        return Manifest(tables=tables, **body)
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"{where} cannot be read ({error}): remove it to go back to the version before") from error
