"""How a child process of ours is started: a fresh interpreter, never a fork of one that has threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def command_to_run(module: str, descriptor: int) -> list[str]:
    """Runs `main(descriptor)` of one of our modules, in the interpreter and with the flags of this process.

    `-P`: until the child has its parent's path, nothing in the working directory may stand in for a library.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    start = f"import sys; sys.path.append(sys.argv.pop()); from {module} import main; main(int(sys.argv.pop()))"
    root = Path(__file__).parents[2]  # where the package is, which need not be installed
    return [sys.executable, *flags, "-P", "-c", start, str(descriptor), str(root)]


def surroundings() -> dict[str, Any]:
    """What a child must know to import what its parent can; its working directory it inherits."""
    return {"path": sys.path, "argv": sys.argv}


def take_on(surroundings: Mapping[str, Any]) -> None:
    """In the child."""
    sys.path[:] = surroundings["path"]
    sys.argv[:] = surroundings["argv"]
