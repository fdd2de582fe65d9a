"""Writes a DataFrame as jobs: all of it, or each batch of a stream."""

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
"""The column of an option, by the option's type. An option of another type has no column."""
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
    """Whether these columns can become jobs; what cannot is named, with what it should be."""
    for field in schema.fields:
        if field.name not in _KNOWN:
            raise InvalidArgument(
                f"column {field.name}", f"is not an option of a job; the columns may be {', '.join(_KNOWN)}"
            )
        fits, wanted = _KNOWN[field.name]
        if not fits(field.dataType):
            raise InvalidArgument(f"column {field.name}", f"must be {wanted}, not {field.dataType.simpleString()}")
    if "type" not in schema.fieldNames():
        raise InvalidArgument("column type", "is missing: every job has one")


_OF_ONE_ROW = frozenset({"data", "job_id", "idempotency_key"})
_KNOWN_AT_ONCE = 10_000


class RowsAsTexts:
    """Checks rows and writes each as the text of a job to stage; options that rows share are checked once."""

    def __init__(self, *, data_is_text: bool) -> None:
        self._data_is_text = data_is_text
        self._alike: dict[tuple[Any, ...], Record] = {}

    def text(self, row: Mapping[str, Any]) -> str:
        """A null is what is left out. InvalidArgument names the column."""
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
        """A record of the same columns, checked; its id and data are the next row's to set."""
        values = tuple(given.items())
        if (known := self._alike.get(values)) is None:
            if len(self._alike) >= _KNOWN_AT_ONCE:
                self._alike.clear()
            known = self._alike[values] = _record(given, None)
        return known


def _record(given: dict[str, Any], data: Any) -> Record:
    if "type" not in given:
        raise InvalidArgument("type", "is null: every job has one")
    for name in ("run_at", "expires_at"):
        if name in given:
            given[name] = _aware(given[name])
    return record_of(job_from(**given, data=data), 0)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArgument(
            "data", f"must be JSON where it is text, and this is not: {text[:80]!r}; use to_json(…), or a struct"
        ) from None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_AT_ONCE = 5_000
"""Rows staged in one transaction; other work of the store runs between them."""
_IN_A_PART = 50_000
"""Rows under one name: a store that makes jobs of whole parts by one statement should not take long for it."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one Spark task staged, and for which run."""

    run: str
    parts: tuple[str, ...]


class _Rows:
    """Stages and commits rows, of one write or of a batch of a stream; Spark makes it for each plan of a write."""

    def __init__(self, address: Address, schema: StructType) -> None:
        check_columns(schema)
        self.address = address
        self._data_is_text = "data" in schema.fieldNames() and isinstance(schema["data"].dataType, StringType)
        with _staging(address) as store:
            answer(store.clear_silent_runs())

    def stage(self, run: str, batches: Iterator[pyarrow.RecordBatch]) -> StagedRows:
        """Stages checked rows under new names, so that those of a failed attempt are distinct."""
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
        """In one transaction."""
        with _staging(self.address) as store:
            report = answer(store.commit_run(run, [part for each in staged for part in each.parts]))
        print(
            f"longshore: run {run}: {report.offered} rows offered, {report.inserted} jobs inserted, "
            f"{report.already_there} already there",
            file=sys.stderr,
        )

    def drop(self, run: str) -> None:
        """Drops all rows staged for the run."""
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

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - all of it goes
        self._rows.drop(self._run)


class StreamingJobWriter(DataSourceStreamArrowWriter):
    """The same for each batch of a stream: a run named by the stream's checkpoint and the batch's number.

    A batch that Spark replays, because it died between the commit here and its own note of it, is the same run.
    """

    def __init__(self, address: Address, schema: StructType) -> None:
        self._rows = _Rows(address, schema)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return self._rows.stage(_run_of_this_batch(), iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's name; the messages tell it with the stream
    ) -> None:
        staged = _staged(messages)
        if staged:  # a batch without tasks has no rows
            self._rows.make_jobs(staged[0].run, staged)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's name; the messages tell it with the stream
    ) -> None:
        for run in {each.run for each in _staged(messages)}:
            self._rows.drop(run)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message for message in messages if isinstance(message, StagedRows)]


def run_of(query_id: str, batch: int | str) -> str:
    """The name of the run that a batch of a stream is; `query.id` is kept in the checkpoint."""
    return f"{query_id}-{batch}"


def _run_of_this_batch() -> str:
    """Only tasks can read these from Spark: the writer is made for each batch and knows only the options."""
    context = TaskContext.get()
    assert context is not None  # a task is what this runs in
    query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise RuntimeError("this Spark does not say which batch a task belongs to; write in foreachBatch instead")
    return run_of(query, batch)


@contextmanager
def _staging(address: Address) -> Iterator[SupportsBulkInsert]:
    with address.opened() as backend:
        assert isinstance(backend, SupportsBulkInsert)  # as every store that has an address
        yield backend


def enqueue_report(url: str, run_id: str, *, schema: str | None = None) -> RunReport | None:
    """What a write under this `runId` brought: rows offered, inserted and already there; None if it did not end."""
    with _staging(Address(url, {} if schema is None else {"schema": schema})) as store:
        return answer(store.run_report(run_id))
