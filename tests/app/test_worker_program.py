"""The program of a worker: a real process that is asked to stop, and ends in order."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from longshore import Harbor, JobStatus

PROGRAM = """
import asyncio, pathlib, sys
from longshore import Harbor, current_job

harbor = Harbor(sys.argv[1])


@harbor.task
async def finish() -> str:
    await current_job().update_progress("begun")
    while not pathlib.Path(sys.argv[2]).exists():
        await asyncio.sleep(0.01)
    return "finished"


if __name__ == "__main__":
    sys.exit(harbor.run_worker(concurrency=1))
"""


async def test_a_worker_that_is_asked_to_stop_finishes_what_runs_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Harbor(url) as harbor:

        @harbor.task
        async def finish() -> str:
            raise AssertionError("only the other process works")

        first, second = await finish.enqueue(), await finish.enqueue()
        gone_on = tmp_path / "gone_on"
        program = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "program.py"), url, str(gone_on))
        async with asyncio.timeout(30):
            while (await first.job()).progress != "begun":
                await harbor.backend.wait_for_change(1)
        program.send_signal(signal.SIGTERM)
        gone_on.touch()  # the job ends only after the worker was asked to
        assert await program.wait() == 0
        assert await first.result(timeout=0) == "finished"
        job = await second.job()
        assert job.status in (JobStatus.INITIAL_PENDING, JobStatus.UNKNOWN_RETRY)
        assert job.crashes == 0
