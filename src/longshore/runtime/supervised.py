"""The child process of a supervisor: creates its worker, and ends with its parent."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from typing import BinaryIO

from longshore.core.errors import InvalidArgument
from longshore.runtime.error_text import describe
from longshore.runtime.executors.base import Target
from longshore.runtime.signals import StopSignals, apply_import_state, serve
from longshore.runtime.worker import name_first_worker

CANNOT_START = 78
"""The exit code of a process that cannot create its worker: EX_CONFIG of sysexits.h."""


def main(descriptor: int) -> None:
    """Run the worker that the supervisor at the other end of this pipe describes."""
    os.set_inheritable(descriptor, False)
    pipe = os.fdopen(descriptor, "rb")
    order = json.loads(pipe.readline())
    # the supervisor kills the process if it must; before that, every signal means the same orderly stop
    stop = StopSignals(single_signal=True).listen()
    threading.Thread(target=_stop_at_end_of, args=(pipe, stop), name="longshore-pipe", daemon=True).start()
    apply_import_state(order)
    name_first_worker(order["worker_id"])
    try:
        found = Target(**order["target"]).find()
        if not callable(getattr(found, "worker", found)):
            raise InvalidArgument("target", f"{order['target']['name']} must be a Harbor or a function")
    except Exception as error:
        print(describe(error), file=sys.stderr)
        sys.exit(CANNOT_START)
    make = partial(getattr(found, "worker", found), **order["arguments"])
    sys.exit(serve(make, grace=order["grace"], stop=stop))


def _stop_at_end_of(pipe: BinaryIO, stop: StopSignals) -> None:
    pipe.read()
    stop.request()  # the supervisor is gone
