"""By which names a server is called: on an address of this machine, by this machine's names alone."""

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.server.app import create_app
from longshore.server.auth import TokenGate
from longshore.server.http_errors import WrongHost
from longshore.server.options import ServerOptions
from longshore.server.request_origin import Hosts
from longshore.server.uvicorn_server import ApiServer
from tests.server.conftest import Serve
from tests.server.test_serving import head, said, served

OURS = ["127.0.0.1", "127.0.0.1:8470", "localhost", "LOCALHOST:1", "localhost.", "[::1]", "[::1]:8470", "127.1.2.3"]
FOREIGN = [
    "evil.example",
    "evil.example:8470",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "192.168.0.7",
    "0.0.0.0",
]


def answers(hosts: Hosts, name: str) -> bool:
    try:
        hosts.check([(b"host", name.encode())])
    except WrongHost:
        return False
    return True


def test_on_loopback_only_local_and_allowed_host_names_are_served() -> None:
    # F55: a page whose name was made to point here
    strict = Hosts(["Jobs.Example.org"], strict=True)
    assert [name for name in OURS if not answers(strict, name)] == []
    assert [name for name in FOREIGN if answers(strict, name)] == []
    assert answers(strict, "jobs.example.org:443")
    assert not answers(strict, "x.jobs.example.org")


def test_where_tokens_are_asked_for_any_name_will_do_unless_some_are_named() -> None:
    public = Hosts([], strict=False)
    assert all(answers(public, name) for name in (*OURS, *FOREIGN))
    named = Hosts(["jobs.example.org"], strict=False)
    assert answers(named, "jobs.example.org")
    assert answers(named, "10.0.0.7"), "a probe calls by address"
    assert not answers(named, "evil.example")


@pytest.mark.parametrize("given", [[], [b"a", b"a"], [b""], [b"a b"], [b"a/b"], [b"u@a"], [b"[::1"], [b"a:b"]])
def test_a_host_header_that_is_none_is_refused(given: list[bytes]) -> None:
    with pytest.raises(InvalidArgument, match="Host"):
        Hosts([], strict=False).check([(b"host", value) for value in given])


@pytest.mark.parametrize("name", ["http://a", "a:80", "a/b", "", "*"])
def test_a_name_to_allow_is_a_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match="allowed_host"):
        Hosts([name], strict=True)


async def test_a_forged_host_reaches_no_route(memory: Backend, serve: Serve) -> None:
    # F55
    quick: httpx.AsyncClient = await serve(memory, options=ServerOptions(allowed_hosts=("jobs.example.org",)))
    for method, address in [("GET", "/"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/events/stream")]:
        refused = await quick.request(method, address, headers={"host": "evil.example"}, json={"type": "t"})
        assert (refused.status_code, refused.json()["type"]) == (421, "urn:longshore:wrong-host"), address
        assert "start the server with --allowed-host evil.example (mounted: " in refused.json()["detail"]
    assert (await quick.get("/v1/jobs", headers={"host": "jobs.example.org"})).status_code == 200
    assert sum((await memory.count_jobs()).values()) == 0


async def test_an_address_of_this_machine_is_strict_even_where_tokens_are_asked_for(memory: Backend) -> None:
    app = create_app(memory, gate=TokenGate(memory))
    assert not app.state.hosts.strict
    server = ApiServer(app)
    assert app.state.hosts.strict
    server._socket.close()


async def test_on_a_real_socket_a_request_without_a_host_is_refused(memory: Backend) -> None:
    async with served(memory) as server:
        assert (await said(server, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")).startswith(b"HTTP/1.1 422")
        forged = head("GET", "/healthz").replace(b"Host: 127.0.0.1", b"Host: evil.example")
        assert (await said(server, forged)).startswith(b"HTTP/1.1 421")
