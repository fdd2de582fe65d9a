"""Workers over the wire: what they say of themselves."""

from __future__ import annotations

from typing import Any

from longshore.backends import checks
from longshore.backends.contract import WorkerInfo
from longshore.backends.remote.forms import NAME, NAMES, TIME, Form, Json, Schema, an_object, only, read_time
from longshore.backends.remote.records.schemas import NUMBER, WORD, a_record, or_null
from longshore.core.errors import InvalidArgument

_WORKER_FIELDS: dict[str, Schema] = {
    "id": NAME.schema,
    "queues": NAMES.schema,
    "tags": NAMES.schema,
    **dict.fromkeys(("concurrency", "running", "pid"), NUMBER),
    **dict.fromkeys(("host", "version", "state"), WORD),
    "started_at": or_null(TIME.schema),
    "seen_at": or_null(TIME.schema),
    "detail": {"type": "object"},
    "types": or_null(NAMES.schema),
}


def _write_worker(worker: WorkerInfo) -> dict[str, Any]:
    told = {name: getattr(worker, name) for name in _WORKER_FIELDS}
    told |= {"queues": list(worker.queues), "tags": list(worker.tags), "detail": dict(worker.detail)}
    told["types"] = None if worker.types is None else list(worker.types)
    for name in ("started_at", "seen_at"):
        told[name] = None if told[name] is None else TIME.write(name, told[name])
    return told


def _read_worker(name: str, value: Json) -> WorkerInfo:
    told = an_object(name, value)
    only(name, told, _WORKER_FIELDS)
    if "id" not in told:
        raise InvalidArgument(f"{name}.id", "is missing")
    values = dict(told)
    for field in ("queues", "tags", "types"):
        if isinstance(values.get(field), list):
            values[field] = tuple(values[field])
    for field in ("started_at", "seen_at"):
        if values.get(field) is not None:
            values[field] = read_time(f"{name}.{field}", values[field])
    return WorkerInfo(**values)


_WORKER = a_record("StoredWorker", "What a worker says of itself.", ["id"], **_WORKER_FIELDS)
WORKER: Form[WorkerInfo] = Form(lambda _, value: _write_worker(checks.worker(value)), _read_worker, _WORKER)
WORKERS: Form[list[WorkerInfo]] = Form(
    lambda _, workers: [_write_worker(worker) for worker in workers],
    lambda _, told: [_read_worker("worker", worker) for worker in told],
    {"type": "array", "items": _WORKER},
)
