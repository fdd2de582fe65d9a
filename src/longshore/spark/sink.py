"""The data sink: a DataFrame, or each batch of a stream, as jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from longshore.backends.bulk_insert import RunReport, SupportsBulkInsert, text_of
from longshore.core.errors import InvalidArgument
from longshore.core.job_options import OPTIONS, job_from
from longshore.core.job_record import Record, record_of
from longshore.core.times import Duration, Moment
from longshore.core.validation import check_json, check_name, new_id
from longshore.spark.options import Address, answer

if TYPE_CHECKING:
    import pyarrow


Check = Callable[[DataType], bool]


def _is(*kinds: type[DataType]) -> Check:
    return lambda found: isinstance(found, kinds)


def _names(found: DataType) -> bool:
    return isinstance(found, ArrayType) and isinstance(found.elementType, StringType)


def _seconds(found: DataType) -> bool:
    return isinstance(found, NumericType) and not isinstance(found, DecimalType)


_TEXT = (_is(StringType), "text")
_NUMBER = (_is(IntegralType), "a whole number")
_KINDS: Mapping[Any, tuple[Check, str]] = {
    str | None: _TEXT,
    int: _NUMBER,
    int | None: _NUMBER,
    bool: (_is(BooleanType), "true or false"),
    Moment | None: (_is(TimestampType), "a timestamp"),
    Duration | None: (_seconds, "seconds, as a number"),
    Sequence[str]: (_names, "an array of text"),
}
"""The column type of an option, by the option's type. Options of other types have no column."""
_NO_COLUMN = ("retry_strategy", "hold")

_KNOWN: Mapping[str, tuple[Check, str]] = {
    "type": _TEXT,
    "data": (_is(StringType, StructType, MapType, ArrayType), "a struct, a map, an array, or JSON as text"),
    "queue": _TEXT,
    **{
        name: _KINDS[option.type]
        for name, option in OPTIONS.items()
        if option.type in _KINDS and name not in _NO_COLUMN
    },
}


def check_columns(schema: StructType) -> None:
    """Raise InvalidArgument if a column cannot become an option of a job."""
    for field in schema.fields:
        if field.name not in _KNOWN:
            raise InvalidArgument(f"column {field.name}", f"is not an option of a job; use one of {', '.join(_KNOWN)}")
        fits, wanted = _KNOWN[field.name]
        if not fits(field.dataType):
            raise InvalidArgument(f"column {field.name}", f"must be {wanted}, not {field.dataType.simpleString()}")
    if "type" not in schema.fieldNames():
        raise InvalidArgument("column type", "is missing; every job needs a type")


_OF_ONE_ROW = frozenset({"data", "job_id", "idempotency_key"})
_KNOWN_AT_ONCE = 10_000


class RowsAsTexts:
    """Checks rows and serializes them for staging; options that rows share are checked once."""

    def __init__(self, *, data_is_text: bool) -> None:
        self._data_is_text = data_is_text
        self._alike: dict[tuple[Any, ...], Record] = {}

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the row as text. A null is an omitted option. InvalidArgument names the column."""
        try:
            return self._text({name: value for name, value in row.items() if value is not None})
        except InvalidArgument as error:
            raise InvalidArgument(f"column {error.field}", error.problem) from None

    def _text(self, given: dict[str, Any]) -> str:
        data = given.pop("data", None)
        if self._data_is_text and data is not None:
            data = _parsed(data)
        if _OF_ONE_ROW.isdisjoint(given) and "tags" not in given:
            record = self._like(given)
            record.id = new_id()
            record.payload = check_json("data", data)
            return text_of(record, chosen=False)
        return text_of(_record(given, data), chosen="job_id" in given)

    def _like(self, given: dict[str, Any]) -> Record:
        """Return a checked record with the same options; the caller sets its id and data."""
        values = tuple(given.items())
        if (known := self._alike.get(values)) is None:
            if len(self._alike) >= _KNOWN_AT_ONCE:
                self._alike.clear()
            known = self._alike[values] = _record(given, None)
        return known


def _record(given: dict[str, Any], data: Any) -> Record:
    if "type" not in given:
        raise InvalidArgument("type", "is null; every job needs a type")
    for name in ("run_at", "expires_at"):
        if name in given:
            given[name] = _aware(given[name])
    return record_of(job_from(**given, data=data), 0)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArgument(
            "data", f"must be JSON if it is text; got {text[:80]!r}; use to_json(…) or a struct"
        ) from None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_AT_ONCE = 5_000
"""Rows staged in one transaction; other work of the store runs between them."""
_IN_A_PART = 50_000
"""Rows per part: a store may turn a whole part into jobs with one statement, which must not take long."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one Spark task staged for a run."""

    run: str
    parts: tuple[str, ...]


