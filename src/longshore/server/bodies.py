"""Bodies read strictly: one reading for every language, as payloads are everywhere else."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from longshore.core.errors import InvalidArgument
from longshore.core.payload import read_json
from longshore.server.refusals import NotJson


class StrictRequest(Request):
    """A request whose JSON has no key twice, no NaN, no number beyond 64 bits and no broken text."""

    async def json(self) -> Any:
        """The body, or NotJson, or InvalidArgument naming the place inside it."""
        read = _strict(await self.body())
        self.state.body = read  # for whoever needs what was really sent, before it took the shape of a model
        return read


def _strict(body: bytes) -> Any:
    try:
        return read_json("body", body)
    except InvalidArgument as error:
        if isinstance(error.__context__, ValueError):  # it could not be read at all
            raise NotJson("body", error.problem) from None
        raise InvalidArgument(error.field.removeprefix("body."), error.problem) from None
