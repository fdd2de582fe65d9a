"""Detects commits of other processes: by a datagram, and by polling in case it is lost."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from pathlib import Path
from time import monotonic

import apsw

from longshore.backends.change_signal import ChangeSignal
from longshore.backends.sqlite.connection import Opener, close_quietly
from longshore.backends.sqlite.files import UntrustedFolder, make_folder, open_folder, remove_socket, sockets_in
from longshore.safe_logging import logger

POLL_SECONDS = 0.025
"""The interval of polls while a caller waits: the longest delay after a lost datagram."""
_PEERS_KNOWN_FOR = 0.5
_LONGEST_ADDRESS = 100
_log = logger("longshore.sqlite")


class ChangeNotifier:
    """Notifies waiting callers of commits by other processes, and other processes of ours.

    Every waiting process binds a socket in the folder `<file>-wake`; a process that commits sends an empty datagram to
    each. A datagram may be lost, so waiting processes also poll. A folder that is a symlink, belongs to another user or
    can be written by others is not used.
    """

    def __init__(self, path: Path, signal: ChangeSignal, open_reading: Opener) -> None:
        self._folder = Path(f"{path}-wake")
        self._signal = signal
        self._open = open_reading
        self._awaited = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.listening = False
        """Whether its thread watches the file."""
        self._address: Path | None = None
        self._sender: socket.socket | None = None
        self._peers: list[str] = []
        self._peers_until = 0.0
        self._lock = threading.Lock()
        self._warned = False
        signal.on_wait = self._awaited.set

    def listen(self) -> None:
        """Start to listen: commits after this call are detected."""
        with self._lock:
            if not self.listening and not self._closed:
                connection = self._open()
                watch = _Watch(connection, connection.pragma("data_version"), self._bind())
                self._thread = threading.Thread(
                    target=self._watch, args=(watch,), name="longshore-sqlite-notice", daemon=True
                )
                self.listening = True
                self._thread.start()

    def committed(self) -> None:
        """Notify the waiting callers of this process, and send a datagram to every other process that listens."""
        self._signal.notify()
        if monotonic() > self._peers_until:
            self._peers, self._peers_until = [], monotonic() + _PEERS_KNOWN_FOR
            try:
                folder = open_folder(self._folder)
                try:
                    self._peers = [str(self._folder / name) for name in sockets_in(folder)]
                finally:
                    os.close(folder)
            except (OSError, UntrustedFolder) as error:  # no process listens, or this platform has no such sockets
                self._warn_if_untrusted(error)
        for peer in self._peers:
            if peer != str(self._address):
                self._hint(peer)

    def _warn_if_untrusted(self, error: Exception) -> None:
        if isinstance(error, UntrustedFolder) and not self._warned:
            self._warned = True
            _log.warning(
                "%s is not used: %s. Stop the processes that use the store and remove it; until then processes poll "
                "for changes every %d ms instead",
                self._folder,
                error,
                POLL_SECONDS * 1_000,
            )

    def _hint(self, peer: str) -> None:
        try:
            if self._sender is None:
                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sender.setblocking(False)
            self._sender.sendto(b"", peer)
        except ConnectionRefusedError:  # its process ended without removing its socket
            remove_socket(self._folder, Path(peer).name)
        except OSError:  # its buffer is full, so it wakes anyway; or it ended; or no file descriptor is left
            return

    def close(self) -> None:
        """Stop listening and remove the socket."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._awaited.set()
        if thread is not None:
            thread.join()
        if self._sender is not None:
            self._sender.close()
        if self._address is not None:
            remove_socket(self._folder, self._address.name)
            with contextlib.suppress(OSError):  # another process still listens there
                self._folder.rmdir()

    def _bind(self) -> socket.socket | None:
        address = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        if not hasattr(socket, "AF_UNIX") or len(os.fsencode(address)) > _LONGEST_ADDRESS:
            return None
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            os.close(make_folder(self._folder))
            receiver.bind(str(address))
        except (OSError, UntrustedFolder) as error:  # a file system without sockets, or a folder we may not write to
            self._warn_if_untrusted(error)
            receiver.close()
            return None
        self._address = address
        receiver.settimeout(POLL_SECONDS)
        return receiver

    def _watch(self, watch: _Watch) -> None:
        try:
            while not self._closed:
                if not self._signal.waiting:
                    self._awaited.wait()
                    self._awaited.clear()
                if watch.has_changed():
                    self._signal.notify()
        finally:
            self.listening = False
            watch.close()


class _Watch:
    """What the thread polls: its own connection, and the socket if there is one."""

    def __init__(self, connection: apsw.Connection, version: object, receiver: socket.socket | None) -> None:
        self._connection = connection
        self._version = version
        self._receiver = receiver
        self._clock = threading.Event()

    def has_changed(self) -> bool:
        """Wait for a datagram, at most one poll interval; return True if one arrived or the file changed."""
        try:
            hinted = False
            if self._receiver is None:
                self._clock.wait(POLL_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    self._receiver.recv(1)
                    hinted = True
            before, self._version = self._version, self._connection.pragma("data_version")
            return hinted or self._version != before
        except (apsw.Error, OSError):  # waiting callers wake and get the error; the next poll may succeed
            self._clock.wait(POLL_SECONDS)
            return True

    def close(self) -> None:
        """Close the socket and the connection."""
        if self._receiver is not None:
            self._receiver.close()
        close_quietly(self._connection)
