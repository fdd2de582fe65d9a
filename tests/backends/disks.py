"""Disks that can fail: one that records syncs, for power cuts, and one that fails at a chosen call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw

_SECTOR = 512


class Deed(NamedTuple):
    """One operation, in order: on a file, or (an `ack`) an answer to a caller."""

    kind: str
    """write, truncate, sync, delete, or ack."""
    file: str
    offset: int = 0
    data: bytes = b""
    ack: Any = None


class RecordingDisk(apsw.VFS):
    """Files in memory, and a record of every write and sync, from which the disk after a power cut is computed.

    It has no shared memory, so SQLite must keep the index of its write-ahead log in private memory: see `mounted`.
    """

    def __init__(self, name: str) -> None:
        self.files: dict[str, bytearray] = {}
        self.deeds: list[Deed] = []
        super().__init__(name, "")

    def ack(self, what: Any) -> None:
        """A caller got an answer."""
        self.deeds.append(Deed("ack", "", ack=what))

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:  # noqa: N802 - SQLite's own name
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or "unnamed"
        if path not in self.files and not flags[0] & apsw.SQLITE_OPEN_CREATE:
            raise apsw.CantOpenError(path)
        self.files.setdefault(path, bytearray())
        flags[1] = flags[0]
        return _RecordedFile(self, path)

    def xDelete(self, filename: str, _syncdir: bool) -> None:  # noqa: N802 - SQLite's own name
        if self.files.pop(filename, None) is None:
            raise apsw.IOError("no such file")
        self.deeds.append(Deed("delete", filename))

    def xAccess(self, pathname: str, _flags: int) -> bool:  # noqa: N802 - SQLite's own name
        return pathname in self.files


class _RecordedFile:
    # method names are SQLite's own
    def __init__(self, disk: RecordingDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    @property
    def _bytes(self) -> bytearray:
        return self._disk.files.setdefault(self._path, bytearray())

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's own name
        return bytes(self._bytes[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.deeds.append(Deed("write", self._path, offset, bytes(data)))
        _write(self._bytes, offset, data)

    def xTruncate(self, size: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.deeds.append(Deed("truncate", self._path, size))
        del self._bytes[size:]

    def xSync(self, _flags: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.deeds.append(Deed("sync", self._path))

    def xFileSize(self) -> int:  # noqa: N802 - SQLite's own name
        return len(self._bytes)

    def xClose(self) -> None:  # noqa: N802 - SQLite's own name
        return None

    def xLock(self, _level: int) -> None:  # noqa: N802 - SQLite's own name
        return None

    def xUnlock(self, _level: int) -> None:  # noqa: N802 - SQLite's own name
        return None

    def xCheckReservedLock(self) -> bool:  # noqa: N802 - SQLite's own name
        return False

    def xFileControl(self, _operation: int, _pointer: int) -> bool:  # noqa: N802 - SQLite's own name
        return False

    def xSectorSize(self) -> int:  # noqa: N802 - SQLite's own name
        return _SECTOR

    def xDeviceCharacteristics(self) -> int:  # noqa: N802 - SQLite's own name
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE  # SQLite's default on Linux


def _write(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


class Platter:
    """What is safely on the disk after each operation; unsynced writes are in `pending`."""

    def __init__(self) -> None:
        self.safe: dict[str, bytearray] = {}
        self.pending: dict[str, list[Deed]] = {}

    def do(self, deed: Deed) -> None:
        """Apply one more operation."""
        if deed.kind in ("write", "truncate"):
            self.pending.setdefault(deed.file, []).append(deed)
        elif deed.kind == "sync":
            _apply(self.safe.setdefault(deed.file, bytearray()), self.pending.pop(deed.file, []))
        elif deed.kind == "delete":
            self.safe.pop(deed.file, None)
            self.pending.pop(deed.file, None)

    def after_a_cut(self, folder: Path, survivors: Random | None = None) -> None:
        """Write the files to a folder as the next start finds them.

        Without `survivors` no unsynced write is left. With it, each unsynced write was randomly written whole, in part,
        or not at all, in any order.
        """
        for file in {*self.safe, *(self.pending if survivors else ())}:
            image = bytearray(self.safe.get(file, b""))
            if survivors is not None:
                _apply(image, [part for deed in self.pending.get(file, []) if (part := _by_chance(deed, survivors))])
            if file in self.safe or image:
                (folder / Path(file).name).write_bytes(image)


def _by_chance(deed: Deed, chance: Random) -> Deed | None:
    luck = chance.random()
    if luck < 0.4:
        return None
    if luck < 0.8 or deed.kind != "write":
        return deed
    kept = chance.randrange(0, len(deed.data) + 1, _SECTOR)
    return deed._replace(data=deed.data[:kept]) if kept else None


def _apply(image: bytearray, deeds: list[Deed]) -> None:
    for deed in deeds:
        if deed.kind == "write":
            _write(image, deed.offset, deed.data)
        else:
            del image[deed.offset :]


class BreakingDisk(apsw.VFS):
    """Real files, and a call that fails: `breaks(kind, number)` is asked before each write, sync and truncate."""

    def __init__(self, name: str, breaks: Callable[[str, int], Exception | None]) -> None:
        self._breaks = breaks
        self._name = name
        self.calls = 0
        super().__init__(name, "")

    def call(self, kind: str) -> None:
        """Count a call, and fail if its number is reached."""
        self.calls += 1
        error = self._breaks(kind, self.calls)
        if error is not None:
            raise error

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:  # noqa: N802 - SQLite's own name
        return _BreakingFile(self, name, flags)


class _BreakingFile(apsw.VFSFile):
    def __init__(self, disk: BreakingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.call("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.call("sync")
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802 - SQLite's own name
        self._disk.call("truncate")
        super().xTruncate(size)


@contextmanager
def mounted(disk: RecordingDisk | BreakingDisk, name: str, *, checkpoint_pages: int = 40) -> Iterator[str]:
    """Inside the block, connections through the disk own their file and checkpoint often, so that more can go wrong."""

    def take_over(connection: apsw.Connection) -> None:
        if connection.open_vfs == name:
            connection.pragma("locking_mode", "EXCLUSIVE")
            connection.wal_autocheckpoint(checkpoint_pages)

    apsw.connection_hooks.append(take_over)
    try:
        yield name
    finally:
        apsw.connection_hooks.remove(take_over)
        disk.unregister()
