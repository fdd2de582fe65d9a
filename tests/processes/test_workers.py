"""Workers in real processes: killed, frozen, stopped under load, poisoned, blocked. Nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import monotonic
from urllib.parse import unquote

import apsw
import pytest

from longshore import Job, JobStatus, connect
from tests.backends.audit import audit_at
from tests.checker import History
from tests.processes.process_group import ProcessGroup, StartedProcess
from tests.tcp_proxy import COMMITTED, TcpProxy

LEASE = 2.0
TIMEOUT = 40.0
"""Seconds before the test fails, on a busy machine."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A durable store that several processes share."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def start_process(
    processes: ProcessGroup,
    name: str,
    kind: str = "loop",
    concurrency: int = 4,
    grace: float = 30,
    url: str | None = None,
) -> StartedProcess:
    return processes.start_process(
        kind, name, str(concurrency), str(LEASE), str(grace), url=url, program="worker_process"
    )


def add(url: str, jobs: Sequence[Job]) -> list[str]:
    async def enqueue() -> list[str]:
        async with connect(url) as backend:
            return await backend.enqueue_jobs(jobs)

    return asyncio.run(enqueue())


def many(count: int, type: str = "slow", **options: object) -> list[Job]:
    return [Job(id=f"{type} {number}", type=type, **options) for number in range(count)]  # type: ignore[arg-type]  # options of Job


def read_until(processes: ProcessGroup, enough: Callable[[StartedProcess, str], bool]) -> None:
    """Read the processes' output until it is enough."""
    began = monotonic()
    while True:
        started_process, what, _ = processes.next_line()
        if enough(started_process, what):
            return
        assert what != "over" or started_process.wait() == 0, started_process.errors
        assert monotonic() - began < TIMEOUT, [(other.name, other.output[-3:]) for other in processes.started_processes]


def until_all_are(url: str, statuses: set[JobStatus], within: float = TIMEOUT) -> None:
    """Wait until the store itself has all jobs in these statuses."""

    async def watch() -> None:
        async with connect(url) as backend, asyncio.timeout(within):
            while any(n for status, n in (await backend.count_jobs()).items() if status not in statuses):
                await backend.wait_for_change(0.5)

    asyncio.run(watch())


def checked(url: str) -> tuple[dict[str, Job], History]:
    """Return all jobs and the checked log: legal transitions, growing epochs, one end for each claim, exact counts."""
    return asyncio.run(audit_at(url))


def events_of(url: str, job_id: str) -> list[str]:
    async def read() -> list[str]:
        async with connect(url) as backend:
            return [event.event for event in await backend.read_events(job_id=job_id)]

    return asyncio.run(read())


@pytest.mark.prove
def test_workers_killed_during_jobs_lose_nothing_and_each_kill_is_counted(url: str, seed: int, proving: bool) -> None:
    """F01."""
    kills, jobs = (40, 4_000) if proving else (4, 400)
    chance = Random(seed)
    add(url, many(jobs))
    with ProcessGroup(url) as processes:
        for number in range(3):
            start_process(processes, f"w{number}")
        killed = 0
        remaining = chance.randint(5, 60)
        while killed < kills:
            started_process, what, _ = processes.next_line()
            remaining -= what == "started"
            if remaining <= 0 and started_process.process.returncode is None:
                started_process.kill()
                killed += 1
                start_process(processes, f"w{2 + killed}")
                remaining = chance.randint(5, 60)
            if sum(1 for _ in processes.lines_of("finished")) > 0.8 * jobs:
                add(url, many(jobs, f"slow {killed}"))
        until_all_are(url, {JobStatus.COMPLETED})
        stored, history = checked(url)
        started = Counter((job_id, epoch) for job_id, epoch in processes.lines_of("started"))
        assert max(started.values()) == 1, "one claim was run twice"
        assert {job_id for job_id, _ in processes.lines_of("started")} == stored.keys()
        crashed = sum(job.crashes for job in stored.values())
        print(f"{killed} kills, {crashed} crashes, {len(stored)} jobs, {history.events} events, seed {seed}")
        assert crashed >= 1
        assert all(job.retry_count == 0 for job in stored.values()), "a crash used up an attempt"


def freeze(started_process: StartedProcess, url: str) -> None:
    """Freeze it between two writes: a process frozen during one would lock a SQLite file."""
    held = None
    if url.startswith("sqlite:"):
        held = apsw.Connection(unquote(url.removeprefix("sqlite:///")))
        held.set_busy_timeout(int(TIMEOUT * 1000))
        held.execute("BEGIN IMMEDIATE")
    started_process.signal(signal.SIGSTOP)
    assert os.waitid(os.P_PID, started_process.process.pid, os.WSTOPPED) is not None
    if held is not None:
        held.execute("ROLLBACK")
        held.close()


