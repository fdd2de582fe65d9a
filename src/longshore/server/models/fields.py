"""Field types of requests, with their limits."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from longshore.core.errors import InvalidArgument
from longshore.core.times import LATEST, SECOND, check_duration
from longshore.core.validation import LARGEST, LONGEST_NAME, SMALLEST, check_name, check_names, check_number, check_tags


def base64_text(raw: bytes) -> str:
    """Encode bytes as base64."""
    return b64encode(raw).decode("ascii")


M = TypeVar("M", bound=BaseModel)


def view_of(model: type[M], record: object, **instead: Any) -> M:
    """Build a model from the attributes of a record; `instead` replaces or adds fields."""
    names, read = _shared(model, tuple(instead))
    instead.update(zip(names, read(record), strict=True))
    return model.model_construct(**instead)


@lru_cache
def _shared(model: type[BaseModel], instead: tuple[str, ...]) -> tuple[tuple[str, ...], Callable[[object], Any]]:
    """The field names of the model that the record has, at least two, and their getter."""
    names = tuple(name for name in model.model_fields if name not in instead)
    return names, attrgetter(*names)


_DATE_FIRST = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def checked_by(check: Callable[[str, Any], Any]) -> BeforeValidator:
    """Refuse what `check` refuses, with the same message."""

    def checked(value: Any) -> Any:
        try:
            check("", value)
        except InvalidArgument as error:
            raise PydanticCustomError("longshore", "{problem}", {"problem": error.problem}) from None
        return value

    return BeforeValidator(checked)


def _seconds(positive: bool) -> BeforeValidator:
    def check(field: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(field, "must be a number of seconds, such as 300")
        check_duration(field, value, positive=positive)

    return checked_by(check)


def _number(least: int) -> BeforeValidator:
    return checked_by(lambda field, value: check_number(field, value, least=least))


def _moment(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> datetime:
    """Read a time. Pydantic alone would read numbers, even quoted ones, as seconds since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE_FIRST.match(value)):
        try:
            moment: datetime = read(value)
        except ValidationError:
            pass
        else:
            return moment
    instead = "; for a duration use delay" if info.field_name == "run_at" else ""
    raise PydanticCustomError("moment", f"must be a time with a zone, such as 2026-05-01T12:00:00Z{instead}")


def _kept(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:  # pydantic reports the two types separately
        raise PydanticCustomError("kept", "must be true, false, or how many to keep") from None


_LONGEST = LATEST / SECOND
Seconds = Annotated[float, _seconds(positive=False), Field(ge=0, le=_LONGEST)]
SomeSeconds = Annotated[float, _seconds(positive=True), Field(gt=0, le=_LONGEST)]
Moment = Annotated[AwareDatetime, WrapValidator(_moment)]
_NameText = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Name = Annotated[_NameText, checked_by(check_name)]
Names = Annotated[list[_NameText], checked_by(check_names)]
Tags = Annotated[list[_NameText], checked_by(check_tags)]
Number = Annotated[StrictInt, _number(SMALLEST), Field(ge=SMALLEST, le=LARGEST)]
Count = Annotated[StrictInt, _number(0), Field(ge=0, le=LARGEST)]
Limit = Annotated[StrictInt, _number(1), Field(ge=1, le=LARGEST)]
Kept = Annotated[StrictBool | Count, WrapValidator(_kept)]
