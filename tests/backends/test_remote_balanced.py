"""The remote backend behind one address with several servers that get its requests in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from longshore import JobStatus, Repeat, connect
from longshore.core.errors import BackendUnavailable
from longshore.core.filters import JobFilter
from longshore.core.schedule import Schedule
from longshore.server.app import create_app
from longshore.server.uvicorn_server import ApiServer
from longshore.testing.conformance.scenarios import history, new_job


class RoundRobin:
    """Sends each request to the next of its servers, like a balancer without sticky sessions; counts them."""

    def __init__(self, addresses: list[str]) -> None:
        self._behind = [(at.hostname, at.port) for at in map(urlsplit, addresses)]
        self.requests = 0
        self.lost_answers_to = b""
        """The prefix of requests whose answers are lost, and how many."""
        self.losses = 0
        self.keeps_connections = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        try:
            while True:
                request = await _message(reader)
                host, port = self._behind[self.requests % len(self._behind)]
                self.requests += 1
                far_reader, far_writer = await asyncio.open_connection(host, port)
                far_writer.write(request)
                try:
                    answer = await _message(far_reader)
                finally:
                    far_writer.close()
                if self.losses and request.startswith(self.lost_answers_to):
                    self.losses -= 1
                    break
                writer.write(answer)
                if not self.keeps_connections:
                    break
        except (asyncio.IncompleteReadError, OSError):  # one end has closed
            pass
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    server = ApiServer(create_app(connect(url)))
    serving = asyncio.create_task(server.run())
    await server.ready()
    try:
        yield server.address
    finally:
        await server.close()
        await serving


@asynccontextmanager
async def balanced(url: str, count: int) -> AsyncIterator[tuple[str, RoundRobin]]:
    """The common address of several servers of a store."""
    async with AsyncExitStack() as opened:
        robin = RoundRobin([await opened.enter_async_context(served(url)) for _ in range(count)])
        door = await opened.enter_async_context(await asyncio.start_server(robin.serve, "127.0.0.1", 0))
        yield f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}", robin


async def test_an_idle_store_behind_a_balancer_costs_little_and_a_change_is_detected(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as store, balanced(url, 2) as (address, robin), connect(address) as far:
        while await far.wait_for_change(0.3):  # the first answer of each server may report a change
            assert robin.requests < 50, "it never comes to rest"
        before = robin.requests
        assert await far.wait_for_change(1.5) is False
        assert robin.requests - before <= 4
        waiting = asyncio.create_task(far.wait_for_change(25))
        await asyncio.sleep(0)
        await store.enqueue_job(new_job("a"))
        assert await waiting is True


# -- a lost answer, repeated to another server


@pytest.mark.parametrize("keeps_connections", [True, False])
@pytest.mark.parametrize("losses", [1, 2])
@pytest.mark.parametrize("answers_before", [1, 2])
async def test_what_one_server_has_done_no_other_does_once_more(
    tmp_path: Path, answers_before: int, losses: int, keeps_connections: bool
) -> None:
    # F08
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as store, balanced(url, 2) as (address, robin), connect(address) as far:
        robin.keeps_connections = keeps_connections
        await store.put_schedule(Schedule(id="pay", job=new_job("x", queue="bills"), repeat=Repeat(every=86_400)))
        for _ in range(answers_before):
            await far.now()
        robin.lost_answers_to, robin.losses = b"POST /v1/store/run_schedule", losses
        reported: list[str] = []
        with suppress(BackendUnavailable):  # the error says that the result is unknown
            reported = [(await far.run_schedule("pay")).id]
        stored = [job.id for job in (await store.list_jobs(JobFilter(queues=["bills"]))).items]
        assert len(stored) <= 1
        assert reported in ([], stored)


@pytest.mark.parametrize("answers_before", [1, 2])
async def test_an_enqueue_is_not_in_its_own_way(tmp_path: Path, answers_before: int) -> None:
    # F08
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with balanced(url, 2) as (address, robin), connect(address) as far:
        for _ in range(answers_before):
            await far.now()
        robin.lost_answers_to, robin.losses = b"POST /v1/store/enqueue_job", 1
        assert await far.enqueue_job(new_job("mine")) == "mine"
        assert len(await history(far, "mine")) == 1


@pytest.mark.parametrize("answers_before", [1, 2])
async def test_no_more_is_claimed_than_was_asked_for(tmp_path: Path, answers_before: int) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with connect(url) as store, balanced(url, 2) as (address, robin), connect(address) as far:
        await store.enqueue_jobs([new_job("a"), new_job("b")])
        for _ in range(answers_before):
            await far.now()
        robin.lost_answers_to, robin.losses = b"POST /v1/work/claim", 1
        with suppress(BackendUnavailable):
            await far.dequeue_jobs("w")
        held = await store.list_jobs(JobFilter(statuses=[JobStatus.RUNNING]))
        assert len(held.items) <= 1


async def test_behind_a_balancer_a_request_costs_no_second_one_once_several_have_answered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with balanced(url, 2) as (address, robin), connect(address) as far:
        for _ in range(4):
            await far.now()
        before = robin.requests
        for number in range(10):
            await far.enqueue_job(new_job(f"j{number}"))
        assert robin.requests - before == 10
