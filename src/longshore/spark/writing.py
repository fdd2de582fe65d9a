"""Writing a DataFrame as jobs: all of it or nothing, however often a task or the whole is tried again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from longshore.backends.staging import RunReport, StagesJobs
from longshore.core.errors import InvalidArgument
from longshore.core.names import check_name, new_id
from longshore.spark.columns import check_columns, staged_text
from longshore.spark.options import Address, answer

if TYPE_CHECKING:
    import pyarrow

_AT_ONCE = 5_000
"""Rows laid aside in one transaction: the store's own work goes on in between."""


@dataclass
class Laid(WriterCommitMessage):
    """What one task laid aside."""

    part: str


class JobWriter(DataSourceArrowWriter):
    """Tasks lay checked rows aside for the run, each try under a name of its own; the commit makes jobs of them."""

    def __init__(self, address: Address, schema: StructType, run: str | None) -> None:
        check_columns(schema)
        self._address = address
        self._data_is_text = "data" in schema.fieldNames() and isinstance(schema["data"].dataType, StringType)
        self._run = new_id() if run is None else check_name("runId", run)
        with _staging(address) as store:
            answer(store.clear_silent_runs())

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        part = new_id()
        with _staging(self._address) as store:
            for bodies in self._bodies(iterator):
                answer(store.stage_jobs(self._run, part, bodies))
        return Laid(part)

    def _bodies(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[list[str]]:
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                rows = batch.slice(start, _AT_ONCE).to_pylist(maps_as_pydicts="strict")
                yield [staged_text(row, data_is_text=self._data_is_text) for row in rows]

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, Laid)]
        with _staging(self._address) as store:
            report = answer(store.commit_run(self._run, parts))
        print(
            f"longshore: run {self._run}: {report.offered} rows offered, {report.inserted} jobs inserted, "
            f"{report.already_there} already there",
            file=sys.stderr,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - all of it goes
        with _staging(self._address) as store:
            answer(store.abandon_run(self._run))


@contextmanager
def _staging(address: Address) -> Iterator[StagesJobs]:
    with address.opened() as backend:
        assert isinstance(backend, StagesJobs)  # as every store that has an address
        yield backend


def write_report(url: str, run_id: str, *, schema: str | None = None) -> RunReport | None:
    """What a write under this `runId` brought: rows offered, inserted and already there; None if it did not end."""
    with _staging(Address(url, {} if schema is None else {"schema": schema})) as store:
        return answer(store.run_report(run_id))


def refuse_overwriting() -> None:
    """A queue is added to."""
    raise InvalidArgument(
        "mode",
        'overwrite would throw away jobs that somebody waits for; use mode("append"), and cancel or delete by name',
    )
