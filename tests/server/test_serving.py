"""The server on a real socket: exposure, malformed requests and prompt shutdown."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from fastapi import APIRouter
from starlette.responses import StreamingResponse

from longshore.backends.base import Backend
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.core.tokens import Scope
from longshore.server.app import create_app
from longshore.server.auth import Gate, GuardedRoute, OpenGate, TokenGate, needs
from longshore.server.options import ServerOptions
from longshore.server.uvicorn_server import ApiServer, check_exposure, is_loopback
from tests.runtime.working import until
from tests.server.test_access import ROLES, NameGate


@asynccontextmanager
async def served(backend: Backend, gate: Gate | None = None, **options: Any) -> AsyncIterator[ApiServer]:
    server = ApiServer(create_app(backend, options=ServerOptions(**options), gate=gate))
    running = asyncio.create_task(server.run())
    await server.ready()
    try:
        yield server
    finally:
        await server.close()
        await running


def connections_of(server: ApiServer) -> int:
    return len(server._server.server_state.connections)


async def said(server: ApiServer, sent: bytes, *, then: float = 5.0) -> bytes:
    """What the server answers to these bytes until it closes the connection, or nothing comes any more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
    try:
        writer.write(sent)
        answer = b""
        try:
            async with asyncio.timeout(then):
                while piece := await reader.read(65536):
                    answer += piece
        except TimeoutError:
            pass
        return answer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def said_byte_by_byte(server: ApiServer, sent: bytes) -> bytes:
    """Send a byte at a time, each within the timeout, and return the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
    answer = asyncio.create_task(reader.read())
    try:
        for place in range(len(sent)):
            writer.write(sent[place : place + 1])
            done, _ = await asyncio.wait({answer}, timeout=0.05)
            if done:
                break
        return await answer
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(method: str, path: str, *headers: str, close: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, *(["Connection: close"] if close else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


MALFORMED = {
    "no http": b"hello there\r\n\r\n",
    "bad chunk": head("POST", "/v1/jobs", "Content-Type: application/json", "Transfer-Encoding: chunked") + b"zz\r\n{}",
    "length and chunks": head(
        "POST", "/v1/jobs", "Content-Type: application/json", "Content-Length: 2", "Transfer-Encoding: chunked"
    )
    + b"0\r\n\r\n",
    "two lengths": head("POST", "/v1/jobs", "Content-Length: 2", "Content-Length: 5") + b"{}",
    "negative length": head("POST", "/v1/jobs", "Content-Length: -2"),
    "length that is none": head("POST", "/v1/jobs", "Content-Length: many"),
    "header with a line end": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "space before the colon": b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n",
    "bad version": b"GET /healthz HTTP/9.9\r\nHost: a\r\n\r\n",
    "long head": head("GET", "/healthz", *(f"X-{n}: {'x' * 1000}" for n in range(99))),
    "many headers": head("GET", "/healthz", *(f"X-{n}: 1" for n in range(200))),
    "long path": head("GET", "/" + "x" * 100_000),
    "path outside ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "bad escapes": head("GET", "/v1/jobs/%ff%fe"),
    "huge length": head("POST", "/v1/jobs", "Content-Type: application/json", "Content-Length: 99999999999"),
}


async def test_malformed_requests_get_a_4xx_and_do_not_block_others(memory: Backend) -> None:
    # F52
    async with served(memory) as server, httpx.AsyncClient(base_url=server.address) as client:
        for what, sent in MALFORMED.items():
            answer = await said(server, sent, then=2)
            assert answer.startswith(b"HTTP/1.1 4"), f"{what}: {answer[:100]!r}"
            assert b"content-type: application/problem+json" in answer, what
            assert b"x-content-type-options: nosniff" in answer, what
            assert (await client.get("/healthz")).status_code == 200, what
        assert sum((await memory.count_jobs()).values()) == 0


async def test_trailers_are_not_headers_and_are_discarded(memory: Backend) -> None:
    async with served(memory) as server:
        chunked = head("POST", "/v1/jobs", "Content-Type: application/json", "Transfer-Encoding: chunked")
        body = b'e\r\n{"type": "t1"}\r\n0\r\n'
        answer = await said(server, chunked + body + b"X-Request-ID: trailing\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 202")
        assert b"trailing" not in answer
        for what, trailers in {
            "many": b"".join(b"X%d: a\r\n" % number for number in range(200)),
            "one without end": b"X: " + b"a" * 1_000_000,
        }.items():
            answer = await said(server, chunked + body + trailers, then=2)
            assert b"HTTP/1.1 400" in answer, f"{what}: {answer[:100]!r}"
            assert b"urn:longshore:bad-request" in answer


async def test_a_thousand_ranges_and_an_upgrade_are_not_heeded(memory: Backend) -> None:
    # F52
    async with served(memory) as server:
        ranges = "Range: bytes=" + ",".join(f"{n}-{n}" for n in range(5000))
        assert (await said(server, head("GET", "/healthz", ranges))).startswith(b"HTTP/1.1 200")
        upgrade = head("GET", "/healthz", "Upgrade: websocket", "Connection: Upgrade", close=False)
        assert (await said(server, upgrade, then=0.5)).startswith(b"HTTP/1.1 200")


async def test_requests_sent_one_behind_the_other_are_answered_in_order(memory: Backend) -> None:
    # F52
    async with served(memory) as server:
        several = head("GET", "/healthz", close=False) + head("GET", "/nothing", close=False) + head("GET", "/readyz")
        answer = await said(server, several)
        places = [answer.find(word) for word in (b'"ok"', b"not-found", b"ready")]
        assert -1 not in places
        assert places == sorted(places)


async def test_a_slow_head_is_cut_off_and_does_not_block_others(
    memory: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F52
    monkeypatch.setattr("longshore.server.uvicorn_server._HEAD_TIMEOUT", 0.3)
    async with served(memory) as server, httpx.AsyncClient(base_url=server.address) as client:
        slow = [asyncio.create_task(said_byte_by_byte(server, b"GET /healthz?" + b"x" * 500)) for _ in range(50)]
        silent = asyncio.create_task(said(server, b"", then=50))
        assert (await client.get("/healthz")).status_code == 200
        async with asyncio.timeout(20):  # it is the server that ends them
            assert await asyncio.gather(*slow, silent) == [b""] * 51
        for _ in range(3):  # on one connection, longer than a head may take
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.sleep(0.15)


UNFINISHED = ("Content-Type: application/json", "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (head("POST", "/v1/jobs", *UNFINISHED, close=False), 401),
        (head("POST", "/sign-in", *UNFINISHED, close=False), 403),
        (head("POST", "/nothing", *UNFINISHED, close=False), 404),
        (head("PUT", "/v1/jobs", *UNFINISHED, close=False), 405),
        (head("GET", "/healthz", *UNFINISHED, close=False), 200),
    ],
)
async def test_a_response_before_the_end_of_the_request_closes_the_connection(
    memory: Backend, refused: bytes, status: int
) -> None:
    async with served(memory, gate=TokenGate(memory)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        writer.write(refused)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert b"connection: close" in answer
        writer.write(b"1\r\nx\r\n" * 100_000)  # more than fits on the way
        async with asyncio.timeout(5):
            assert await reader.read(), "what was said can be read, although not all was heard"
        async with asyncio.timeout(5):  # the client's end of it is never closed
            await until(lambda: not connections_of(server))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_bytes_that_begin_no_request_keep_no_connection(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore.server.uvicorn_server._HEAD_TIMEOUT", 0.3)
    async with served(memory) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        writer.write(head("GET", "/healthz", close=False))
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(b"\r\n")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_client_that_does_not_read_is_disconnected(
    memory: Backend, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr("longshore.server.uvicorn_server._WRITE_TIMEOUT", 0.1)
    await memory.enqueue_job(Job(id="large", type="t", payload=b'"' + b"x" * 10_000_000 + b'"'))
    async with served(memory) as server:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
            deaf.sendall(head("GET", "/v1/jobs/large", close=times == 1) * times)
            await until(lambda: connections_of(server) == 1)
            async with asyncio.timeout(10):
                await until(lambda: connections_of(server) == 0)


async def test_too_many_connections_get_a_503(memory: Backend) -> None:
    async with served(memory, max_connections=3) as server:
        held = [await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2])) for _ in range(3)]
        for probe in ("/healthz", "/readyz?x"):  # a busy server is alive, and a restart would make things worse
            assert (await said(server, head("GET", probe))).startswith(b"HTTP/1.1 200")
        answer = (await said(server, head("GET", "/v1/queues"))).lower()
        assert answer.startswith(b"http/1.1 503")
        for told in (
            b"content-type: application/problem+json",
            b"urn:longshore:overloaded",
            b"retry-after: 1",
            b"x-content-type-options: nosniff",
            b"x-request-id: ",
            b"connection: close",
        ):
            assert told in answer, answer
        for _, writer in held:
            writer.close()
            await writer.wait_closed()


async def test_after_a_head_the_connection_is_as_good_as_before(memory: Backend) -> None:
    async with served(memory) as server:
        several = head("HEAD", "/healthz", close=False) + head("HEAD", "/v1/events/stream", close=False)
        answer = await said(server, several + head("GET", "/readyz"))
        assert answer.count(b"HTTP/1.1 200") == 3
        assert b'"ok"' not in answer
        assert answer.endswith(b'"reason":""}')


# -- who may reach it


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_an_address_of_this_machine_alone_needs_no_credentials(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, OpenGate())


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org", "", "::ffff:0.0.0.0"]
)
def test_a_public_address_without_tokens_is_refused(memory: Backend, host: str) -> None:
    # F54
    assert not is_loopback(host)
    with pytest.raises(InvalidArgument, match="not served without tokens"):
        ApiServer(create_app(memory), host=host)
    check_exposure(host, NameGate(*ROLES))


def test_a_port_in_use_is_reported_before_the_start(memory: Backend) -> None:
    refused = pytest.raises(InvalidArgument, match=r"^port: .* in use by another process; .* with --port$")
    with socket.create_server(("127.0.0.1", 0)) as taken, refused:
        ApiServer(create_app(memory), port=taken.getsockname()[1])


def test_an_address_of_another_machine_is_reported_before_the_start(memory: Backend) -> None:
    app = create_app(memory, gate=NameGate(*ROLES))
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(InvalidArgument, match=f"^host: this machine has no address {host}; .* with --host$"):
            ApiServer(app, host=host)


def slow_to_store(backend: Backend) -> tuple[asyncio.Event, asyncio.Event]:
    """Simulate a slow disk: signal the start of a write and wait for permission to continue."""
    enqueue, began, may_go_on = backend.enqueue_new_jobs, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **options: Any) -> Any:
        began.set()
        await may_go_on.wait()
        return await enqueue(*args, **options)

    backend.enqueue_new_jobs = slow  # type: ignore[method-assign]  # nothing else about it is changed
    return began, may_go_on


async def test_a_request_under_way_is_answered_before_the_server_ends(memory: Backend) -> None:
    # F20
    began, may_go_on = slow_to_store(memory)
    async with served(memory) as server, httpx.AsyncClient(base_url=server.address) as client:
        posting = asyncio.create_task(client.post("/v1/jobs", json={"type": "t"}))
        await began.wait()
        started = time.perf_counter()
        closing = asyncio.create_task(server.close())
        await until(lambda: is_refused(server))
        may_go_on.set()
        await closing
        assert (await posting).status_code == 202
        assert time.perf_counter() - started < 5
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")


async def test_a_request_that_outlives_the_grace_period_gets_a_503_and_its_job_is_stored(
    memory: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    # F20
    began, may_go_on = slow_to_store(memory)
    async with served(memory, grace=0) as server, httpx.AsyncClient(base_url=server.address) as client:
        posting = [asyncio.create_task(client.post("/v1/jobs", json={"type": "t", "id": name})) for name in "abcd"]
        await began.wait()
        closing = asyncio.create_task(server.close())
        answers = await asyncio.gather(*posting)
        may_go_on.set()
        await closing
    for told in answers:
        assert (told.status_code, told.json()["type"]) == (503, "urn:longshore:closed")
        assert (told.headers["retry-after"], told.headers["connection"]) == ("1", "close")
        assert told.headers["x-request-id"] == told.json()["request_id"]
    assert {(await memory.get_job(name)).status for name in "abcd"} == {JobStatus.INITIAL_PENDING}
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_a_response_that_outlives_the_grace_period_is_aborted_without_a_log_line(
    memory: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    router = APIRouter(route_class=GuardedRoute)

    @router.get("/endless")
    @needs(Scope.READ)
    async def endless() -> StreamingResponse:
        async def words() -> AsyncIterator[bytes]:
            yield b"and so on"
            await asyncio.get_running_loop().create_future()

        return StreamingResponse(words())

    server = ApiServer(create_app(memory, options=ServerOptions(grace=0), routers=[router]))
    running = asyncio.create_task(server.run())
    await server.ready()
    async with httpx.AsyncClient(base_url=server.address) as client, client.stream("GET", "/endless") as answer:
        words = answer.aiter_bytes()
        assert await anext(words) == b"and so on"
        await server.close()
        with pytest.raises(httpx.TransportError):
            await anext(words)
    await running
    ours = [record.getMessage() for record in caplog.records if record.name != "httpx"]
    assert [message for message in ours if "timeout graceful" not in message] == []


@asynccontextmanager
async def served_over_tls(backend: Backend, folder: Path) -> AsyncIterator[tuple[ApiServer, ssl.SSLContext]]:
    """A server, and what its clients trust."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = folder / "chain.pem", folder / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for certificate in issued.cert_chain_pems:
        certificate.write_to_path(chain, append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server = ApiServer(create_app(backend), certificate=str(chain), private_key=str(key))
    running = asyncio.create_task(server.run())
    await server.ready()
    yield server, context
    await server.close()
    await running


async def test_the_server_supports_tls(memory: Backend, tmp_path: Path) -> None:
    async with served_over_tls(memory, tmp_path) as (server, context):
        assert server.address.startswith("https://")
        async with httpx.AsyncClient(base_url=server.address, verify=context) as client:
            assert (await client.get("/healthz")).status_code == 200
        assert not (await said(server, head("GET", "/healthz"), then=2)).startswith(b"HTTP/1.1 200")


async def test_a_connection_accepted_during_shutdown_does_not_delay_it(memory: Backend, tmp_path: Path) -> None:
    # F20: taken by the system, and not yet by the protocol, when all connections were asked to end
    began, may_go_on = slow_to_store(memory)
    async with (
        served_over_tls(memory, tmp_path) as (server, context),
        httpx.AsyncClient(base_url=server.address, verify=context) as client,
    ):
        with connected(server) as halfway:
            posting = asyncio.create_task(client.post("/v1/jobs", json={"type": "t"}))  # which comes after it
            await began.wait()
            closing = asyncio.create_task(server.close())
            await until(lambda: is_refused(server))
            halfway.setblocking(False)
            with suppress(ConnectionError, ssl.SSLError):
                reader, writer = await asyncio.open_connection(sock=halfway, ssl=context, server_hostname="127.0.0.1")
                writer.write(head("GET", "/healthz", close=False))
                async with asyncio.timeout(2):
                    assert await reader.read() == b"", "the server accepts no requests"
            may_go_on.set()
            assert (await posting).status_code == 202
            await closing


def connected(server: ApiServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])))


