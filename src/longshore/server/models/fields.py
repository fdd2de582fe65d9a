"""Plain values as requests have them, with their bounds: text is no number here, and a number no time."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
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

_DATE_FIRST = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _seconds(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("seconds", "must be a number of seconds, like 300")
    return value


def _moment(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> datetime:
    """The time; pydantic would take a number, also one in quotes, for seconds since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE_FIRST.match(value)):
        try:
            moment: datetime = read(value)
        except ValidationError:
            pass
        else:
            return moment
    instead = "; for a duration use delay" if info.field_name == "run_at" else ""
    raise PydanticCustomError("moment", f"must be a time with its zone, like 2026-05-01T12:00:00Z{instead}")


def _kept(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:  # one for each of the two that it may be, neither of which tells of the other
        raise PydanticCustomError("kept", "must be true, false, or how many to keep") from None


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=1e11, allow_inf_nan=False)]
Moment = Annotated[AwareDatetime, WrapValidator(_moment)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Number = Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)]
Count = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
Kept = Annotated[StrictBool | Count, WrapValidator(_kept)]
