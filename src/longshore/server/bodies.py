"""Bodies read strictly: one reading for every language, as payloads are everywhere else."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request

from longshore.core.errors import InvalidArgument
from longshore.core.incremental_json import LARGE, read_patiently
from longshore.core.validation import read_json
from longshore.server.beside import beside_the_loop
from longshore.server.refusals import NotJson


class StrictRequest(Request):
    """A request whose JSON has no key twice, no NaN, no number beyond 64 bits and no broken text."""

    async def json(self) -> Any:
        """The body, or NotJson, or InvalidArgument naming the place inside it."""
        body = await self.body()
        large = self.state.large = len(body) >= LARGE
        read = await beside_the_loop(_strict, body) if large else _strict(body)
        self.state.body = read  # for whoever needs what was really sent, before it took the shape of a model
        return read


def release(request: Request) -> None:
    """Empties what the body was parsed to, once jobs are made of it: the framework keeps it until the answer."""
    request.state.body.clear()


def _strict(body: bytes) -> Any:
    try:
        return read_json("body", body)
    except InvalidArgument as error:
        if isinstance(error.__context__, ValueError):  # it could not be read at all
            raise NotJson("body", error.problem) from None
        raise InvalidArgument(error.field.removeprefix("body."), error.problem) from None


def read_body(body: bytes) -> Any:
    """The JSON of a request whose values the store judges: as strict about its form, and not about what is in it."""
    try:
        if len(body) < LARGE:
            return json.loads(body, object_pairs_hook=_keys_once, parse_constant=_no_such_number)
        encoding = json.detect_encoding(body)
        if not encoding.startswith("utf-8"):  # its values were counted as UTF-8 while it was read
            raise NotJson("body", f"is {encoding.upper()}; a large body must be UTF-8")
        text = body.decode(encoding, "surrogatepass")  # as json.loads does
        return read_patiently(text, object_pairs_hook=_keys_once, parse_constant=_no_such_number)
    except RecursionError:
        raise InvalidArgument("body", "is nested too deeply") from None
    except InvalidArgument:
        raise
    except ValueError as error:
        raise NotJson("body", f"is not JSON: {error}") from None


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidArgument("body", "has the same key twice")
    return found


def _no_such_number(word: str) -> Any:
    raise InvalidArgument("body", f"holds {word}, which JSON does not have")
