"""A process forks with open connections: the child does not use them, and the parent continues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trustme

from tests.backends.audit import audit_at
from tests.postgres_server import Server
from tests.postgres_tls import TlsFront
from tests.processes.process_group import ProcessGroup

JOBS = 1_000


@pytest.fixture(params=["plain", "TLS"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    # not the run's server, which may require TLS
    with ExitStack() as open_until_the_end:
        url = open_until_the_end.enter_context(Server()).create_database("harbour")
        if request.param == "TLS":
            front = open_until_the_end.enter_context(TlsFront(url, trustme.CA()))
            url = f"{front.url}?sslmode=require"
        yield url


def test_a_fork_harms_neither_the_parents_connections_nor_the_child(url: str) -> None:
    with ProcessGroup(url) as processes:
        forker = processes.start_process("forker", "forker", str(JOBS))
        forker.finish()
        ((refusal,),) = forker.lines_of("refused")
        assert "used before a fork" in refusal
        assert "call connect(url) again" in refusal
        assert forker.lines_of("child is done") == forker.lines_of("parent is done") == [[]]
        assert forker.lines_of("child ended") == [[0]]
    jobs, _ = asyncio.run(audit_at(url))
    assert len(jobs) == 20 + 20 + JOBS
