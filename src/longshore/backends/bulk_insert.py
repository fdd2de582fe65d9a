"""Bulk insert: many processes stage jobs, and one commit turns all of them into jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from longshore.backends.operations.enqueue import add_jobs
from longshore.backends.port import RunsOperations, Transaction, operation
from longshore.backends.sql.writes import SQLStaging
from longshore.core.job import Job
from longshore.core.job_record import Record
from longshore.core.times import SECOND, from_micros

KEEP_UNFINISHED = 24 * 3600 * SECOND
"""A run without activity for this long is dropped: its processes are gone."""
KEEP_FINISHED = 30 * 24 * 3600 * SECOND
"""Repeating a run within this time changes nothing."""
_AT_ONCE = 10_000
_COLUMNS = (
    "id", "type", "queue", "tags", "priority", "lifo", "max_attempts", "max_crashes", "idempotency_key",
    "concurrency_key", "parent_id",
)  # fmt: skip
_MOMENTS = ("run_at", "expires_at")
_SPANS = ("delay", "timeout")
_PLAIN = ("id", "type", "queue", "payload", "priority", "max_attempts", "max_crashes", "timeout", "expires_at")
"""The fields of a plain job, which needs no lookup, in the order that `insert_plain_jobs` uses."""
_lookup_fields = attrgetter("tags", "lifo", "delay", "run_at", "idempotency_key", "concurrency_key", "parent_id")
_NOTHING = _lookup_fields(Record())
PARTS_AT_ONCE = 4
"""The parts that one statement turns into jobs, in a store that can. Other writers run between the statements."""


class RunReport(NamedTuple):
    """The result of a run."""

    offered: int
    inserted: int

    @property
    def already_there(self) -> int:
        """The jobs whose id or idempotency key existed already."""
        return self.offered - self.inserted


def text_of(record: Record, *, chosen: bool) -> str:
    """Encode a checked job; `chosen` if the caller chose its id.

    A plain job, which needs no lookup, is a list. A store may insert those in bulk.
    """
    if not chosen and record.options == "{}" and _lookup_fields(record) == _NOTHING:
        return _text((record.id, record.type, record.queue, record.payload.decode(), *_plain_numbers(record)))
    body: dict[str, Any] = {name: getattr(record, name) for name in (*_COLUMNS, *_MOMENTS, *_SPANS)}
    body |= {"payload": record.payload.decode(), "options": record.options, "chosen": chosen}
    if record.delay is not None:
        body["run_at"] = None  # the delay counts from the commit
    return _text(body)


_text = json.JSONEncoder(ensure_ascii=False).encode
_plain_numbers = attrgetter(*_PLAIN[4:])


def _body_of(text: str) -> dict[str, Any]:
    body = json.loads(text)
    if isinstance(body, dict):
        return body
    plain = dict(zip(_PLAIN, body, strict=True))
    return {**dict.fromkeys((*_COLUMNS, *_MOMENTS, *_SPANS)), "tags": (), "lifo": False, "options": "{}", **plain}


def _job_of(body: dict[str, Any]) -> Job:
    for name in _MOMENTS:
        body[name] = None if body[name] is None else from_micros(body[name])
    for name in _SPANS:
        body[name] = None if body[name] is None else timedelta(microseconds=body[name])
    payload, options = body.pop("payload").encode(), json.loads(body.pop("options"))
    return Job(payload=payload, options=options, **{**body, "tags": tuple(body["tags"])})


@operation()
def stage_jobs(tx: Transaction, run: str, part: str, bodies: Sequence[str]) -> None:
    """Stage jobs, unless their run was committed before."""
    staging = _staging(tx)
    if staging.run_report(run) is None:
        staging.stage(run, part, bodies)


@operation()
def commit_run(tx: Transaction, run: str, parts: Sequence[str]) -> RunReport:
    """Insert all jobs of these parts or none. Parts that are not named, from tasks that were retried, are dropped."""
    staging = _staging(tx)
    before = staging.run_report(run)
    if before is not None:
        return RunReport(before[0], 0)
    plain = sum(
        staging.insert_plain(run, parts[start : start + PARTS_AT_ONCE]) for start in range(0, len(parts), PARTS_AT_ONCE)
    )
    (newest,) = tx.new_uids(1)
    texts = list(staging.staged(run, parts))
    inserted: set[int] = set()
    for start in range(0, len(texts), _AT_ONCE):
        some = [_body_of(text) for text in texts[start : start + _AT_ONCE]]
        chosen = {body["id"] for body in some if body.pop("chosen", False)}
        answers = add_jobs.run(tx, [_job_of(body) for body in some], chosen)
        inserted.update(answer.uid for answer in answers if answer.uid > newest)
    report = RunReport(plain + len(texts), plain + len(inserted))
    staging.finish_run(run, *report)
    return report


@operation()
def abandon_run(tx: Transaction, run: str) -> None:
    """Drop the staged jobs of a run; a committed run stays."""
    _staging(tx).drop_run(run)


@operation()
def clear_silent_runs(tx: Transaction) -> int:
    """Drop staged jobs of runs without activity."""
    return _staging(tx).drop_silent_runs(tx.now - KEEP_UNFINISHED, tx.now - KEEP_FINISHED)


@operation()
def run_report(tx: Transaction, run: str) -> RunReport | None:
    """The result of a run, if it was committed."""
    found = _staging(tx).run_report(run)
    return None if found is None else RunReport(*found)


def _staging(tx: Transaction) -> SQLStaging:
    staging: SQLStaging = tx.staging  # type: ignore[attr-defined] # only stores with staging offer these operations
    return staging


class SupportsBulkInsert(RunsOperations):
    """A backend in which jobs can be staged."""

    async def stage_jobs(self, run: str, part: str, bodies: Sequence[str]) -> None:
        """Stage jobs (see `text_of`) in a part that the commit names or omits."""
        await self._write(stage_jobs, run, part, bodies)

    async def commit_run(self, run: str, parts: Sequence[str]) -> RunReport:
        """Turn the staged jobs of these parts into jobs, in one transaction. Repeating it changes nothing."""
        return await self._write(commit_run, run, parts)

    async def abandon_run(self, run: str) -> None:
        """Drop the staged jobs of a run."""
        await self._write(abandon_run, run)

    async def clear_silent_runs(self) -> int:
        """Drop the staged jobs of killed runs; return the number of runs."""
        return await self._write(clear_silent_runs)

    async def run_report(self, run: str) -> RunReport | None:
        """The result of a run, if it was committed."""
        return await self._write(run_report, run)
