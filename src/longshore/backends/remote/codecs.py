"""Values and errors as JSON: checked and encoded by one side, decoded by the other; and their JSON schemas."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from longshore.backends import argument_checks as checks
from longshore.core import errors, validation
from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.status import JobStatus
from longshore.core.times import LATEST, SECOND, check_datetime, check_duration, from_micros

T = TypeVar("T")

Json = Any
Schema = Mapping[str, Any]

_TEXT_UP_TO = 64 * 1024
"""Up to this many bytes are sent as text if they are text; more are sent as base64, which is a third longer."""
MOST_LISTED = validation.MOST_NAMES
"""The longest list in a request, so that one transaction does not delay others. A chord of 10,000 calls fits."""
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,6})?")


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """One kind of value. `write` checks the caller's value with the errors of every store. `read` checks only what the
    store does not check."""

    write: Callable[[str, Any], Json]
    read: Callable[[str, Json], T]
    schema: Schema = field(default_factory=dict)


def identity(_: str, value: Any) -> Any:
    """Return the value unchanged."""
    return value


def checked(check: Callable[[str, Any], Json], schema: Schema) -> Form[Any]:
    """A plain value, which the client checks and the store checks again."""
    return Form(check, identity, schema)


def plain(schema: Schema) -> Form[Any]:
    """A JSON value that neither side checks here."""
    return Form(identity, identity, schema)


def answered(kind: type[T], schema: Schema) -> Form[T]:
    """A plain value in an answer, which must have exactly this type."""

    def read(name: str, value: Json) -> T:
        if type(value) is not kind:  # isinstance would accept True as a number
            raise InvalidArgument(name, f"must be {kind.__name__}, not {_kind(value)}")
        return value

    return Form(identity, read, schema)


def optional(form: Form[T]) -> Form[T | None]:
    """The same form, or null."""
    return Form(
        lambda name, value: None if value is None else form.write(name, value),
        lambda name, value: None if value is None else form.read(name, value),
        {"anyOf": [form.schema, {"type": "null"}]},
    )


def list_of(form: Form[T]) -> Form[list[T]]:
    """A list of such values, in an answer."""
    return Form(
        lambda name, values: [form.write(name, value) for value in values],
        lambda name, values: [form.read(name, value) for value in check_list(name, values)],
        {"type": "array", "items": form.schema},
    )


def map_of(form: Form[T]) -> Form[dict[str, T]]:
    """Such values by name, in an answer."""
    return Form(
        lambda name, values: {key: form.write(name, value) for key, value in values.items()},
        lambda name, values: {key: form.read(name, value) for key, value in values.items()},
        {"type": "object", "additionalProperties": form.schema},
    )


def check_object(name: str, value: Json) -> dict[str, Any]:
    """Return the value if it is an object."""
    if not isinstance(value, dict):
        raise InvalidArgument(name, f"must be an object, not {_kind(value)}")
    return value


def check_list(name: str, value: Json) -> list[Any]:
    """Return the value if it is a list."""
    if not isinstance(value, list):
        raise InvalidArgument(name, f"must be a list, not {_kind(value)}")
    return value


def not_too_many(name: str, value: Json) -> Json:
    """Return the value unless it is a list or object with too many items for one request."""
    if isinstance(value, list | dict) and len(value) > MOST_LISTED:
        raise InvalidArgument(
            name, f"must be at most {MOST_LISTED:,} in one request, not {len(value):,}; send several requests"
        )
    return value


def only(name: str, data: dict[str, Any], known: Mapping[str, object]) -> None:
    """Reject unknown fields, so that a misspelled one is noticed."""
    for key in data:
        if key not in known:
            where = f"{name}.{key}" if name else key
            raise InvalidArgument(where, f"is not a known field; the fields are {', '.join(known)}")


def fields_in(name: str, value: Json, known: Mapping[str, object], needed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of an object from a client; reject unknown fields, and missing ones of `needed`."""
    data = check_object(name, value)
    only(name, data, known)
    for field_name in needed:
        if field_name not in data:
            raise InvalidArgument(f"{name}.{field_name}", "is missing; add it")
    return data


def read_fields(name: str, value: Json, forms: Mapping[str, Form[Any]], needed: Sequence[str] = ()) -> dict[str, Any]:
    """Decode the fields of an object from a client, each by its form; null stays null."""
    return {
        field_name: None if given is None else forms[field_name].read(f"{name}.{field_name}", given)
        for field_name, given in fields_in(name, value, forms, needed).items()
    }


def _kind(value: Json) -> str:
    return "null" if value is None else type(value).__name__


# -- names, numbers, flags, text


def _write_names(name: str, value: object) -> list[str]:
    return list(validation.check_names(name, value))


