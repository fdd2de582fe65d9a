"""Job filters from a query string or a request body."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter
from longshore.core.status import JobStatus
from longshore.core.validation import MOST_TAGS, read_json
from longshore.server.auth import Caller
from longshore.server.models.fields import Moment, Name, Names, Tags

_MOST_NAMES = 1_000
_MOST_IN_ADDRESS = 100
"""A URL is part of the request head, which has a size limit; a body may name more."""


class FilterBody(BaseModel):
    """Jobs that match all given conditions."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"queues": ["mail"], "statuses": ["DEAD"]}]}
    )

    statuses: list[JobStatus] = Field([], max_length=len(JobStatus))
    queues: Names = Field([], max_length=_MOST_NAMES)
    types: Names = Field([], max_length=_MOST_NAMES)
    tags: Tags = Field([], max_length=MOST_TAGS, description="Jobs that have all of these tags.")
    ids: Names = Field([], max_length=_MOST_NAMES)
    text: str = Field("", max_length=1_000, description="Exact text in the id, type, data or error.")
    data: dict[str, Any] = Field(
        {}, description="Values in the data, by dotted path.", examples=[{"address.city": "Bergen"}]
    )
    error: str = Field("", max_length=1_000, description="Exact text in the error.")
    assignee_id: Name | None = None
    parent_id: Name | None = None
    schedule_id: Name | None = None
    concurrency_key: Name | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None

    def filter(self, caller: Caller) -> JobFilter:
        """Return the filter, limited to the caller's queues."""
        return JobFilter(**{**dict(self), "queues": caller.queues_among(self.queues)})

    @property
    def is_empty(self) -> bool:
        """Whether it matches every job."""
        return not any(dict(self).values())


StatusInAddress = Annotated[JobStatus, BeforeValidator(lambda word: word.upper() if isinstance(word, str) else word)]
"""A status in a URL may be in lower case, as on the command line."""


async def _conditions(
    queue: Annotated[Names | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
    type: Annotated[Names | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
    tag: Annotated[Names | None, Query(max_length=MOST_TAGS, description="Jobs that have all of these tags.")] = None,
    id: Annotated[Names | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
    text: Annotated[str, Query(max_length=1_000, description="Text in the id, type, data or error.")] = "",
    data: Annotated[
        str,
        Query(
            max_length=10_000,
            description="Values in the data by dotted path, as a JSON object.",
            examples=['{"address.city":"Bergen"}'],
        ),
    ] = "",
    error: Annotated[str, Query(max_length=1_000, description="Text in the error.")] = "",
    assignee_id: Annotated[Name | None, Query()] = None,
    parent_id: Annotated[Name | None, Query()] = None,
    schedule_id: Annotated[Name | None, Query()] = None,
    concurrency_key: Annotated[Name | None, Query()] = None,
    created_after: Annotated[Moment | None, Query()] = None,
    created_before: Annotated[Moment | None, Query()] = None,
) -> FilterBody:
    return FilterBody.model_construct(
        statuses=[],
        queues=queue or [],
        types=type or [],
        tags=tag or [],
        ids=id or [],
        text=text,
        data=_object(data) if data else {},
        error=error,
        assignee_id=assignee_id,
        parent_id=parent_id,
        schedule_id=schedule_id,
        concurrency_key=concurrency_key,
        created_after=created_after,
        created_before=created_before,
    )


InAnyStatus = Annotated[FilterBody, Depends(_conditions)]
"""The filter in the query, without the status."""


async def _with_status(
    conditions: InAnyStatus,
    status: Annotated[list[StatusInAddress] | None, Query(description="Jobs in one of these statuses.")] = None,
) -> FilterBody:
    return conditions.model_copy(update={"statuses": status or []})


QueryFilter = Annotated[FilterBody, Depends(_with_status)]
"""The filter in the query."""


def _object(text: str) -> dict[str, Any]:
    try:
        found = read_json("data", text.encode("utf-8", "surrogatepass"))
    except InvalidArgument as error:
        raise InvalidArgument(error.field, f"{error.problem}; data {_SHAPE}") from None
    if not isinstance(found, dict):
        raise InvalidArgument("data", _SHAPE)
    return found


_SHAPE = 'must be a JSON object of paths and values, such as {"address.city":"Bergen"}'
