"""The health of a store: facts that a backend reports, and the findings that `doctor` derives from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from longshore.core.clock import ClockStep, recent
from longshore.core.explain import HEARTBEAT_WITHIN, OVERDUE
from longshore.core.schedule import Schedule
from longshore.core.times import duration_text as _span
from longshore.core.validation import counted


class Rows(NamedTuple):
    """How many rows of a table are live, and how many are dead and await a vacuum."""

    live: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a store at one time. A value that the store does not know keeps its default and is not judged."""

    engine: str
    """For example `SQLite`."""
    version: tuple[int, ...]
    schema_version: int
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings that durability depends on."""
    size: int = 0
    """Bytes."""
    unused: int = 0
    """Bytes of `size` that hold no data."""
    log_size: int | None = None
    """Bytes of the write-ahead log."""
    disk_free: int | None = None
    read_only: bool = False
    """Whether this process cannot write to it."""
    file_system: str | None = None
    """The type of the store's file system, like `ext4`."""
    file_system_risk: str = ""
    """The risk of this file system; empty if none is known."""
    log_lost_at: datetime | None = None
    """When the log was found missing after an unclean close, if that was in the last 7 days."""
    open_to_others: Mapping[str, int] = field(default_factory=dict)
    """The store's files that other users may read or write, with their permission bits."""
    tables: Mapping[str, Rows] = field(default_factory=dict)
    held_for: timedelta | None = None
    """How long the oldest transaction has kept dead rows from being vacuumed."""
    held_by: str = ""
    clock_step: ClockStep | None = None
    """The last step of the machine's clock that the store detected."""
    restored_at: datetime | None = None
    """When, within the last week, the store detected that it was replaced by an older copy."""
    newest: datetime | None = None
    """The time of the newest event or heartbeat."""


Level = Literal["ok", "warning", "problem"]

