"""The log lines of a worker: one for each job that ends, the exception of a final failure, no unprintable text."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import traceback

import pytest

from longshore import Harbor, Snooze, fixed
from longshore.core.status import JobStatus as S
from tests.app.sample_harbor import harbor as sample_harbor
from tests.runtime.working import comes_to

pytestmark = pytest.mark.usefixtures("info_logged")


@pytest.fixture
def info_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Return everything that a worker logs at INFO and above."""
    caplog.set_level(logging.INFO, "longshore.worker")


def lines(caplog: pytest.LogCaptureFixture, job_id: str) -> list[logging.LogRecord]:
    """Return the records of this job."""
    return [record for record in caplog.records if f"[{job_id}]" in record.getMessage()]


async def test_each_completed_job_is_one_info_line_with_its_task_and_how_long_it_took(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # S8
    async with Harbor("memory://") as harbor:

        @harbor.task
        async def greet(name: str) -> str:
            return f"hello {name}"

        first = await greet.options(job_id="01a1").enqueue("Ada")
        await greet.options(job_id="01a2", queue="mail", attempts=3).enqueue("Grace")
        await harbor.run_until_empty()
        assert await first.result() == "hello Ada"
    [record] = lines(caplog, "01a1")
    assert record.levelno == logging.INFO
    assert re.fullmatch(r"greet\[01a1\] completed in \d+ ms", record.getMessage())
    [record] = lines(caplog, "01a2")
    assert re.fullmatch(r"greet\[01a2\] completed in \d+ ms \(queue mail, attempt 1 of 3\)", record.getMessage())
    told = vars(record)
    assert (told["job_id"], told["job_type"], told["queue"], told["execution"]) == ("01a2", "greet", "mail", 1)


async def test_a_retry_is_a_warning_with_its_delay_and_a_final_failure_an_error_with_the_exception_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # S8
    raised: list[ValueError] = []
    async with Harbor("memory://") as harbor:

        @harbor.task(attempts=2, backoff=fixed(0.001))
        def export(pages: int) -> None:
            raised.append(ValueError(f"no page {pages}\nsecond line"))
            raise raised[-1]

        await export.options(job_id="01a1").enqueue(7)
        async with asyncio.timeout(20):
            while len(raised) < 2:
                await harbor.run_until_empty()
    retry, final = lines(caplog, "01a1")
    assert retry.levelno == logging.WARNING
    assert re.fullmatch(
        r"export\[01a1\] failed after \d+ ms; retrying in 0\.001 s \(attempt 1 of 2\): ValueError: no page 7",
        retry.getMessage(),
    )
    assert retry.exc_info is None
    assert final.levelno == logging.ERROR
    assert re.fullmatch(
        r"export\[01a1\] failed permanently after \d+ ms \(attempt 2 of 2\): ValueError: no page 7", final.getMessage()
    )
    assert final.exc_info is not None
    assert final.exc_info[1] is raised[-1]
    # A14: the traceback starts in the task, not in the worker
    assert [frame.name for frame in traceback.extract_tb(final.exc_info[2])] == ["export"]
    assert str(final.exc_text).count("  File ") == 1


@pytest.mark.slow
async def test_the_final_failure_of_a_job_in_a_process_shows_the_traceback_from_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # S8
    handle = await sample_harbor.tasks["fails_elsewhere"].enqueue()
    await sample_harbor.run_until_empty()
    [record] = lines(caplog, handle.id)
    assert record.levelno == logging.ERROR
    assert "fails_elsewhere" in record.getMessage()
    assert "ValueError: not there" in record.getMessage()
    assert 'raise ValueError("not there")' in logging.Formatter().format(record)


async def test_a_snoozed_a_released_and_a_cancelled_job_are_one_info_line_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # S8
    async with Harbor("memory://") as harbor:
        begun = asyncio.Event()

        @harbor.task
        async def later() -> None:
            raise Snooze(30, "not yet")

        @harbor.task
        async def waits() -> None:
            begun.set()
            await asyncio.Event().wait()

        await later.options(job_id="snoozed").enqueue()
        await harbor.run_until_empty()
        for job_id, status in (("cancelled", S.STOPPED), ("released", S.UNKNOWN_RETRY)):
            begun.clear()
            handle = await waits.options(job_id=job_id).enqueue()
            worker = harbor.worker(poll_interval=0.05)
            await begun.wait()
            if job_id == "cancelled":
                await handle.cancel()
                await comes_to(harbor.backend, job_id, status)
            await worker.close(grace=0)
    [record] = lines(caplog, "snoozed")
    assert re.fullmatch(r"later\[snoozed\] released for 30 s after \d+ ms: not yet", record.getMessage())
    [stopped] = lines(caplog, "cancelled")
    assert re.fullmatch(r"waits\[cancelled\] stopped after \d+ ms: cancelled", stopped.getMessage())
    [back] = lines(caplog, "released")
    assert re.fullmatch(
        r"waits\[released\] released after \d+ ms: the worker stopped before the job had ended", back.getMessage()
    )
    assert {record.levelno for record in (record, stopped, back)} == {logging.INFO}


HOSTILE = """
import asyncio, logging, sys
from longshore import Queue, Worker, connect

SET_UP = {"lastResort": lambda: None, "basicConfig": lambda: logging.basicConfig(level=logging.INFO)}
SET_UP[sys.argv[1]]()
EVIL = "\\x1b]52;c;ZXZpbA==\\x07\\x9b2J\\u202e"
TURN = "\\u202e"  # the only such character that a name may hold

async def process(job):
    try:
        raise KeyError(EVIL)
    except KeyError as cause:
        error = ValueError(EVIL + chr(10) + "ERROR:root:forged")
        error.add_note(EVIL)
        raise error from cause

async def main():
    async with Queue(connect("memory://")) as queue:
        await queue.add("type" + TURN, job_id="id" + TURN, attempts=1)
        await queue.add("again" + TURN, job_id="again" + TURN, attempts=2, retry_strategy="gone" + TURN)
        await Worker(queue, process, until_empty=True, autorun=False).run()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("set_up", ["lastResort", "basicConfig"])
def test_no_control_character_of_a_job_reaches_the_terminal_of_a_program_without_our_log_set_up(set_up: str) -> None:
    # X6, S8
    command = [sys.executable, "-W", "error", "-c", HOSTILE, set_up]
    done = subprocess.run(command, capture_output=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    told = done.stderr.decode()
    assert "failed permanently" in told
    assert "raise ValueError" not in told, "a program given with -c has no source lines"
    assert "Traceback (most recent call last):" in told
    assert "\\x1b]52;c;ZXZpbA==\\x07\\x9b2J\\u202e" in told
    assert all(letter.isprintable() or letter == "\n" for letter in told)
    assert not [line for line in told.splitlines() if line.startswith("ERROR:root:forged")]
