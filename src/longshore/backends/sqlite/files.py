"""The files of a store: created private, used only if no other user can change them, on a safe file system."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path
from typing import NoReturn

import apsw

from longshore.core.errors import BackendUnavailable

_SOCKET_NAME = re.compile(r"\d+-[0-9a-f]{8}")
"""The name of a process's socket in the wake folder: its process id and a random part."""


def beside(path: Path, suffix: str) -> Path:
    """A file that SQLite keeps next to the store, such as its `-wal`; SQLite resolves a symlink to the store first."""
    return Path(f"{os.path.realpath(path)}{suffix}")


def identity(file: Path | str) -> tuple[int, int] | None:
    """Device and inode of the file at this path; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - runs after every commit, and Path.stat takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino


class FileIdentity:
    """Checks that the store and its log are still the files at their paths: writes to removed files are lost.

    Once the store was removed or replaced, the process refuses to use another file at its path until it is restarted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = self._index = ""
        self._store: tuple[int, int] | None = None
        self._log_of_writer: tuple[object, tuple[int, int] | None] = (None, None)
        self._index_of_writer: tuple[object, tuple[int, int] | None] = (None, None)
        self._lost = ""

    def begin(self) -> None:
        """Record the identity of the file."""
        self._log = str(beside(self._path, "-wal"))
        self._index = str(beside(self._path, "-shm"))
        self._store = identity(self._path)
        if self._store is None:
            raise BackendUnavailable(f"{self._path} {_MOVED}")

    @property
    def moved(self) -> bool:
        """Whether the file, its log or the log's index was removed or replaced."""
        return bool(self._lost) or (self._store is not None and identity(self._path) != self._store)

    def check(self) -> None:
        """Raise BackendUnavailable if the file was removed or replaced."""
        if self._store is not None and (self._lost or identity(self._path) != self._store):
            raise BackendUnavailable(f"{self._lost or self._path} {_MOVED}")

    def check_commit(self, connection: apsw.Connection) -> None:
        """Call it after a commit: raise BackendUnavailable if the commit is not in the files at their paths."""
        if self._store is None:
            return
        if self._lost or identity(self._path) != self._store:
            raise BackendUnavailable(f"{self._lost or self._path} {_MOVED}")
        log = identity(self._log)
        writer, before = self._log_of_writer
        if log is None or (writer is connection and before != log):
            self._lose(self._log, connection)
        self._log_of_writer = (connection, log)

    def check_index(self, connection: apsw.Connection) -> None:
        """Call it before a write: with another index than other processes, the writer would overwrite their commits."""
        if self._store is None:
            return
        writer, before = self._index_of_writer
        if writer is not connection:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # from now on the index stays in place
            before = None if _is_held_deleted(self._index) else identity(self._index)
            self._index_of_writer = (connection, before)
        found = identity(self._index)
        if found is None or found != before:
            self._lose(self._index, None if found else connection)

    def _lose(self, file: str, connection: apsw.Connection | None) -> NoReturn:
        self._lost = file
        if connection is not None:  # only this process can read the log, or its index: keep the commits
            with contextlib.suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        raise BackendUnavailable(f"{file} {_MOVED}")


_MOVED = (
    "was removed or replaced while it was in use. No write is acknowledged any more: stop all processes that use it, "
    "put the file back or restore a backup, then restart them. Before you restore a backup, move the old file's -wal "
    "and -shm away"
)


def _is_held_deleted(file: str) -> bool:
    """Whether this process still uses a file of this name that was removed; known on Linux only."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == f"{file} (deleted)":
                    return True
    return False


def make_private(path: Path) -> None:
    """Create an empty file that only its owner may read; do not change an existing file.

    Where possible no descriptor is opened: closing one would drop SQLite's locks on the same file.
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
    """A new private file next to the destination, with an unpredictable name."""
    descriptor, name = tempfile.mkstemp(".unfinished", f"{destination.name}.", destination.parent)
    os.close(descriptor)
    return Path(name)