FIXED_SQLITE = (3, 51, 3)
"""The first SQLite version without the bug by which a reset of the log could lose committed pages."""
MOST_SKEW = timedelta(seconds=2)
"""The difference that remains with a time server and a slow network."""
LONG_HELD = timedelta(minutes=5)
STARVING = timedelta(minutes=10)
LARGE_LOG = 256 * 1024 * 1024
LARGE_WASTE = 256 * 1024 * 1024
LITTLE_DISK = 512 * 1024 * 1024
MANY_DEAD_ROWS = 100_000
_DURABLE = {
    ("SQLite", "journal_mode"): ("wal",),
    ("SQLite", "synchronous"): ("full", "extra"),
    ("PostgreSQL", "fsync"): ("on",),
    ("PostgreSQL", "full_page_writes"): ("on",),
    ("PostgreSQL", "synchronous_commit"): ("on", "local", "remote_write", "remote_apply"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `check` keeps its meaning across versions; `fix` is empty if nothing is wrong."""

    check: str
    level: Level
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker whose last reported state is running, and that sends no heartbeat any more."""

    id: str
    seen_at: datetime
    running: int


def judge_store(condition: Condition) -> Iterator[Finding]:
    """Judge the version, the settings and the wasted space of a store."""
    version = ".".join(map(str, condition.version))
    if condition.engine == "SQLite" and condition.version < FIXED_SQLITE:
        fixed = ".".join(map(str, FIXED_SQLITE))
        yield Finding("version", "problem", f"SQLite {version} may lose commits", f"pip install -U apsw, for {fixed}")
    else:
        yield Finding("version", "ok", f"{condition.engine} {version}, schema {condition.schema_version}")
    for name, reported in condition.settings.items():
        good = _DURABLE.get((condition.engine, name))
        if good is not None and reported not in good:
            found = f"{name} is {reported}: a crash may lose acknowledged writes"
            yield Finding(name, "problem", found, f"set {name} to {good[0]}")
        else:
            yield Finding(name, "ok", f"{name} is {reported}")
    if condition.read_only:
        yield Finding("access", "ok", "this process cannot write to the file or its folder: the store is read-only")
    if condition.file_system_risk:
        found = f"the store is on {condition.file_system}, {condition.file_system_risk}"
        yield Finding("file system", "warning", found, "move the store to a local disk or a volume, or use PostgreSQL")
    elif condition.file_system is not None:
        yield Finding("file system", "ok", f"the store is on {condition.file_system}")
    if condition.log_lost_at is not None:
        when = f"{condition.log_lost_at:%Y-%m-%d %H:%M} UTC"
        found = (
            f"the log was missing or empty at {when} although the store was not closed cleanly: "
            "its last commits are lost"
        )
        fix = (
            "restore a backup if you need them; if another program, such as sqlite3, closed or checkpointed the store, "
            "no data is lost"
        )
        yield Finding("lost log", "warning", found, fix)
    if condition.open_to_others:
        files = ", ".join(f"{name} ({mode:04o})" for name, mode in condition.open_to_others.items())
        found = f"other users may read or write {files}"
        yield Finding("permissions", "warning", found, f"chmod 600 {' '.join(condition.open_to_others)}")
    if condition.restored_at is not None:
        found = f"the database was replaced by an older copy at {condition.restored_at:%Y-%m-%d %H:%M} UTC"
        way = "expect lost and repeated jobs from after the copy was made; start event followers from None"
        yield Finding("restored", "warning", found, way)
    yield from _judge_bloat(condition)
    if condition.disk_free is not None and condition.disk_free < LITTLE_DISK:
        yield Finding("disk", "problem", f"its disk has {_size(condition.disk_free)} free", "free space on the disk")


def _judge_bloat(condition: Condition) -> Iterator[Finding]:
    held = condition.held_for is not None and condition.held_for > LONG_HELD
    if held and condition.held_for is not None:
        found = f"{condition.held_by} has held a snapshot for {_span(condition.held_for)}: dead rows cannot be vacuumed"
        yield Finding("snapshots", "problem", found, "end that transaction, or set idle_in_transaction_session_timeout")
    if condition.log_size is not None and condition.log_size > LARGE_LOG:
        found = f"its log has grown to {_size(condition.log_size)}: a read transaction has been open for a long time"
        yield Finding("log", "warning", found, "find the process that holds a read transaction open, and end it")
    littered = [name for name, rows in condition.tables.items() if rows.dead > max(MANY_DEAD_ROWS, rows.live)]
    for name in littered:
        rows = condition.tables[name]
        found = f"{name} has {rows.dead:,} dead rows and {rows.live:,} live ones"
        yield Finding("bloat", "warning", found, f"let autovacuum run more often, or VACUUM {name}")
    if condition.unused > max(LARGE_WASTE, condition.size // 2):
        found = f"{_size(condition.unused)} of {_size(condition.size)} are unused"
        yield Finding("bloat", "warning", found, "stop all processes and VACUUM the file, if the disk needs the space")
    elif not littered and not held:
        yield Finding("bloat", "ok", f"{_size(condition.size)}, little of it unused")


def judge_clock(
    machine: datetime, store: datetime, step: ClockStep | None = None, newest: datetime | None = None
) -> Finding:
    """Whether this machine and the store agree on the time. The store's clock decides; people read this machine's
    clock.

    Also whether the store's clock was set: it detected a step, or its clock is behind the newest event or heartbeat.
    """
    skew = abs(machine - store)
    keep = "synchronise the clock with a time server (chrony, systemd-timesyncd)"
    if skew <= MOST_SKEW and (stepped := recent(step, store)):
        return Finding("clock", "warning", f"{stepped}; leases and relative retries were shifted with it", keep)
    if skew <= MOST_SKEW and newest is not None and newest - store > MOST_SKEW:
        found = f"the store's clock is {_span(newest - store)} behind the newest event or heartbeat: it was set back"
        return Finding("clock", "problem", found, f"{keep}; delayed jobs and retries wait that much longer")
    if skew <= MOST_SKEW:
        return Finding("clock", "ok", f"this machine and the store differ by {skew.total_seconds():.1f} s at most")
    ahead = "ahead of" if machine > store else "behind"
    found = f"this machine is {_span(skew)} {ahead} the store"
    return Finding("clock", "problem", found, "synchronise both clocks with a time server (chrony, systemd-timesyncd)")


def judge_workers(silent: Sequence[Silent], alive: int, waiting: int, now: datetime) -> Iterator[Finding]:
    """Report workers that stopped sending heartbeats, and whether any worker is alive."""
    for worker in silent:
        held = f", with {counted(worker.running, 'job')}" if worker.running else ""
        found = f"{worker.id} sent its last heartbeat {_span(now - worker.seen_at)} ago{held}"
        fix = "check its process and its network; its jobs return to the queue when their leases expire"
        yield Finding("workers", "problem" if worker.running else "warning", found, fix)
    if alive or not waiting:
        seconds = HEARTBEAT_WITHIN.seconds
        yield Finding("workers", "ok", f"{counted(alive, 'worker')} sent a heartbeat in the last {seconds} s")
    else:
        fix = "start a worker with the harbor that declares their tasks: longshore worker --harbor MODULE:NAME"
        yield Finding("workers", "problem", f"{counted(waiting, 'waiting job')} and no live worker", fix)


def judge_schedules(schedules: Sequence[Schedule], now: datetime) -> Iterator[Finding]:
    """Report schedules that no scheduler fires, or that paused themselves."""
    for one in schedules:
        if one.paused and one.error:
            found = f"{one.id} paused itself: {one.error}"
            yield Finding("schedules", "problem", found, f"correct it, then run: longshore schedule resume {one.id}")
    late = [one for one in schedules if not one.paused and one.next_run_at and now - one.next_run_at > OVERDUE]
    if late:
        names = ", ".join(one.id for one in late[:5])
        found = f"{counted(len(late), 'overdue schedule')}: {names}"
        yield Finding("schedules", "problem", found, "no scheduler is running; start one with: longshore scheduler")
    else:
        yield Finding("schedules", "ok", f"{counted(len(schedules), 'schedule')}, none overdue")


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}"
        count //= 1024
    return f"{count:,} GiB"
