"""The files of a store: made private, and used only if no other user can have put them there."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

import apsw

from longshore.core.errors import BackendUnavailable

_SOCKET_NAME = re.compile(r"\d+-[0-9a-f]{8}")
"""How a process names its socket in the wake folder: its process id and a random part."""


def beside(path: Path, suffix: str) -> Path:
    """The file that SQLite keeps beside the store, like its `-wal`; SQLite follows a symlink to the store first."""
    return Path(f"{os.path.realpath(path)}{suffix}")


def identity(file: Path | str) -> tuple[int, int] | None:
    """Device and inode of the file at this path; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - asked after every commit: Path.stat takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino


class InPlace:
    """Whether the store and its log are still the files at their paths: what is written elsewhere is lost.

    Once the store was removed or replaced, the process refuses to use another file in its place until it is restarted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = ""
        self._store: tuple[int, int] | None = None
        self._log_of_writer: tuple[object, tuple[int, int] | None] = (None, None)
        self._log_was_lost = False

    def begin(self) -> None:
        """Remembers the file, once it is there."""
        self._log = str(beside(self._path, "-wal"))
        self._store = identity(self._path)
        if self._store is None:
            raise BackendUnavailable(f"{self._path} {_MOVED}")

    @property
    def moved(self) -> bool:
        """Whether the file or its log was removed or replaced."""
        return self._log_was_lost or (self._store is not None and identity(self._path) != self._store)

    def check(self) -> None:
        """Refuses to go on if the file is another one, or gone."""
        if self._log_was_lost:
            raise BackendUnavailable(f"{self._log} {_MOVED}")
        if self.moved:
            raise BackendUnavailable(f"{self._path} {_MOVED}")

    def check_commit(self, connection: apsw.Connection) -> None:
        """After a commit of the writer: refuses to acknowledge what is not in the files at their paths."""
        self.check()
        if self._store is None:
            return
        log = identity(self._log)
        writer, before = self._log_of_writer
        if log is None or (writer is connection and before != log):
            self._log_was_lost = True
            with contextlib.suppress(apsw.Error):  # this process can still read it: keep its commits
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            raise BackendUnavailable(f"{self._log} {_MOVED}")
        self._log_of_writer = (connection, log)


_MOVED = (
    "was removed or replaced while it was in use. Nothing is acknowledged any more: stop all processes that use it, "
    "put the file back or restore a backup, then restart them. Before a backup is restored, move the old file's -wal "
    "and -shm away"
)


def make_private(path: Path) -> None:
    """Makes an empty file that only its owner may read; an existing file is left as it is.

    No descriptor is opened where that can be avoided: closing one would drop SQLite's locks on the same file.
    """
    target = os.path.realpath(path)
    with contextlib.suppress(FileExistsError):
        if hasattr(os, "mknod"):
            try:
                os.mknod(target, stat.S_IFREG | 0o600)
                return
            except PermissionError:  # some systems let only root call mknod
                pass
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def make_unfinished(destination: Path) -> Path:
    """A new private file beside the destination, under a name that nobody can predict."""
    descriptor, name = tempfile.mkstemp(".unfinished", f"{destination.name}.", destination.parent)
    os.close(descriptor)
    return Path(name)


def refuse_planted(path: Path) -> None:
    """Refuses a file or symlink of another user in a folder like /tmp, where everybody may put one."""
    try:
        folder, entry = path.parent.stat(), path.lstat()
    except OSError:  # there is none, or opening it will say what is wrong
        return
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if hasattr(os, "geteuid") and shared and entry.st_uid not in (os.geteuid(), folder.st_uid):
        raise BackendUnavailable(
            f"{path} belongs to another user, in a folder that everybody may write to. It was left as it is; "
            "put the store into a folder of your own, or work as the owner of the file"
        )


def is_read_only(path: Path) -> bool:
    """Whether we may not write the store: the file is read-only, or its folder is and the log is missing."""
    if not path.is_file():
        return False
    if not _may_write(path):
        return True
    return not _may_write(beside(path, "").parent) and not all(
        _may_write(beside(path, suffix)) for suffix in ("-wal", "-shm")
    )


def _may_write(place: Path) -> bool:
    return os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def permissions_of_others(path: Path) -> dict[str, int]:
    """The permission bits of the store's files that other users may read or write."""
    wide: dict[str, int] = {}
    for file in (path, beside(path, "-wal"), beside(path, "-shm")):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if os.name == "posix" and mode & 0o077:
                wide[str(file)] = mode
    return wide


class UntrustedFolder(Exception):
    """The wake folder is not one that only we can write to; its text says why."""


def open_folder(folder: Path) -> int:
    """A descriptor of our wake folder. Raises OSError if there is none, and UntrustedFolder if it is not ours."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise UntrustedFolder("it is a symlink")
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedFolder("it is not a folder")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise UntrustedFolder("it belongs to another user")
        if found.st_mode & 0o022:
            raise UntrustedFolder("other users may write to it")
    except UntrustedFolder:
        os.close(descriptor)
        raise
    return descriptor


def make_folder(folder: Path) -> int:
    """A descriptor of our wake folder, which is made if there is none; nobody else may enter it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    descriptor = open_folder(folder)
    try:
        os.fchmod(descriptor, 0o700)  # an older release made it wider
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def sockets_in(folder: int) -> list[str]:
    """The names of our own sockets in the folder."""
    return [name for name in os.listdir(folder) if _SOCKET_NAME.fullmatch(name) and _is_our_socket(name, folder)]


def _is_our_socket(name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def remove_socket(folder: Path, name: str) -> None:
    """Removes one of our own sockets; whatever else has this name is left alone."""
    try:
        descriptor = open_folder(folder)
    except (OSError, UntrustedFolder):
        return
    try:
        if _SOCKET_NAME.fullmatch(name) and _is_our_socket(name, descriptor):
            os.unlink(name, dir_fd=descriptor)
    except OSError:  # another process was quicker
        return
    finally:
        os.close(descriptor)


def listening(folder: Path) -> bool:
    """Whether a living process listens in the wake folder."""
    try:
        descriptor = open_folder(folder)
    except (OSError, UntrustedFolder):
        return False
    try:
        names = sockets_in(descriptor)
    finally:
        os.close(descriptor)
    return any(_answers(folder / name) for name in names)


def _answers(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(address))
        except OSError:
            return False
    return True