NAME = checked(validation.check_name, {"type": "string", "minLength": 1, "maxLength": validation.LONGEST_NAME})
NAMES: Form[Any] = Form(_write_names, not_too_many, {"type": "array", "items": NAME.schema, "maxItems": MOST_LISTED})
TAGS: Form[Any] = Form(
    lambda name, value: list(validation.check_tags(name, value)),
    not_too_many,
    {**NAMES.schema, "maxItems": validation.MOST_TAGS},
)
COUNT = checked(validation.check_number, {"type": "integer", "minimum": 0, "maximum": validation.LARGEST})
LIMIT = checked(
    lambda name, value: checks.limit(value, name), {"type": "integer", "minimum": 1, "maximum": validation.LARGEST}
)
FLAG = checked(checks.flag, {"type": "boolean"})
TEXT = checked(validation.clean_text, {"type": "string"})
ACTOR = checked(lambda _, value: checks.actor(value), {"type": "string", "maxLength": validation.LONGEST_NAME})
LEVEL = checked(lambda _, value: checks.level(value), {"enum": list(checks.LEVELS)})
WORKER_EVENT = checked(lambda _, value: checks.worker_event(value), {"enum": list(checks.WORKER_EVENTS)})
ERROR = checked(lambda _, value: checks.error_text(value), TEXT.schema)
REASON_TO_FAIL = checked(lambda _, value: checks.error_text(value, required=True), {"type": "string", "minLength": 1})
ANY_TEXT = plain({"type": "string"})
STATUS: Form[JobStatus] = Form(
    lambda name, value: validation.check_status(name, value).value,
    lambda name, value: validation.check_status(name, value),
    {"enum": [status.value for status in JobStatus]},
)


def _note(name: str, value: object) -> Json:
    validation.check_json(name, value, limit=validation.LARGEST_NOTE)
    return value


PROGRESS = checked(lambda _, value: _note("progress", value), {"description": "Any JSON."})


def _seconds(micros: int) -> float | int | str:
    """Seconds, as text if a JSON number is not exact to the microsecond."""
    if micros % SECOND == 0:
        return micros // SECOND
    seconds = micros / SECOND
    return seconds if round(seconds * SECOND) == micros else f"{micros // SECOND}.{micros % SECOND:06d}"


def write_span(span: timedelta) -> float | int | str:
    """Encode a stored duration."""
    return _seconds(span // timedelta(microseconds=1))


def read_span(name: str, value: Json) -> Any:
    """Decode a duration; the store checks a number."""
    if isinstance(value, str):
        if not _DECIMAL.fullmatch(value):
            raise InvalidArgument(name, f"must be a number of seconds, not {value[:40]!r}")
        whole, _, part = value.partition(".")
        micros = int(whole) * SECOND + int(part.ljust(6, "0") or 0)
        return timedelta(microseconds=min(micros, LATEST + 1))
    return value


def stored_span(value: Json) -> timedelta:
    """Decode a duration from the server."""
    return read_span("", value) if isinstance(value, str) else timedelta(microseconds=round(value * SECOND))


_SECONDS: Schema = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{_DECIMAL.pattern}$"}]}
SPAN: Form[Any] = Form(lambda name, value: _seconds(check_duration(name, value)), read_span, _SECONDS)
WAIT: Form[Any] = Form(lambda name, value: _seconds(check_duration(name, value, positive=False)), read_span, _SECONDS)


def write_time(moment: datetime) -> str:
    """Encode a stored time, in UTC."""
    return moment.isoformat().replace("+00:00", "Z")


def stored_time(value: Json) -> datetime | None:
    """Decode a time from the server, or null."""
    return None if value is None else datetime.fromisoformat(value)


def read_time(name: str, value: Json) -> datetime:
    """Decode a time from a client."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            check_datetime(name, moment)
            return moment
    raise InvalidArgument(name, f"must be a time like 2026-03-01T12:00:00Z, not {str(value)[:40]!r}")


def write_moment(name: str, value: Any) -> Json:
    """Encode a time or a duration; the store adds a duration to its clock."""
    if isinstance(value, datetime):
        return write_time(from_micros(check_datetime(name, value)))
    return _seconds(check_duration(name, value, positive=False))


def read_moment(name: str, value: Json) -> Any:
    """Decode a time or a duration."""
    return (
        read_time(name, value) if isinstance(value, str) and not _DECIMAL.fullmatch(value) else read_span(name, value)
    )


_TIME: Schema = {"type": "string", "format": "date-time"}
TIME: Form[datetime] = Form(
    lambda name, value: write_time(from_micros(check_datetime(name, value))),
    lambda name, value: read_time(name, value),
    _TIME,
)
MOMENT: Form[Any] = Form(
    write_moment,
    read_moment,
    {"anyOf": [_TIME, *_SECONDS["anyOf"]], "description": "A time, or seconds from now by the store's clock."},
)


# -- bytes


def write_bytes(value: bytes) -> Json:
    """Encode bytes as text if they are text and not too long, else as base64."""
    if len(value) <= _TEXT_UP_TO:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"base64": b64encode(value).decode("ascii")}


def read_bytes(name: str, value: Json) -> bytes:
    """Decode bytes exactly."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
            return b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, NotBase64, ValueError):
        pass
    raise InvalidArgument(name, 'must be text, or {"base64": "…"} for bytes that are not text')