def test_a_worker_frozen_past_its_lease_finds_its_job_taken_and_its_result_refused(url: str) -> None:
    """F09."""
    add(url, [Job(id="j", type="until killed")])
    with ProcessGroup(url) as processes:
        frozen = start_process(processes, "frozen", concurrency=1)
        read_until(processes, lambda _, what: what == "started")
        freeze(frozen, url)
        start_process(processes, "awake", concurrency=1)
        until_all_are(url, {JobStatus.COMPLETED})
        frozen.signal(signal.SIGCONT)
        add(url, many(20))  # it continues as if nothing had happened
        read_until(processes, lambda started_process, what: started_process is frozen and what == "finished")
        until_all_are(url, {JobStatus.COMPLETED})
        stored, _ = checked(url)
        assert (stored["j"].epoch, stored["j"].crashes, stored["j"].assignee_id) == (2, 1, "awake")
        assert processes.lines_of("started").count(["j", 1]) == 1
        assert ["j", 1] not in processes.lines_of("finished"), "the frozen worker continued a job that it had lost"


def test_a_worker_frozen_for_most_of_its_lease_keeps_its_job_even_just_before_a_renewal(url: str) -> None:
    # R3: renewed at a quarter of the lease, three quarters are left at the worst moment. F09
    lease = 8.0
    add(url, [Job(id="j", type="blocks the loop", payload=str(1.5 * lease).encode())])
    with ProcessGroup(url) as processes:
        frozen = processes.start_process("loop", "frozen", "1", str(lease), "30", program="worker_process")
        read_until(processes, lambda _, what: what == "started")
        start_process(processes, "awake")  # it sweeps, and would run the job again
        threading.Event().wait(0.4 * lease)  # before half of the lease, when the first renewal used to be
        freeze(frozen, url)
        threading.Event().wait(0.7 * lease)  # the injected fault: the process is frozen this long
        frozen.signal(signal.SIGCONT)
        until_all_are(url, {JobStatus.COMPLETED})
    stored, _ = checked(url)
    assert (stored["j"].epoch, stored["j"].crashes, stored["j"].assignee_id) == (1, 0, "frozen")


@pytest.mark.prove
def test_rolling_restarts_under_load_lose_nothing_and_charge_no_job_a_crash(url: str, proving: bool) -> None:
    """F20."""
    restarts = 20 if proving else 4
    add(url, many(300 * restarts))
    with ProcessGroup(url) as processes:
        old = start_process(processes, "w0")
        read_until(processes, lambda _, what: what == "finished")
        for number in range(1, restarts + 1):
            new = start_process(processes, f"w{number}")
            old.signal(signal.SIGTERM)
            assert old.wait() == 0
            read_until(processes, lambda started_process, what, new=new: started_process is new and what == "finished")  # type: ignore[misc]  # a lambda's default has no type
            old = new
        until_all_are(url, {JobStatus.COMPLETED}, within=300 if proving else TIMEOUT)
        old.signal(signal.SIGTERM)
        assert old.wait() == 0
        stored, history = checked(url)
        assert all((job.crashes, job.retry_count) == (0, 0) for job in stored.values())
        assert sorted(processes.lines_of("started")) == sorted(processes.lines_of("finished")), (
            "a running job could not finish"
        )
        assert len(processes.lines_of("finished")) == len(stored), "a job ran twice although no process was killed"
        print(f"{restarts} restarts, {len(stored)} jobs, {history.events} events")


def test_a_job_that_outlasts_the_grace_is_released_without_a_counted_attempt(url: str) -> None:
    """F20, with a short grace."""
    add(url, [Job(id="j", type="long", max_attempts=1, max_crashes=0)])
    with ProcessGroup(url) as processes:
        started_process = start_process(processes, "w", grace=0.2)
        read_until(processes, lambda _, what: what == "started")
        started_process.signal(signal.SIGTERM)
        assert started_process.wait() == 0
        assert started_process.lines_of("closed") == [[0, 0]]
    stored, _ = checked(url)
    job = stored["j"]
    assert (job.status, job.crashes, job.retry_count) == (JobStatus.UNKNOWN_RETRY, 0, 0)
    assert events_of(url, "j")[-1] == "job.released"


def test_the_second_signal_drops_everything_at_once_and_the_lease_brings_it_back(url: str) -> None:
    """F22."""
    add(url, [Job(id="j", type="until killed")])
    with ProcessGroup(url) as processes:
        started_process = start_process(processes, "w", grace=600)
        read_until(processes, lambda _, what: what == "started")
        started_process.signal(signal.SIGINT)
        read_until(processes, lambda _, what: what == "stopping")
        started_process.signal(signal.SIGINT)
        assert started_process.wait() != 0
        assert "Traceback" not in started_process.errors
        start_process(processes, "next")
        until_all_are(url, {JobStatus.COMPLETED})
    stored, _ = checked(url)
    assert stored["j"].crashes == 1


def test_a_program_ends_although_a_job_it_gave_back_sits_in_a_thread(url: str) -> None:
    """F20: nothing can end that thread, and the process does not wait for it."""
    add(url, [Job(id="j", type="sits in a thread")])
    with ProcessGroup(url) as processes:
        started_process = start_process(processes, "w", "served", grace=0.2)
        read_until(processes, lambda _, what: what == "started")
        started_process.signal(signal.SIGTERM)
        assert started_process.wait() == 0
    stored, _ = checked(url)
    assert (stored["j"].status, stored["j"].crashes) == (JobStatus.UNKNOWN_RETRY, 0)


