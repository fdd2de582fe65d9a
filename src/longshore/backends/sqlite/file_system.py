"""The file system of a store, and its risks."""

from __future__ import annotations

import os
import re
from pathlib import Path

from longshore.core.errors import BackendUnavailable

REFUSED = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p"})
"""Other machines may use the file too, and its locks and shared memory do not work between them."""
_NETWORK = frozenset({*REFUSED, "afs", "ceph", "glusterfs", "lustre", "gfs2", "ocfs2", "virtiofs", "vboxsf", "prl_fs"})
_LAYERED = frozenset({"overlay", "aufs", "unionfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(place: str, mounts: str) -> str | None:
    """The type of the file system that holds an absolute path, from the text of /proc/self/mountinfo."""
    longest, found = -1, None
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right.split():
            continue
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:  # of two mounts at one path the later one is on top
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
    return file_system_of(os.path.dirname(os.path.realpath(path)), mountinfo())  # noqa: PTH120 - of what realpath gives


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
    """Refuses a store on NFS, SMB or 9p, unless the caller allows it."""
    if file_system in REFUSED and not allowed:
        raise BackendUnavailable(
            f"{path} is on {file_system}, {risk_of(file_system)}. Put it on a local disk, or use PostgreSQL. "
            "If only one machine uses it, allow it with connect(url, allow_network_file_system=True) or with "
            "LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM=1"
        )
