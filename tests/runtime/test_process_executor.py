"""Jobs in child processes: real ones, with poison, cancelled and killed, while the worker keeps running."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.errors import Fatal, InvalidArgument, LeaseLost, LongshoreError, QueueClosed, Snooze
from longshore.core.job import Job
from longshore.core.status import FINAL, JobStatus
from longshore.core.validation import LARGEST_PAYLOAD, LONGEST_TEXT
from longshore.runtime.error_text import ProcessDied, RemoteFailure, describe, is_a
from longshore.runtime.executors import process
from longshore.runtime.executors.base import CannotStart, StartBackoff, Target
from longshore.runtime.executors.process import ProcessExecutor
from longshore.runtime.executors.wire import job_fields, job_from, refusal_fields, refusal_from
from longshore.runtime.queue import Queue
from longshore.runtime.running_job import RunningJob
from longshore.runtime.worker import Worker
from tests.runtime import processors

pytestmark = pytest.mark.slow  # each test starts processes
ROOT = Path(__file__).parents[2]
MEGABYTE = 1024 * 1024
TIMEOUT = 30
"""Seconds to wait for an event before the test fails."""


class Bench:
    """One store, and executors that end with the test."""

    def __init__(self) -> None:
        self.backend: Backend = connect("memory://")
        self.executors: list[ProcessExecutor] = []

    def executor(self, function: Callable[..., Any] | Target, **options: Any) -> ProcessExecutor:
        self.executors.append(ProcessExecutor(function, **options))
        return self.executors[-1]

    async def claimed(self, data: Any = None, **fields: Any) -> Job:
        await self.backend.enqueue_job(Job(type="t", payload=json.dumps(data).encode(), **fields))
        (record,) = await self.backend.dequeue_jobs("worker")
        return record

    async def run(self, executor: ProcessExecutor, data: Any = None, **fields: Any) -> Any:
        return await executor.run(executor.take(await self.claimed(data, **fields), self.backend))

    def started(self, executor: ProcessExecutor, record: Job) -> tuple[RunningJob, asyncio.Task[Any]]:
        job = executor.take(record, self.backend)
        return job, asyncio.create_task(executor.run(job))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    for executor in bench.executors:
        await executor.close()
    await bench.backend.close()


def looked_for(there: Callable[[], bool], what: str) -> None:
    """Return as soon as the condition holds, for changes without a notification."""
    pause, until = threading.Event(), time.perf_counter() + TIMEOUT
    while not there():
        assert time.perf_counter() < until, what
        pause.wait(0.01)


async def told_in(path: Path) -> list[int]:
    """Return the numbers that a process writes into a file, once it exists."""
    told = ""

    def there() -> bool:
        nonlocal told
        told = path.read_text(encoding="ascii") if path.is_file() else ""
        return told.endswith("\n")

    await asyncio.to_thread(looked_for, there, str(path))
    return list(map(int, told.split()))


async def gone(*pids: int) -> None:
    """Wait until the processes have ended."""
    for pid in pids:
        await asyncio.to_thread(looked_for, functools.partial(_over, pid), f"{pid} is still there")


def _over(pid: int) -> bool:
    """Whether it has ended, or is a zombie: an orphan in a container without an init stays one."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


# --- run ---


@pytest.mark.parametrize("function", [processors.double, processors.double_soon])
async def test_a_function_runs_in_a_process_and_returns_its_value(
    bench: Bench, function: Callable[..., Any]
) -> None:  # M-WRK-20, M-FUT-04
    executor = bench.executor(function)
    assert await bench.run(executor, 21) == 42
    assert await bench.run(executor, [1, {"a": None}]) == [1, {"a": None}] * 2


async def test_a_child_is_its_own_session_where_its_parent_is_with_the_same_path(bench: Bench) -> None:
    executor = bench.executor(processors.whereabouts)
    told = await bench.run(executor)
    assert told["pid"] == told["group"] != os.getpid()
    assert told["cwd"] == str(Path.cwd())
    assert told["path"] == sys.path
    assert told["argv"] == sys.argv
    assert (await bench.run(executor))["pid"] == told["pid"]


