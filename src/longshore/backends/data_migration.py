"""Copies all data of one store to another in blocks, and verifies the copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any, NamedTuple, Protocol, runtime_checkable

from longshore.core.errors import MoveRefused
from longshore.core.times import SECOND, from_micros

Row = tuple[Any, ...]

TABLES = ("jobs", "job_dependencies", "job_logs", "tombstones", "job_events")
"""What is moved block by block, and each from its lowest number up: an id or key that was used again belongs to the
job with the higher uid, and the lower one is gone by then. Tags are made anew from the jobs; settings, schedules,
tokens, counts and the numbers to go on from are few, and come last."""

BLOCK = 10_000
"""Numbers in one block: some tenths of a second of work, and the most that is done again after a kill."""

_CATCHING_UP = 3
"""How often a source that went on meanwhile is gone through again; each time there is less to bring."""
_TOLD_EVERY = 1_000
_NAMED = 5
_SIGNS = 3
LONGEST_SILENCE = 60 * SECOND
"""A worker heard of within this time counts as alive."""
_NEVER = 2**63 - 1


class Step(NamedTuple):
    """How far a move has come."""

    table: str
    done: int
    total: int


class Inventory(NamedTuple):
    """What a store counts of itself, for both to agree on in the end."""

    tables: Mapping[str, int]
    """Rows by table."""
    tags: Row
    """Sums over what is kept with each tag."""
    jobs: Mapping[str, Mapping[str, tuple[int, int]]]
    """By queue and status: the jobs, and the failures recorded for them."""


class Settings(NamedTuple):
    """What comes last, when all jobs are there."""

    queues: list[Row]
    concurrency_keys: list[Row]
    schedules: list[Row]
    api_tokens: list[Row]
    queue_names: list[str]
    next_uid: int
    next_event: int


class Begun(Enum):
    """How a run finds the target."""

    FRESH = "fresh"
    RESUMED = "resumed"
    """A move from the same source was begun before."""
    FINISHED = "finished"
    """It was also finished, and the source has not gone on since."""


class CopySide(Protocol):
    """A store that can be compared with another."""

    name: str
    """For people, with no password in it."""

    def span(self, table: str) -> tuple[int, int] | None:
        """The lowest and the highest number in a table."""
        ...

    def digest(self, table: str, block: range) -> Row:
        """The number of rows in a block, and sums that change with whatever changes in them."""
        ...

    def inventory(self) -> Inventory:
        """All there is, counted."""
        ...


class Source(CopySide, Protocol):
    """A store at one moment: whatever is written to it meanwhile is not seen until it is looked at again.

    It is never changed.
    """

    log: str
    """The name of its event log, by which it is known again whatever its address."""
    next_event: int
    """Where that log went on at this moment."""

    def signs_of_life(self) -> list[str]:
        """Who works on it at this moment, in words; empty if nobody does."""
        ...

    def rows(self, table: str, block: range) -> Iterator[Row]:
        """The rows of a block, read as they are asked for."""
        ...

    def settings(self) -> Settings:
        """What comes last."""
        ...

    def events_since(self) -> int:
        """How many events were written to it since this moment."""
        ...

    def look_again(self) -> None:
        """Another moment: now."""
        ...


class Target(CopySide, Protocol):
    """A store that is moved into; nobody else can use it until the move is finished."""

    def begin(self, old: Source) -> Begun:
        """Closes the store to others, and refuses one that is in use.

        From now on a run that began earlier can write nothing more.
        """
        ...

    def replace(self, table: str, block: range, rows: Iterator[Row]) -> None:
        """These rows instead of whatever is in the block: all of them or none."""
        ...

    def finishing(self, settings: Settings) -> AbstractContextManager[None]:
        """Writes what comes last; the store is opened to others if what is done within this raises nothing."""
        ...


@runtime_checkable
class SupportsCopyOut(Protocol):
    """A store that can be moved to another."""

    def copy_out(self) -> AbstractContextManager[Source]:
        """The store as it is now. Whatever is done with it blocks: from a coroutine, use a thread."""
        ...


@runtime_checkable
class SupportsCopyIn(Protocol):
    """A store that others can be moved to."""

    def copy_in(self) -> AbstractContextManager[Target]:
        """The store, whether or not a move into it was left unfinished."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """What a move did; it is only given once both stores were found to agree."""

    source: str
    target: str
    begun: Begun
    inventory: Inventory
    copied: Mapping[str, int]
    """Rows written by this run, by table; the others were there already."""
    left_behind: int
    """Events written to the source since the moment that was moved."""
    seconds: float


def move(
    source: SupportsCopyOut,
    target: SupportsCopyIn,
    *,
    while_live: bool = False,
    on_step: Callable[[Step], None] = lambda _step: None,
) -> MoveReport:
    """Moves everything, or goes on with it. Blocks: from a coroutine, use a thread.

    MoveRefused if workers are alive in the source (unless `while_live`), or if the target has jobs of its own. The
    source is never changed; if it goes on meanwhile, that is brought too, as far as it can be caught up with. Killed
    at any moment, the move can be started again.
    """
    began = perf_counter()
    with source.copy_out() as old, target.copy_in() as new:
        if not while_live:
            _refuse_life(old)
        begun = new.begin(old)
        copied: Counter[str] = Counter(dict.fromkeys(TABLES, 0))
        if begun is not Begun.FINISHED:
            copied.update(_bring(old, new, on_step))
            for _ in range(_CATCHING_UP):
                if old.events_since() == 0:
                    break
                old.look_again()
                copied.update(_bring(old, new, on_step))
        inventory = old.inventory()
        if begun is not Begun.FINISHED:
            with new.finishing(old.settings()):
                _verify(old, new, inventory)
        return MoveReport(
            source=old.name,
            target=new.name,
            begun=begun,
            inventory=inventory,
            copied=copied,
            left_behind=old.events_since(),
            seconds=perf_counter() - began,
        )


def _bring(old: Source, new: Target, on_step: Callable[[Step], None]) -> dict[str, int]:
    """Copies every block that differs; returns the rows written, by table."""
    counts = old.inventory().tables
    total, done = sum(counts[table] for table in TABLES), 0
    copied = dict.fromkeys(TABLES, 0)
    for table in TABLES:
        for block in _blocks(table, old, new):
            wanted = old.digest(table, block)
            if new.digest(table, block) != wanted:
                new.replace(table, block, _reported(old.rows(table, block), on_step, Step(table, done, total)))
                copied[table] += wanted[0]
            done += wanted[0]
            on_step(Step(table, done, total))
    return copied


def _reported(rows: Iterator[Row], on_step: Callable[[Step], None], begun: Step) -> Iterator[Row]:
    """The same rows, with reports on the way: with large payloads one block may take minutes."""
    for number, row in enumerate(rows, start=1):
        yield row
        if number % _TOLD_EVERY == 0:
            on_step(begun._replace(done=begun.done + number))


def _blocks(table: str, *sides: CopySide) -> Iterator[range]:
    """All blocks that have rows in any of them, from the lowest numbers up."""
    spans = [span for side in sides if (span := side.span(table)) is not None]
    if spans:
        lowest, highest = min(low for low, _ in spans), max(high for _, high in spans)
        for start in range(lowest - lowest % BLOCK, highest + 1, BLOCK):
            yield range(start, start + BLOCK)


def _refuse_life(old: Source) -> None:
    signs = old.signs_of_life()
    if signs:
        raise MoveRefused(
            f"{old.name} is at work: {'; '.join(signs)}. Stop the workers and wait a minute, then run this again; or "
            "add --while-live, and jobs that run now will run in both places"
        )


def _verify(old: Source, new: Target, wanted: Inventory) -> None:
    found = new.inventory()
    odd = [table for table, rows in wanted.tables.items() if found.tables[table] != rows]
    odd += [
        f"queue {queue}" for queue in {**wanted.jobs, **found.jobs} if wanted.jobs.get(queue) != found.jobs.get(queue)
    ]
    odd += ["what is kept with tags"] if wanted.tags != found.tags else []
    odd += [
        f"{table} {block.start} to {block.stop - 1}"
        for table in TABLES
        for block in _blocks(table, old, new)
        if old.digest(table, block) != new.digest(table, block)
    ]
    if odd:
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        raise MoveRefused(
            f"{new.name} does not agree with {old.name} on {', '.join(odd[:_NAMED])}{more}. "
            "It stays closed to workers; run this again, and what differs is copied again"
        )


def signs_of(heard: Iterable[Row], held: Iterable[Row], now: int) -> list[str]:
    """Workers with when they were heard of, and owners of leases with their number and end, in words."""
    workers = [f"worker {name} was heard of {max(0, now - seen) // SECOND} seconds ago" for name, seen in heard]
    leases = [
        f"{owner or 'somebody'} holds {jobs} {'job' if jobs == 1 else 'jobs'} {_until(ends)}"
        for owner, jobs, ends in held
    ]
    return _few(workers) + _few(leases)


def _until(moment: int) -> str:
    if moment == _NEVER:
        return "under a lease without an end"
    return f"until {from_micros(moment):%H:%M:%S} UTC"


def _few(signs: list[str]) -> list[str]:
    more = len(signs) - _SIGNS
    return signs if more <= 0 else [*signs[:_SIGNS], f"and {more} more"]
