"""A pooler in transaction mode in front of the tests' PostgreSQL: each transaction may run in another session."""

from __future__ import annotations

import select
import socket
import socketserver
import struct
import threading
from collections import deque
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

ENCRYPTION_REQUESTS = (80_877_103, 80_877_104)
CANCEL_REQUEST = 80_877_102
PROTOCOL = 3 << 16
READY = b"Z\0\0\0\x05I"


class Message(NamedTuple):
    kind: bytes
    body: bytes

    @property
    def whole(self) -> bytes:
        return self.kind + struct.pack("!I", len(self.body) + 4) + self.body


class _Line:
    """One end of a connection, message by message."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._heard = b""

    def hear(self) -> list[Message] | None:
        """Return the messages that are complete; None if the other end has closed."""
        data = self.end.recv(65_536)
        if not data:
            return None
        self._heard += data
        messages = []
        while len(self._heard) >= 5:
            length = struct.unpack_from("!I", self._heard, 1)[0]
            if len(self._heard) <= length:
                break
            messages.append(Message(self._heard[:1], self._heard[5 : length + 1]))
            self._heard = self._heard[length + 1 :]
        return messages


class Pooler(socketserver.ThreadingTCPServer):
    """Shares a few sessions of a database among all clients; `url` is its address.

    A session is returned when its transaction ends, and the one unused for longest is taken next. So two transactions
    of one client hardly ever run in the same session. Clients get the pooler's own process numbers.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, behind_url: str, sessions: int = 3) -> None:
        behind = urlsplit(behind_url)
        assert behind.hostname is not None
        assert behind.port is not None
        self._behind = (behind.hostname, behind.port)
        self._who = {"user": behind.username or "", "database": behind.path.removeprefix("/")}
        self.greetings: list[Message] = []
        """The parameters that a server sends at the start of a session."""
        self.numbers = count(1_000_000)
        self.handed_out = 0
        """How often a session was taken for a transaction."""
        self._changed = threading.Condition()
        self._idle = deque(self._connect() for _ in range(sessions))
        self._all = list(self._idle)
        super().__init__(("127.0.0.1", 0), _Client)
        self.url = behind._replace(netloc=f"{behind.username}@127.0.0.1:{self.server_address[1]}").geturl()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="postgres-pooler")

    def _connect(self) -> _Line:
        line = _Line(socket.create_connection(self._behind))
        words = b"".join(f"{name}\0{value}\0".encode() for name, value in self._who.items()) + b"\0"
        line.end.sendall(struct.pack("!II", len(words) + 8, PROTOCOL) + words)
        told: list[Message] = []
        while not told or told[-1].kind != b"Z":
            heard = line.hear()
            assert heard is not None, "the server refused the pooler"
            told += heard
        self.greetings = [message for message in told if message.kind == b"S"]
        return line

    def take(self) -> _Line:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._idle))
            self.handed_out += 1
            return self._idle.popleft()

    def give_back(self, line: _Line, *, in_order: bool) -> None:
        """Replace a session whose transaction did not end."""
        if not in_order:
            line.end.close()
            line = self._connect()
            self._all.append(line)
        with self._changed:
            self._idle.append(line)
            self._changed.notify()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        for line in self._all:
            line.end.close()


class _Client(socketserver.BaseRequestHandler):
    server: Pooler
    request: socket.socket

    def handle(self) -> None:
        with suppress(OSError):
            if self._greet():
                client = _Line(self.request)
                while self._transaction(client):
                    continue

    def _greet(self) -> bool:
        while True:
            length, wish = struct.unpack("!II", self.request.recv(8, socket.MSG_WAITALL))
            if wish in ENCRYPTION_REQUESTS:
                self.request.sendall(b"N")
                continue
            self.request.recv(length - 8, socket.MSG_WAITALL)
            if wish == CANCEL_REQUEST:
                return False
            number = struct.pack("!II", next(self.server.numbers), 0)
            told = [Message(b"R", bytes(4)), *self.server.greetings, Message(b"K", number)]
            self.request.sendall(b"".join(message.whole for message in told) + READY)
            return True

    def _transaction(self, client: _Line) -> bool:
        """Serve one transaction of a client; return False if the client has closed."""
        said = client.hear()
        if said is None or any(message.kind == b"X" for message in said):
            return False
        if not said:
            return True
        session = self.server.take()
        in_order = False
        try:
            awaited = self._pass_on(said, session)
            while True:
                for end in select.select([client.end, session.end], [], [])[0]:
                    if end is client.end:
                        said = client.hear()
                        if said is None or any(message.kind == b"X" for message in said):
                            return False
                        awaited += self._pass_on(said, session)
                        continue
                    answers = session.hear()
                    if answers is None:
                        return False
                    self.request.sendall(b"".join(answer.whole for answer in answers))
                    ready = [answer.body for answer in answers if answer.kind == b"Z"]
                    awaited -= len(ready)
                    if ready and awaited == 0 and ready[-1] == b"I":
                        in_order = True
                        return True
        finally:
            self.server.give_back(session, in_order=in_order)

    def _pass_on(self, said: list[Message], session: _Line) -> int:
        """Return how often the server will report that it is ready."""
        session.end.sendall(b"".join(message.whole for message in said))
        return sum(message.kind in (b"Q", b"S") for message in said)
