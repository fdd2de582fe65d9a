"""Notices commits of other processes: a datagram as a quick hint, polling underneath."""

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
"""How often the file's version is looked at while somebody waits: cheap, and the most a lost hint can cost."""
_PEERS_KNOWN_FOR = 0.5
_LONGEST_ADDRESS = 100
_log = logger("longshore.sqlite")


class ChangeNotifier:
    """Notifies waiting callers of commits by other processes, and other processes of ours.

    Every process that waits binds a socket in the folder `<file>-wake`; whoever commits sends an empty datagram to
    each. A hint may be lost: whoever waits also polls. A folder that is a symlink, belongs to another user or can be
    written by others is not used.
    """

    def __init__(self, path: Path, signal: ChangeSignal, open_reading: Opener) -> None:
        self._folder = Path(f"{path}-wake")
        self._signal = signal
        self._open = open_reading
        self._awaited = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._address: Path | None = None
        self._sender: socket.socket | None = None
        self._peers: list[str] = []
        self._peers_until = 0.0
        self._lock = threading.Lock()
        self._warned = False
        signal.on_wait = self._awaited.set

    @property
    def listening(self) -> bool:
        """Whether it listens already."""
        return self._thread is not None and self._thread.is_alive()

    def listen(self) -> None:
        """Begins to listen. What is committed after this returns is noticed."""
        with self._lock:
            if not self.listening and not self._closed:
                connection = self._open()
                watch = _Watch(connection, connection.pragma("data_version"), self._bind())
                self._thread = threading.Thread(
                    target=self._watch, args=(watch,), name="longshore-sqlite-notice", daemon=True
                )
                self._thread.start()

    def tell(self) -> None:
        """Hints to the other processes that something was committed."""
        try:
            if monotonic() > self._peers_until:
                self._peers = self._find_peers()
                self._peers_until = monotonic() + _PEERS_KNOWN_FOR
        except (OSError, UntrustedFolder) as error:  # no process listens, or this platform has no such sockets
            self._warn_if_untrusted(error)
            self._peers, self._peers_until = [], monotonic() + _PEERS_KNOWN_FOR
        for peer in self._peers:
            if peer != str(self._address):
                self._hint(peer)

    def _find_peers(self) -> list[str]:
        folder = open_folder(self._folder)
        try:
            return [str(self._folder / name) for name in sockets_in(folder)]
        finally:
            os.close(folder)

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
        except ConnectionRefusedError:  # its process is gone, and left its address behind
            remove_socket(self._folder, Path(peer).name)
        except (
            OSError
        ):  # its inbox is full, so it is awake already; or it just went away; or we have no socket to spare
            return

    def close(self) -> None:
        """Stops listening and takes the address back."""
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
            with contextlib.suppress(OSError):  # somebody else still listens there
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
                if not self._signal.awaited:
                    self._awaited.wait()
                    self._awaited.clear()
                if watch.anything_new():
                    self._signal.notify()
        finally:
            watch.close()


class _Watch:
    """What the thread looks at: its own connection, and the socket if there is one."""

    def __init__(self, connection: apsw.Connection, version: object, receiver: socket.socket | None) -> None:
        self._connection = connection
        self._version = version
        self._receiver = receiver
        self._clock = threading.Event()

    def anything_new(self) -> bool:
        """Waits a little, and tells whether anybody has committed."""
        try:
            hinted = self._pause()
            return self._file_changed() or hinted
        except (apsw.Error, OSError):  # whoever waits is woken to meet the error, and the next look may go better
            self._clock.wait(POLL_SECONDS)
            return True

    def _pause(self) -> bool:
        """Waits for a hint, but no longer than a poll interval; True if one came."""
        if self._receiver is None:
            return self._clock.wait(POLL_SECONDS)
        try:
            self._receiver.recv(1)
        except TimeoutError:
            return False
        return True

    def _file_changed(self) -> bool:
        """Whether anybody has committed since the last look."""
        before, self._version = self._version, self._connection.pragma("data_version")
        return self._version != before

    def close(self) -> None:
        """Lets go of both."""
        if self._receiver is not None:
            self._receiver.close()
        close_quietly(self._connection)
