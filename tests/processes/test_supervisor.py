"""Worker processes under one parent: killed, stopped in order, stopped at once, and orphaned."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from longshore.backends.connect import connect
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.runtime.signals import StopSignals
from longshore.runtime.supervised import CANNOT_START
from longshore.runtime.supervisor import Supervisor
from tests.processes.supervised import long_job
from tests.runtime.working import until

STOPPING = "stopping: running jobs may end, and no more are claimed; send the signal again to drop them"
"""The output of an orderly stop without logging set up."""
ROOT = Path(__file__).parents[2]
TIMEOUT = 30
"""Seconds to wait for a line of output before the test fails."""

SUPERVISE = (
    "import json, sys\n"
    "from longshore.runtime.supervisor import Supervisor\n"
    "target, options = sys.argv[1:]\n"
    "sys.exit(Supervisor('tests.processes.supervised:' + target, **json.loads(options)).run())\n"
)
SERVE = (
    "import json, sys\n"
    "from functools import partial\n"
    "from longshore.runtime.signals import serve\n"
    "from tests.processes import supervised\n"
    "target, options = sys.argv[1:]\n"
    "sys.exit(serve(partial(getattr(supervised, target), **json.loads(options)), grace=10))\n"
)


class Parent:
    """A process that prints lines of JSON; `next_line` reads those of it and its children."""

    def __init__(self, script: str, target: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, target, json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[list[Any] | None] = queue.Queue()
        self._errors: queue.Queue[str | None] = queue.Queue()
        self.output: list[list[Any]] = []
        self.complaints = ""
        self.pids: set[int] = set()
        for listen in (self._listen, self._listen_to_errors):
            threading.Thread(target=listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.put(line)
        self._errors.put(None)

    def next_line(self, what: str) -> list[Any]:
        """Return the next line of one kind: its process and its values."""
        while (line := self._lines.get(timeout=TIMEOUT)) is not None:
            self.output.append(line)
            self.pids.add(line[1])
            if line[0] == what:
                return line[1:]
        self._lines.put(None)
        raise AssertionError(f"it ended without {what}; {self.output}; {self.error_line('')}")

    def error_line(self, words: str) -> str:
        """Return the next line of stderr with this text, or all of it at its end."""
        while (line := self._errors.get(timeout=TIMEOUT)) is not None:
            self.complaints += line
            if words and words in line:
                return line
        self._errors.put(None)
        return self.complaints

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Return the exit code after the process and every process with its stdout has ended."""
        code = self.process.wait(TIMEOUT)
        while (line := self._lines.get(timeout=TIMEOUT)) is not None:
            self.output.append(line)
        self._lines.put(None)
        return code

    def end(self) -> None:
        for pid in (self.process.pid, *self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        self.error_line("")
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes use."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    parents: list[Parent] = []
    yield parents
    for parent in parents:
        parent.end()


def supervised(parents: list[Parent], target: str, **options: Any) -> Parent:
    parents.append(Parent(SUPERVISE, target, **options))
    return parents[-1]


def served(parents: list[Parent], target: str, **options: Any) -> Parent:
    parents.append(Parent(SERVE, target, **options))
    return parents[-1]


# --- several processes ---


def test_a_process_that_is_killed_is_replaced_and_the_others_stay(parents: list[Parent]) -> None:
    parent = supervised(parents, "idler", processes=2, first_pause=0.01)
    (first,), (second,) = parent.next_line("working"), parent.next_line("working")
    assert first != second
    os.kill(first, signal.SIGKILL)
    assert f"(pid {first}): its process was killed by SIGKILL; another one starts in" in parent.error_line("pid")
    (third,) = parent.next_line("working")
    assert third not in (first, second)
    parent.signal(signal.SIGTERM)
    assert parent.exit_code() == 0
    assert sorted(line[1] for line in parent.output if line[0] == "closing") == sorted([second, third])


def test_pauses_grow_while_processes_keep_dying(parents: list[Parent]) -> None:
    parent = supervised(parents, "kills_itself", processes=1, first_pause=0.01, longest_pause=0.05)
    pauses = [parent.error_line("another one starts in").split()[-2] for _ in range(5)]
    assert pauses == ["0.01", "0.02", "0.04", "0.05", "0.05"]
    parent.signal(signal.SIGTERM)
    assert parent.exit_code() == 0


def test_a_pause_ends_when_the_parent_is_stopped(parents: list[Parent]) -> None:
    parent = supervised(parents, "kills_itself", processes=1, first_pause=600, longest_pause=600)
    parent.error_line("another one starts in 600 seconds")
    parent.signal(signal.SIGINT)
    assert parent.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_is_one_request_and_leaves_no_traceback(
    parents: list[Parent], number: signal.Signals
) -> None:  # Ctrl-C in a terminal, or a service manager that signals every process
    parent = supervised(parents, "idler", processes=2, grace=7)
    children = [parent.next_line("working")[0] for _ in range(2)]
    for pid in children:
        os.kill(pid, number)
    os.killpg(parent.process.pid, number)
    assert parent.exit_code() == 0
    assert [line[2:] for line in parent.output if line[0] == "closing"] == [[False, 7.0]] * 2
    assert set(parent.error_line("").splitlines()) <= {STOPPING}


def test_the_second_signal_kills(parents: list[Parent]) -> None:
    parent = supervised(parents, "idler", processes=2, arguments={"stubborn": True})
    parent.next_line("working")
    parent.next_line("working")
    parent.signal(signal.SIGTERM)
    assert parent.next_line("closing")[1:] == [False, 30.0]
    parent.next_line("closing")
    parent.signal(signal.SIGTERM)
    assert parent.exit_code() == 128 + signal.SIGTERM


def test_a_blocked_event_loop_is_killed_by_the_second_signal_too(parents: list[Parent]) -> None:
    parent = supervised(parents, "blocks", processes=1)
    parent.next_line("working")
    parent.signal(signal.SIGINT)
    parent.signal(signal.SIGTERM)
    assert parent.exit_code() in (128 + signal.SIGINT, 128 + signal.SIGTERM)


@pytest.mark.parametrize("target", ["idler", "program"])
def test_processes_end_in_order_when_their_parent_is_killed(parents: list[Parent], target: str) -> None:
    parent = supervised(parents, target, processes=2)
    parent.next_line("working")
    parent.next_line("working")
    parent.signal(signal.SIGKILL)
    assert parent.exit_code() == -signal.SIGKILL  # and every process that could still write has ended
    last = "closing" if target == "idler" else "cleaned up"
    assert [line[0] for line in parent.output].count(last) == 2


def test_a_harbor_makes_its_workers_with_the_arguments_given(parents: list[Parent]) -> None:
    parent = supervised(parents, "sample_harbor", processes=1, arguments={"queues": ["mail"], "concurrency": 3})
    assert parent.next_line("made")[1] == {"queues": ["mail"], "concurrency": 3}
    parent.next_line("working")
    parent.signal(signal.SIGTERM)
    assert parent.exit_code() == 0


def test_processes_that_end_by_themselves_are_not_replaced(parents: list[Parent]) -> None:
    parent = supervised(parents, "ends_by_itself", processes=2)
    assert parent.exit_code() == 0
    assert [line[0] for line in parent.output] == ["working"] * 2


@pytest.mark.parametrize(
    ("target", "output"),
    [("no_such_thing", "has no attribute 'no_such_thing'"), ("not_callable", "must be a Harbor or a function")],
)
def test_a_target_that_is_not_there_ends_it_with_the_reason(parents: list[Parent], target: str, output: str) -> None:
    parent = supervised(parents, target, processes=2)
    assert parent.exit_code() == CANNOT_START
    assert output in parent.error_line("")


@pytest.mark.parametrize("target", ["", "module", "module:", ":name"])
def test_a_target_is_written_module_colon_name(target: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Supervisor(target)
    assert refused.value.field == "target"


# --- one process ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_a_worker_in_order(parents: list[Parent], number: signal.Signals) -> None:
    parent = served(parents, "idler")
    parent.next_line("working")
    parent.signal(number)
    assert parent.exit_code() == 0
    assert parent.output[-1][2:] == [False, 10]
    assert set(parent.error_line("").splitlines()) <= {STOPPING}


def test_the_second_signal_ends_it_by_force(parents: list[Parent]) -> None:
    parent = served(parents, "idler", stubborn=True)
    parent.next_line("working")
    parent.signal(signal.SIGTERM)
    assert parent.next_line("closing")[1] is False
    parent.signal(signal.SIGINT)
    assert parent.next_line("closing")[1] is True
    assert parent.exit_code() == 128 + signal.SIGINT
    assert set(parent.error_line("").splitlines()) <= {STOPPING}


def test_the_third_signal_ends_what_blocks_the_event_loop(parents: list[Parent]) -> None:
    parent = served(parents, "blocks")
    parent.next_line("working")
    while parent.process.poll() is None:
        parent.signal(signal.SIGINT)  # pending signals are merged: repeat until it ends
        with suppress(subprocess.TimeoutExpired):
            parent.process.wait(0.05)
    assert parent.exit_code() == 128 + signal.SIGINT


def test_an_async_def_is_cancelled_by_the_first_signal(parents: list[Parent]) -> None:
    parent = served(parents, "program")
    parent.next_line("working")
    parent.signal(signal.SIGINT)
    parent.next_line("cleaned up")
    assert parent.exit_code() == 0
    assert set(parent.error_line("").splitlines()) <= {STOPPING}


# --- real workers with jobs ---


@pytest.mark.parametrize("isolated", [False, True])
async def test_workers_release_jobs_that_do_not_end_within_the_grace(
    parents: list[Parent], isolated: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as backend:
        await backend.enqueue_jobs([long_job(f"long-{n}") for n in range(4)])
        parent = supervised(
            parents, "works_on", processes=2, grace=0, arguments={"url": url, "isolated": isolated, "concurrency": 2}
        )
        for _ in range(4):
            parent.next_line("running")
        parent.signal(signal.SIGTERM)
        assert parent.exit_code() == 0
        for n in range(4):
            job = await backend.get_job(f"long-{n}")
            assert job.crashes == job.retry_count == 0
            assert job.status in (JobStatus.UNKNOWN_RETRY, JobStatus.COMPLETED)


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_killed_worker_leaves_its_job_to_the_one_that_takes_its_place(
    parents: list[Parent], isolated: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as backend:
        await backend.enqueue_job(long_job("long"))
        parent = supervised(
            parents, "works_on", processes=1, grace=0, first_pause=0.01, arguments={"url": url, "isolated": isolated}
        )
        runner = parent.next_line("running")[0]
        victim = runner if not isolated else parent_of(runner)
        os.kill(victim, signal.SIGKILL)
        again = parent.next_line("running")
        assert again[0] != runner
        assert (await backend.get_job("long")).crashes == 1
        parent.signal(signal.SIGTERM)
        assert parent.exit_code() == 0


async def test_the_leases_of_a_killed_worker_end_at_once_and_it_is_no_longer_shown_as_running(
    parents: list[Parent], shared_url: str
) -> None:
    # A2
    async with connect(shared_url) as backend:
        await backend.enqueue_job(long_job("long").replace(max_crashes=0))
        arguments = {"url": shared_url, "isolated": False, "lock_duration": 3600}
        parent = supervised(parents, "works_on", processes=1, grace=0, arguments=arguments, store=shared_url)
        runner = parent.next_line("running")[0]

        async def shown_as(state: str) -> bool:
            return {info.pid: info.state for info in await backend.list_workers()}.get(runner) == state

        await until(lambda: shown_as("running"))
        os.kill(runner, signal.SIGKILL)

        async def ended() -> bool:
            return (await backend.get_job("long")).status is JobStatus.DEAD and await shown_as("stopped")

        await until(ended)
        job = await backend.get_job("long")
        assert (job.crashes, job.retry_count) == (1, 0)
        parent.signal(signal.SIGTERM)
        assert parent.exit_code() == 0


async def test_if_the_store_is_unreachable_the_leases_of_a_dead_worker_expire(
    parents: list[Parent], tmp_path: Path
) -> None:
    # A2
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as backend:
        await backend.enqueue_job(long_job("long"))
        parent = supervised(
            parents,
            "works_on",
            processes=1,
            grace=0,
            first_pause=0.01,
            arguments={"url": url},
            store="postgresql://nobody@127.0.0.1:1/none",
        )
        runner = parent.next_line("running")[0]
        os.kill(runner, signal.SIGKILL)
        assert parent.error_line("cannot end the leases")
        assert parent.next_line("running")[0] != runner
        assert (await backend.get_job("long")).crashes == 1
        parent.signal(signal.SIGTERM)
        assert parent.exit_code() == 0


def test_a_process_that_cannot_be_started_is_tried_again_and_the_others_work_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor("tests.processes.supervised:ends_by_itself", processes=2, first_pause=0.01)
    start, starts = supervisor._start, 0

    async def sometimes_refused() -> Any:
        nonlocal starts
        starts += 1
        if starts in (1, 3):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start()

    monkeypatch.setattr(supervisor, "_start", sometimes_refused)
    assert asyncio.run(supervisor.supervise(StopSignals())) == 0
    assert starts == 4
    assert "cannot start it: [Errno 11] Resource temporarily unavailable" in caplog.text


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


async def test_jobs_that_end_within_the_grace_are_recorded(parents: list[Parent], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as backend:
        await backend.enqueue_jobs([Job(id=f"short-{n}", type="t", payload=b'"short"') for n in range(200)])
        parent = supervised(parents, "works_on", processes=2, arguments={"url": url, "concurrency": 2})
        parent.next_line("running")
        parent.signal(signal.SIGTERM)
        assert parent.exit_code() == 0
        counts = await backend.count_jobs()
        waiting = counts[JobStatus.INITIAL_PENDING] + counts[JobStatus.UNKNOWN_RETRY]  # never claimed, or released
        assert counts[JobStatus.COMPLETED] + waiting == 200
        assert len([line for line in parent.output if line[0] == "running"]) == counts[JobStatus.COMPLETED]


@pytest.mark.parametrize(("before", "after"), [(gc.get_threshold()[0], 10_000), (900, 900)])
def test_a_serving_process_freezes_its_modules_and_tunes_the_collector(before: int, after: int) -> None:
    """A threshold that the user has set stays; afterwards the old state is restored."""
    script = (
        "import gc\n"
        "from longshore.runtime.signals import serve\n"
        f"gc.set_threshold({before}, *gc.get_threshold()[1:])\n"
        "async def work(): print(gc.get_freeze_count() > 10_000, gc.get_threshold()[0])\n"
        "serve(work)\n"
        "print(gc.get_freeze_count(), gc.get_threshold()[0])\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert output.stdout == f"True {after}\n0 {before}\n"
