"""Every example runs as its page says, in a separate process, and prints what its page says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore import Job, Queue, connect
from tests.runtime.working import comes_to
from tests.spark.conftest import QUICK

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = {
    "first_job": "first_job.py",
    "retries_and_dead_letters": "retries.py",
    "cpu_bound_processes": "primes.py",
    "cancellation_and_progress": "exports.py",
    "transactional_enqueue": "orders.py",
    "import_flow": "import_flow.py",
    "nightly_report": "nightly.py",
    "nightly_pipeline": "nightly_pipeline.py",
    "tenant_limits": "tenants.py",
    "http_jobs": "http_jobs.py",
    "remote_worker": "remote_worker.py",
    "fastapi_app": "app.py",
    "django_view": "shop.py",
    "spark_jobs": "spark_jobs.py",
    "rows_to_report": "rows_to_report.py",
}

FASTAPI_TESTS = """
from fastapi.testclient import TestClient
from app import app

def test_a_mail_is_sent():
    with TestClient(app) as client:
        job_id = client.post("/mails", json={"to": "ada@example.org"}).json()["id"]
        sent = client.get(f"/mails/{job_id}", params={"wait": 30}).json()
        assert sent["result"] == "hello sent to ada@example.org"

def test_another_mail_is_sent():
    test_a_mail_is_sent()
