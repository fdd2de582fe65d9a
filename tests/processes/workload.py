"""Processes that use a PostgreSQL under faults: their names, their progress and the final checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from longshore.backends.connect import connect
from longshore.core.status import JobStatus
from tests.backends.audit import audit_at
from tests.processes.process_group import ProcessGroup
from tests.processes.test_killed_writers import check_promises

LEASE, SWEEP = 2.0, 1.0
HEALED_WITHIN = LEASE + SWEEP + 5
"""Seconds after a fault until all processes work again."""
STARTED_WITHIN = 25
"""Seconds until new processes work, on a busy machine."""


class Workload:
    """Some workers and writers of a process group."""

    def __init__(self, processes: ProcessGroup, workers: Sequence[str], writers: Sequence[str] = ()) -> None:
        self.processes = processes
        self.workers = [
            processes.start_process("steady worker", name, str(LEASE), str(SWEEP), url=_named(processes.url, name))
            for name in workers
        ]
        self.writers = [
            processes.start_process("steady writer", name, url=_named(processes.url, name)) for name in writers
        ]

    def until(self, there: Callable[[], bool], within: float, what: str) -> float:
        """Return the seconds until the condition holds; fail if a process exits meanwhile, or if it takes too long."""
        began = monotonic()
        while not there():
            started_process, output, values = self.processes.next_line()
            assert output not in ("over", "error"), (
                f"{started_process.name} exited: {values} {started_process.output[-3:]}"
            )
            assert monotonic() - began < within, f"not within {within} seconds: {what}"
        return monotonic() - began

    def all_at_work(self, within: float) -> float:
        """Return the seconds until each worker has settled another job, and each writer got an answer."""
        wanted = [(started_process, "settled") for started_process in self.workers] + [
            (started_process, "enqueued") for started_process in self.writers
        ]
        before = [len(started_process.lines_of(what)) for started_process, what in wanted]

        def there() -> bool:
            return all(
                len(started_process.lines_of(what)) > output
                for (started_process, what), output in zip(wanted, before, strict=True)
            )

        return self.until(there, within, "all processes work again")

    def end(self) -> str:
        """Wait until all jobs are done, compare the answers with the store, and return a summary."""
        for started_process in self.writers:
            started_process.finish()
        began, fewest = monotonic(), None
        while left := asyncio.run(_left_at(self.processes.url)):
            if fewest is None or left < fewest:  # the writers may have been quicker than the workers
                began, fewest = monotonic(), left
            assert monotonic() - began < HEALED_WITHIN, f"{left} jobs are left, and no worker claims them"
            self.processes.next_line()
        for started_process in self.workers:
            started_process.finish()
        jobs, history = asyncio.run(audit_at(self.processes.url))
        check_promises(self.processes, jobs, history)
        promised = {job_id for (ids,) in self.processes.lines_of("enqueued") for job_id in ids}
        # a writer that was stopped during a retry does not know whether its last job is stored
        assert len(jobs.keys() - promised) <= len(self.writers), "a job was stored under two ids"
        self.check_no_busy_loop()
        return f"{len(jobs)} jobs, {history.events} events, {len(self.processes.lines_of('unavailable'))} refusals"

    def check_no_busy_loop(self) -> None:
        """Check that a refused process paused between calls and used little CPU."""
        for started_process in [*self.workers, *self.writers]:
            refused = started_process.lines_of("unavailable")
            for (_, used, at), (_, used_later, later) in zip(refused, refused[15:], strict=False):
                assert later - at > 0.2, f"{started_process.name} called 15 times in {later - at:.2f} seconds"
                share = (used_later - used) / (later - at)
                assert share < 0.5, f"{started_process.name} used {share:.0%} of a processor while it was refused"


def _named(url: str, name: str) -> str:
    """Return the URL by which the server shows a process under its name."""
    return f"{url}?application_name={name}"


async def _left_at(url: str) -> int:
    async with connect(url) as backend:
        counts = await backend.count_jobs()
        return sum(jobs for status, jobs in counts.items() if status is not JobStatus.COMPLETED)