@pytest.mark.parametrize("poison", ["segfault", "exits", "aborts"])
def test_a_poison_job_takes_down_its_own_process_only_and_is_buried_with_its_last_words(url: str, poison: str) -> None:
    """F17, F18."""
    add(url, [Job(id="poison", type=poison, max_crashes=1), *many(10, "plain")])
    with ProcessGroup(url) as processes:
        started_process = start_process(processes, "w", "processes", concurrency=2)
        until_all_are(url, {JobStatus.COMPLETED, JobStatus.DEAD})
        started_process.signal(signal.SIGTERM)
        assert started_process.wait() == 0
    stored, _ = checked(url)
    dead = stored.pop("poison")
    assert (dead.status, dead.crashes, dead.executions) == (JobStatus.DEAD, 2, 2)
    output = {"segfault": "SIGSEGV", "exits": "3", "aborts": "SIGABRT"}[poison]
    assert output in dead.error_message
    if poison == "segfault":
        assert "about to read at address 0" in dead.error_message
    assert {job.status for job in stored.values()} == {JobStatus.COMPLETED}
    assert all(job.crashes == 0 for job in stored.values())


def test_a_job_that_hangs_in_c_is_killed_at_its_timeout_and_the_worker_continues(url: str) -> None:
    """F19."""
    add(url, [Job(id="j", type="hangs", timeout=0.5, max_attempts=1), *many(10, "plain")])
    with ProcessGroup(url) as processes:
        started_process = start_process(processes, "w", "processes", concurrency=2)
        until_all_are(url, {JobStatus.COMPLETED, JobStatus.DEAD})
        started_process.signal(signal.SIGTERM)
        assert started_process.wait() == 0
    stored, _ = checked(url)
    assert (stored["j"].status, stored["j"].crashes) == (JobStatus.DEAD, 0)
    assert "timeout" in stored["j"].error_message


def test_a_job_that_blocks_the_event_loop_for_longer_than_its_lease_keeps_it(url: str) -> None:
    """F11."""
    add(url, [Job(id="j", type="blocks the loop", payload=str(2.5 * LEASE).encode())])
    with ProcessGroup(url) as processes:
        started_process = start_process(processes, "blocked", concurrency=1)
        read_until(processes, lambda _, what: what == "started")
        other = start_process(processes, "other")  # it sweeps, and would claim the job
        until_all_are(url, {JobStatus.COMPLETED})
        for each in (started_process, other):
            each.signal(signal.SIGTERM)
            assert each.wait() == 0
    stored, _ = checked(url)
    assert (stored["j"].epoch, stored["j"].crashes) == (1, 0)


def test_a_job_that_holds_the_interpreter_past_its_lease_loses_it_and_has_one_outcome(url: str) -> None:
    """F11: the heartbeat cannot run either."""
    add(url, [Job(id="j", type="holds the interpreter", payload=str(3 * LEASE).encode())])
    with ProcessGroup(url) as processes:
        holder = start_process(processes, "holder", concurrency=1)
        read_until(processes, lambda _, what: what == "started")
        other = start_process(processes, "other")
        until_all_are(url, {JobStatus.COMPLETED})
        read_until(processes, lambda started_process, what: started_process is holder and what == "finished")
        add(url, many(20))
        until_all_are(url, {JobStatus.COMPLETED})
        for each in (holder, other):
            each.signal(signal.SIGTERM)
            assert each.wait() == 0
    stored, _ = checked(url)
    assert (stored["j"].epoch, stored["j"].crashes) == (2, 1)
    assert events_of(url, "j").count("job.completed") == 1


@pytest.mark.prove
def test_a_worker_whose_answers_are_lost_after_the_commit_loses_nothing(postgres_url: str, proving: bool) -> None:
    """F08."""
    losses, jobs = (30, 3_000) if proving else (5, 400)
    add(postgres_url, many(jobs))
    with TcpProxy(postgres_url) as proxy, ProcessGroup(postgres_url) as processes:
        start_process(processes, "far", url=proxy.url, concurrency=8)
        start_process(processes, "near", concurrency=2)
        for number in range(1, losses + 1):
            read_until(processes, lambda started_process, what: started_process.name == "far" and what == "finished")
            proxy.lost_answer = COMMITTED
            if len(processes.lines_of("finished")) > 0.7 * jobs * number:
                add(postgres_url, many(jobs, f"slow {number}"))
        until_all_are(postgres_url, {JobStatus.COMPLETED})
        for started_process in processes.started_processes:
            started_process.signal(signal.SIGTERM)
            assert started_process.wait() == 0
    stored, history = checked(postgres_url)
    assert max(Counter((job_id, epoch) for job_id, epoch in processes.lines_of("started")).values()) == 1
    print(f"{losses} answers lost, {len(stored)} jobs, {history.events} events")
