"""Filters over the wire: which jobs somebody looks for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from longshore.backends.remote.forms import (
    NAME,
    NAMES,
    STATUS,
    TIME,
    Form,
    Json,
    Schema,
    a_list,
    an_object,
    not_too_many,
    only,
    read_time,
)
from longshore.backends.remote.records.schemas import WORD, a_record, or_null
from longshore.core.filters import JobFilter, check_filter
from longshore.core.validation import check_status

_FILTER_LISTS = ("statuses", "queues", "types", "tags", "ids")
_FILTER_FIELDS: dict[str, Schema] = {
    **dict.fromkeys(_FILTER_LISTS, NAMES.schema),
    "statuses": {"type": "array", "items": STATUS.schema},
    "text": WORD,
    "data": {"type": "object"},
    "error": WORD,
    **dict.fromkeys(("assignee_id", "parent_id", "schedule_id", "concurrency_key"), or_null(NAME.schema)),
    **dict.fromkeys(("created_after", "created_before"), or_null(TIME.schema)),
}


def _write_filter(_: str, value: Any) -> dict[str, Any]:
    wanted = check_filter(value)
    told: dict[str, Any] = {}
    for name in _FILTER_FIELDS:
        given = getattr(wanted, name)
        if isinstance(given, datetime):
            told[name] = TIME.write(name, given)
        elif name in _FILTER_LISTS:
            if given:
                told[name] = [str(one) for one in given]
        elif given not in (None, "") and (given or name != "data"):
            told[name] = dict(given) if name == "data" else given
    return told


def _read_filter(name: str, value: Json) -> JobFilter:
    told = an_object(name, value)
    only(name, told, _FILTER_FIELDS)
    values = dict(told)
    for field in _FILTER_LISTS:
        if field in values:
            values[field] = tuple(not_too_many(f"{name}.{field}", a_list(f"{name}.{field}", values[field])))
    if "statuses" in values:
        values["statuses"] = tuple(check_status(f"{name}.statuses", status) for status in values["statuses"])
    for field in ("created_after", "created_before"):
        if values.get(field) is not None:
            values[field] = read_time(f"{name}.{field}", values[field])
    return JobFilter(**values)


FILTER: Form[JobFilter] = Form(
    _write_filter,
    _read_filter,
    a_record("StoredFilter", "Jobs for which every condition given holds.", [], **_FILTER_FIELDS),
)