class _Rows:
    """Stages and commits the rows of one write or of one batch; Spark creates it for each plan of a write."""

    def __init__(self, address: Address, schema: StructType) -> None:
        check_columns(schema)
        self.address = address
        self._data_is_text = "data" in schema.fieldNames() and isinstance(schema["data"].dataType, StringType)
        with _staging(address) as store:
            answer(store.clear_silent_runs())

    def stage(self, run: str, batches: Iterator[pyarrow.RecordBatch]) -> StagedRows:
        """Stage checked rows under new names, so that rows of a failed attempt are distinct."""
        parts: list[str] = []
        left = 0
        with _staging(self.address) as store:
            for bodies in self._bodies(batches):
                if left < len(bodies):
                    parts.append(new_id())
                    left = _IN_A_PART
                left -= len(bodies)
                answer(store.stage_jobs(run, parts[-1], bodies))
        return StagedRows(run, tuple(parts))

    def _bodies(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[list[str]]:
        texts = RowsAsTexts(data_is_text=self._data_is_text)
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                rows = batch.slice(start, _AT_ONCE).to_pylist(maps_as_pydicts="strict")
                yield [texts.text(row) for row in rows]

    def make_jobs(self, run: str, staged: Sequence[StagedRows]) -> None:
        """Turn the staged rows into jobs in one transaction."""
        with _staging(self.address) as store:
            report = answer(store.commit_run(run, [part for each in staged for part in each.parts]))
        print(
            f"longshore: run {run}: {report.offered} rows offered, {report.inserted} jobs inserted, "
            f"{report.already_there} already there",
            file=sys.stderr,
        )

    def drop(self, run: str) -> None:
        """Drop all rows staged for the run."""
        with _staging(self.address) as store:
            answer(store.abandon_run(run))


class JobWriter(DataSourceArrowWriter):
    """Tasks stage checked rows, each attempt under a new name; the commit enqueues them."""

    def __init__(self, address: Address, schema: StructType, run: str | None) -> None:
        self._run = new_id() if run is None else check_name("runId", run)
        self._rows = _Rows(address, schema)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return self._rows.stage(self._run, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._rows.make_jobs(self._run, _staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - all staged rows are dropped
        self._rows.drop(self._run)


class StreamingJobWriter(DataSourceStreamArrowWriter):
    """Like `JobWriter`, for each batch of a stream. The run is named by the stream's checkpoint and the batch number.

    A batch that Spark replays after a crash is therefore the same run.
    """

    def __init__(self, address: Address, schema: StructType) -> None:
        self._rows = _Rows(address, schema)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return self._rows.stage(_run_of_this_batch(), iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's name; the messages name the run
    ) -> None:
        staged = _staged(messages)
        if staged:  # a batch without tasks has no rows
            self._rows.make_jobs(staged[0].run, staged)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's name; the messages name the run
    ) -> None:
        for run in {each.run for each in _staged(messages)}:
            self._rows.drop(run)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message for message in messages if isinstance(message, StagedRows)]


def run_of(query_id: str, batch: int | str) -> str:
    """The name of the run of a stream's batch; the checkpoint stores `query.id`."""
    return f"{query_id}-{batch}"


def _run_of_this_batch() -> str:
    """The run of this task's batch. Only tasks can read it: Spark gives the writer nothing but the options."""
    context = TaskContext.get()
    assert context is not None  # called in a task only
    query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise RuntimeError("this Spark does not report the batch of a task; write in foreachBatch instead")
    return run_of(query, batch)


@contextmanager
def _staging(address: Address) -> Iterator[SupportsBulkInsert]:
    with address.opened() as backend:
        assert isinstance(backend, SupportsBulkInsert)  # true for every store with a URL
        yield backend


def enqueue_report(url: str, run_id: str, *, schema: str | None = None) -> RunReport | None:
    """Return the counts of a write under this `runId`, or None if it has not ended. See docs/spark.md."""
    with _staging(Address(url, {} if schema is None else {"schema": schema})) as store:
        return answer(store.run_report(run_id))
