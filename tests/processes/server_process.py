"""A server process that can be killed anywhere, also between storing and accepting a job."""

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
    """Kill the process at one of its next calls: jobs are stored and not accepted, or accepted without an answer."""
    accept = backend.accept_jobs
    remaining = chance.randint(3, 40)

    async def accept_jobs(job_ids: Sequence[str]) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0 and chance.random() < 0.7:
            os.kill(os.getpid(), signal.SIGKILL)
        await accept(job_ids)
        if remaining <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    backend.accept_jobs = accept_jobs  # type: ignore[method-assign]  # the fault under test


def main(url: str, port: str, seed: str) -> int:
    """Serve until killed; with a seed it kills itself."""

    def make() -> ApiServer:
        backend = connect(url)
        if seed:
            dies_between_the_steps(backend, Random(int(seed)))
        return ApiServer(create_app(backend), port=int(port), when_ready=lambda address: print(address, flush=True))

    return serve(make)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
