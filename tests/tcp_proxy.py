"""A TCP proxy in front of a server that can delay, lose and cut connections."""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

# the last line of an answer to COMMIT: everything is stored by then
COMMITTED = b"C" + struct.pack("!I", 11) + b"COMMIT\0"


class TcpProxy:
    """Forwards to the server at an address; `url` is the same address with the proxy's own port.

    `cut`, `reset` and `half_open` act on open connections. The fields arm a fault for the next occasion, and are
    cleared when it has happened.
    """

    def __init__(self, behind_url: str) -> None:
        behind = urlsplit(behind_url)
        assert behind.hostname is not None
        assert behind.port is not None
        self._behind = (behind.hostname, behind.port)
        self._door = socket.create_server(("127.0.0.1", 0))
        user = f"{behind.username}@" if behind.username else ""
        self.url = behind._replace(netloc=f"{user}127.0.0.1:{self._door.getsockname()[1]}").geturl()
        self.delay = 0.0
        """Seconds by which every answer of the server is delayed."""
        self.lost_request: bytes | None = None
        """The next message of a client that contains this is lost, and its connection is cut."""
        self.lost_answer: bytes | None = None
        """The next answer that contains this is lost, and its connection is cut."""
        self.deaf_after: int | None = None
        """The connection that carries the message with this number from now on is half-open after it."""
        self.half_open_after: bytes | None = None
        """When a client sends this, all connections become half-open."""
        self.bytes_left: int | None = None
        """After this many bytes of an answer the connection is cut."""
        self._half_open = False
        self._over = False
        self._links: set[_Link] = set()
        self._threads: list[threading.Thread] = []

    # -- faults

    def forward(self) -> None:
        """Allow new connections; half-open ones stay so."""
        self._half_open = False

    def half_open(self) -> None:
        """Lose everything at both ends without closing, also on new connections."""
        self._half_open = True
        for link in list(self._links):
            link.deaf = True

    def cut(self) -> None:
        """Close all connections in order."""
        for link in list(self._links):
            link.end()

    def reset(self) -> None:
        """Reset all connections, as a restarted machine does."""
        for link in list(self._links):
            link.end(rudely=True)

    # -- start and stop

    def __enter__(self) -> Self:
        self._start(self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        socket.create_connection(self._door.getsockname()).close()  # wakes the thread that accepts connections
        self._threads[0].join(5)
        self._door.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: object, *arguments: object) -> None:
        assert callable(work)
        self._threads.append(threading.Thread(target=work, args=arguments, name="tcp-proxy", daemon=True))
        self._threads[-1].start()

    def _receive(self) -> None:
        while True:
            client, _ = self._door.accept()
            if self._over:
                client.close()
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._behind) as server:
            link = _Link(client, server, deaf=self._half_open)
            self._links.add(link)
            if self._over:
                link.end()
            try:
                while self._hand_on(link):
                    continue
            finally:
                self._links.discard(link)

    def _hand_on(self, link: _Link) -> bool:
        """Forward what arrives next; return False at the end."""
        for source in select.select(link.ends(), [], [])[0]:
            data = source.recv(65_536)
            if not data:
                # one end of a half-open connection does not learn that the other has closed
                link.gone.add(source)
                return link.deaf and len(link.gone) < 2 and not link.ended
            if link.deaf:
                continue
            from_server = source is link.server
            if self._loses(data, from_server):
                return False
            if from_server:
                threading.Event().wait(self.delay)
                data, was_all = self._what_is_left_of(data)
            (link.client if from_server else link.server).sendall(data)
            if from_server and not was_all:
                return False
            if not from_server and self.deaf_after is not None:
                self.deaf_after -= 1
                if self.deaf_after == 0:
                    self.deaf_after = None
                    link.deaf = True
            if not from_server and self.half_open_after is not None and self.half_open_after in data:
                self.half_open_after = None
                self.half_open()
        return True

    def _what_is_left_of(self, data: bytes) -> tuple[bytes, bool]:
        if self.bytes_left is None:
            return data, True
        left, self.bytes_left = data[: self.bytes_left], max(0, self.bytes_left - len(data))
        if self.bytes_left:
            return left, True
        self.bytes_left = None
        return left, False

    def _loses(self, data: bytes, from_server: bool) -> bool:
        if from_server and self.lost_answer is not None and self.lost_answer in data:
            self.lost_answer = None
            return True
        if not from_server and self.lost_request is not None and self.lost_request in data:
            self.lost_request = None
            return True
        return False


class _Link:
    """One connection through the proxy, with its two ends."""

    def __init__(self, client: socket.socket, server: socket.socket, *, deaf: bool) -> None:
        self.client = client
        self.server = server
        self.deaf = deaf
        self.ended = False
        self.gone: set[socket.socket] = set()

    def ends(self) -> list[socket.socket]:
        """The ends that may still send."""
        return [end for end in (self.client, self.server) if end not in self.gone]

    def end(self, *, rudely: bool = False) -> None:
        self.ended = True
        for end in (self.client, self.server):
            with suppress(OSError):
                if rudely:
                    # nothing is sent until the thread of this link closes it, which is then a reset
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD if rudely else socket.SHUT_RDWR)
