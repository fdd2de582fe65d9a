"""The wire protocol as one table: every verb of the contract with its address, its scope and its forms.

The client, the server's routes and the API's document read this table, so that none of them can say anything else.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from longshore.backends import argument_checks
from longshore.backends.base import Backend
from longshore.backends.remote import records
from longshore.backends.remote.codecs import (
    ACTOR,
    ANY_TEXT,
    CHECKPOINT,
    COUNT,
    ERROR,
    FLAG,
    LEVEL,
    LIMIT,
    MOMENT,
    NAME,
    NAMES,
    PROGRESS,
    REASON_TO_FAIL,
    RESULT,
    SPAN,
    STATUS,
    TAGS,
    TEXT,
    TIME,
    WAIT,
    WORKER_EVENT,
    Form,
    Schema,
    answered,
    as_it_is,
    checked,
    list_of,
    optional,
)
from longshore.core.limits import check_limit
from longshore.core.validation import LONGEST_NAME, check_name

T = TypeVar("T")

ScopeName = Literal["read", "submit", "work", "admin"]

MARK = "Longshore-Mark"
"""The header of every answer: which server this is, and how often its store has changed, as `server.changes`."""
KEY = "Idempotency-Key"
"""The header of every request that changes something: one that comes again is answered as the first was."""
SENT_TO = "Longshore-Sent-To"
"""The header of a request that one server may have carried out, or is meant for: another one does not do it."""
ACTOR_SAID = "Longshore-Actor"
"""The header of a request without a token: on whose behalf it is sent, percent-encoded. A token says it by itself."""
FORGETFUL = "Longshore-Forgetful"
"""The header of every answer of a server whose store does not outlive it."""
ANSWER_LOST = "answer-lost"
"""The problem of a request whose answer nobody remembers."""

REMEMBERED = 120.0
"""Seconds for which a server remembers a key: whoever repeats a request does so within them."""

CHANGES = "/v1/store/changes"
"""Where the next change is waited for."""
MOST_AT_ONCE = 1_000
"""What one request claims, lists or does at most; whoever asks for more is given so much."""

_NOTHING: Form[None] = Form(as_it_is, lambda _name, _told: None)


@dataclass(frozen=True, slots=True)
class Verb(Generic[T]):
    """One verb. `answer` is the field of the answer that holds what it returns; "" if the answer is that itself."""

    name: str
    scope: ScopeName
    returns: Form[T]
    answer: str
    takes: Mapping[str, Form[Any]]
    path: str
    operation: str
    repeatable: bool
    """Whether doing it twice is as good as once, so that it may be repeated whoever answers."""
    needed: tuple[str, ...]
    """What must be said."""
    note_of: str
    """Of what a worker may write as often as it likes, the argument that names what it is about; else nothing."""

    @property
    def bounded(self) -> bool:
        """Whether one request does or tells no more than `MOST_AT_ONCE`, whatever limit it asks for."""
        return "limit" in self.takes

    @property
    def looks(self) -> bool:
        """Whether it changes nothing."""
        return self.scope == "read"

    @property
    def says_nothing(self) -> bool:
        """Whether there is nothing to return."""
        return self.returns is _NOTHING

    @property
    def summary(self) -> str:
        """What it does, in the words of the contract."""
        return (inspect.getdoc(getattr(Backend, self.name)) or self.name).partition("\n")[0]

    @property
    def description(self) -> str:
        """The same at length."""
        return inspect.getdoc(getattr(Backend, self.name)) or self.name

    @property
    def body(self) -> Schema:
        """The schema of a request."""
        properties = {name: form.schema for name, form in self.takes.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.needed),
            "additionalProperties": False,
        }

    @property
    def answers(self) -> Schema:
        """The schema of an answer."""
        if not self.answer:
            return self.returns.schema
        return {"type": "object", "properties": {self.answer: self.returns.schema}, "required": [self.answer]}


VERBS: dict[str, Verb[Any]] = {}
"""All of them, by name."""


def _verb(
    name: str,
    scope: ScopeName,
    returns: Form[T],
    answer: str = "",
    *,
    at: str = "",
    operation: str = "",
    repeatable: bool | None = None,
    note_of: str = "",
    **takes: Form[Any],
) -> Verb[T]:
    again = scope == "read" if repeatable is None else repeatable
    path = f"/v1/work/{at}" if at else f"/v1/store/{name}"
    parameters = inspect.signature(getattr(Backend, name)).parameters
    needed = tuple(each for each in takes if parameters[each].default is inspect.Parameter.empty)
    verb = Verb(name, scope, returns, answer, takes, path, operation or f"store_{name}", again, needed, note_of)
    VERBS[name] = verb
    return verb


def _no_queue_or_one(name: str, value: object) -> str:
    return "" if value == "" else check_name(name, value)


def _detail(_: str, value: object) -> Any:
    text = argument_checks.detail(value)
    return None if text is None else json.loads(text)


_QUEUE = optional(NAME)
_QUEUES = optional(NAMES)
_TYPES = optional(NAMES)
_LIMIT_ON_RUNNING: Form[int | None] = checked(
    check_limit, {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
)
_RETENTION = optional(WAIT)
_CURSOR = optional(ANY_TEXT)
_LEASE = records.LEASE
_ID = answered(str, {"type": "string"})
_IDS = list_of(_ID)
_NUMBER = answered(int, {"type": "integer"})
_YES_OR_NO = answered(bool, {"type": "boolean"})
_FREED = records.FREED
_PAIR: Form[tuple[list[str], list[str]]] = Form(
    lambda _, pair: {"cancelled": pair[0], "unknown": pair[1]},
    lambda _, told: (_IDS.read("cancelled", told["cancelled"]), _IDS.read("unknown", told["unknown"])),
    {
        "type": "object",
        "properties": {"cancelled": _IDS.schema, "unknown": _IDS.schema},
        "required": ["cancelled", "unknown"],
    },
)

# -- a job comes in

ENQUEUE_JOB = _verb("enqueue_job", "submit", _ID, "id", job=records.NEW_JOB)
ENQUEUE_JOBS = _verb("enqueue_jobs", "submit", _IDS, "ids", jobs=records.NEW_JOBS)
ENQUEUE_NEW_JOBS = _verb("enqueue_new_jobs", "submit", _IDS, "ids", jobs=records.NEW_JOBS)
ADD_JOBS = _verb("add_jobs", "submit", records.JOBS, "jobs", repeatable=True, jobs=records.NEW_JOBS, same_only=FLAG)
ACCEPT_JOBS = _verb("accept_jobs", "submit", _NOTHING, job_ids=NAMES)

# -- a worker takes it and keeps it; a claim whose answer was lost comes back with its lease

_FOR_HOW_LONG = optional(SPAN)
DEQUEUE_JOBS = _verb(
    "dequeue_jobs",
    "work",
    records.JOBS,
    "jobs",
    at="claim",
    operation="claim_jobs",
    assignee_id=NAME,
    tags=TAGS,
    limit=LIMIT,
    queues=_QUEUES,
    lease=_FOR_HOW_LONG,
    types=_TYPES,
)
EXTEND_LEASES = _verb(
    "extend_leases",
    "work",
    records.LEASES,
    "leases",
    at="renew",
    operation="renew_leases",
    repeatable=True,
    leases=records.LEASES,
    duration=SPAN,
)
RELEASE_LEASE = _verb(
    "release_lease", "work", _FREED, "freed", job_id=NAME, lease=records.HELD, run_at=optional(MOMENT), reason=TEXT
)
SET_PROGRESS = _verb(
    "set_progress",
    "work",
    _NOTHING,
    at="progress",
    operation="report_progress",
    note_of="job_id",
    repeatable=True,
    job_id=NAME,
    value=PROGRESS,
    lease=_LEASE,
)
APPEND_LOG = _verb(
    "append_log",
    "work",
    _NOTHING,
    at="log",
    operation="write_log",
    note_of="job_id",
    job_id=NAME,
    message=TEXT,
    level=LEVEL,
    lease=_LEASE,
)
SAVE_CHECKPOINT = _verb(
    "save_checkpoint",
    "work",
    _NOTHING,
    at="checkpoint",
    operation="save_checkpoint",
    note_of="job_id",
    repeatable=True,
    job_id=NAME,
    data=CHECKPOINT,
    lease=_LEASE,
)

# -- it ends

COMPLETE_JOB = _verb("complete_job", "work", _FREED, "freed", job_id=NAME, result=RESULT, lease=_LEASE)
FAIL_JOB = _verb(
    "fail_job", "work", _FREED, "freed", job_id=NAME, error=REASON_TO_FAIL, retry_at=optional(MOMENT), lease=_LEASE
)
BURY_JOB = _verb("bury_job", "work", _FREED, "freed", job_id=NAME, error=ERROR, lease=_LEASE)
STOP_JOB = _verb("stop_job", "work", _FREED, "freed", job_id=NAME, error=ERROR, lease=_LEASE)
STOP_JOB_WITH_RETRY = _verb("stop_job_with_retry", "work", _FREED, "freed", job_id=NAME, error=ERROR, lease=_LEASE)
MARK_JOB_UNKNOWN_STOPPED = _verb(
    "mark_job_unknown_stopped", "work", _FREED, "freed", job_id=NAME, error=ERROR, lease=_LEASE
)
UPDATE_JOB_STATUS = _verb(
    "update_job_status", "admin", _FREED, "freed", job_id=NAME, status=STATUS, result=RESULT, error=ERROR
)
SETTLE_JOBS = _verb(
    "settle_jobs", "work", records.REPORT, at="settle", operation="settle_jobs", outcomes=records.OUTCOMES
)
SETTLE_AND_DEQUEUE = _verb(
    "settle_and_dequeue",
    "work",
    records.TURN,
    at="settle-and-claim",
    operation="settle_and_claim",
    outcomes=records.OUTCOMES,
    assignee_id=NAME,
    tags=TAGS,
    limit=COUNT,
    queues=_QUEUES,
    lease=_FOR_HOW_LONG,
    types=_TYPES,
)

# -- somebody calls it off, or its worker vanishes

CANCEL_JOBS = _verb("cancel_jobs", "submit", _PAIR, tags=TAGS, job_ids=NAMES, queue=_QUEUE, held=FLAG)
ACKNOWLEDGE_CANCELLATION = _verb(
    "acknowledge_cancellation", "work", _NOTHING, job_id=NAME, was_executing=FLAG, lease=_LEASE
)
MARK_WORKER_UNRESPONSIVE = _verb("mark_worker_unresponsive", "admin", _NOTHING, assignee_id=NAME)
RECLAIM_EXPIRED_LEASES = _verb("reclaim_expired_leases", "work", records.JOBS, "jobs", repeatable=True, limit=LIMIT)
TIME_OUT_CANCELLATIONS = _verb(
    "time_out_cancellations", "admin", records.JOBS, "jobs", repeatable=True, timeout=WAIT, limit=LIMIT
)
RESET_RUNNING_JOBS = _verb("reset_running_jobs", "admin", _NOTHING, queue=_QUEUE)

# -- somebody looks

NOW = _verb("now", "read", TIME, "now")
GET_JOB = _verb("get_job", "read", records.JOB, job_id=NAME)
FACTS_ABOUT = _verb("facts_about", "read", records.FACTS, job_id=NAME)
LIST_JOBS = _verb(
    "list_jobs",
    "read",
    records.PAGE,
    filter=records.FILTER,
    limit=LIMIT,
    cursor=_CURSOR,
    oldest_first=FLAG,
    due=optional(FLAG),
)
GET_JOB_STATS = _verb("get_job_stats", "read", records.STATS, tags=TAGS, queue=_QUEUE)
COUNT_JOBS = _verb("count_jobs", "read", records.COUNTS, "counts", queue=_QUEUE)
COUNT_DELAYED = _verb("count_delayed", "read", _NUMBER, "count", queue=_QUEUE)
NEXT_DUE = _verb("next_due", "read", optional(TIME), "at", queues=_QUEUES, after=optional(TIME))
READ_LOGS = _verb("read_logs", "read", records.LOGS, "lines", job_id=NAME, after=COUNT)
READ_EVENTS = _verb(
    "read_events", "read", records.STRETCH, after=_CURSOR, limit=LIMIT, queue=_QUEUE, job_id=optional(NAME)
)
END_OF_EVENTS = _verb("end_of_events", "read", _ID, "cursor")
WAIT_FOR_CHANGE = _verb("wait_for_change", "read", _YES_OR_NO, "changed", timeout=WAIT, after=_CURSOR)

# -- an operator acts

RETRY_JOB = _verb("retry_job", "admin", _NOTHING, job_id=NAME, reset=FLAG, actor=ACTOR)
PROMOTE_JOB = _verb("promote_job", "admin", _NOTHING, job_id=NAME)
DELETE_JOBS = _verb("delete_jobs", "admin", _NOTHING, repeatable=True, tags=TAGS, job_ids=NAMES, queue=_QUEUE)
PAUSE_QUEUE = _verb("pause_queue", "admin", _NOTHING, repeatable=True, queue=NAME)
RESUME_QUEUE = _verb("resume_queue", "admin", _NOTHING, repeatable=True, queue=NAME)
SET_LIMITS = _verb(
    "set_limits",
    "admin",
    _NOTHING,
    repeatable=True,
    queue=NAME,
    running=_LIMIT_ON_RUNNING,
    per_key=_LIMIT_ON_RUNNING,
    rate=records.RATE,
    rate_per_key=records.RATE,
)
LIST_QUEUES = _verb("list_queues", "read", records.QUEUES, "queues")

# -- time passes

_SCHEDULE = records.SCHEDULE
PUT_SCHEDULE = _verb(
    "put_schedule", "admin", _SCHEDULE, repeatable=True, schedule=records.NEW_SCHEDULE, keep_pause=FLAG
)
GET_SCHEDULES = _verb("get_schedules", "read", records.SCHEDULES, "schedules")
GET_SCHEDULE = _verb("get_schedule", "read", _SCHEDULE, schedule_id=NAME)
PAUSE_SCHEDULE = _verb("pause_schedule", "admin", _SCHEDULE, repeatable=True, schedule_id=NAME)
RESUME_SCHEDULE = _verb("resume_schedule", "admin", _SCHEDULE, repeatable=True, schedule_id=NAME)
RUN_SCHEDULE = _verb("run_schedule", "admin", records.JOB, schedule_id=NAME)
REMOVE_SCHEDULE = _verb("remove_schedule", "admin", _YES_OR_NO, "removed", schedule_id=NAME)
NEXT_FIRING = _verb("next_firing", "read", optional(TIME), "at")
FIRE_DUE_SCHEDULES = _verb("fire_due_schedules", "admin", records.JOBS, "jobs", repeatable=True, limit=LIMIT)
ANNOUNCE_DUE_JOBS = _verb("announce_due_jobs", "admin", _IDS, "ids", repeatable=True, limit=LIMIT)
CLEANUP_EXPIRED_JOBS = _verb(
    "cleanup_expired_jobs", "admin", _NUMBER, "removed", repeatable=True, ttl=SPAN, queue=_QUEUE
)
SET_RETENTION = _verb(
    "set_retention",
    "admin",
    _NOTHING,
    repeatable=True,
    queue=NAME,
    finished=_RETENTION,
    dead=_RETENTION,
    events=_RETENTION,
)
APPLY_RETENTION = _verb("apply_retention", "admin", _NUMBER, "removed", repeatable=True, limit=LIMIT)
HEARTBEAT_WORKER = _verb(
    "heartbeat_worker",
    "work",
    _NOTHING,
    at="heartbeat",
    operation="tell_of_worker",
    repeatable=True,
    worker=records.WORKER,
)
LIST_WORKERS = _verb("list_workers", "read", records.WORKERS, "workers")
RECORD_WORKER_EVENT = _verb(
    "record_worker_event",
    "work",
    _NOTHING,
    note_of="worker_id",
    event=WORKER_EVENT,
    worker_id=NAME,
    queue=checked(_no_queue_or_one, {"type": "string", "maxLength": LONGEST_NAME}),
    detail=checked(_detail, {"anyOf": [{"type": "object"}, {"type": "null"}]}),
)
