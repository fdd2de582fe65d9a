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
    """One segment of the path as it was sent, with its escapes read only after the route was found."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """From the address."""
        return unquote(value)

    def to_string(self, value: str) -> str:
        """Only routes are written with it, never addresses."""
        raise NotImplementedError(f"quote {value!r} and write the address")


register_url_convertor("name", NameConvertor())


def root_of(request: Request) -> str:
    """The path that this application is mounted at, percent-encoded; empty where it is mounted nowhere."""
    return str(request.scope.get("root_path", "")).rstrip("/")  # the envelope encoded it


JobId = Annotated[str, Path(description="The job's id; a slash in it is written %2F.", examples=["welcome-ada"])]
QueueName = Annotated[str, Path(description="The queue's name; a slash in it is written %2F.", examples=["mail"])]
ScheduleId = Annotated[str, Path(description="The schedule's id; a slash in it is written %2F.", examples=["nightly"])]
FlowId = Annotated[str, Path(description="The flow's id; a slash in it is written %2F.", examples=["import-7"])]

_LONGEST = 100


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Describes an unknown name, with a suggestion."""
    names = list(known)
    near = get_close_matches(name[:_LONGEST], names, 1)
    if near:
        return f"is no {kind} here; did you mean {near[0]}?"
    return f"is no {kind} here; there are {', '.join(names)}" if names else f"is no {kind} here, and there are none"


def parameters_of(dependant: Dependant) -> Sequence[str]:
    """All that a route takes in its address, itself or in what it depends on."""
    names = []
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):  # as FastAPI takes many of them at once
            names += [inner.alias or name for name, inner in model.model_fields.items()]
        else:
            names.append(field.alias)
    return [*names, *(name for one in dependant.dependencies for name in parameters_of(one))]


def check_parameters(request: Request, known: Sequence[str]) -> None:
    """InvalidArgument for the first that is unknown: a filter that is misspelt would let everything through."""
    for name in request.query_params:
        if name not in known:
            raise InvalidArgument(name[:_LONGEST], unknown("parameter", name, known))
