"""The wire protocol as one table: every operation of the contract with its path, its token scope and its answer.

`RemoteBackend`, the server's routes and the OpenAPI document are built from this table. To add an operation: declare it
in `backends/base.py` and add a row here. An argument whose name is not in `_ARGUMENTS` needs its form there. A rule for
callers whose token is bound to some queues goes to `server/queue_scoping.py`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from longshore.backends import argument_checks as checks
from longshore.backends.base import Backend
from longshore.backends.remote import codecs
from longshore.backends.remote.records import jobs as job_records
from longshore.backends.remote.records import store as store_records
from longshore.core.limits import check_limit
from longshore.core.validation import LONGEST_NAME, check_name

ScopeName = Literal["read", "submit", "work", "admin"]

MARK = "Longshore-Mark"
"""The header of every answer: `server.changes`, the name of the server and how often its store has changed."""
KEY = "Idempotency-Key"
"""The header of a request that may not be done twice: a repeated one gets the first answer."""
SENT_TO = "Longshore-Sent-To"
"""The header that names the server for which a request is meant: another server refuses it."""
ACTOR = "Longshore-Actor"
"""The header of a request without a token that names its actor, percent-encoded. A token has its own name."""
NOT_DURABLE = "Longshore-Forgetful"
"""The header of every answer of a server whose store is lost when it stops."""
ANSWER_LOST = "answer-lost"
"""The problem type of a repeated request whose first answer is lost."""

REMEMBERED = 120.0
"""Seconds for which a server remembers a key; a client repeats a request only within them."""

CHANGES = "/v1/store/changes"
"""The path of the long poll for changes."""
MOST_AT_ONCE = 1_000
"""The highest limit of one request; a higher one is lowered to it."""

_NOTHING: codecs.Form[None] = codecs.Form(codecs.identity, lambda _name, _data: None)


@dataclass(frozen=True, slots=True)
class RemoteOperation:
    """One operation on the wire: a POST with its arguments by name."""

    name: str
    method: Callable[..., Any]
    """Its declaration in the contract."""
    scope: ScopeName
    returns: codecs.Form[Any]
    answer: str
    """The field of the answer with the returned value; "" if the whole answer is the value."""
    takes: Mapping[str, codecs.Form[Any]]
    needed: list[str]
    """The arguments that every request must have."""
    path: str
    operation_id: str
    repeatable: bool
    """Whether doing it twice equals doing it once, so that it can be sent again to any server."""
    note_of: str
    """For an operation that a worker may call at any rate: the argument that names its subject; else empty."""
    in_pieces: bool
    """Whether the client splits a `limit` above `MOST_AT_ONCE` into several requests."""

    @property
    def description(self) -> str:
        """The docstring of its declaration."""
        return inspect.getdoc(self.method) or self.name

    @property
    def bounded(self) -> bool:
        """Whether the server does at most `MOST_AT_ONCE` for one request, even if its limit is higher."""
        return "limit" in self.takes

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.scope == "read"

    @property
    def returns_nothing(self) -> bool:
        """Whether it returns nothing."""
        return self.returns is _NOTHING

    @property
    def body(self) -> codecs.Schema:
        """The schema of a request."""
        properties = {name: form.schema for name, form in self.takes.items()}
        return {"type": "object", "properties": properties, "required": self.needed, "additionalProperties": False}

    @property
    def answers(self) -> codecs.Schema:
        """The schema of an answer."""
        if not self.answer:
            return self.returns.schema
        return {"type": "object", "properties": {self.answer: self.returns.schema}, "required": [self.answer]}


def _no_queue_or_one(name: str, value: object) -> str:
    return "" if value == "" else check_name(name, value)


def _detail(_: str, value: object) -> Any:
    text = checks.detail(value)
    return None if text is None else json.loads(text)


_LIMIT_OR_NONE = codecs.checked(check_limit, {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
_CURSOR = codecs.optional(codecs.ANY_TEXT)
_ARGUMENTS: dict[str, codecs.Form[Any]] = {
    **dict.fromkeys(("assignee_id", "job_id", "schedule_id", "worker_id"), codecs.NAME),
    **dict.fromkeys(("held", "keep_pause", "oldest_first", "reset", "same_only", "was_executing"), codecs.FLAG),
    **dict.fromkeys(("queues", "types"), codecs.optional(codecs.NAMES)),
    **dict.fromkeys(("retry_at", "run_at"), codecs.optional(codecs.MOMENT)),
    **dict.fromkeys(("message", "reason"), codecs.TEXT),
    **dict.fromkeys(("duration", "ttl"), codecs.SPAN),
    **dict.fromkeys(("running", "per_key"), _LIMIT_OR_NONE),
    **dict.fromkeys(("rate", "rate_per_key"), store_records.RATE),
    **dict.fromkeys(("finished", "dead", "events"), codecs.optional(codecs.WAIT)),
    **dict.fromkeys(("after", "cursor"), _CURSOR),
    "job": job_records.NEW_JOB,
    "jobs": job_records.NEW_JOBS,
    "job_ids": codecs.NAMES,
    "tags": codecs.TAGS,
    "queue": codecs.optional(codecs.NAME),
    "filter": job_records.FILTER,
    "due": codecs.optional(codecs.FLAG),
    "limit": codecs.LIMIT,
    "timeout": codecs.WAIT,
    "lease": job_records.LEASE,
    "leases": job_records.LEASES,
    "outcomes": job_records.OUTCOMES,
    "status": codecs.STATUS,
    "result": codecs.RESULT,
    "error": codecs.ERROR,
    "value": codecs.PROGRESS,
    "data": codecs.CHECKPOINT,
    "level": codecs.LEVEL,
    "actor": codecs.ACTOR,
    "schedule": store_records.NEW_SCHEDULE,
    "worker": store_records.WORKER,
    "event": codecs.WORKER_EVENT,
    "detail": codecs.checked(_detail, {"anyOf": [{"type": "object"}, {"type": "null"}]}),
}
"""The form of each argument by name. A row overrides it if an operation differs."""

OPERATIONS: dict[str, RemoteOperation] = {}
"""The table, by the names of the operations."""


def _add(
    method: Callable[..., Any],
    scope: ScopeName,
    returns: codecs.Form[Any],
    answer: str = "",
    *,
    at: str = "",
    operation_id: str = "",
    repeatable: bool | None = None,
    note_of: str = "",
    in_pieces: bool = False,
    **forms: codecs.Form[Any],
) -> RemoteOperation:
    """Add a row. `at` is a path under `/v1/work`, for workers in other languages."""
    name = method.__name__
    _, *parameters = inspect.signature(method).parameters.values()
    sent = [each for each in parameters if each.name != "connection"]
    takes = {each.name: forms.get(each.name) or _ARGUMENTS[each.name] for each in sent}
    OPERATIONS[name] = operation = RemoteOperation(
        name,
        method,
        scope,
        returns,
        answer,
        takes,
        [each.name for each in sent if each.default is inspect.Parameter.empty],
        f"/v1/work/{at}" if at else f"/v1/store/{name}",
        operation_id or f"store_{name}",
        scope == "read" if repeatable is None else repeatable,
        note_of,
        in_pieces,
    )
    return operation


_ID = codecs.answered(str, {"type": "string"})
_IDS = codecs.list_of(_ID)
_NUMBER = codecs.answered(int, {"type": "integer"})
_YES_OR_NO = codecs.answered(bool, {"type": "boolean"})
_PAIR: codecs.Form[tuple[list[str], list[str]]] = codecs.Form(
    lambda _, pair: {"cancelled": pair[0], "unknown": pair[1]},
    lambda _, data: (_IDS.read("cancelled", data["cancelled"]), _IDS.read("unknown", data["unknown"])),
    {
        "type": "object",
        "properties": {"cancelled": _IDS.schema, "unknown": _IDS.schema},
        "required": ["cancelled", "unknown"],
    },
)
_FREED = job_records.FREED
_JOB, _JOBS = job_records.JOB, job_records.JOBS
_SCHEDULE = store_records.SCHEDULE
_LEASE_LENGTH = codecs.optional(codecs.SPAN)

# -- enqueue

_add(Backend.enqueue_job, "submit", _ID, "id")
_add(Backend.enqueue_jobs, "submit", _IDS, "ids")
_add(Backend.enqueue_new_jobs, "submit", _IDS, "ids")
_add(Backend.add_jobs, "submit", _JOBS, "jobs", repeatable=True)
_add(Backend.accept_jobs, "submit", _NOTHING)

# -- claim and renew; a claim whose answer was lost is reclaimed when its lease expires

DEQUEUE_JOBS = _add(
    Backend.dequeue_jobs,
    "work",
    _JOBS,
    "jobs",
    at="claim",
    operation_id="claim_jobs",
    in_pieces=True,
    lease=_LEASE_LENGTH,
)
_add(
    Backend.extend_leases,
    "work",
    job_records.LEASES,
    "leases",
    at="renew",
    operation_id="renew_leases",
    repeatable=True,
)
_add(Backend.release_lease, "work", _FREED, "freed", lease=job_records.HELD)
_add(
    Backend.set_progress,
    "work",
    _NOTHING,
    at="progress",
    operation_id="report_progress",
    note_of="job_id",
    repeatable=True,
)
_add(Backend.append_log, "work", _NOTHING, at="log", operation_id="write_log", note_of="job_id")
_add(
    Backend.save_checkpoint,
    "work",
    _NOTHING,
    at="checkpoint",
    operation_id="save_checkpoint",
    note_of="job_id",
    repeatable=True,
)

# -- settle

_add(Backend.complete_job, "work", _FREED, "freed")
_add(Backend.fail_job, "work", _FREED, "freed", error=codecs.REASON_TO_FAIL)
_add(Backend.bury_job, "work", _FREED, "freed")
_add(Backend.stop_job, "work", _FREED, "freed")
_add(Backend.stop_job_with_retry, "work", _FREED, "freed")
_add(Backend.mark_job_unknown_stopped, "work", _FREED, "freed")
_add(Backend.update_job_status, "admin", _FREED, "freed")
_add(Backend.settle_jobs, "work", job_records.REPORT, at="settle", operation_id="settle_jobs")
SETTLE_AND_DEQUEUE = _add(
    Backend.settle_and_dequeue,
    "work",
    job_records.TURN,
    at="settle-and-claim",
    operation_id="settle_and_claim",
    lease=_LEASE_LENGTH,
    limit=codecs.COUNT,
)

# -- cancel and recover

_add(Backend.cancel_jobs, "submit", _PAIR)
_add(Backend.acknowledge_cancellation, "work", _NOTHING)
_add(Backend.mark_worker_unresponsive, "admin", _NOTHING)
_add(Backend.reclaim_expired_leases, "work", _JOBS, "jobs", repeatable=True, in_pieces=True)
_add(Backend.time_out_cancellations, "admin", _JOBS, "jobs", repeatable=True, in_pieces=True)
_add(Backend.reset_running_jobs, "admin", _NOTHING)

# -- read

_add(Backend.now, "read", codecs.TIME, "now")
_add(Backend.get_job, "read", _JOB)
_add(Backend.facts_about, "read", store_records.FACTS)
LIST_JOBS = _add(Backend.list_jobs, "read", job_records.PAGE)
_add(Backend.get_job_stats, "read", store_records.STATS)
_add(Backend.count_jobs, "read", store_records.COUNTS, "counts")
_add(Backend.count_delayed, "read", _NUMBER, "count")
_add(Backend.next_due, "read", codecs.optional(codecs.TIME), "at", after=codecs.optional(codecs.TIME))
_add(Backend.read_logs, "read", store_records.LOGS, "lines", after=codecs.COUNT)
_add(Backend.read_events, "read", store_records.EVENT_PAGE, job_id=codecs.optional(codecs.NAME))
_add(Backend.end_of_events, "read", _ID, "cursor")
_add(Backend.wait_for_change, "read", _YES_OR_NO, "changed")

# -- operate

_add(Backend.retry_job, "admin", _NOTHING)
_add(Backend.promote_job, "admin", _NOTHING)
_add(Backend.delete_jobs, "admin", _NOTHING, repeatable=True)
_add(Backend.pause_queue, "admin", _NOTHING, repeatable=True, queue=codecs.NAME)
_add(Backend.resume_queue, "admin", _NOTHING, repeatable=True, queue=codecs.NAME)
_add(Backend.set_limits, "admin", _NOTHING, repeatable=True, queue=codecs.NAME)
_add(Backend.list_queues, "read", store_records.QUEUES, "queues")

# -- schedules, retention and workers

_add(Backend.put_schedule, "admin", _SCHEDULE, repeatable=True)
_add(Backend.get_schedules, "read", store_records.SCHEDULES, "schedules")
_add(Backend.get_schedule, "read", _SCHEDULE)
_add(Backend.pause_schedule, "admin", _SCHEDULE, repeatable=True)
_add(Backend.resume_schedule, "admin", _SCHEDULE, repeatable=True)
_add(Backend.run_schedule, "admin", _JOB)
_add(Backend.remove_schedule, "admin", _YES_OR_NO, "removed")
_add(Backend.next_firing, "read", codecs.optional(codecs.TIME), "at")
_add(Backend.fire_due_schedules, "admin", _JOBS, "jobs", repeatable=True)
_add(Backend.announce_due_jobs, "admin", _IDS, "ids", repeatable=True, in_pieces=True)
_add(Backend.cleanup_expired_jobs, "admin", _NUMBER, "removed", repeatable=True)
_add(Backend.set_retention, "admin", _NOTHING, repeatable=True, queue=codecs.NAME)
_add(Backend.apply_retention, "admin", _NUMBER, "removed", repeatable=True)
_add(Backend.heartbeat_worker, "work", _NOTHING, at="heartbeat", operation_id="tell_of_worker", repeatable=True)
_add(Backend.list_workers, "read", store_records.WORKERS, "workers")
_add(
    Backend.record_worker_event,
    "work",
    _NOTHING,
    note_of="worker_id",
    queue=codecs.checked(_no_queue_or_one, {"type": "string", "maxLength": LONGEST_NAME}),
)