"""


class Example:
    """A copy of an example's folder, so that its files are the test's own."""

    def __init__(self, name: str, workdir: Path) -> None:
        self.folder = workdir / name
        self.program = PROGRAMS[name]
        shutil.copytree(EXAMPLES / name, self.folder, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))

    def run(self, *arguments: str, patience: float = 55) -> str:
        """What it printed."""
        command = [sys.executable, "-W", "error", self.program, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=patience)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def started(self, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
        """It runs inside, with these in its environment."""
        command = [sys.executable, "-W", "error", self.program, *arguments]
        around = {**os.environ, **settings}  # noqa: TID251 - the whole of it is handed on
        with subprocess.Popen(command, cwd=self.folder, env=around, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def longshore(*arguments: str) -> str:
    """What the command printed."""
    command = [sys.executable, "-W", "error", "-m", "longshore.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here_and_has_a_page_that_names_its_program() -> None:
    folders = {folder.name for folder in EXAMPLES.iterdir() if any(folder.glob("*.py"))}
    assert folders == set(PROGRAMS)
    for name, program in PROGRAMS.items():
        page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        assert f"python examples/{name}/{program}" in page
        assert "Run this" in page
        assert "See that:" in page


def test_the_fastapi_example_works_with_the_fastapi_test_client(tmp_path: Path) -> None:
    # S3
    example = Example("fastapi_app", tmp_path)
    (example.folder / "test_app.py").write_text(FASTAPI_TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_app.py"]
    done = subprocess.run(command, cwd=example.folder, capture_output=True, text=True, check=False, timeout=55)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_first_job(tmp_path: Path) -> None:
    example = Example("first_job", tmp_path)
    shown = example.run()
    assert shown.count("  sent to ") == 5
    assert "  Fatal: 'unknown' is not an address\n" in shown
    assert "RUNNING -> FAILED_RETRY ConnectionError: the mail server did not answer\n" in shown
    assert re.search(r"COMPLETED\s+5\n\s+DEAD\s+1\n", shown)
    assert re.search(r"COMPLETED\s+10\n", example.run()), "the file keeps the jobs of the first run"


def test_retries_and_dead_letters(tmp_path: Path) -> None:
    shown = Example("retries_and_dead_letters", tmp_path).run()
    assert "fetch_rates    COMPLETED  after 2 failures: fetched at try 3\n" in shown
    assert "import_file    DEAD       after 1 failures: ValueError: rates.csv has no header\n" in shown
    assert "close_account  DEAD       after 1 failures: Fatal: account 7 does not exist\n" in shown
    assert "transfer       COMPLETED  after 0 failures: transferred 100\n" in shown
    assert "dead letters: close_account, import_file, pay, pay\n" in shown
    assert "would be retried: 2\nretried: 2\n  paid 1\n  paid 2\n" in shown


def test_cpu_bound_work_in_processes(tmp_path: Path) -> None:
    shown = Example("cpu_bound_processes", tmp_path).run()
    assert "7837 primes below 80000, counted in other processes: True\n" in shown
    assert re.search(r"decode: .*SIGSEGV.* \(crashes: 2\)\n", shown)
    assert "unpack: MemoryError (crashes: 0)\n" in shown
    assert "the worker still runs: 1024 bytes unpacked\n" in shown


@pytest.fixture
def quick_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an example does not set for its Spark is set as in the tests of Spark, by Spark's own file of defaults."""
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("".join(f"{name} {value}\n" for name, value in QUICK.items()), encoding="utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(defaults.parent))


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("quick_spark")
def test_jobs_on_spark(tmp_path: Path) -> None:
    shown = Example("spark_jobs", tmp_path).run(patience=170)
    assert "998 parcels scored, 47696 in all\n" in shown
    assert "parcel 13: ValueError: this parcel has no weight (crashes: 0)\n" in shown
    assert re.search(r"parcel 666: .*its Spark task ended without a word .* \(crashes: 2\)\n", shown)
    assert "{'even': 500000, 'all': 1000000} {'percent': 100," in shown


@pytest.mark.spark
@pytest.mark.timeout(290)
@pytest.mark.usefixtures("quick_spark")
def test_rows_become_jobs_and_a_report(tmp_path: Path) -> None:
    example = Example("rows_to_report", tmp_path)
    shown = example.run("1500", patience=280)
    assert "1,500 rows became jobs\n1,650 executions\n" in shown
    assert "4,952 events in the lake, version 1\n" in shown
    assert "4,952 events of 1,500 jobs audited: no findings\n" in shown
    assert "Parcels" in (example.folder / "report" / "report.html").read_text(encoding="utf-8")


def test_cancellation_and_progress(tmp_path: Path) -> None:
    shown = Example("cancellation_and_progress", tmp_path).run()
    assert "progress: page 2 of 2\n" in shown
    assert "export: 2 pages\n" in shown
    assert "export: STOPPED\n" in shown
    assert "crunch: STOPPED\n" in shown  # S1
    assert "copy: copied from page 3\n" in shown


def test_an_import_as_a_flow(tmp_path: Path) -> None:
    shown = Example("import_flow", tmp_path).run()
    assert "a step failed: Fatal: there is no rate for USD yet\nthe flow is waiting" in shown
    assert re.search(r"convert +DEAD\n", shown)
    assert re.search(r"report +WAITING_CHILDREN\n", shown)
    assert "  731.25 USD from 3 regions; the weather is unknown\n" in shown
    assert shown.count("south: 1 orders, 300 in all") == 1, "what completed is not run again"
    assert shown.endswith("  285\n")


def test_limits_for_each_tenant(tmp_path: Path) -> None:
    shown = Example("tenant_limits", tmp_path).run()
    started = re.search(r"modest is done; of greedy's 20 reports, (\d+) have started\n", shown)
    assert started is not None
    assert int(started[1]) < 15
    assert "Its concurrency key greedy is full (2 running, limit 2)\n" in shown
    assert "most at once: modest 2, greedy 5 (after its limit was removed)\n" in shown
    assert "10 reports at 4 a second took at least a second: True\n" in shown


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_enqueuing_inside_a_transaction(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    example = Example("transactional_enqueue", tmp_path)
    address = [] if store == "sqlite" else [str(request.getfixturevalue("postgres_url"))]
    for _ in range(2):
        shown = example.run(*address)
        assert shown == "order 1 committed: 1 job waits\norder 2 rolled back: 0 job waits\n1 job was run\n"


def test_a_nightly_report(tmp_path: Path) -> None:
    shown = Example("nightly_report", tmp_path).run()
    assert shown == (
        "planned:\n  Sat 24 Oct 02:30 CEST\n  Sun 25 Oct 02:30 CEST\n  Mon 26 Oct 02:30 CET\n"
        "runs (on Sunday the clocks went back from 3 to 2):\n"
        "  Sat 24 Oct 02:30 CEST  report for eu (by plan)\n"
        "  Sun 25 Oct 02:30 CEST  report for eu (by plan)\n"
        "paused on Monday; no run at night, then one by hand:\n"
        "  Mon 26 Oct 09:00 CET  report for eu (by hand)\n"
        "resumed; the next run is on Tue 27 Oct 02:30\n"
        "hourly: 60 runs by plan\nnightly: 2 runs by plan\n"
    )


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("quick_spark")
def test_a_nightly_pipeline(tmp_path: Path) -> None:
    shown = Example("nightly_pipeline", tmp_path).run(patience=170)
    assert "planned: 2 nights, at 15 past the hour\n" in shown
    assert re.search(r'night 1: \{"version": ?1, ?"events": ?\d+\}', shown)
    assert re.search(r'night 2: \{"version": ?2, ?"events": ?\d+\}', shown)
    told = longshore("pipeline", "status", "--lake", str(tmp_path / "nightly_pipeline" / "lake"), "--json")
    assert json.loads(told)["version"] == 2


def test_a_fastapi_application(tmp_path: Path) -> None:
    shown = Example("fastapi_app", tmp_path).run()
    assert shown == (
        "POST /mails -> 202\n"
        "GET /mails/ID?wait=10 -> {'status': 'COMPLETED', 'result': 'hello sent to ada@example.org'}\n"
        "GET /mails/unknown -> 404\n"
        "POST /mails without an address -> 422\n"
    )


def test_a_django_view(tmp_path: Path) -> None:
    shown = Example("django_view", tmp_path).run()
    assert shown == "POST /sign-up -> 202\nGET /jobs/ID -> INITIAL_PENDING\njobs run: 1\nGET /jobs/ID -> COMPLETED\n"


def test_jobs_over_http(tmp_path: Path) -> None:
    shown = Example("http_jobs", tmp_path).run()
    assert shown == (
        "POST twice with one key -> 202, 202, one job: True\n"
        "the key with another body -> 422: The idempotency key was used for another request\n"
        "its events:\n  job.added\n  job.accepted\n  job.active\n  job.completed\n"
        "its result: quay.png at 640 px\n"
        "a job that cannot succeed: DEAD, ValueError: pier.png cannot be 0 pixels wide\n"
        "dead letters to retry: 1\n"
    )


@contextmanager
def served(url: str) -> Iterator[str]:
    """The address of a server on this store, in a separate process."""
    command = [sys.executable, "-m", "tests.processes.server_process", url, "0", ""]
    server = subprocess.Popen(command, cwd=EXAMPLES.parent, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_a_worker_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    example = Example("remote_worker", tmp_path)
    source = (example.folder / example.program).read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert imported <= sys.stdlib_module_names
    assert len([line for line in source.splitlines() if line.strip()]) < 75
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with served(url) as address:

        async def submit() -> None:
            async with connect(address) as far:
                queue = Queue(far)
                await queue.add("shout", {"text": "land ho"}, job_id="good")
                await queue.add("whisper", {"text": "land ho"}, job_id="bad")

        asyncio.run(submit())
        assert 'shout: "LAND HO!"' in example.run(address, "2")

        async def look() -> tuple[Job, Job]:
            async with connect(url) as store:
                return await store.get_job("good"), await store.get_job("bad")

        good, bad = asyncio.run(look())
        assert (good.status, good.data, good.result) == ("COMPLETED", {"text": "land ho"}, b'"LAND HO!"')
        assert (bad.status, "unknown type" in bad.error_message) == ("DEAD", True)


async def test_the_remote_worker_renews_leases_and_stops_cancelled_jobs(
    tmp_path: Path,
) -> None:
    example = Example("remote_worker", tmp_path)
    url, lease = f"sqlite:///{tmp_path / 'jobs.db'}", 1.5
    with served(url) as address:
        async with connect(url) as store:
            queue = Queue(store)
            for job_id, seconds in [("quick", 0.0), ("longer than its lease", 2 * lease), ("endless", 3600.0)]:
                await queue.add("shout", {"text": "land ho", "after_seconds": seconds}, job_id=job_id)
            with example.started(address, "3", LEASE_SECONDS=str(lease)) as worker:
                for job_id in ("quick", "longer than its lease"):
                    job = await comes_to(store, job_id)
                    assert (job.status, job.executions) == ("COMPLETED", 1), job_id
                assert (await store.get_job("endless")).status == "RUNNING"
                await queue.cancel_jobs(job_ids=["endless"])
                stopped = await comes_to(store, "endless")
                assert (stopped.status, stopped.executions) == ("STOPPED", 1)
                told, _ = await asyncio.to_thread(worker.communicate, timeout=30)
            assert (worker.returncode, "refused" in told, "shout: cancelled\n" in told) == (0, False, True)
