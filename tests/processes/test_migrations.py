"""Many processes create the same new file, and one is killed between any two statements."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from longshore.backends.sqlite import connection
from longshore.core.clock import HeldClock
from tests.backends.audit import jobs_after_a_restart
from tests.processes.process_group import ProcessGroup
from tests.processes.store_process import SQLITE_MIGRATIONS


def test_many_processes_that_open_a_new_file_at_once_all_find_it_ready(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with ProcessGroup(path) as processes:
        started_processes = [processes.start_process("writer", f"writer{number}", "3") for number in range(6)]
        for started_process in started_processes:
            started_process.finish()
        assert not processes.lines_of("error")
        promised = {job_id for (ids,) in processes.lines_of("enqueued") for job_id in ids}
    assert promised <= jobs_after_a_restart(path, HeldClock()).keys()


@pytest.mark.prove
def test_a_sqlite_migration_killed_between_two_statements_is_completed_by_the_next_process(
    tmp_path: Path, seed: int, proving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MIGRATIONS", SQLITE_MIGRATIONS)
    with ProcessGroup(tmp_path / "whole.db") as processes:
        counter = processes.start_process("migrator", "counter", "0")
        counter.finish()
        ((statements,),) = counter.lines_of("statements")
    assert statements > 20
    points = range(1, statements + 1)
    for number in points if proving else Random(seed).sample(points, 6):
        path = tmp_path / f"{number}.db"
        with ProcessGroup(path) as processes:
            victim = processes.start_process("migrator", "victim", str(number))
            assert victim.wait() == -signal.SIGKILL
        jobs_after_a_restart(path, HeldClock())