_BYTES: Schema = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"base64": {"type": "string"}}, "required": ["base64"]},
    ],
    "description": "The exact bytes: as text, or as base64 if they are not text.",
}
RESULT: Form[bytes | None] = Form(
    lambda _, value: None if value is None else write_bytes(checks.result(value) or b""),
    lambda name, value: None if value is None else read_bytes(name, value),
    {"anyOf": [*_BYTES["anyOf"], {"type": "null"}], "description": _BYTES["description"]},
)
BYTES: Form[bytes] = Form(lambda _, value: write_bytes(value), read_bytes, _BYTES)


def write_checkpoint(value: Any) -> Json:
    """Encode JSON unchanged, and bytes as base64. JSON that looks like one of the wrappers goes into {"json": …}."""
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    return {"json": value} if isinstance(value, dict) and value.keys() in ({"base64"}, {"json"}) else value


def read_checkpoint(name: str, value: Json) -> Any:
    """Decode a checkpoint."""
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return read_bytes(name, value)
        if value.keys() == {"json"}:
            return value["json"]
    return value


def _checked_checkpoint(_: str, value: Any) -> Json:
    validation.pack("checkpoint", value)
    return write_checkpoint(bytes(value) if isinstance(value, bytearray | memoryview) else value)


CHECKPOINT: Form[Any] = Form(
    _checked_checkpoint, read_checkpoint, {"description": 'Any JSON, or bytes as {"base64": "…"}.'}
)

PREFIX = "urn:longshore:"

KNOWN: Mapping[str, type[LongshoreError]] = {
    "job-not-found": errors.JobNotFound,
    "schedule-not-found": errors.ScheduleNotFound,
    "token-not-found": errors.TokenNotFound,
    "duplicate-job": errors.DuplicateJob,
    "idempotency-key-reused": errors.KeyReused,
    "invalid-transition": errors.InvalidTransition,
    "job-not-inflight": errors.JobNotInflight,
    "lease-lost": errors.LeaseLost,
    "move-refused": errors.MoveRefused,
    "cursor-expired": errors.CursorExpired,
    "invalid-argument": errors.InvalidArgument,
    "store-unavailable": errors.BackendUnavailable,
    "unauthenticated": errors.Unauthenticated,
    "forbidden": errors.Forbidden,
}
"""The errors that a client raises like a store, by the name in the type of a problem."""

_NAMES = {kind: name for name, kind in KNOWN.items()}
_CARRIED = ("field", "problem", "job_id", "job_ids", "schedule_id", "token_id", "reason")


def problem_of(error: LongshoreError) -> dict[str, Any]:
    """Encode the error as a problem inside an answer."""
    name = next((_NAMES[kind] for kind in type(error).__mro__ if kind in _NAMES), "internal")
    return {"type": f"{PREFIX}{name}", "detail": str(error), **carried(error)}


def carried(error: LongshoreError) -> dict[str, Any]:
    """The attributes of an error besides its message."""
    data: dict[str, Any] = {name: value for name in _CARRIED if (value := getattr(error, name, None)) is not None}
    if isinstance(error, errors.InvalidTransition):
        data |= {"status_of_job": str(error.status), "target": str(error.target)}
    return data


def error_in(problem: Mapping[str, Any]) -> LongshoreError:
    """Decode the error of a problem: its class, message and attributes."""
    kind = KNOWN.get(str(problem.get("type", "")).removeprefix(PREFIX), errors.BackendUnavailable)
    words = str(problem.get("detail", ""))
    error = kind.__new__(kind, words)
    error.args = (words,)
    if issubclass(kind, errors.InvalidTransition):
        error.__dict__.update(
            job_id=problem.get("job_id", ""),
            status=_status(problem.get("status_of_job")),
            target=_status(problem.get("target")),
        )
        return error
    for name in _CARRIED:
        if name in problem:
            setattr(error, name, problem[name])
    if isinstance(error, errors.InvalidArgument):
        error.field = str(problem.get("field", ""))
        error.problem = str(problem.get("problem", words.removeprefix(f"{error.field}: ")))
    return error


def _status(word: object) -> Any:
    return JobStatus[word] if isinstance(word, str) and word in JobStatus.__members__ else word
