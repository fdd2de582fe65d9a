"""The folder in which the code of one page runs, and the real addresses for those on the page."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from longshore import Job, connect
from tests.repo.pages import FILE_NAME, ROOT, Block

HERE = Path(__file__).resolve().parent
SHELL = ROOT / "tests" / "onboarding" / "stage.sh"
SERVER = "postgresql://app@db.example/app"
"""The database in the guides; each page gets a separate one."""
API = re.compile(r"(?:127\.0\.0\.1|localhost):8470")
OTHER_API = re.compile(r"(?:127\.0\.0\.1|localhost):8000")
NOT_HEARD = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "LONGSHORE_URL", "LONGSHORE_HOST", "LONGSHORE_PORT")
"""Environment variables of the test run that a reader does not have, such as those of make."""


def some_jobs(folder: Path) -> None:
    """A queue in a file, as the page takes it for granted."""

    async def fill() -> None:
        async with connect(f"sqlite:///{folder / 'jobs.db'}") as jobs:
            await jobs.enqueue_jobs([Job(type="mail", queue="mail") for _ in range(10)])

    asyncio.run(fill())


SET_UP: dict[Path, Callable[[Path], None]] = {ROOT / "docs" / "data-migration.md": some_jobs}
"""What must be there before the commands of a page."""


class Stage:
    """Runs the code of one page."""

    def __init__(self, workdir: Path, request: pytest.FixtureRequest) -> None:
        self.folder = workdir / "page"
        self.folder.mkdir()
        self._workdir = workdir
        self._request = request
        with ExitStack() as held:
            sockets = [held.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(2)]
            self.port, self.other_port = (each.getsockname()[1] for each in sockets)

    def real(self, text: str) -> str:
        """The code with addresses of this machine instead of those the page speaks of."""
        if SERVER in text:
            text = text.replace(SERVER, self._request.getfixturevalue("postgres_url"))
        return OTHER_API.sub(f"127.0.0.1:{self.other_port}", API.sub(f"127.0.0.1:{self.port}", text))

    def run_python(self, blocks: list[Block]) -> str:
        """Run all in one process, each unnamed one in a separate folder; return what they printed."""
        programs = [str(self._written(block)) for block in blocks]
        return self._done(sys.executable, "-W", "error", str(HERE / "snippets.py"), *programs)

    def _written(self, block: Block) -> Path:
        named = FILE_NAME.match(block.text)
        program = self.folder / (named[1] if named else f"line-{block.line}/snippet.py")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(self.real(block.text), encoding="utf-8")
        return program

    def run_shell(self, commands: list[Block], programs: list[Block]) -> str:
        """One after the other in one shell, beside the files that the page tells its reader to write."""
        ignored = shutil.ignore_patterns("*.db*", "__pycache__")
        shutil.copytree(ROOT / "examples", self.folder / "examples", ignore=ignored)
        (self.folder / ".venv").symlink_to(sys.prefix)
        for block in programs:
            self._written(block)
        if set_up := SET_UP.get(commands[0].page):
            set_up(self.folder)
        script = self._workdir / "page.sh"
        told = "".join(f"echo {block.place} >&2\n{self.real(block.text)}" for block in commands)
        script.write_text(f'. "{SHELL}"\n{told}', encoding="utf-8")
        return self._done("bash", str(script))

    def _done(self, *command: str) -> str:
        told = {
            "NO_COLOR": "1",
            "LONGSHORE_PORT": self.port,
            "OTHER_PORT": self.other_port,
            "STAGE": self._workdir,
            "REPOSITORY": ROOT,
            "ENVIRONMENT": sys.prefix,
        }
        forgotten = [word for name in NOT_HEARD for word in ("-u", name)]
        surroundings = [f"{name}={value}" for name, value in told.items()]
        with subprocess.Popen(
            ["env", *forgotten, *surroundings, *command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                printed, complained = running.communicate()
            finally:  # should the test run out of time, what the page left running must not outlive it
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
        assert running.returncode == 0, f"{printed}\n{complained}"
        return printed
