"""`JobFilter` and the reference implementation of matching and ordering."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from longshore.core.errors import InvalidArgument
from longshore.core.job_record import Record
from longshore.core.status import JobStatus
from longshore.core.times import check_datetime, to_micros
from longshore.core.validation import MOST_NAMES, MOST_TAGS, check_json, check_name, check_names, check_status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Selects jobs that meet every given condition. An empty or None condition is ignored.

    `text` searches id, type, payload and error; `error` searches the error only. Both are case-sensitive. `data` maps
    dotted paths inside the JSON payload to values: `{"address.city": "Bergen"}`. See docs/queue.md.
    """

    statuses: Sequence[JobStatus] = ()
    queues: Sequence[str] = ()
    types: Sequence[str] = ()
    tags: Sequence[str] = ()
    ids: Sequence[str] = ()
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    assignee_id: str | None = None
    parent_id: str | None = None
    schedule_id: str | None = None
    concurrency_key: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


def check_filter(wanted: object) -> JobFilter:
    """Return the filter if each of its conditions is valid; otherwise raise InvalidArgument."""
    if not isinstance(wanted, JobFilter):
        raise InvalidArgument("filter", f"must be a JobFilter, not {type(wanted).__name__}")
    for name in ("queues", "types", "tags", "ids", "statuses"):
        if not isinstance(getattr(wanted, name), Sequence):  # the check would exhaust an iterator
            raise InvalidArgument(f"filter.{name}", f"must be a list, not {type(getattr(wanted, name)).__name__}")
        check_names(f"filter.{name}", getattr(wanted, name), most=MOST_TAGS if name == "tags" else MOST_NAMES)
    for status in wanted.statuses:
        check_status("filter.statuses", status)
    for name in ("assignee_id", "parent_id", "schedule_id", "concurrency_key"):
        if getattr(wanted, name) is not None:
            check_name(f"filter.{name}", getattr(wanted, name))
    for name in ("created_after", "created_before"):
        if getattr(wanted, name) is not None:
            check_datetime(f"filter.{name}", getattr(wanted, name))
    for name in ("text", "error"):
        if not isinstance(getattr(wanted, name), str):
            raise InvalidArgument(f"filter.{name}", "must be text")
    if not isinstance(wanted.data, Mapping):
        raise InvalidArgument("filter.data", "must map dotted paths to values")
    for path, value in wanted.data.items():
        if not isinstance(path, str):
            raise InvalidArgument("filter.data", f"has the path {path!r}; write a path as text, like address.city")
        check_json(f"filter.data.{path}", value)
    return wanted


def matches(wanted: JobFilter, record: Record) -> bool:
    """Whether the job matches the filter. This is the reference for the search of every store."""
    return (
        (not wanted.statuses or record.status in wanted.statuses)
        and (not wanted.queues or record.queue in wanted.queues)
        and (not wanted.types or record.type in wanted.types)
        and all(tag in record.tags for tag in wanted.tags)
        and (not wanted.ids or record.id in wanted.ids)
        and (wanted.assignee_id is None or record.assignee_id == wanted.assignee_id)
        and (wanted.parent_id is None or record.parent_id == wanted.parent_id)
        and (wanted.schedule_id is None or record.schedule_id == wanted.schedule_id)
        and (wanted.concurrency_key is None or record.concurrency_key == wanted.concurrency_key)
        and (wanted.created_after is None or record.created_at > to_micros(wanted.created_after))
        and (wanted.created_before is None or record.created_at < to_micros(wanted.created_before))
        and (not wanted.error or wanted.error in record.error_message)
        and (not wanted.text or _mentions(record, wanted.text))
        and matches_data(wanted, record.payload)
    )


def matches_data(wanted: JobFilter, payload: bytes) -> bool:
    """Whether the payload is JSON and has the filter's value at every path."""
    if not wanted.data:
        return True
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return all(_same(_at(value, path), expected) for path, expected in wanted.data.items())


def _mentions(record: Record, text: str) -> bool:
    encoded = text.encode("utf-8", "surrogatepass")
    return text in record.id or text in record.type or text in record.error_message or encoded in record.payload


def _same(found: Any, expected: Any) -> bool:
    """Equal as JSON values: unlike in Python, true is not 1."""
    return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


_ABSENT = object()


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _ABSENT
    return value
