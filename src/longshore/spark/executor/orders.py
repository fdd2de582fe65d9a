"""What a Spark task must know to run jobs for a worker: where it listens, the word that lets it in, the function."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from longshore.runtime.executors.base import Target

ROWS = "number int, job string, payload binary"
"""What is sent to the tasks: each job under its number in the batch, its fields and its payload as JSON."""
Columns = tuple[list[int], list[str], list[bytes]]
"""The same, column by column."""
ENDED = "number int"
"""What comes back by Spark: which rows a task is done with. What became of them was told on the line."""


@dataclass(frozen=True, slots=True)
class Order:
    """Sent with a batch by Spark itself, from the program and never from the store."""

    host: str
    port: int
    token: str
    target: Target
    path: tuple[str, ...]
    """Where the worker finds its modules: what a task does not find by itself, it looks for there."""


def order_for(target: Target, address: tuple[str, int], token: str) -> Order:
    """For tasks of this process's own program."""
    return Order(*address, token, target, tuple(str(Path(folder).absolute()) for folder in sys.path))
