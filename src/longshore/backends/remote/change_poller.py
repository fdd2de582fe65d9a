"""Follows changes of the store: one long poll for all waiters, repeated while there is a waiter."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from time import monotonic

from longshore.backends.change_signal import ChangeSignal
from longshore.backends.remote.client import Caller, understood
from longshore.backends.remote.codecs import answered
from longshore.backends.remote.protocol import CHANGES
from longshore.core.errors import LongshoreError

_POLL_SECONDS = 20.0
"""Seconds for which one request waits for a change: proxies close an idle connection after 60."""
_LINGER_SECONDS = 60.0
"""Seconds for which it continues without a waiter, so that a caller that returns soon misses nothing."""
_FIRST_PAUSE, _PAUSE = 0.05, 1.0
_MOST_SERVERS = 100
"""The servers whose last mark is remembered. One address may have several, and each restart adds one."""
_MARK = answered(str, {"type": "string"})


class ChangePoller:
    """Notifies waiting callers when the server reports a change. `listen` and what it starts run on the caller's loop.

    A mark is valid for the server that sent it; another server answers a request with it at once. The poller remembers
    the last mark of each server, and pauses where several servers answer in turn.
    """

    def __init__(self, caller: Caller, signal: ChangeSignal) -> None:
        self._caller = caller
        self._signal = signal
        self._mark = ""
        self._beginning: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._wanted_at = 0.0
        self._first_seen = ""
        self._last_marks: dict[str, str] = {}

    @property
    def listening(self) -> bool:
        """Whether it will detect every change from now on."""
        return self._work is not None and not self._work.done() and bool(self._mark)

    def saw(self, mark: str) -> None:
        """Keep the mark of the first answer: a later waiter must not miss changes after it."""
        if not self._first_seen:
            self._first_seen = mark

    def still_wanted(self) -> None:
        """Record that a caller waits."""
        self._wanted_at = monotonic()

    def begin(self, *, sure: bool) -> Future[None]:
        """Start to poll. Unless the caller is `sure`, notify at once if the store changed since the last poll."""
        return self._caller.submit(self._begin(sure))

    async def _begin(self, sure: bool) -> None:
        if self.listening:
            return
        if self._beginning is None or self._beginning.done():
            self._beginning = asyncio.ensure_future(self._first_mark(sure))
        await asyncio.shield(self._beginning)

    async def _first_mark(self, sure: bool) -> None:
        before = self._mark or self._first_seen
        self._mark = await self._ask("", 0)
        self._is_new(self._mark)
        if before and before != self._mark and not sure:
            self._signal.notify()
        self._work = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while self._signal.waiting or monotonic() - self._wanted_at < _LINGER_SECONDS:
            sent = self._mark
            try:
                self._mark = await self._ask(sent, _POLL_SECONDS)
            except LongshoreError:  # callers must read: the store may have changed meanwhile
                self._signal.notify()
                await asyncio.sleep(_PAUSE)
                continue
            if self._is_new(self._mark):
                self._signal.notify()
            if _server_of(self._mark) == _server_of(sent):
                pause = _FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE)

    def _is_new(self, mark: str) -> bool:
        """Whether it differs from the last mark of its server."""
        if len(self._last_marks) >= _MOST_SERVERS:
            self._last_marks.clear()
        before, self._last_marks[_server_of(mark)] = self._last_marks.get(_server_of(mark)), mark
        return before != mark

    async def _ask(self, mark: str, timeout: float) -> str:
        body = json.dumps({"mark": mark, "timeout": timeout}).encode()
        answer = await self._caller.ask_repeatedly(CHANGES, body, repeatable=True, extra_timeout=timeout)
        with understood(self._caller.address):
            return _MARK.read("mark", json.loads(answer.body)["mark"])


def _server_of(mark: str) -> str:
    return mark.partition(".")[0]
