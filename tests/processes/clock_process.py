"""The worker of `worker_process` on a machine whose wall clock is set by the file in the last argument."""

from __future__ import annotations

import sys
from pathlib import Path

from longshore.core import clock
from tests.machine import SteppedMachine
from tests.processes import worker_process

if __name__ == "__main__":
    clock.MACHINE = SteppedMachine(Path(sys.argv.pop()))
    worker_process.main()