def is_refused(server: ApiServer) -> bool:
    try:
        connected(server).close()
    except OSError:  # the address may be closed already
        return True
    return False


def test_an_unusable_certificate_is_reported_before_the_start(memory: Backend, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot use .*; check --tls-certificate$"):
        ApiServer(create_app(memory), certificate=str(tmp_path / "none.pem"))
    with pytest.raises(InvalidArgument, match=r"--tls-key needs a certificate; .* --tls-certificate"):
        ApiServer(create_app(memory), private_key=str(tmp_path / "key.pem"))


def test_a_missing_or_wrong_private_key_is_reported(memory: Backend, tmp_path: Path) -> None:
    authority = trustme.CA()
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    authority.issue_cert("127.0.0.1").cert_chain_pems[0].write_to_path(chain)
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(key)
    with pytest.raises(InvalidArgument, match="contains no private key; name the file with the key"):
        ApiServer(create_app(memory), certificate=str(chain))
    with pytest.raises(InvalidArgument, match=r"key\.pem does not match the certificate in .*chain\.pem"):
        ApiServer(create_app(memory), certificate=str(chain), private_key=str(key))
    with pytest.raises(InvalidArgument, match=r"chain\.pem does not match"):
        ApiServer(create_app(memory), certificate=str(chain), private_key=str(chain))
    with pytest.raises(InvalidArgument, match=r"cannot use .*none\.pem: No such file .* and --tls-key$"):
        ApiServer(create_app(memory), certificate=str(chain), private_key=str(tmp_path / "none.pem"))