async def test_jobs_run_side_by_side_in_as_many_processes_as_there_may_be(bench: Bench) -> None:
    executor = bench.executor(processors.whereabouts, processes=2)
    told = await asyncio.gather(*(bench.run(executor) for _ in range(6)))
    assert len({one["pid"] for one in told}) == 2


async def test_a_child_is_replaced_after_its_number_of_jobs(bench: Bench) -> None:
    executor = bench.executor(processors.whereabouts, jobs_per_process=2)
    pids = [(await bench.run(executor))["pid"] for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    await gone(pids[0])


async def test_the_whole_record_reaches_the_child(bench: Bench) -> None:
    now = datetime.now(UTC)  # noqa: TID251 - any time with microseconds
    names = [name for name in Job.__dataclass_fields__ if name not in ("payload", "lease")]
    fields: dict[str, Any] = {
        "tags": ["a", "b"],
        "timeout": timedelta(seconds=7, microseconds=3),
        "expires_at": now + timedelta(days=1),
        "options": {"backoff": {"type": "fixed", "delay": 1}},
        "max_crashes": 3,
    }
    record = await bench.claimed([*names, "lease", "payload"], **fields)
    executor = bench.executor(processors.tell_record)
    told = await executor.run(executor.take(record, bench.backend))
    assert told == {name: repr(getattr(record, name)) for name in [*names, "lease", "payload"]}


def test_a_job_crosses_the_process_boundary_without_loss() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    job = Job(type="t", payload=b"\x00\xff", run_at=now, delay=1.5, checkpoint=b"\x00", progress={"$": ["moment", 3]})
    assert job_from(json.loads(json.dumps(job_fields(job))), job.payload) == job


async def test_payloads_and_results_of_16_mb_pass(bench: Bench) -> None:
    executor = bench.executor(processors.double)
    large = "x" * (LARGEST_PAYLOAD // 2 - 1)
    assert await bench.run(executor, large) == large * 2


async def test_a_bound_method_of_something_in_a_module_is_found_by_its_dotted_name(bench: Bench) -> None:
    executor = bench.executor(Target("tests.runtime.processors", "NAP.is_set.__call__"))
    with pytest.raises(RemoteFailure, match="takes 1 positional argument but 2 were given"):
        await bench.run(executor)


@pytest.mark.parametrize("how", ["path", "module"])
async def test_a_function_of_the_main_file_is_found_in_that_file(how: str, tmp_path: Path) -> None:
    script = tmp_path / "main_of_a_test.py"
    script.write_text(
        "import asyncio, sys\n"
        "from longshore import connect, Job\n"
        "from longshore.runtime.executors.process import ProcessExecutor\n"
        "from longshore.runtime.error_text import is_a\n"
        "class Boom(Exception): pass\n"
        "def handler(job):\n"
        "    if job.data == 1: raise Boom(__name__)\n"
        "    return __name__\n"
        "async def main():\n"
        "    backend = connect('memory://')\n"
        "    executor = ProcessExecutor(handler)\n"
        "    for data in (b'0', b'1'):\n"
        "        await backend.enqueue_job(Job(type='t', payload=data))\n"
        "        (record,) = await backend.dequeue_jobs('w')\n"
        "        try: print(await executor.run(executor.take(record, backend)))\n"
        "        except Exception as error: print(error, is_a(error, Boom))\n"
        "    await executor.close()\n"
        "    await backend.close()\n"
        "if __name__ == '__main__': asyncio.run(main())\n",
        encoding="utf-8",
    )
    command = [str(script)] if how == "path" else ["-m", script.stem]
    over = await asyncio.to_thread(
        subprocess.run, [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (over.returncode, over.stdout) == (0, "__mp_main__\nBoom: __mp_main__ True\n"), over.stderr


async def test_a_main_file_without_a_guard_is_refused_and_starts_no_further_processes(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import asyncio\n"
        "from longshore import connect, Job\n"
        "from longshore.runtime.executors.process import ProcessExecutor\n"
        "def handler(job): pass\n"
        "async def main():\n"
        "    backend = connect('memory://')\n"
        "    executor = ProcessExecutor(handler)\n"
        "    await backend.enqueue_job(Job(type='t'))\n"
        "    (record,) = await backend.dequeue_jobs('w')\n"
        "    try: await executor.run(executor.take(record, backend))\n"
        "    finally: await executor.close(); await backend.close()\n"
        "asyncio.run(main())\n",
        encoding="utf-8",
    )
    over = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(script)], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert over.returncode == 1
    assert 'move the code that starts it under `if __name__ == "__main__":`' in over.stderr


def test_a_function_that_a_child_cannot_find_is_refused_with_advice() -> None:
    def inner(_: RunningJob) -> None: ...

    class Thing:
        def method(self, _: RunningJob) -> None: ...

    for function in (inner, lambda _: None, functools.partial(processors.double), Thing().method):
        with pytest.raises(InvalidArgument, match="at the top level of a module") as refused:
            ProcessExecutor(function)
        assert refused.value.field == "process"
    for wrong in ({"processes": 0}, {"memory_limit": 0}, {"memory_limit": 1.5}, {"cancel_grace": -1}):
        with pytest.raises(InvalidArgument):
            ProcessExecutor(processors.double, **wrong)


async def test_a_target_that_cannot_be_imported_does_not_count_against_the_jobs(bench: Bench) -> None:
    executor = bench.executor(Target("tests.runtime.no_such_module", "f"))
    with pytest.raises(CannotStart, match="ModuleNotFoundError: No module named"):
        await bench.run(executor)


@pytest.mark.parametrize("how", ["its module", "no process", "no thread", "no files"])
async def test_a_job_that_cannot_be_started_is_released_with_the_reason(
    bench: Bench, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Any:
        raise {"no thread": RuntimeError, "no files": OSError}.get(how, BlockingIOError)("the system has no more")

    target = Target("tests.runtime.processors", "double")
    if how == "its module":
        (tmp_path / "deadly_to_import.py").write_text("import os; os.write(2, b'bye'); os.abort()", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        target = Target("deadly_to_import", "f")
    elif how == "no process":
        monkeypatch.setattr(subprocess, "Popen", refused)
    elif how == "no files":
        monkeypatch.setattr(socket, "socketpair", refused)
    else:
        start = threading.Thread.start
        monkeypatch.setattr(
            threading.Thread, "start", lambda self: refused() if "longshore-child" in self.name else start(self)
        )
    worker = Worker(Queue(bench.backend), bench.executor(target))
    job = Job(type="t", payload=b"1", max_attempts=1)
    await bench.backend.enqueue_job(job)
    until = time.perf_counter() + TIMEOUT
    while (given_back := await bench.backend.get_job(job.id)).status is not JobStatus.UNKNOWN_RETRY:
        assert time.perf_counter() < until
        await bench.backend.wait_for_change(1)
    assert (given_back.max_attempts, given_back.crashes) == (1, 0)
    (reason, *_) = [
        event.detail["reason"] for event in await bench.backend.read_events() if event.event == "job.released"
    ]
    assert reason.startswith("this worker cannot run it now: ")
    expected = ("killed by SIGABRT", "bye") if how == "its module" else ("the system has no more",)
    assert all(one in reason for one in expected)
    await worker.close()


def test_jobs_that_cannot_be_started_are_delayed_longer_each_time() -> None:
    pauses = StartBackoff()
    assert [pauses.after("x").delay for _ in range(3)] == [1, 1, 1]  # at once: one failure
    for expected in (2, 4, 8, 16, 32, 60, 60):
        pauses._until = 0
        assert pauses.after("x").delay == expected
    pauses.end()
    assert pauses.after("x").delay == 1


async def test_an_import_that_hangs_is_ended_and_the_job_goes_back(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs_at_import.py").write_text("import threading; threading.Event().wait()", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(process, "_LONGEST_IMPORT", 0.5)
    with pytest.raises(CannotStart, match=r"still importing after 0\.5 seconds"):
        await bench.run(bench.executor(Target("hangs_at_import", "f")))


async def test_a_job_cancelled_during_the_import_of_its_process_never_runs_and_the_process_is_kept(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits_at_import.py").write_text(
        "from pathlib import Path\n"
        "import os, threading\n"
        f"here = Path({str(tmp_path)!r})\n"
        "(here / 'pid').write_text(f'{os.getpid()}\\n')\n"
        "while not (here / 'go').exists(): threading.Event().wait(0.01)\n"
        "def f(job):\n"
        "    (here / job.data).touch()\n"
        "    return os.getpid()\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    executor = bench.executor(Target("waits_at_import", "f"), cancel_grace=TIMEOUT)
    _, task = bench.started(executor, await bench.claimed("first"))
    (pid,) = await told_in(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, TIMEOUT)
    (tmp_path / "go").touch()
    assert await bench.run(executor, "second") == pid
    assert (tmp_path / "second").exists()
    assert not (tmp_path / "first").exists()


async def test_a_job_with_many_notes_at_once_does_not_block_its_channel(bench: Bench) -> None:
    other = await bench.claimed()
    await bench.backend.complete_job(other.id, b'"' + b"y" * 5_000_000 + b'"')
    record = await bench.claimed(depends_on=[other.id])
    executor = bench.executor(processors.asks_and_tells_much)
    assert await asyncio.wait_for(executor.run(executor.take(record, bench.backend)), TIMEOUT) == "done"


def test_a_child_leaves_nothing_open_where_warnings_are_errors(tmp_path: Path) -> None:
    script = tmp_path / "strict.py"
    script.write_text(
        "import asyncio\n"
        "from longshore import connect, Job\n"
        "from longshore.runtime.executors.process import ProcessExecutor\n"
        "def handler(job): pass\n"
        "async def main():\n"
        "    backend = connect('memory://')\n"
        "    executor = ProcessExecutor(handler)\n"
        "    await backend.enqueue_job(Job(type='t'))\n"
        "    (record,) = await backend.dequeue_jobs('w')\n"
        "    await executor.run(executor.take(record, backend))\n"
        "    await executor.close()\n"
        "    await backend.close()\n"
        "if __name__ == '__main__': asyncio.run(main())\n",
        encoding="utf-8",
    )
    over = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=TIMEOUT)
    assert (over.returncode, over.stderr) == (0, "")


# --- notes ---


@pytest.mark.parametrize("function", [processors.write_notes, processors.write_notes_soon])
@pytest.mark.parametrize("kind", ["json", "bytes"])
async def test_a_job_writes_its_notes_through_the_worker(bench: Bench, function: Callable[..., Any], kind: str) -> None:
    other = await bench.claimed()
    await bench.backend.complete_job(other.id, b'{"of":"the other"}')
    record = await bench.claimed(kind, depends_on=[other.id])
    executor = bench.executor(function)
    value = await executor.run(executor.take(record, bench.backend))
    assert value == [None, True, {other.id: {"of": "the other"}}]
    stored = await bench.backend.get_job(record.id)
    assert stored.progress == {"done": 1}
    assert stored.checkpoint == (b"\x00\xff" if kind == "bytes" else {"at": 7})
    logs = await bench.backend.read_logs(record.id)
    assert sorted((line.level, line.message) for line in logs) == [("info", "a line"), ("warn", "another\ufffd")]


async def test_a_lost_lease_is_raised_in_the_child(bench: Bench) -> None:
    record = await bench.claimed()
    await bench.backend.reset_running_jobs()
    (again,) = await bench.backend.dequeue_jobs("somebody else")
    assert again.id == record.id
    executor = bench.executor(processors.note_until_refused)
    told = await executor.run(executor.take(record, bench.backend))
    assert told == [record.id, "mismatch", str(LeaseLost(record.id, "mismatch"))]


async def test_a_note_that_is_not_json_is_refused_where_it_is_written(bench: Bench) -> None:
    executor = bench.executor(processors.note_nonsense)
    with pytest.raises(RemoteFailure, match="InvalidArgument: progress: is of the Python type set"):
        await bench.run(executor)


async def test_a_thread_that_outlives_its_job_writes_no_notes_of_it(bench: Bench) -> None:
    executor = bench.executor(processors.leaves_a_thread_that_notes)
    assert await bench.run(executor, "first") == "left"
    (told,) = await bench.run(executor, "second")
    assert "this attempt at the job has ended" in told


@pytest.mark.parametrize(
    "error",
    [LeaseLost("j", "expired"), InvalidArgument("progress", "is odd"), QueueClosed("over"), LongshoreError("any")],
)
def test_a_refusal_keeps_its_kind_and_fields(error: LongshoreError) -> None:
    again = refusal_from(json.loads(json.dumps(refusal_fields(error))))
    assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))


def test_an_unknown_refusal_crosses_as_text() -> None:
    assert "ValueError: x" in str(refusal_from(refusal_fields(ValueError("x"))))


async def test_the_output_of_a_job_does_not_disturb_the_channel(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await bench.run(bench.executor(processors.prints)) == "printed"
    assert sorted(capfd.readouterr().out.splitlines()) == ["to descriptor 1", "to stdout"]


# --- failures ---


@pytest.mark.parametrize("function", [processors.fails, processors.fails_soon])
async def test_an_exception_crosses_with_its_traceback_and_types(bench: Bench, function: Callable[..., Any]) -> None:
    executor = bench.executor(function)
    with pytest.raises(RemoteFailure) as failed:
        await bench.run(executor)
    text = describe(failed.value)
    assert text.startswith("OddError: odd \ufffd thing\n\nTraceback (most recent call last):\n  File ")
    assert f"in {function.__name__}\n" in text
    assert "child.py" not in text
    assert is_a(failed.value, processors.OddError)
    assert not is_a(failed.value, ValueError)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (processors.fails_unspeakably, "Unspeakable: (its message cannot be read: __str__ raised RuntimeError)"),
        (processors.fails_at_length, "ValueError: xxx"),
        (processors.returns_a_set, "InvalidArgument: result: is of the Python type set, which is not JSON"),
        (processors.exits, "SystemExit: 3"),
        (processors.cancels_itself, "CancelledError"),
    ],
)
async def test_a_job_that_fails_leaves_its_process_fit_for_the_next(
    bench: Bench, function: Callable[..., Any], told: str
) -> None:  # including a handler that calls sys.exit
    executor = bench.executor(function)
    with pytest.raises(RemoteFailure) as failed:
        await bench.run(executor)
    assert describe(failed.value).startswith(told)
    assert len(describe(failed.value)) <= LONGEST_TEXT
    children = pids_of(executor)
    with pytest.raises(RemoteFailure):
        await bench.run(executor)
    assert pids_of(executor) == children


def pids_of(executor: ProcessExecutor) -> list[int]:
    return [child.pid for child in executor._idle]


async def test_fatal_and_snooze_keep_their_meaning(bench: Bench) -> None:
    with pytest.raises(Fatal) as fatal:
        await bench.run(bench.executor(processors.fatal))
    assert str(fatal.value) == "no use"
    assert describe(fatal.value).startswith("Doomed: no use\n\nTraceback")
    with pytest.raises(Snooze) as snoozed:
        await bench.run(bench.executor(processors.snoozes))
    assert (snoozed.value.delay, snoozed.value.reason) == (12.5, "not yet")


# --- poison ---


@pytest.mark.parametrize(
    ("function", "data", "reason"),
    [
        (processors.segfaults, None, "killed by SIGSEGV"),
        (processors.aborts, None, "killed by SIGABRT"),
        (processors.kills_itself, None, "killed by SIGKILL"),
        (processors.exits_at_once, 0, "exited with code 0 before the job ended"),
        (processors.exits_at_once, 7, "exited with code 7 before the job ended"),
        (processors.closes_everything, None, "exited with code 71"),
        (processors.closes_everything_and_opens_files, "{tmp_path}/file", "exited with code 71"),
        (processors.scribbles_on_the_line, None, "sent something unreadable"),
        (processors.dies_while_its_fork_keeps_the_line, None, "killed by SIGKILL"),
    ],
)
async def test_a_job_that_takes_its_process_down_is_a_crash_of_that_job_alone(
    bench: Bench, function: Callable[..., Any], data: Any, reason: str, tmp_path: Path
) -> None:  # M-FUT-04; the poison jobs of a worker
    if isinstance(data, str):
        data = data.format(tmp_path=tmp_path)
    executor = bench.executor(function)
    for _ in range(2):
        with pytest.raises(ProcessDied) as died:
            await bench.run(executor, data)
        assert reason in died.value.reason
    if function is processors.closes_everything_and_opens_files:
        assert (tmp_path / "file").read_bytes() == b""


async def test_the_last_stderr_shows_where_it_crashed(bench: Bench) -> None:
    with pytest.raises(ProcessDied) as died:
        await bench.run(bench.executor(processors.segfaults))
    text = describe(died.value)
    assert text.startswith("its process was killed by SIGSEGV; its last output on stderr:\nabout to read address 0\n")
    assert "Fatal Python error: Segmentation fault" in text
    assert "in segfaults" in text


async def test_a_job_that_forks_and_returns_twice_is_settled_once(bench: Bench) -> None:
    executor = bench.executor(processors.forks_and_both_return)
    assert await bench.run(executor) is True
    assert await bench.run(executor) is True


@pytest.mark.parametrize("function", [processors.takes_memory_at_once, processors.takes_memory_bit_by_bit])
async def test_a_job_that_wants_more_memory_than_it_may_have_fails(bench: Bench, function: Callable[..., Any]) -> None:
    executor = bench.executor(function, memory_limit=64 * MEGABYTE)
    with pytest.raises(RemoteFailure) as failed:
        await bench.run(executor, 100 * MEGABYTE)
    assert is_a(failed.value, MemoryError)
    assert f"in {function.__name__}" in failed.value.text
    if function is processors.takes_memory_at_once:
        assert await bench.run(executor, 40 * MEGABYTE) == 40 * MEGABYTE


async def test_without_a_memory_limit_a_job_has_that_of_the_worker(bench: Bench) -> None:
    assert await bench.run(bench.executor(processors.limits)) == resource.getrlimit(resource.RLIMIT_AS)[0]


@pytest.mark.prove
async def test_a_flood_of_output_on_stderr_does_not_fill_memory_or_disk(
    bench: Bench, proving: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    flood = 60_000
    times = (1_000_000_000 if proving else 30_000_000) // flood
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    executor = bench.executor(processors.floods_stderr)
    with pytest.raises(ProcessDied) as died:
        await bench.run(executor, times)
    assert "the last line\nFatal Python error: Aborted" in died.value.stderr
    shown = capfd.readouterr().err
    assert len(shown) < 200_000
    assert shown.endswith("[longshore: the rest is not shown]\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


async def test_a_child_that_died_between_jobs_is_replaced_unnoticed(bench: Bench) -> None:
    executor = bench.executor(processors.whereabouts)
    first = (await bench.run(executor))["pid"]
    os.kill(first, signal.SIGKILL)
    (child,) = executor._idle
    await asyncio.wait_for(asyncio.wait({child._exited}), TIMEOUT)
    assert (await bench.run(executor))["pid"] != first


async def test_a_job_that_keeps_crashing_is_buried_with_the_reason_and_the_others_run(bench: Bench) -> None:
    executor = bench.executor(processors.segfaults_or_doubles)
    poison = Job(type="t", payload=b'"poison"', max_crashes=2)
    others = [Job(type="t", payload=str(n).encode()) for n in range(3)]
    await bench.backend.enqueue_jobs([poison, *others])
    worker = Worker(Queue(bench.backend), executor)
    until = time.perf_counter() + TIMEOUT
    for job in (poison, *others):
        while (await bench.backend.get_job(job.id)).status not in FINAL:
            assert time.perf_counter() < until
            await bench.backend.wait_for_change(1)
    await worker.close()
    buried = await bench.backend.get_job(poison.id)
    assert (buried.status, buried.crashes) == (JobStatus.DEAD, 3)
    assert "its process was killed by SIGSEGV" in buried.error_message
    assert "in segfaults\n" in buried.error_message
    for n, job in enumerate(others):
        assert (await bench.backend.get_job(job.id)).result == str(n * 2).encode()


async def test_a_signal_that_stops_the_service_leaves_its_children_to_their_worker(
    bench: Bench, tmp_path: Path
) -> None:
    executor = bench.executor(processors.waits_in_pieces, cancel_grace=TIMEOUT)
    _, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    (pid,) = await told_in(tmp_path / "pid")
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)
    task.cancel()
    assert await task == "stopped by itself"


# --- cancelled ---


async def test_a_job_that_reads_its_flag_ends_by_itself_with_its_value(bench: Bench, tmp_path: Path) -> None:
    executor = bench.executor(processors.waits_in_pieces, cancel_grace=TIMEOUT)
    job, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    (pid,) = await told_in(tmp_path / "pid")
    task.cancel()
    assert await task == "stopped by itself"
    assert job.cancelled
    assert pids_of(executor) == [pid]


async def test_a_coroutine_is_cancelled_in_its_child(bench: Bench, tmp_path: Path) -> None:
    executor = bench.executor(processors.waits_soon, cancel_grace=TIMEOUT)
    _, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    await told_in(tmp_path / "pid")
    task.cancel()
    assert await task == "stopped soon"


async def test_a_job_that_waits_for_something_else_is_shaken_awake_before_it_is_killed(
    bench: Bench, tmp_path: Path
) -> None:
    executor = bench.executor(processors.waits, cancel_grace=4)
    _, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    (pid,) = await told_in(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "pid.cleaned").exists()
    assert pids_of(executor) == []
    await gone(pid)


async def test_a_job_that_ignores_every_signal_in_c_is_killed_with_all_it_started(
    bench: Bench, tmp_path: Path
) -> None:  # its slot is free then
    executor = bench.executor(processors.ignores_all, cancel_grace=0.2)
    _, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    pids = await told_in(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pids_of(executor) == []
    await gone(*pids)


async def test_a_fork_bomb_is_gone_with_its_group(bench: Bench, tmp_path: Path) -> None:
    executor = bench.executor(processors.bombs, cancel_grace=0.1)
    _, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    pids = await told_in(tmp_path / "pid")
    assert len(pids) == 21
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(*pids)


async def test_a_second_cancellation_ends_the_grace(bench: Bench, tmp_path: Path) -> None:
    executor = bench.executor(processors.waits, cancel_grace=processors.FOREVER)
    job, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    (pid,) = await told_in(tmp_path / "pid")
    task.cancel()
    await asyncio.to_thread(looked_for, lambda: job.cancelled, "cancelled once")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(pid)


async def test_a_job_cancelled_while_it_waits_for_a_process_never_starts(bench: Bench, tmp_path: Path) -> None:
    executor = bench.executor(processors.waits, cancel_grace=0)
    _, first = bench.started(executor, await bench.claimed(str(tmp_path / "first")))
    _, second = bench.started(executor, await bench.claimed(str(tmp_path / "second")))
    await told_in(tmp_path / "first")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not (tmp_path / "second").exists()


# --- end ---


async def test_closing_ends_idle_and_busy_children(bench: Bench, tmp_path: Path) -> None:
    executor = bench.executor(processors.waits, processes=2)
    _, task = bench.started(executor, await bench.claimed(str(tmp_path / "pid")))
    (pid,) = await told_in(tmp_path / "pid")
    await executor.close()
    with pytest.raises(ProcessDied):
        await task
    await gone(pid)
    with pytest.raises(CannotStart, match="was closed"):  # which counts no attempt
        await bench.run(executor)
    await executor.close()


@pytest.mark.parametrize("what", ["bombs", "ignores_all"])
async def test_children_end_when_their_parent_is_killed(what: str, tmp_path: Path) -> None:
    script = (
        "import asyncio, json, sys\n"
        "from longshore import connect, Job\n"
        "from longshore.runtime.executors.process import ProcessExecutor\n"
        "from tests.runtime import processors\n"
        "async def main():\n"
        "    backend = connect('memory://')\n"
        f"    executor = ProcessExecutor(processors.{what})\n"
        "    await backend.enqueue_job(Job(type='t', payload=json.dumps(sys.argv[1]).encode()))\n"
        "    (record,) = await backend.dequeue_jobs('w')\n"
        "    await executor.run(executor.take(record, backend))\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path / "pid"), cwd=ROOT)
    pid, *started = await told_in(tmp_path / "pid")
    parent.kill()
    await parent.wait()
    await gone(pid)
    if what == "ignores_all":  # the kernel can end a child that runs no thread, but not the processes it started
        os.kill(started[0], signal.SIGKILL)
    await gone(*started)


async def test_nothing_is_left_open(bench: Bench) -> None:
    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    executor = bench.executor(processors.exits_at_once)
    with pytest.raises(ProcessDied):
        await bench.run(executor, 1)
    await asyncio.wait_for(asyncio.wait({asyncio.create_task(executor.close())}), TIMEOUT)
    before = open_files()
    for _ in range(3):
        another = bench.executor(processors.exits_at_once)
        with pytest.raises(ProcessDied):
            await bench.run(another, 1)
        await another.close()
    assert open_files() <= before
