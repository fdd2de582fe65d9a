"""Export: whole tables read in parts by several processes in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from longshore.backends.port import LogEnds

if TYPE_CHECKING:
    import pyarrow


class Kind(Enum):
    """The type of a column, and how a store returns it."""

    TEXT = "text"
    INTEGER = "integer"
    MOMENT = "moment"
    """Microseconds since 1970 in UTC."""
    SPAN = "span"
    """Microseconds."""
    FLAG = "flag"
    DATA = "data"
    NAMES = "names"
    """A JSON list of text, or null for an empty one."""


_T, _I, _M = Kind.TEXT, Kind.INTEGER, Kind.MOMENT

COLUMNS: Mapping[str, Mapping[str, Kind]] = {
    "jobs": {
        "uid": _I, "id": _T, "queue": _T, "type": _T, "status": _T, "priority": _I, "lifo": Kind.FLAG,
        "tags": Kind.NAMES, "payload": Kind.DATA, "result": Kind.DATA, "error_message": _T, "progress": _T,
        "run_at": _M, "delay": Kind.SPAN, "expires_at": _M, "timeout": Kind.SPAN, "max_attempts": _I,
        "max_crashes": _I, "executions": _I, "retry_count": _I, "crashes": _I, "epoch": _I, "job_seq": _I,
        "created_at": _M, "updated_at": _M, "started_at": _M, "finalized_at": _M, "last_retry_at": _M,
        "assigned_at": _M, "assignee_id": _T, "lease_expires_at": _M, "idempotency_key": _T, "concurrency_key": _T,
        "parent_id": _T, "on_dependency_failure": _T, "schedule_id": _T, "options": _T,
    },
    "events": {
        "xid": _I, "number": _I, "job_uid": _I, "job_id": _T, "job_seq": _I, "queue": _T, "type": _T, "event": _T,
        "from_status": _T, "to_status": _T, "epoch": _I, "execution": _I, "assignee_id": _T, "actor": _T,
        "occurred_at": _M, "detail": _T,
    },
    "logs": {
        "job_uid": _I, "job_id": _T, "queue": _T, "type": _T, "number": _I, "logged_at": _M, "level": _T,
        "message": _T,
    },
}  # fmt: skip

Operator = Literal["=", "<", "<=", ">", ">=", "in", "is null", "is not null"]


class Condition(NamedTuple):
    """A condition on a column; times are in microseconds."""

    column: str
    operator: Operator
    value: Any = None


class Part(NamedTuple):
    """The rows after one position and up to another: events by their position in the log, others by the job's uid."""

    after: int
    through: int


class LogPosition(NamedTuple):
    """A position of the log as the columns of an event; `xid` is 0 where a store has none."""

    xid: int
    number: int


_NUMBER_BITS = 63


def log_position(position: int) -> LogPosition:
    """Split a position into its columns: the transaction, then the event within it."""
    return LogPosition(position >> _NUMBER_BITS, position & (1 << _NUMBER_BITS) - 1)


class Wanted(NamedTuple):
    """The columns and rows to read of a table."""

    table: str
    columns: Sequence[str]
    conditions: Sequence[Condition] = ()


class BulkReader(Protocol):
    """Reads a store in bulk. Every method blocks: from a coroutine, use a thread."""

    def log_ends(self) -> LogEnds:
        """The positions of the event log: up to its last position no event is added any more."""
        ...

    def position_after(self, start: int, events: int, last: int) -> int:
        """The position of the event that is `events` after this one, or `last` if there are fewer."""
        ...

    def parts(self, table: str, count: int, within: Part | None = None) -> list[Part]:
        """Split the current rows into about `count` parts of about the same size.

        Events never change, so parts read at different times form one consistent log. Jobs and logs are consistent
        within one part.
        """
        ...

    def batches(self, wanted: Wanted, part: Part) -> Iterator[pyarrow.RecordBatch]:
        """Read the columns of a part's rows, as stored, in one snapshot."""
        ...


@runtime_checkable
class SupportsExport(Protocol):
    """A store that other processes can read in bulk."""

    def bulk_reader(self) -> AbstractContextManager[BulkReader]:
        """A reader with its own connections."""
        ...
