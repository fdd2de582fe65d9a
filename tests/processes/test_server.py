"""Servers as processes: killed between storing and accepting, stopped by signals, refused with wrong settings."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import httpx
import pytest

from longshore.backends.connect import connect
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.validation import shown_address
from tests.backends.audit import audit_at
from tests.runtime.working import until

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 20
COMMAND = "from longshore.cli.main import run; run()"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A durable store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Client:
    """Posts one request after another, each until it is answered, and logs the answers.

    A request has one job, one with an id, or a batch, and goes to any of the servers. Acknowledged requests are sent
    once more with another body, which must be refused.
    """

    def __init__(self, name: str, addresses: Sequence[str], chance: Random) -> None:
        self.name = name
        self.tried: list[str] = []
        self.acknowledged: dict[str, str] = {}
        """The job of each key, as answered."""
        self.retries = 0
        self.refused = 0
        self._addresses = addresses
        self._chance = chance

    async def post_until(self, over: asyncio.Event) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            number = 0
            while not over.is_set():
                key = f"{self.name}-{number}"
                number += 1
                kind = self._chance.choice(("one", "one", "named", "batch"))
                keys = [f"{key}/{place}" for place in range(3)] if kind == "batch" else [key]
                self.tried += keys
                output = (await self._post(client, kind, key, data=key)).json()
                jobs = output["jobs"] if kind == "batch" else [output]
                self.acknowledged |= {each: job["id"] for each, job in zip(keys, jobs, strict=True)}
                if self._chance.random() < 0.2:
                    refused = await self._post(client, kind, key, data="another")
                    assert refused.json()["type"] == "urn:longshore:idempotency-key-reused", refused.text
                    self.refused += 1

    async def _post(self, client: httpx.AsyncClient, kind: str, key: str, data: str) -> httpx.Response:
        job = {"type": "t", "data": data}
        named = {**job, "id": f"id of {key}"}
        path, body = ("/v1/jobs/batch", {"jobs": [job] * 3}) if kind == "batch" else ("/v1/jobs", job)
        sent = named if kind == "named" else body
        while True:
            address = self._chance.choice(self._addresses)
            try:
                answered = await client.post(f"{address}{path}", json=sent, headers={"Idempotency-Key": key})
            except httpx.TransportError:  # it was killed: there was no answer, or it was lost
                self.retries += 1
                await asyncio.sleep(self._chance.uniform(0.01, 0.05))
                continue
            if answered.status_code == (202 if data == key else 422):
                return answered
            assert answered.status_code == 503, answered.text
            await asyncio.sleep(0.05)


@pytest.mark.prove
async def test_servers_killed_between_storing_and_accepting_lose_and_duplicate_nothing(
    url: str, seed: int, proving: bool
) -> None:
    # F02, F46, O-FAIL-04, O-INV-01: 20 clients with their own logs, two servers on one store
    kills = 40 if proving else 3
    chance = Random(seed)
    ports = [free_port(), free_port()]
    over = asyncio.Event()
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    clients = [Client(f"c{n}", addresses, Random(chance.random())) for n in range(CLIENTS)]
    posting = [asyncio.create_task(client.post_until(over)) for client in clients]
    killed = await killed_again_and_again(url, ports, kills, chance)
    for task in posting:
        assert not task.done(), task.result()
    for turn in range(20 if proving else 1):  # F20: stopped during requests, it ends in order
        process = await start(url, ports[turn % 2], "")
        enough = sum(len(client.acknowledged) for client in clients) + CLIENTS
        await until(lambda enough=enough: sum(len(client.acknowledged) for client in clients) > enough)  # type: ignore[misc]  # a default that binds it
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    last = [await start(url, port, "") for port in ports]
    over.set()
    await asyncio.gather(*posting)
    for process in last:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    jobs, _ = await audit_at(url)
    by_key: dict[str, list[Job]] = {}
    for job in jobs.values():
        by_key.setdefault(str(job.idempotency_key), []).append(job)
    tried = [key for client in clients for key in client.tried]
    acknowledged = {key: job_id for client in clients for key, job_id in client.acknowledged.items()}
    assert set(acknowledged) == set(tried), "each request was repeated until its answer"
    assert {key: [job.id for job in found] for key, found in by_key.items()} == {
        key: [job_id] for key, job_id in acknowledged.items()
    }, "each key has one job, the one in its answer"
    assert {job.data for job in jobs.values()}.isdisjoint({"another"}), "a refused job was stored"
    assert {job.status for job in jobs.values()} == {JobStatus.INITIAL_PENDING}, "a job is still CREATED"
    retries, refused = (sum(getattr(client, name) for client in clients) for name in ("retries", "refused"))
    print(f"{killed} kills, {len(jobs)} jobs, {retries} lost answers, {refused} refusals, seed {seed}")
    assert retries >= kills
    assert refused


async def killed_again_and_again(url: str, ports: Sequence[int], kills: int, chance: Random) -> int:
    """Run servers on these ports, and restart each one that kills itself, until there were enough kills."""

    async def serve(port: int, times: int) -> int:
        for _ in range(times):
            process = await start(url, port, str(chance.randrange(10**9)))
            assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
        return times

    shares = [kills // len(ports) + (place < kills % len(ports)) for place in range(len(ports))]
    return sum(await asyncio.gather(*(serve(port, share) for port, share in zip(ports, shares, strict=True))))


async def start(url: str, port: int, seed: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.processes.server_process", url, str(port), seed]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 30)).startswith(b"http://")
    return process


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_fifty_open_event_streams_do_not_delay_a_stop(tmp_path: Path, how: signal.Signals) -> None:
    # F20, F21, F22: one signal to the process, the other to its group, as a terminal sends it
    program = [sys.executable, "-c", COMMAND, "serve", "--url", f"sqlite:///{tmp_path / 'jobs.db'}", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *program,
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    address = json.loads(await asyncio.wait_for(process.stdout.readline(), 40))["address"]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        opened = asyncio.Semaphore(0)

        async def follow() -> str:
            async with client.stream("GET", "/v1/events/stream") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                opened.release()
                return [line async for line in lines][-2]

        followers = [asyncio.create_task(follow()) for _ in range(50)]
        for _ in followers:
            await opened.acquire()
        if how is signal.SIGTERM:
            process.send_signal(how)
        else:
            os.killpg(process.pid, how)
        _, logged = await asyncio.wait_for(process.communicate(), 30)
        assert set(await asyncio.gather(*followers)) == {": the server is shutting down; reconnect in a moment"}
    assert process.returncode == 0
    assert b"Traceback" not in logged, logged.decode()


# -- longshore up


class Up:
    """A running `longshore up`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-c", COMMAND, "up", "--port", "0", "--json", *arguments]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.output: dict[str, Any] = json.loads(line)
        self.client = httpx.Client(base_url=self.output["address"], timeout=30)

    def submit(self, kind: str, **data: Any) -> str:
        answered = self.client.post("/v1/jobs", json={"type": kind, "data": data})
        assert answered.status_code == 202, answered.text
        return str(answered.json()["id"])

    def over(self, job_id: str) -> dict[str, Any]:
        """Return the job after its end; on a busy machine its worker starts late."""
        shown: dict[str, Any] = {}
        for _ in range(9):
            shown = self.client.get(f"/v1/jobs/{job_id}?wait=5").json()
            if shown["finalized_at"] is not None:
                break
        return shown

    def end(self) -> str:
        """Wait for the end, and return its log."""
        self.client.close()
        return self.process.communicate(timeout=40)[1]


