"""How a verb gets to the server and its answer back, whichever verb it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from longshore.backends.bell import Bell
from longshore.backends.contract import UNCHANGED, Capabilities, SettleReport
from longshore.backends.lifetime import OfOneProcess
from longshore.backends.remote import protocol as wire
from longshore.backends.remote.calls import AnswerLost, Caller, Server, understood
from longshore.backends.remote.listening import Ear
from longshore.core.errors import BackendUnavailable, InvalidArgument, QueueClosed

R = TypeVar("R")
T = TypeVar("T")

_FORGETFUL = Capabilities(shared=True)
"""Of a server whose store does not outlive it; as long as none has answered, the best is believed."""
_write = json.JSONEncoder(separators=(",", ":")).encode


class Written(list[Any]):
    """Arguments that were checked and written already."""


class Asking(OfOneProcess):
    """A store behind a server, asked verb by verb; with a thread and connections of its own, and of no event loop."""

    capabilities = Capabilities(durable=True, shared=True)

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._bell = Bell()
        self._caller = Caller(server)
        self._ear = Ear(self._caller, self._bell)
        self._address = server.address

    def __repr__(self) -> str:
        return f"<RemoteBackend of {self._address}>"

    async def _call(self, verb: wire.Verb[T], /, **arguments: Any) -> T:
        """What the server answered; AnswerLost is told as what it means to whoever called."""
        try:
            return await self._once(verb, **arguments)
        except AnswerLost as error:
            raise BackendUnavailable(
                f"{verb.name}: {error}; whether it was carried out is not known, look before you repeat it"
            ) from None

    async def _once(self, verb: wire.Verb[T], /, **arguments: Any) -> T:
        self._refuse_if_closed()
        told = {
            name: value if isinstance(value, Written) else verb.takes[name].write(name, value)
            for name, value in arguments.items()
            if value is not UNCHANGED
        }
        try:
            body = _write(told).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(verb.name, f"has arguments that cannot be sent: {error}") from None
        answer = await self._there(self._caller.ask(verb.path, body, repeatable=verb.repeatable))
        self._ear.saw(answer.mark)
        if not answer.durable:
            self.capabilities = _FORGETFUL
        if verb.says_nothing:
            self._bell.ring()
            return verb.returns.read("", None)
        with understood(self._address):
            came = json.loads(answer.body)
            returned = verb.returns.read(verb.answer, came[verb.answer] if verb.answer else came)
        if not verb.looks and _has_news(returned):
            self._bell.ring()
        return returned

    async def _there(self, work: Coroutine[Any, Any, R]) -> R:
        """Waits for work on the caller's loop, which goes on even if whoever waits has gone."""
        try:
            begun = self._caller.submit(work)
        except BackendUnavailable:  # it was closed between two lines
            self._refuse_if_closed()
            raise
        return await self._awaited(begun)

    async def _awaited(self, begun: Future[R]) -> R:
        try:
            return await asyncio.shield(asyncio.wrap_future(begun))
        except (asyncio.CancelledError, CancelledError):
            if self._closed and begun.cancelled():
                raise QueueClosed("this backend was closed; open a new one with connect(url)") from None
            raise

    def _let_go(self) -> None:
        self._caller.close()


def _has_news(returned: object) -> bool:
    """Whether somebody may have been waiting for what was done: a look that finds nothing wakes nobody."""
    if isinstance(returned, tuple):
        return any(map(_has_news, returned))
    return bool(returned.settled if isinstance(returned, SettleReport) else returned)
