"""The middleware of every request: its id, limits, headers, metrics and trace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from urllib.parse import quote, unquote, unquote_to_bytes

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longshore.core.errors import InvalidArgument, LongshoreError
from longshore.core.job import Job
from longshore.core.validation import LARGE, new_id
from longshore.runtime.logs import request_id
from longshore.safe_logging import logger
from longshore.server import problems
from longshore.server.body_limits import BodyMemory, Meter
from longshore.server.http_errors import Overloaded, ShuttingDown, TooLarge, TooMany, TooSlow, WrongMediaType
from longshore.server.options import ServerOptions
from longshore.server.request_origin import Hosts


def submitting(request: Request, jobs: Sequence[Job]) -> AbstractContextManager[Sequence[Job]]:
    """The jobs to store; with tracing, each carries the trace of the request."""
    if not request.app.state.platform.options.tracing:
        return nullcontext(jobs)
    from longshore.app.tracing import enqueuing  # loads OpenTelemetry, which is an extra

    return enqueuing(jobs, {name: request.headers[name] for name in _CARRIED if name in request.headers})


_CARRIED = ("traceparent", "tracestate")

Observe = Callable[[str, str, int, float], None]
"""Called at the end of each request with method, route, status and seconds."""

_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(rb"(?:^|&)(?:(?:access|auth|api)_?)?token=|(?:^|&)api_?key=|lsk_[0-9a-f]{12}_", re.IGNORECASE)
_PER_SECOND = 64 * 1024
_SEND_LESS = "store large data elsewhere and send its address, or send fewer jobs at once"
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Defaults; a response may set its own values."""

CROWDED = "crowded"
"""Set in the state of a request if its address has too many connections."""
OVERLOADED = "overloaded"
"""Set in the state of a request if the server has too many connections."""
IS_WHOLE = "is_whole"
"""In the state of a request, if the server supports it: whether the whole request has arrived."""
BREAK_OFF = "break_off"
"""In the state of a request, if the server supports it: a function that aborts the connection."""

_log = logger("longshore.http")


