"""The OpenAPI document as short lines of text, without its prose: paths, parameters, fields, types and statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
PROSE = {"description", "summary", "title", "examples", "example"}
IN_THE_HEAD = {"tags", "operationId", "parameters", "requestBody", "responses", "security", "x-longshore-scope"}


def operation_lines(document: Schema) -> Iterator[str]:
    """Every path and method, with parameters, bodies and statuses."""
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            yield from _operation(f"{method.upper()} {path}", operation)
            yield ""


def schema_lines(document: Schema) -> Iterator[str]:
    """Every named schema, with one line for each field."""
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _block(name, schema, "")
        yield ""


def _operation(address: str, operation: Schema) -> Iterator[str]:
    yield address
    yield f"  operation {operation['operationId']}"
    yield f"  scope {operation.get('x-longshore-scope', 'none')}"
    yield f"  tags {', '.join(operation.get('tags', []))}"
    for name in sorted(operation.keys() - IN_THE_HEAD - PROSE):
        yield f"  {name} {json.dumps(operation[name], sort_keys=True)}"
    for parameter in sorted(operation.get("parameters", []), key=lambda one: (one["in"], one["name"])):
        needed = "*" if parameter.get("required") else ""
        yield f"  {parameter['in']} {parameter['name']}{needed}: {type_text(parameter['schema'])}"
    body = operation.get("requestBody")
    for media, content in sorted((body or {}).get("content", {}).items()):
        needed = "*" if body and body.get("required") else ""
        yield from _block(f"body{needed} {media}", content.get("schema", {}), "  ")
    refusals = []
    for status, answer in sorted(operation["responses"].items()):
        for header, told in sorted(answer.get("headers", {}).items()):
            yield f"  {status} header {header}: {type_text(told.get('schema', {}))}"
        for media, content in sorted(answer.get("content", {}).items()):
            if (media, type_text(content.get("schema", {}))) == ("application/problem+json", "Problem"):
                refusals.append(status)
            else:
                yield from _block(f"{status} {media}", content.get("schema", {}), "  ")
        if not answer.get("content"):
            yield f"  {status} without a body"
    yield f"  {', '.join(refusals)} application/problem+json: Problem"


def _block(title: str, schema: Schema, indent: str) -> Iterator[str]:
    """One line, or for an object one line for each of its fields below the title."""
    if "properties" not in schema:
        yield f"{indent}{title}: {type_text(schema)}"
        return
    rest = {name: value for name, value in schema.items() if name not in ("properties", "required", "type")}
    yield f"{indent}{title}: object{_constraints(rest)}"
    for field, inner in sorted(schema["properties"].items()):
        needed = "*" if field in schema.get("required", []) else ""
        yield f"{indent}  {field}{needed}: {type_text(inner)}"


def type_text(schema: Schema | bool) -> str:
    """A schema on one line."""
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    rest = {name: value for name, value in schema.items() if name not in PROSE}
    for word, between in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
        if word in rest:
            return between.join(type_text(each) for each in rest.pop(word)) + _constraints(rest)
    if "$ref" in rest:
        return str(rest.pop("$ref")).rpartition("/")[2] + _constraints(rest)
    if "enum" in rest:
        rest.pop("type", None)
        return "one of " + ", ".join(map(json.dumps, rest.pop("enum"))) + _constraints(rest)
    if "const" in rest:
        rest.pop("type", None)
        return json.dumps(rest.pop("const")) + _constraints(rest)
    kind = rest.pop("type", "anything")
    if kind == "array":
        items = type_text(rest.pop("items", True))
        return f"[{items}]" + _constraints(rest)
    if "properties" in rest:
        required = rest.pop("required", [])
        fields = [
            f"{name}{'*' if name in required else ''}: {type_text(inner)}"
            for name, inner in sorted(rest.pop("properties").items())
        ]
        return f"{{{', '.join(fields)}}}" + _constraints(rest)
    return str(kind if isinstance(kind, str) else " | ".join(kind)) + _constraints(rest)


def _constraints(rest: Schema) -> str:
    told = []
    for name, value in sorted(rest.items()):
        if name in PROSE:
            continue
        is_schema = name in ("additionalProperties", "propertyNames", "items", "contains") and isinstance(value, dict)
        told.append(f"{name}={type_text(value) if is_schema else json.dumps(value, sort_keys=True)}")
    return f" ({', '.join(told)})" if told else ""
