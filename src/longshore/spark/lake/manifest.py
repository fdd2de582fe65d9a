"""The manifest of a lake: a numbered list of the files of each table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from longshore.core.errors import LongshoreError

OPEN = "open"
"""The partition of rows that have not ended."""
LAYOUT = 1
"""The version of the lake's format; other versions are refused."""


class LakeError(LongshoreError):
    """The lake cannot be used, or a run failed. The lake has not changed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The files of one write to a table: their path, and the rows of each day."""

    path: str
    days: Mapping[str, int]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(self.days.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the lake."""

    version: int = 0
    format: str = "parquet"
    log: str = ""
    """The id of the event log."""
    last_batch: int = -1
    totals: Mapping[str, int] = field(default_factory=dict)
    """Sums over all batches: events, job.added, claims."""
    newest: int = 0
    """The time of the newest event, in microseconds."""
    reached: Sequence[int] = (0, 0)
    """The position of the last event in the log: transaction and number."""
    made_at: str = ""
    tables: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    def pieces(self, table: str) -> tuple[Piece, ...]:
        """The pieces of a table, oldest first."""
        return self.tables.get(table, ())

    def days(self, table: str) -> dict[str, int]:
        """The number of rows of a table per day."""
        days: dict[str, int] = {}
        for piece in self.pieces(table):
            for day, rows in piece.days.items():
                days[day] = days.get(day, 0) + rows
        return dict(sorted(days.items()))

    def rows(self, table: str) -> int:
        """The number of rows of a table."""
        return sum(piece.rows for piece in self.pieces(table))

    @property
    def paths(self) -> set[str]:
        """The paths of all pieces of this version."""
        return {piece.path for pieces in self.tables.values() for piece in pieces}


@dataclass(frozen=True, slots=True)
class Receipt:
    """The record of one landed batch, with counts from its files."""

    batch: int
    rows: int
    events: Piece
    added: int = 0
    claims: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)
    """The position of its first event in the log: transaction (0 if there is none) and number."""
    last: list[int] = field(default_factory=list)
    newest: int = 0
    """The time of its newest event, in microseconds."""


def with_other_days(pieces: Sequence[Piece], days: Collection[str], new: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces of a table without these days and with new pieces; empty pieces are left out."""
    left = (Piece(piece.path, {day: rows for day, rows in piece.days.items() if day not in days}) for piece in pieces)
    return tuple(piece for piece in (*left, *new) if piece.days)


def to_text(manifest: Manifest) -> str:
    """Serialize a manifest."""
    body: dict[str, Any] = {"layout": LAYOUT, **asdict(manifest)}
    body["tables"] = dict(sorted(body["tables"].items()))
    return json.dumps(body, indent=1)


def from_text(text: str, where: str) -> Manifest:
    """Read a manifest; raise LakeError for another layout."""
    try:
        body = json.loads(text)
        layout = body.pop("layout")
        if layout != LAYOUT:
            raise LakeError(f"{where} has layout {layout}; this Longshore supports {LAYOUT}: use the one that wrote it")
        tables = {
            name: tuple(Piece(piece["path"], piece["days"]) for piece in pieces)
            for name, pieces in body.pop("tables").items()
        }
        return Manifest(tables=tables, **body)
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"cannot read {where} ({error}); remove it to return to the previous version") from error
