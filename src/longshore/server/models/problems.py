"""The shape of every refusal."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from longshore.server.problems import MEDIA_TYPE, TABLE


class FieldProblem(BaseModel):
    """What is wrong with one value."""

    field: str
    problem: str


class Problem(BaseModel):
    """Problem details (RFC 9457). `type` never changes its meaning; `detail` is for people and says what to do."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:longshore:job-not-found",
                    "title": "No such job",
                    "status": 404,
                    "detail": "no job has the id 'x'; it was never enqueued here, or it has been removed",
                    "request_id": "01a13b3d-1f0a-7c7e-9d49-94a8a6a2c0c1",
                    "job_id": "x",
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    request_id: str = Field(description="Under this id the server's log knows the request.")
    field: str | None = Field(None, description="The value that was refused, where there is one.")
    errors: list[FieldProblem] | None = Field(
        None, description="Of a request in the wrong shape: all that is wrong with it, up to 20; the first is `field`."
    )


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may be refused with, for its description; what may befall any request is added."""
    told: dict[int | str, dict[str, Any]] = {}
    for status in sorted({400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503, *statuses}):
        titles = sorted({kind.title for kind in TABLE.values() if kind.status == status})
        told[status] = {"description": "; ".join(titles) or "Refused", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    return told


SCHEMA = {"$ref": "#/components/schemas/Problem"}
"""Where the document of the API has it."""
