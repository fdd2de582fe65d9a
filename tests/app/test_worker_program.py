"""A worker program: a real process that ends in order on a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
async def test_a_stopped_worker_finishes_running_jobs_and_claims_no_more(tmp_path: Path) -> None:
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
        gone_on.touch()  # the job ends only after the stop signal
        assert await program.wait() == 0
        assert await first.result(timeout=0) == "finished"
        job = await second.job()
        assert job.status in (JobStatus.INITIAL_PENDING, JobStatus.UNKNOWN_RETRY)
        assert job.crashes == 0


@pytest.mark.slow
async def test_several_processes_under_one_parent_work_for_a_harbor(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os\nfrom pathlib import Path\nfrom longshore import Harbor\n\n"
        "harbor = Harbor(f\"sqlite:///{Path(__file__).parent / 'jobs.db'}\")\n\n\n"
        "@harbor.task\ndef who() -> int:\n    return os.getpid()\n"
    )
    parent = (
        "import sys\nfrom longshore.runtime.supervisor import Supervisor\n"
        "sys.exit(Supervisor('shop:harbor', processes=2, arguments={'concurrency': 1}).run())"
    )
    async with Harbor(f"sqlite:///{tmp_path / 'jobs.db'}") as harbor:

        @harbor.task
        def who() -> int:
            raise AssertionError("only other processes work")

        program = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, cwd=tmp_path)
        handles = await who.enqueue_many([who.call() for _ in range(20)])
        workers = {await handle.result(timeout=40) for handle in handles}
        program.send_signal(signal.SIGTERM)
        assert await program.wait() == 0
        assert program.pid not in workers
        assert len(workers) <= 2


PREFORKING = """
import os, sys
from longshore import Harbor

harbor = Harbor(sys.argv[1])


@harbor.task
def hello(name: str) -> str:
    return name


child = os.fork()
if child == 0:
    hello.enqueue_sync("from the child")
    harbor.close_sync()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
hello.enqueue_sync("from the parent")
harbor.close_sync()
"""


async def test_a_harbor_made_before_a_fork_and_not_used_until_then_serves_parent_and_child(
    store_url: str, tmp_path: Path
) -> None:  # as in gunicorn --preload
    if store_url.startswith("memory:"):
        pytest.skip("no other process can open this store")
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", PREFORKING, store_url)
    assert await asyncio.wait_for(program.wait(), 40) == 0
    async with Harbor(store_url) as harbor:
        jobs = await harbor.queue().get_jobs("waiting", asc=True)
        assert [job.data["name"] for job in jobs] == ["from the child", "from the parent"]
