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
"""The tables copied in blocks, each in ascending order: a reused id or key belongs to the job with the higher uid, and
the lower one has been removed by then. Tags are derived from the jobs. Settings, schedules, tokens, counts and the next
numbers are few, and are copied last."""

BLOCK = 10_000
"""The numbers in one block: some tenths of a second of work, and the most that is repeated after a kill."""

_CATCH_UP_PASSES = 3
"""How often a source that changed meanwhile is compared again; each time there is less to copy."""
_REPORT_EVERY = 1_000
_NAMED = 5
_SIGNS = 3
LONGEST_SILENCE = 60 * SECOND
"""A worker with a heartbeat within this time counts as alive."""
_NEVER = 2**63 - 1


class Step(NamedTuple):
    """The progress of a copy."""

    table: str
    done: int
    total: int


class Inventory(NamedTuple):
    """The counts of a store, which must be equal in the end."""

    tables: Mapping[str, int]
    """Rows by table."""
    tags: Row
    """Sums over the rows of each tag."""
    jobs: Mapping[str, Mapping[str, tuple[int, int]]]
    """By queue and status: the number of jobs, and of their failures."""


class Settings(NamedTuple):
    """The data that is copied last, after all jobs."""

    queues: list[Row]
    concurrency_keys: list[Row]
    schedules: list[Row]
    api_tokens: list[Row]
    queue_names: list[str]
    next_uid: int
    next_event: int


class Begun(Enum):
    """The state of the target at the start."""

    FRESH = "fresh"
    RESUMED = "resumed"
    """A copy from the same source was started before."""
    FINISHED = "finished"
    """It was also finished, and the source has not changed since."""


class CopySide(Protocol):
    """A store that can be compared with another."""

    name: str
    """For display, without a password."""

    def span(self, table: str) -> tuple[int, int] | None:
        """The lowest and the highest number in a table."""
        ...

    def digest(self, table: str, block: range) -> Row:
        """The number of rows in a block, and sums that change with any value in them."""
        ...

    def inventory(self) -> Inventory:
        """The counts of everything."""
        ...


class Source(CopySide, Protocol):
    """A snapshot of a store. Later writes are not visible until `refresh`.

    The source is never changed.
    """

    log: str
    """The id of its event log, which identifies it at any address."""
    next_event: int
    """The next event number at the time of the snapshot."""

    def activity(self) -> list[str]:
        """Descriptions of its active workers and open leases; empty if there are none."""
        ...

    def rows(self, table: str, block: range) -> Iterator[Row]:
        """The rows of a block, read lazily."""
        ...

    def settings(self) -> Settings:
        """The data that is copied last."""
        ...

    def events_since(self) -> int:
        """The number of events written since the snapshot."""
        ...

    def refresh(self) -> None:
        """Take a new snapshot."""
        ...


class Target(CopySide, Protocol):
    """A store that is copied into; no other process can use it until the copy is finished."""

    def begin(self, old: Source) -> Begun:
        """Close the store to other processes, and refuse one that is in use.

        From now on an earlier run can write nothing more.
        """
        ...

    def replace(self, table: str, block: range, rows: Iterator[Row]) -> None:
        """Replace the rows of the block, all or nothing."""
        ...

    def finishing(self, settings: Settings) -> AbstractContextManager[None]:
        """Write the last data; open the store to other processes if the block raises nothing."""
        ...


@runtime_checkable
class SupportsCopyOut(Protocol):
    """A store that can be copied to another."""

    def copy_out(self) -> AbstractContextManager[Source]:
        """A snapshot of the store. Every method blocks: from a coroutine, use a thread."""
        ...