@contextmanager
def up(folder: Path, *arguments: str) -> Iterator[Up]:
    running = Up(folder, *arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
            running.end()


def test_everything_is_up_with_one_command_and_ends_with_one_ctrl_c(tmp_path: Path) -> None:
    # F20, F22
    with up(tmp_path) as running:
        assert running.output["url"] == "sqlite:///longshore.db"
        assert running.over(running.submit("echo", say={"to": "Ada"}))["result"] == {"say": {"to": "Ada"}}
        failed = running.over(running.submit("fail", why="no reason"))
        assert (failed["status"], failed["error_message"].partition("\n")[0]) == ("DEAD", "RuntimeError: no reason")
        page = running.client.get("/").text
        assert "RuntimeError: no reason" in page
        assert "running" in page
        put = running.client.put(
            "/v1/schedules/s", json={"job": {"type": "echo"}, "repeat": {"every": 0.2, "limit": 1}}
        )
        assert put.status_code == 200
        running.client.get("/v1/jobs?schedule_id=s")
        asleep = running.submit("sleep", seconds=1)
        waits = running.client.get(f"/v1/jobs/{asleep}")
        assert waits.status_code == 200
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does
        logged = running.end()
        assert running.process.returncode == 0
        assert logged.count("Traceback") == 1, logged  # of the job that failed permanently
    jobs = asyncio.run(stored(f"sqlite:///{tmp_path / 'longshore.db'}"))
    assert jobs[asleep].status in (JobStatus.COMPLETED, JobStatus.INITIAL_PENDING, JobStatus.UNKNOWN_RETRY)
    assert jobs[asleep].retry_count == jobs[asleep].crashes == 0
    assert Counter(job.status for job in jobs.values())[JobStatus.RUNNING] == 0


async def stored(url: str) -> dict[str, Job]:
    async with connect(url) as backend:
        return {job.id: job for job in (await backend.list_jobs(JobFilter(), limit=1000)).items}


def test_a_harbor_of_ones_own_is_up_with_it_and_logs_as_json(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import logging\n"
        "from longshore import Harbor\n"
        "harbor = Harbor('sqlite:///shop.db')\n"
        "@harbor.task\n"
        "async def greet(name: str) -> str:\n"
        "    logging.getLogger('shop').info('greeting')\n"
        "    return f'hello {name}'\n"
    )
    with up(tmp_path, "--harbor", "shop:harbor", "--log-format", "json", "--processes", "2") as running:
        job_id = running.submit("greet", name="Ada")
        assert running.over(job_id)["result"] == "hello Ada"
        running.process.send_signal(signal.SIGTERM)
        logged = running.end()
        assert running.process.returncode == 0
    lines = [json.loads(line) for line in logged.splitlines()]
    (greeting,) = [line for line in lines if line["message"] == "greeting"]
    assert (greeting["job_id"], greeting["job_type"], greeting["logger"]) == (job_id, "greet", "shop")
    assert not (tmp_path / "longshore.db").exists()


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
        env={"PATH": "", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
    )


@pytest.mark.parametrize(("command", "auth"), [("serve", "false"), ("serve", "0"), ("up", "False"), ("serve", "maybe")])
def test_a_public_address_without_credentials_refuses_to_start_whatever_the_environment_says(
    tmp_path: Path, command: str, auth: str
) -> None:
    # F54
    settings = {"AUTH": auth, "LONGSHORE_AUTH": auth, "LONGSHORE_HOST": "0.0.0.0", "LONGSHORE_PORT": "0"}
    refused = run(tmp_path, command, "--url", "sqlite:///jobs.db", **settings)
    assert refused.returncode == 2, refused.stderr
    words = r"auth: must be one of on, " if auth == "maybe" else r"host: 0\.0\.0\.0 is reachable from other machines"
    assert re.search(f"longshore: {words}", refused.stderr)
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []


def process_list() -> str:
    """Return what any user of this machine sees of all processes."""
    shown = ""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            shown += path.read_text("latin-1")
    return shown


def test_a_public_address_requires_tokens_and_says_how_to_create_the_first(tmp_path: Path) -> None:
    # F53, F54, F59
    store = f"sqlite:///{tmp_path / 'longshore.db'}"
    with up(tmp_path, "--host", "0.0.0.0", "--access-log") as running:
        port = running.output["address"].rpartition(":")[2]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            assert client.get("/healthz").status_code == 200
            began = monotonic()
            while client.get("/readyz").status_code != 200:
                assert monotonic() - began < 30, "the server is not ready"
            assert client.get("/metrics").status_code == client.get("/v1/jobs").status_code == 401
            made = run(tmp_path, "token", "create", "you", "--url", store, "--scope", "admin", "--json")
            secret = json.loads(made.stdout)["token"]
            allowed = {"Authorization": f"Bearer {secret}"}
            sent = client.post("/v1/jobs", json={"type": "echo", "data": {"say": 1}}, headers=allowed)
            assert sent.status_code == 202
            assert client.get(f"/v1/jobs?token={secret}").status_code == 422
            assert client.get("/metrics", headers=allowed).status_code == 200
            listed = run(tmp_path, "token", "list", "--url", store)
            assert secret not in listed.stdout + listed.stderr
            revoked = run(tmp_path, "token", "revoke", json.loads(made.stdout)["id"], "--url", store)
            assert revoked.returncode == 0, revoked.stderr
            began = monotonic()
            while client.get("/metrics", headers=allowed).status_code != 401:  # the server caches a token for a second
                assert monotonic() - began < 30, "a token that another process revoked still works"
            assert secret not in process_list()
        running.process.send_signal(signal.SIGTERM)
        logged = running.end()
        assert running.process.returncode == 0
    assert "this store has no tokens" in logged
    assert "longshore token create" in logged
    assert secret.rpartition("_")[2] not in logged


def test_a_command_that_cannot_start_prints_one_line(tmp_path: Path) -> None:
    refused = run(tmp_path, "up", "--harbor", "no.such:harbor")
    assert refused.returncode == 2
    assert refused.stderr.startswith("longshore: harbor: cannot import no.such from the working directory: No module")
    assert refused.stderr.endswith("; start the command in the folder that contains no/, or set PYTHONPATH\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--url", "memory://"), "url: memory:// is visible to one process only"),
        (("--url", "sqlite:///x.db", "--harbor", "shop:harbor"), "url: cannot be combined with --harbor"),
        (("--harbor", "nonsense"), "harbor: must have the form module:name"),
        (("--harbor", "json:dumps"), "harbor: json:dumps is a function, not a Harbor"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(given: tuple[str, ...], words: str, tmp_path: Path) -> None:
    refused = run(tmp_path, "up", *given)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_an_address_is_not_shown() -> None:
    # F59
    assert shown_address("postgresql://me:s3cret@db/jobs?password=s3cret") == "postgresql://db/jobs"
    assert shown_address("sqlite:///jobs.db") == "sqlite:///jobs.db"