class RequestMiddleware:
    """The outermost middleware."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        hosts: Hosts,
        observe: Observe,
        is_closing: Callable[[], bool],
        begin: Callable[[], Awaitable[None]] | None = None,
        memory: BodyMemory | None = None,
    ) -> None:
        self._app = app
        self._options = options
        self._hosts = hosts
        self._observe = observe
        self._is_closing = is_closing
        self._begin = begin
        self._memory = memory or BodyMemory(options.max_body_memory)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        own_id = given.decode() if _GOOD_ID.fullmatch(given) else new_id()
        method = scope["method"]
        # a copy: the server and a host application keep their own scope and state
        scope = {**scope, "state": {**scope.get("state", {}), "request_id": own_id}}
        if method == "HEAD":  # a GET whose body is not sent
            scope["method"] = "GET"
        token = request_id.set(own_id)
        began = perf_counter()
        answer = _Answer(send, own_id, scope["state"].get(IS_WHOLE, lambda: True), head_only=method == "HEAD")
        meter = Meter(self._memory, self._options.max_values, is_json=_is_json(scope))
        try:
            if scope["state"].get(OVERLOADED):
                raise Overloaded("too many connections are open on this server; try again in a moment")
            if scope["state"].get(CROWDED):
                raise TooMany("too many connections are open from your address; close some", 1)
            self._hosts.check(scope["headers"])
            _check_no_token_in_address(scope)
            _keep_segments_apart(scope)
            length = self._check_head(headers)
            if self._begin is not None:
                await self._begin()
            await self._app(scope, _Body(receive, self._options, length, meter).receive, answer.send)
        except LongshoreError as error:
            await self._refuse(scope, receive, answer, problems.problem(error, own_id))
        except ClientDisconnect:
            _log.debug("the client disconnected before the response")
            if answer.status and not answer.complete and BREAK_OFF in scope["state"]:
                await _break_off(scope, receive)
        except asyncio.CancelledError:
            if not self._is_closing():
                raise
            # the grace period has ended; the store may still finish the call, which a repeated request then finds
            cut_off = ShuttingDown("the server is shutting down before the request finished; send it again")
            await self._refuse(scope, receive, answer, problems.problem(cut_off, own_id))
        except Exception:
            _log.exception("request %s failed: %s %s", own_id, method, _route(scope))
            await self._refuse(scope, receive, answer, problems.unexpected(own_id))
        finally:
            meter.close()
            seconds = perf_counter() - began
            self._observe(method, _route(scope), answer.status, seconds)
            if self._options.access_log:
                fields = {"method": method, "route": _route(scope), "status": answer.status}
                _log.info("%(method)s %(route)s -> %(status)d", fields, extra={**fields, "seconds": round(seconds, 6)})
            request_id.reset(token)

    def _check_head(self, headers: dict[bytes, bytes]) -> int:
        """Return the declared length of the body; refuse a large or compressed body before reading it."""
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise WrongMediaType("content-encoding: compressed bodies are not supported; send the body uncompressed")
        announced = headers.get(b"content-length", b"")
        length = int(announced) if announced.isdigit() else 0
        if length > self._options.max_body:
            limit = f"the limit of this server is {self._options.max_body:,}"
            raise TooLarge(f"the body has {length:,} bytes; {limit}; {_SEND_LESS}")
        return length

    async def _refuse(self, scope: Scope, receive: Receive, answer: _Answer, response: Response) -> None:
        if answer.status:  # the response has begun, so it can only be aborted
            await _break_off(scope, receive)
            return
        response.headers["Connection"] = "close"  # the rest of the body is not read
        await response(scope, receive, answer.send)


class _Answer:
    """Sends the response with the default headers."""

    def __init__(self, send: Send, own_id: str, is_whole: Callable[[], bool], *, head_only: bool) -> None:
        self._send = send
        self._is_whole = is_whole
        self._head_only = head_only
        self._own_id = own_id.encode()
        self.status = 0
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[tuple[bytes, bytes]] = list(message["headers"])
            present = {name for name, _ in headers}
            headers += [(name, value) for name, value in HEADERS if name not in present]
            headers.append((b"x-request-id", self._own_id))
            if not self._is_whole() and b"connection" not in present:
                headers.append((b"connection", b"close"))  # the rest of the body is not read
            message = {**message, "headers": headers}
        elif self._head_only and message["type"] == "http.response.body":
            await self._send({**message, "body": b"", "more_body": False})
            self.complete = True
            if message.get("more_body"):
                raise ClientDisconnect  # a stream would never end
            return
        await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")


class _Body:
    """Receives the body, counts its bytes and limits its time."""

    def __init__(self, receive: Receive, options: ServerOptions, length: int, meter: Meter) -> None:
        self._receive = receive
        self._length = length
        self._meter = meter
        self._memory_timeout = options.body_patience
        self._most = options.max_body
        self._timeout = options.body_patience + length / _PER_SECOND
        self._deadline: float | None = None
        self._seen = 0
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:  # the next message is the end of the connection, at any time
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(
                f"the body was not complete after {self._timeout:.0f} seconds; send it faster, or in smaller parts"
            ) from None
        chunk = message.get("body", b"")
        self._seen += len(chunk)
        if self._seen > self._most:
            raise TooLarge(f"the body has more than {self._most:,} bytes, the limit of this server; {_SEND_LESS}")
        self._complete = not message.get("more_body", False)
        if chunk:
            waiting_since = asyncio.get_running_loop().time()
            expected = self._seen if self._complete else self._length or LARGE
            await self._meter.read(chunk, expected, self._memory_timeout)
            self._deadline += asyncio.get_running_loop().time() - waiting_since  # the wait is not the client's fault
        if self._complete:
            self._meter.settle()
        return message


async def _break_off(scope: Scope, receive: Receive) -> None:
    """Abort the connection in the middle of a response; return when the server has noticed."""
    end_connection: Callable[[], None] | None = scope["state"].get(BREAK_OFF)
    if end_connection is None:
        raise ConnectionAbortedError("the response was aborted")
    end_connection()
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_no_token_in_address(scope: Scope) -> None:
    """Refuse a token in the URL, because logs and browser histories store URLs."""
    query: bytes = scope.get("query_string", b"")
    if _TOKEN.search(query) or _TOKEN.search(scope.get("raw_path") or b""):
        raise InvalidArgument(
            "token",
            "must not be in the URL, which logs store; revoke this token, and send a new one as "
            "`Authorization: Bearer lsk_…`",
        )


def _is_json(scope: Scope) -> bool:
    """Whether any Content-Type is JSON. Routes read the first one; a second one must not bypass the limits."""
    kinds = (value for name, value in scope["headers"] if name == b"content-type")
    return any(kind.lower().startswith(b"application/json") for kind in kinds)


def _keep_segments_apart(scope: Scope) -> None:
    """Route by the path as sent, so that an id may contain an encoded slash; see `NameConvertor`."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    if b"%" in raw:
        try:
            unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise InvalidArgument("path", "is not valid UTF-8 after decoding its %-escapes") from None
    scope["path"] = path = raw.decode("latin-1")
    if scope.get("root_path"):
        scope["root_path"] = _root_as_sent(path, scope["root_path"])


def _root_as_sent(path: str, root: str) -> str:
    """The mount path, encoded as sent; a proxy may have removed it."""
    end = -1
    for _ in range(root.rstrip("/").count("/") + 1):
        end = path.find("/", end + 1)
        if end < 0:
            end = len(path)
            break
    return path[:end] if unquote(path[:end]) == root.rstrip("/") else quote(root)


def _route(scope: Scope) -> str:
    """The path template of the route, so that the number of metric labels is limited."""
    return str(getattr(scope.get("route"), "path_format", "unknown"))
