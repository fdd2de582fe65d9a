"""A scheduler program: a real process that fires schedules, and ends in order on a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from longshore import Harbor, Job, JobFilter, Repeat
from longshore.core.schedule import Schedule

PROGRAM = """
import sys
from longshore import Harbor

harbor = Harbor(sys.argv[1])

if __name__ == "__main__":
    sys.exit(harbor.run_scheduler(interval=0.05))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_scheduler_process_fires_and_announces_until_it_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    # M-SCHED-01
    (tmp_path / "scheduler.py").write_text(PROGRAM)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Harbor(url) as harbor:
        await harbor.backend.enqueue_job(Job(id="later", type="t", delay=0.01))
        await harbor.backend.put_schedule(
            Schedule(id="soon", job=Job(type="report"), repeat=Repeat(every=0.01, limit=1))
        )
        program = await asyncio.create_subprocess_exec(
            sys.executable, str(tmp_path / "scheduler.py"), url, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            while not (
                (await harbor.backend.list_jobs(JobFilter(types=("report",)))).items
                and "job.promoted" in [event.event for event in await harbor.backend.read_events(job_id="later")]
            ):
                await harbor.backend.wait_for_change(1)
        program.send_signal(how)
        _, said = await program.communicate()
        assert program.returncode == 0
        assert said.decode().splitlines() == ["stopping: the scheduler finishes its running batches"]


async def test_a_harbor_makes_a_scheduler_for_its_own_store() -> None:
    async with Harbor("memory://") as harbor:
        await harbor.backend.enqueue_job(Job(type="t", delay=0.001))
        await asyncio.sleep(0.002)
        assert (await harbor.scheduler(interval=5).tick()).announced == 1
