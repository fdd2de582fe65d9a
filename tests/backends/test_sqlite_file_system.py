"""The file system of a store is reported, and network file systems are refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.backends.connect import connect
from longshore.backends.sqlite import files
from longshore.backends.sqlite.files import file_system_of, risk_of
from longshore.core.errors import BackendUnavailable, InvalidArgument
from longshore.core.job import Job
from tests.cli.terminal import longshore

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:50 / /data rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
31 30 8:1 / /data/local rw - xfs /dev/sda1 rw
32 27 0:51 / /mnt/my\040share rw - cifs //host/share rw
33 27 0:52 / /host rw - 9p hostshare rw,trans=virtio
34 27 0:53 / /layers rw - overlay overlay rw,lowerdir=/a,upperdir=/b
35 27 0:54 / /twice rw - ext4 /dev/vdb rw
36 35 0:55 / /twice rw - fuse.sshfs me@host: rw
a line that is not understood
"""


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/data", "nfs4"),
        ("/data/jobs", "nfs4"),
        ("/database", "ext4"),
        ("/data/local/jobs", "xfs"),
        ("/mnt/my share/jobs", "cifs"),
        ("/host", "9p"),
        ("/layers/x", "overlay"),
        ("/twice/x", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount(place: str, found: str) -> None:
    # R5
    assert file_system_of(place, MOUNTS) == found


def test_local_disks_have_no_known_risk_and_the_others_have_one() -> None:
    # R5
    assert not any(map(risk_of, ["ext4", "xfs", "btrfs", "zfs", "tmpfs", None]))
    assert all(map(risk_of, ["nfs", "nfs4", "cifs", "smb3", "9p", "overlay", "fuse.sshfs", "ceph"]))


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Report the test's folder as being on this file system."""

    def pretending(kind: str) -> None:
        text = f"{MOUNTS}99 27 0:99 / {tmp_path} rw - {kind} source rw\n"
        monkeypatch.setattr(files, "mountinfo", lambda: text)

    return pretending


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p"])
async def test_a_store_on_a_network_file_system_is_refused_unless_allowed(
    kind: str, tmp_path: Path, pretend: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    # R5
    pretend(kind)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as backend:
        with pytest.raises(BackendUnavailable, match=f"is on {kind}, a network file system.*allow_network_file_system"):
            await backend.enqueue_job(Job(type="t"))
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a folder of the test
    async with connect(url, allow_network_file_system=True) as backend:
        await backend.enqueue_job(Job(type="t"))
    assert [f"is on {kind}, a network file system" in message for message in caplog.messages] == [True]


async def test_the_option_of_network_file_systems_is_checked(tmp_path: Path) -> None:
    # R5
    with pytest.raises(InvalidArgument, match="allow_network_file_system"):
        connect(f"sqlite:///{tmp_path / 'jobs.db'}", allow_network_file_system="yes")


def test_the_environment_allows_a_network_file_system_for_the_command_line(
    tmp_path: Path, pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # R5
    pretend("nfs4")
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert "LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM=1" in longshore("migrate", "--url", url).err
    monkeypatch.setenv("LONGSHORE_ALLOW_NETWORK_FILE_SYSTEM", "1")
    assert longshore("migrate", "--url", url).code == 0
    assert longshore("list", "--url", url).code == 0


@pytest.mark.parametrize(("kind", "risk"), [("overlay", "a layer of a container"), ("fuse.sshfs", "user space")])
def test_doctor_and_the_first_open_report_a_file_system_with_a_risk(
    kind: str, risk: str, tmp_path: Path, pretend: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    # R5
    pretend(kind)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def use() -> None:
        async with connect(url) as backend:
            await backend.enqueue_job(Job(type="t"))

    with caplog.at_level(logging.WARNING, "longshore.sqlite"):
        asyncio.run(use())
        asyncio.run(use())
    assert [f"is on {kind}" in message and risk in message for message in caplog.messages] == [True]
    reported = json.loads(longshore("doctor", "--json", "--url", url).out)
    (found,) = [one for one in reported["findings"] if one["check"] == "file system"]
    assert found["level"] == "warning"
    assert kind in found["found"]
    assert risk in found["found"]


def test_the_real_file_system_of_a_folder_is_named(tmp_path: Path) -> None:
    # R5
    assert files.file_system_under(tmp_path / "jobs.db")
