"""What the API's document says of records: each under its name, and the pieces they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.backends.remote.forms import Schema

SCHEMAS: dict[str, Schema] = {}
"""The records by the names under which the API's document tells of them."""


def a_record(name: str, description: str, required: Sequence[str], /, **fields: Schema) -> Schema:
    """Tells of a record, and gives what stands for it wherever it is part of another."""
    SCHEMAS[name] = {
        "title": name,
        "description": description,
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
    }
    return {"$ref": f"#/components/schemas/{name}"}


WORD: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}
