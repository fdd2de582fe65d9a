"""A process that migrates one store to another and kills itself on the way.

Run as `python -m tests.processes.copy_process SOURCE TARGET DIES_AT`: it dies at that step of the progress (0: never),
between two blocks or inside one. Blocks are small, so that there are many.
"""

from __future__ import annotations

import os
import signal
import sys

from longshore.backends import data_migration
from longshore.backends.connect import connect
from longshore.backends.data_migration import Step, SupportsCopyIn, SupportsCopyOut

BLOCK, TOLD_EVERY = 400, 100


def main(source: str, target: str, dies_at: int) -> None:
    steps = 0

    def count(_step: Step) -> None:
        nonlocal steps
        steps += 1
        if steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    old, new = connect(source), connect(target)
    assert isinstance(old, SupportsCopyOut)
    assert isinstance(new, SupportsCopyIn)
    data_migration.BLOCK, data_migration._REPORT_EVERY = BLOCK, TOLD_EVERY
    report = data_migration.move(old, new, on_step=count)
    print(report.begun.value, steps)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
