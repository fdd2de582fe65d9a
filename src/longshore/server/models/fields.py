"""Plain values as requests have them, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictInt

Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Number = Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)]
Count = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
