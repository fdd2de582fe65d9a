"""Path and query parameters: names in paths, and suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated
from urllib.parse import unquote

from fastapi import Path, Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel
from starlette.convertors import Convertor, register_url_convertor

from longshore.core.errors import InvalidArgument


class NameConvertor(Convertor[str]):
    """One path segment; its escapes are decoded after routing, so that an id may contain a slash."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Decode the segment."""
        return unquote(value)

    def to_string(self, value: str) -> str:
        """Not supported: no route builds URLs with it."""
        raise NotImplementedError(f"quote {value!r} and build the URL yourself")


register_url_convertor("name", NameConvertor())


def root_of(request: Request) -> str:
    """The percent-encoded mount path of this application; empty if it is not mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")  # the middleware encoded it


JobId = Annotated[str, Path(description="The job's id. Encode a slash as %2F.", examples=["welcome-ada"])]
QueueName = Annotated[str, Path(description="The queue's name. Encode a slash as %2F.", examples=["mail"])]
ScheduleId = Annotated[str, Path(description="The schedule's id. Encode a slash as %2F.", examples=["nightly"])]
FlowId = Annotated[str, Path(description="The flow's id. Encode a slash as %2F.", examples=["import-7"])]

_LONGEST = 100


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Describe an unknown name, with a suggestion."""
    names = list(known)
    near = get_close_matches(name[:_LONGEST], names, 1)
    if near:
        return f"unknown {kind}; did you mean {near[0]}?"
    return f"unknown {kind}; use one of {', '.join(names)}" if names else f"unknown {kind}; none is allowed here"


def parameters_of(dependant: Dependant) -> Sequence[str]:
    """The query parameters of a route and of its dependencies."""
    names = []
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):  # a model with several parameters
            names += [inner.alias or name for name, inner in model.model_fields.items()]
        else:
            names.append(field.alias)
    return [*names, *(name for one in dependant.dependencies for name in parameters_of(one))]


def check_parameters(request: Request, known: Sequence[str]) -> None:
    """Raise InvalidArgument for an unknown parameter: a misspelt filter would match everything."""
    for name in request.query_params:
        if name not in known:
            raise InvalidArgument(name[:_LONGEST], unknown("parameter", name, known))
