"""A server process under a flood of hostile requests on loopback: its memory is bounded, and returned."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.runtime.working import until

MEGABYTE = 1024 * 1024
JSON = {"content-type": "application/json"}
COMMAND = "from longshore.cli.main import run; run()"


def resident(process: subprocess.Popen[bytes]) -> int:
    """Return the memory of the process in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


def hostile() -> list[bytes]:
    """Bodies that once used much memory or time."""
    return [
        b'{"type":"t","data":[' + b"[]," * (10 * MEGABYTE - 20) + b"0]}",
        b'{"type":"t","data":"' + b"\\u00e9" * (30 * MEGABYTE // 6) + b'"}',
        b'{"type":"t","data":"' + "\U0001f600".encode() + b"a" * (15 * MEGABYTE) + b'"}',
        b'{"type":"t","data":[' + b'{"a":1},' * 150_000 + b"0]}",
        b"{" * MEGABYTE,
        b'{"type":"t","data":' + b"[" * MEGABYTE,
    ]


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 256 * 1024):
        yield body[start : start + 256 * 1024]


async def _ready(client: httpx.AsyncClient) -> None:
    """Return once the server is ready; until then each answer takes a moment."""
    async with asyncio.timeout(60):
        while (await client.get("/readyz")).status_code != 200:
            pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server on SQLite that prints its address."""
    command = [sys.executable, "-c", COMMAND, "serve", "--url", f"sqlite:///{tmp_path}/jobs.db", "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.terminate()
            started.wait(20)


@pytest.mark.prove
@pytest.mark.timeout(300)
async def test_a_server_returns_the_memory_of_a_flood_of_requests(
    server: subprocess.Popen[bytes], proving: bool
) -> None:  # X5
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await _ready(client)
        before = resident(server)

        async def send(body: bytes) -> int:
            try:
                return (await client.post("/v1/jobs", content=_in_pieces(body), headers=JSON)).status_code
            except httpx.HTTPError:  # it stopped reading, and its answer did not arrive
                return 0

        bodies = hostile()
        for _ in range(4 if proving else 1):
            flood = [send(body) for body in bodies * (3 if proving else 2)]
            flood += [send(b'{"type":"t"}') for _ in range(200 if proving else 50)]
            assert set(await asyncio.gather(*flood)) <= {
                0,
                202,
                400,
                408,
                413,
                422,
                429,
                503,
            }  # 408: too slow on a busy machine
        await until(lambda: resident(server) <= before + 100, within=60)
        await _ready(client)
        print(f"resident before {before} MB, after {resident(server)} MB")
