"""What may stand after an address's question mark: a parameter that the route does not know is refused."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from longshore.core.errors import InvalidArgument
from longshore.server.near_names import unknown

_LONGEST = 100


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
