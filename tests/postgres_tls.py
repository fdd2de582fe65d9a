"""Accepts PostgreSQL connections with TLS only and forwards them unencrypted: the tests' server has no TLS."""

from __future__ import annotations

import select
import socket
import socketserver
import ssl
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import trustme

TLS_REQUEST = 80_877_103
KERBEROS_REQUEST = 80_877_104
REFUSAL = b"SFATAL\0VFATAL\0C28000\0Mno entry for this host, user and database without encryption\0\0"


class TlsFront(socketserver.ThreadingTCPServer):
    """Forwards to the server of a database; `url` is that database's address with the front's own port.

    It shows a certificate for "localhost". The client's address decides how much of it is checked (`sslmode`,
    `sslrootcert`).
    """

    def __init__(self, behind_url: str, authority: trustme.CA) -> None:
        behind = urlsplit(behind_url)
        assert behind.hostname is not None
        assert behind.port is not None
        self.behind = (behind.hostname, behind.port)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self.context)
        self.open_sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Visit)
        self.url = behind._replace(netloc=f"{behind.username}@localhost:{self.server_address[1]}").geturl()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="postgres-tls")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        for each in list(self.open_sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self._thread.join()


class _Visit(socketserver.BaseRequestHandler):
    server: TlsFront
    request: socket.socket

    def handle(self) -> None:
        # a client that disconnects, or does not trust us, ends the connection
        with suppress(OSError):
            while (wish := self._wish()) == KERBEROS_REQUEST:
                self.request.sendall(b"N")
            if wish == TLS_REQUEST:
                self.request.sendall(b"S")
                self._hand_on()
            else:
                self.request.sendall(b"E" + struct.pack("!I", len(REFUSAL) + 4) + REFUSAL)

    def _wish(self) -> int:
        packet = self.request.recv(8, socket.MSG_WAITALL)
        return int(struct.unpack("!II", packet)[1]) if len(packet) == 8 else 0

    def _hand_on(self) -> None:
        with (
            self.server.context.wrap_socket(self.request, server_side=True) as caller,
            socket.create_connection(self.server.behind) as behind,
        ):
            both: set[socket.socket] = {caller, behind}
            self.server.open_sockets |= both
            try:
                while True:
                    # data that is already decrypted does not make the socket readable
                    ready = [caller] if caller.pending() else select.select([*both], [], [])[0]
                    for each in ready:
                        data = each.recv(65_536)
                        if not data:
                            return
                        (behind if each is caller else caller).sendall(data)
            finally:
                self.server.open_sockets -= both