def refuse_planted(path: Path) -> None:
    """Refuse a store in a shared folder such as /tmp if the file, a symlink to it or its log belongs to another
    user."""
    for file in (path, *(beside(path, suffix) for suffix in ("", "-wal", "-shm"))):
        _refuse_planted_file(file)


def _refuse_planted_file(path: Path) -> None:
    try:
        folder, entry = path.parent.stat(), path.lstat()
    except OSError:  # it does not exist, or opening it reports the error
        return
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if hasattr(os, "geteuid") and shared and entry.st_uid not in (os.geteuid(), folder.st_uid):
        raise BackendUnavailable(
            f"{path} belongs to another user, in a folder that all users may write to. It was not changed; "
            "put the store into your own folder, or remove the file as its owner"
        )


def is_read_only(path: Path) -> bool:
    """Whether we cannot write the store: the file is read-only, or its folder is and the log is missing."""
    if not path.is_file():
        return False
    if not _may_write(path):
        return True
    return not _may_write(beside(path, "").parent) and not all(
        _may_write(beside(path, suffix)) for suffix in ("-wal", "-shm")
    )


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


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
    """Other users can write to the wake folder, or it is not a folder; the message says why."""


def open_folder(folder: Path) -> int:
    """Open the wake folder. Raise OSError if it does not exist, and UntrustedFolder if it is not ours."""
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
    """Open the wake folder, and create it if it does not exist; only its owner may enter it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    descriptor = open_folder(folder)
    try:
        os.fchmod(descriptor, 0o700)  # older releases created it with wider permissions
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
    """Remove one of our own sockets; do not touch any other file with this name."""
    try:
        descriptor = open_folder(folder)
    except (OSError, UntrustedFolder):
        return
    try:
        if _SOCKET_NAME.fullmatch(name) and _is_our_socket(name, descriptor):
            os.unlink(name, dir_fd=descriptor)
    except OSError:  # another process removed it first
        return
    finally:
        os.close(descriptor)


def listening(folder: Path) -> bool:
    """Whether a running process listens in the wake folder."""
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


REFUSED = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p"})
"""Other machines may use the file too, and its locks and shared memory do not work across machines."""
_NETWORK = frozenset({*REFUSED, "afs", "ceph", "glusterfs", "lustre", "gfs2", "ocfs2", "virtiofs", "vboxsf", "prl_fs"})
_LAYERED = frozenset({"overlay", "aufs", "unionfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: str, mounts: str) -> str | None:
    """The type of the file system that holds an absolute path, from the text of /proc/self/mountinfo."""
    longest, found = -1, None
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right.split():
            continue
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:  # the later of two mounts at one path is on top
            longest, found = len(mount), right.split()[0]
    return found


def mountinfo() -> str:
    """The text of /proc/self/mountinfo; empty on other systems."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def file_system_under(path: Path) -> str | None:
    """The type of the file system that holds a store; None if it cannot be determined."""
    return file_system_of(os.path.dirname(os.path.realpath(path)), mountinfo())  # noqa: PTH120 - realpath returns text


def risk_of(file_system: str | None) -> str:
    """The risk of a store on this file system; empty if none is known."""
    if file_system in _LAYERED:
        return "a layer of a container: the store is lost when the container is removed"
    if file_system in _NETWORK:
        return "a network file system: file locks may fail, and a store used from two machines is corrupted"
    if file_system is not None and file_system.startswith("fuse"):
        return "a file system in user space: file locks and flushes to disk may not hold"
    return ""


def refuse_network(path: Path, file_system: str | None, *, allowed: bool) -> None:
    """Refuse a store on NFS, SMB or 9p, unless the caller allows it."""
    if file_system in REFUSED and not allowed:
        raise BackendUnavailable(
            f"{path} is on {file_system}, {risk_of(file_system)}. Put it on a local disk, or use PostgreSQL. "
            "If only one machine uses it, allow it with connect(url, allow_network_file_system=True) or with "
            "LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM=1"
        )