@runtime_checkable
class SupportsCopyIn(Protocol):
    """A store that others can be copied to."""

    def copy_in(self) -> AbstractContextManager[Target]:
        """The store, also after an unfinished copy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """The result of a copy; it exists only if both stores agree."""

    source: str
    target: str
    begun: Begun
    inventory: Inventory
    copied: Mapping[str, int]
    """Rows written by this run, by table; the others existed already."""
    left_behind: int
    """Events written to the source since the snapshot."""
    seconds: float


def move(
    source: SupportsCopyOut,
    target: SupportsCopyIn,
    *,
    while_live: bool = False,
    on_step: Callable[[Step], None] = lambda _step: None,
) -> MoveReport:
    """Copy everything, or continue an unfinished copy. Blocks: from a coroutine, use a thread.

    Raise MoveRefused if workers are alive in the source (unless `while_live`), or if the target has other jobs. The
    source is never changed. If it changes meanwhile, the changes are copied too, as far as the copy can catch up. After
    a kill, the copy can be started again.
    """
    began = perf_counter()
    with source.copy_out() as old, target.copy_in() as new:
        if not while_live:
            _refuse_if_active(old)
        begun = new.begin(old)
        copied: Counter[str] = Counter(dict.fromkeys(TABLES, 0))
        if begun is not Begun.FINISHED:
            copied.update(_copy_blocks(old, new, on_step))
            for _ in range(_CATCH_UP_PASSES):
                if old.events_since() == 0:
                    break
                old.refresh()
                copied.update(_copy_blocks(old, new, on_step))
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


def _copy_blocks(old: Source, new: Target, on_step: Callable[[Step], None]) -> dict[str, int]:
    """Copy every block that differs; return the rows written, by table."""
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
    """Pass the rows through and report progress: a block with large payloads may take minutes."""
    for number, row in enumerate(rows, start=1):
        yield row
        if number % _REPORT_EVERY == 0:
            on_step(begun._replace(done=begun.done + number))


def _blocks(table: str, *sides: CopySide) -> Iterator[range]:
    """All blocks that have rows on any side, in ascending order."""
    spans = [span for side in sides if (span := side.span(table)) is not None]
    if spans:
        lowest, highest = min(low for low, _ in spans), max(high for _, high in spans)
        for start in range(lowest - lowest % BLOCK, highest + 1, BLOCK):
            yield range(start, start + BLOCK)


def _refuse_if_active(old: Source) -> None:
    signs = old.activity()
    if signs:
        raise MoveRefused(
            f"{old.name} is in use: {'; '.join(signs)}. Stop the workers and wait a minute, then run this again; or "
            "add --while-live, and jobs that run now will run in both stores"
        )


def _verify(old: Source, new: Target, wanted: Inventory) -> None:
    found = new.inventory()
    odd = [table for table, rows in wanted.tables.items() if found.tables[table] != rows]
    odd += [
        f"queue {queue}" for queue in {**wanted.jobs, **found.jobs} if wanted.jobs.get(queue) != found.jobs.get(queue)
    ]
    odd += ["the rows of tags"] if wanted.tags != found.tags else []
    odd += [
        f"{table} {block.start} to {block.stop - 1}"
        for table in TABLES
        for block in _blocks(table, old, new)
        if old.digest(table, block) != new.digest(table, block)
    ]
    if odd:
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        raise MoveRefused(
            f"{new.name} differs from {old.name} in {', '.join(odd[:_NAMED])}{more}. "
            "It stays closed to workers; run this again to copy what differs"
        )


def describe_activity(heard: Iterable[Row], held: Iterable[Row], now: int) -> list[str]:
    """Describe workers by their last heartbeat, and owners of leases by their jobs and latest expiry."""
    workers = [f"worker {name} sent a heartbeat {max(0, now - seen) // SECOND} seconds ago" for name, seen in heard]
    leases = [
        f"{owner or 'an unknown worker'} holds {jobs} {'job' if jobs == 1 else 'jobs'} {_until(ends)}"
        for owner, jobs, ends in held
    ]
    return _few(workers) + _few(leases)


def _until(moment: int) -> str:
    if moment == _NEVER:
        return "under a lease without expiry"
    return f"until {from_micros(moment):%H:%M:%S} UTC"


def _few(signs: list[str]) -> list[str]:
    more = len(signs) - _SIGNS
    return signs if more <= 0 else [*signs[:_SIGNS], f"and {more} more"]
