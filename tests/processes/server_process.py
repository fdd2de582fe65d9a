"""A server in a process of its own, that can be killed anywhere: also at the very moment between the two steps."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from random import Random

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.runtime.signals import serve
from longshore.server.app import create_app
from longshore.server.uvicorn_server import ApiServer


def dies_between_the_steps(backend: Backend, chance: Random) -> None:
    """At one of its next calls the process is killed: jobs are stored and not accepted, or accepted and not told."""
    accept = backend.accept_jobs
    patience = chance.randint(3, 40)

    async def accept_jobs(job_ids: Sequence[str]) -> None:
        nonlocal patience
        patience -= 1
        if patience == 0 and chance.random() < 0.7:
            os.kill(os.getpid(), signal.SIGKILL)
        await accept(job_ids)
        if patience <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    backend.accept_jobs = accept_jobs  # type: ignore[method-assign]  # the fault under test


def main(url: str, port: str, seed: str) -> int:
    """Serves until it dies; with a seed it dies by itself."""

    def make() -> ApiServer:
        backend = connect(url)
        if seed:
            dies_between_the_steps(backend, Random(int(seed)))
        return ApiServer(create_app(backend), port=int(port), when_ready=lambda address: print(address, flush=True))

    return serve(make)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
