"""The remote backend on a network that loses answers, and with a server that dies: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from longshore import Harbor, Job, JobEvent, JobStatus, Outcome, Queue, Repeat, connect
from longshore.backends.base import Backend
from longshore.backends.remote.codecs import KNOWN, Form, error_in, problem_of
from longshore.backends.remote.records.jobs import JOB
from longshore.backends.remote.records.store import EVENTS, SCHEDULES
from longshore.backends.token_store import SupportsTokens
from longshore.cli.exit_codes import Exit
from longshore.core import errors
from longshore.core.actor import acting
from longshore.core.errors import (
    BackendUnavailable,
    DuplicateJob,
    InvalidArgument,
    InvalidTransition,
    JobNotInflight,
    LeaseLost,
    LongshoreError,
    Unauthenticated,
)
from longshore.core.schedule import Schedule
from longshore.core.tokens import Scope
from longshore.runtime.running_job import RunningJob
from longshore.server.app import create_app
from longshore.server.auth import Caller, TokenGate
from longshore.server.problems import TABLE, kind_of
from longshore.server.replays import Replays
from longshore.server.uvicorn_server import ApiServer
from longshore.testing.conformance.scenarios import audit, claim, history, lease_of, new_job
from tests.cli.terminal import longshore
from tests.remote_server import RemoteServer
from tests.runtime.working import Gate, all_come_to, comes_to, until, working
from tests.tcp_proxy import TcpProxy

S = JobStatus
ANSWERED = b"HTTP/1.1 200"


@pytest.fixture(scope="module")
def server() -> Iterator[RemoteServer]:
    opened = RemoteServer()
    yield opened
    opened.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Backend]:
    """The server's store, read directly."""
    async with connect(f"sqlite:///{tmp_path / 'jobs.db'}") as opened:
        keeper = Queue(opened)
        yield opened
        await audit(opened)
        assert not keeper.closed


@pytest.fixture
def proxy(server: RemoteServer, store: Backend) -> Iterator[TcpProxy]:
    """A network before the server."""
    with server.serving(store) as address, TcpProxy(address) as opened:
        yield opened


@pytest.fixture
async def remote(proxy: TcpProxy) -> AsyncIterator[Backend]:
    async with connect(proxy.url, wait_seconds=10) as opened:
        yield opened


@contextmanager
def dying(server: RemoteServer) -> Iterator[None]:
    """The next request is carried out, and then the server is another one that remembers nothing."""
    platform = server.platform
    before = platform.replays

    class StderrTail(Replays):
        async def once(self, *arguments: Any) -> bytes:
            answer = await before.once(*arguments)
            platform.changes.server = "another life"
            platform.replays = Replays("another life")
            return answer

    platform.replays = StderrTail("one life")
    yield


async def test_the_actor_is_sent_to_a_server_without_tokens(remote: Backend, store: Backend) -> None:
    with acting("cli:björn"):
        await remote.pause_queue("mail")
        await remote.set_limits("mail", running=3)
        await remote.enqueue_job(new_job("a"))
    await remote.resume_queue("mail")
    reported = [(event.event, event.actor) for event in await store.read_events()]
    assert reported == [
        ("queue.paused", "cli:björn"),
        ("queue.changed", "cli:björn"),
        ("job.added", "cli:björn"),
        ("queue.resumed", ""),
    ]


def test_the_cli_records_the_same_actor_through_a_server_as_on_the_store(proxy: TcpProxy, store: Backend) -> None:
    assert longshore("pause", "mail", "--url", proxy.url).code == Exit.OK
    (paused,) = asyncio.run(store.read_events())
    assert (paused.event, paused.actor.partition(":")[0]) == ("queue.paused", "cli")


# -- a lost answer that the server remembers


async def test_an_enqueue_whose_answer_was_lost_is_repeated_and_stored_once(remote: Backend, proxy: TcpProxy) -> None:
    # F08
    await remote.count_jobs()
    proxy.lost_answer = ANSWERED
    assert await remote.enqueue_jobs([new_job("a"), new_job("b")]) == ["a", "b"]
    assert proxy.lost_answer is None
    proxy.lost_answer = ANSWERED
    assert await remote.enqueue_job(new_job("c")) == "c"
    assert len(await history(remote, "a")) == 1
    with pytest.raises(DuplicateJob):  # a second request without the loss is rejected
        await remote.enqueue_job(new_job("a"))


async def test_a_claim_whose_answer_was_lost_gives_the_same_jobs_again(remote: Backend, proxy: TcpProxy) -> None:
    # F08
    await remote.enqueue_jobs([new_job(f"j{number}") for number in range(5)])
    proxy.lost_answer = ANSWERED
    jobs = await remote.dequeue_jobs("w", limit=3)
    assert [(job.id, job.epoch) for job in jobs] == [("j0", 1), ("j1", 1), ("j2", 1)]
    proxy.lost_answer = ANSWERED
    outcomes = [Outcome(job.id, job.lease) for job in jobs]
    report, more = await remote.settle_and_dequeue(outcomes, "w", limit=5)
    assert (list(report.settled.values()), report.refused) == ([S.COMPLETED] * 3, {})
    assert [job.id for job in more] == ["j3", "j4"]


async def test_a_request_that_never_arrived_is_sent_again(remote: Backend, proxy: TcpProxy) -> None:
    await remote.count_jobs()
    proxy.lost_request = b"POST /v1/store/enqueue_job"
    assert await remote.enqueue_job(new_job("a")) == "a"
    proxy.reset()
    assert (await remote.get_job("a")).status is S.INITIAL_PENDING


# -- an answer lost with its server


async def test_an_enqueue_is_found_again_by_what_it_stored(
    remote: Backend, proxy: TcpProxy, server: RemoteServer
) -> None:
    # F08 F02
    await remote.count_jobs()
    with dying(server):
        proxy.lost_answer = ANSWERED
        batch = [new_job("a", payload=b"1", tags=["x"]), new_job("b")]
        assert await remote.enqueue_jobs(batch) == ["a", "b"]
    assert len(await history(remote, "a")) == 1


def begins_another_life(server: RemoteServer) -> None:
    """Like a restart: it remembers nothing and has another name."""
    server.platform.changes.server = "another life"
    server.platform.replays = Replays("another life")


async def test_another_job_with_the_same_id_is_still_a_duplicate(
    remote: Backend, store: Backend, proxy: TcpProxy, server: RemoteServer
) -> None:
    await remote.count_jobs()
    with dying(server):
        proxy.lost_request = b"POST /v1/store/enqueue_job"
        begins_another_life(server)
        await store.enqueue_job(new_job("a", payload=b"somebody else's"))
        with pytest.raises(DuplicateJob) as caught:
            await remote.enqueue_job(new_job("a", payload=b"mine"))
    assert caught.value.job_ids == ["a"]


async def test_another_job_with_the_same_key_is_a_duplicate_for_enqueue_new_jobs(
    remote: Backend, store: Backend, proxy: TcpProxy, server: RemoteServer
) -> None:
    await remote.count_jobs()
    with dying(server):
        proxy.lost_request = b"POST /v1/store/enqueue_job"
        begins_another_life(server)
        await store.enqueue_job(new_job("theirs", idempotency_key="once"))
        with pytest.raises(DuplicateJob) as caught:
            await remote.enqueue_new_jobs([new_job("mine", idempotency_key="once")])
    assert caught.value.job_ids == ["theirs"]


async def test_a_caller_without_read_scope_learns_that_the_ids_are_most_likely_its_own(
    remote: Backend, store: Backend, proxy: TcpProxy, server: RemoteServer
) -> None:
    class SubmitsOnly:
        authenticates = True

        async def admit(self, request: Any) -> Caller:
            return Caller("shop", frozenset({Scope.SUBMIT}))

    await remote.count_jobs()
    with server.behind(SubmitsOnly()), dying(server):
        proxy.lost_answer = ANSWERED
        with pytest.raises(
            DuplicateJob, match=r"this call, whose first answer was lost.*scope read can check it: 'a'"
        ) as reported:
            await remote.enqueue_job(new_job("a"))
    assert reported.value.job_ids == ["a"]
    assert len(await history(store, "a")) == 1


async def test_claimed_jobs_are_returned_even_if_the_next_request_fails(
    remote: Backend, store: Backend, server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.backends.remote.protocol.MOST_AT_ONCE", 2)

    class OnceOnly:
        authenticates = True

        def __init__(self) -> None:
            self.admitted = 0

        async def admit(self, request: Any) -> Caller:
            self.admitted += 1
            if self.admitted > 1:
                raise errors.Forbidden("no more than one")
            return Caller("worker", frozenset({Scope.WORK}))

    await store.enqueue_jobs([new_job(f"j{number}") for number in range(5)])
    with server.behind(OnceOnly()):
        claimed = await remote.dequeue_jobs("w", limit=5)
        with pytest.raises(errors.Forbidden):  # a caller without the scope gets the reason
            await remote.dequeue_jobs("w", limit=5)
    assert [job.id for job in claimed] == ["j0", "j1"]
    with server.behind(OnceOnly()):
        report, more = await remote.settle_and_dequeue([Outcome(job.id, job.lease) for job in claimed], "w", limit=5)
    assert (set(report.settled), [job.id for job in more]) == ({"j0", "j1"}, ["j2", "j3"])


async def test_all_that_is_due_is_announced_however_little_a_server_does_at_once(
    remote: Backend, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.backends.remote.protocol.MOST_AT_ONCE", 2)
    await store.enqueue_jobs([new_job(f"j{number}", delay=0.05) for number in range(5)])

    async def all_are_due() -> bool:
        return not await store.count_delayed()

    await until(all_are_due)
    assert sorted(await remote.announce_due_jobs(limit=5)) == [f"j{number}" for number in range(5)]


@pytest.mark.parametrize("verb", ["complete", "fail", "bury", "stop", "release"])
async def test_a_settlement_is_found_again_by_its_lease(
    remote: Backend, proxy: TcpProxy, server: RemoteServer, verb: Any
) -> None:
    # F08
    await remote.enqueue_jobs([new_job("a"), new_job("b")])
    jobs = await remote.dequeue_jobs("w", limit=2)
    with dying(server):
        proxy.lost_answer = ANSWERED
        report = await remote.settle_jobs([Outcome(job.id, job.lease, verb, error="x") for job in jobs])
    assert (set(report.settled), report.refused, report.freed) == ({"a", "b"}, {}, {"w": 2})


async def test_an_ending_of_one_job_is_found_again_too(remote: Backend, proxy: TcpProxy, server: RemoteServer) -> None:
    # F08
    await remote.enqueue_job(new_job("a"))
    job = await claim(remote, "w")
    with dying(server):
        proxy.lost_answer = ANSWERED
        assert await remote.complete_job("a", b"done", lease=lease_of(job)) == {"w": 1}
    with pytest.raises(JobNotInflight):  # for another caller it has ended
        await remote.complete_job("a", b"done", lease=lease_of(job))


async def test_an_unknown_result_is_reported_as_unknown(remote: Backend, proxy: TcpProxy, server: RemoteServer) -> None:
    await remote.enqueue_job(new_job("a"))
    with dying(server):
        proxy.lost_answer = ANSWERED
        with pytest.raises(BackendUnavailable, match="Check before you repeat"):
            await remote.dequeue_jobs("w")


async def test_the_server_reports_whether_its_store_is_durable(server: RemoteServer, store: Backend) -> None:
    for served, durable in ((store, True), (connect("memory://"), False)):
        with server.serving(served) as address:
            async with connect(address) as remote:
                await remote.count_jobs()
                assert (remote.capabilities.durable, remote.capabilities.shared) == (durable, True)
                assert not remote.capabilities.joins_transactions


# -- no server


async def test_a_missing_server_is_reported_within_a_bounded_time() -> None:
    async with connect("http://127.0.0.1:9", wait_seconds=0.2, token="very secret") as remote:
        with pytest.raises(BackendUnavailable) as caught:
            await remote.count_jobs()
        assert "127.0.0.1:9" in str(caught.value)
        for reported in (str(caught.value), repr(caught.value), repr(remote), repr(vars(remote))):
            assert "very secret" not in reported


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The address of a server that gives this answer and closes the connection."""

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_all, "127.0.0.1", 0) as door:
        yield f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{"counts":',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2_000_000,
        b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nLongshore-Mark: s.1\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nLongshore-Mark: s.1\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\noops",
        b"HTTP/1.1 429 Slowly\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 429 Slowly\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nLongshore-Mark: s.1\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
    ],
    ids=lambda answer: repr(answer[:50]),
)
async def test_whatever_answers_a_call_ends_with_an_error_of_ours(answer: bytes) -> None:
    async with answering(answer) as address, connect(address, wait_seconds=0.1) as remote:
        with pytest.raises(BackendUnavailable):
            await asyncio.wait_for(remote.count_jobs(), 20)


_A_JOB = b'{"id": 7, "type": "x", "queue": "default", "status": "RUNNING", "payload": "1", "uid": 1}'


@pytest.mark.parametrize(
    ("reported", "call"),
    [
        (b'{"id": 7}', lambda remote: remote.enqueue_job(new_job("a"))),
        (b'{"ids": [7]}', lambda remote: remote.enqueue_jobs([new_job("a")])),
        (b'{"cancelled": [7], "unknown": []}', lambda remote: remote.cancel_jobs(job_ids=["a"])),
        (b'{"count": "7"}', lambda remote: remote.count_delayed()),
        (b'{"removed": 1}', lambda remote: remote.remove_schedule("a")),
        (_A_JOB, lambda remote: remote.get_job("a")),
    ],
    ids=lambda each: each.decode() if isinstance(each, bytes) else "",
)
async def test_an_answer_of_another_kind_than_was_asked_for_is_not_believed(
    reported: bytes, call: Callable[[Backend], Awaitable[object]]
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nLongshore-Mark: s.1\r\nContent-Length: %d\r\n\r\n%s" % (len(reported), reported)
    async with answering(answer) as address, connect(address, wait_seconds=0.1) as remote:
        with pytest.raises(BackendUnavailable, match=r"not (a Longshore answer|from Longshore)"):
            await call(remote)


async def test_an_answer_in_pieces_and_one_that_is_announced_are_understood() -> None:
    reported = b'{"counts":{"DEAD":7}}'
    chunked = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nLongshore-Mark: s.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunked += (
        b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in (reported[:5], reported[5:])) + b"0\r\n\r\n"
    )
    until_the_end = b"HTTP/1.0 200 OK\r\nLongshore-Mark: s.1\r\n\r\n" + reported
    for answer in (chunked, until_the_end):
        async with answering(answer) as address, connect(address) as remote:
            assert await remote.count_jobs() == {S.DEAD: 7}


async def test_another_kind_of_server_is_reported(server: RemoteServer) -> None:
    async with connect(f"{server.address}/nowhere") as remote:
        with pytest.raises(BackendUnavailable, match=r"not (a Longshore answer|from Longshore)"):
            await remote.count_jobs()


async def test_whatever_says_yes_to_everything_is_not_believed() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi") as address, connect(address) as remote:
        with pytest.raises(BackendUnavailable, match=r"not (a Longshore answer|from Longshore)"):
            await remote.pause_queue("q")


async def test_a_missing_answer_is_reported_as_such() -> None:
    async with answering(b"") as address, connect(address, wait_seconds=0) as remote:
        with pytest.raises(BackendUnavailable, match="whether the request was carried out is unknown"):
            await remote.enqueue_job(new_job())


def test_a_token_of_two_lines_is_refused_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_TOKEN", "secret\r\nX-More: 1")
    with pytest.raises(InvalidArgument, match="token") as caught:
        connect("http://host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("http://ada:secret@host", {}, "url"),
        ("postgresql:ada:secret@host/db", {}, "url"),
        ("http://", {}, "url"),
        ("http://host:port", {}, "url"),
        ("http://host/a b", {}, "url"),
        ("http://host/\r\nX-Evil: 1", {}, "url"),
        ("http://host?token=secret", {}, "url"),
        ("http://host", {"token": "two\nlines"}, "token"),
        ("http://host", {"token": ""}, "token"),
        ("http://host", {"clock": object()}, "clock"),
        ("http://host", {"schema": "x"}, "schema"),
        ("http://host", {"wait_seconds": -1}, "wait_seconds"),
        ("http://host", {"connections": 1}, "connections"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused_without_its_secrets(
    url: str, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        connect(url, **options)
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


async def test_a_token_comes_from_the_environment_too(
    server: RemoteServer, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OneToken:
        authenticates = True

        async def admit(self, request: Any) -> Caller:
            if request.headers.get("authorization") != "Bearer good":
                raise Unauthenticated("send a token that is known here")
            return Caller("ada", frozenset({Scope.READ}))

    with server.serving(store) as address, server.behind(OneToken()):
        monkeypatch.setenv("LONGSHORE_TOKEN", "good")
        async with connect(address) as known, connect(address, token="bad") as unknown:
            assert (await known.count_jobs())[S.COMPLETED] == 0
            with pytest.raises(Unauthenticated):
                await unknown.count_jobs()
            with pytest.raises(errors.Forbidden, match="scope submit"):
                await known.enqueue_job(new_job())


async def test_a_worker_with_a_token_works_in_its_queues_until_the_token_is_revoked(
    server: RemoteServer, store: Backend
) -> None:
    # F53 F59 F60
    assert isinstance(store, SupportsTokens)
    token, secret = await store.issue_token("mailer", ["work", "read"], queues=["mail"])
    gate = Gate()
    with server.serving(store) as address, server.behind(TokenGate(store)):
        await store.enqueue_jobs([new_job("mine", queue="mail"), new_job("not mine", queue="bills")])
        async with connect(address, token=secret) as remote:
            async with working(Queue(remote, "mail"), gate):
                gate.open.set()
                await comes_to(store, "mine", S.COMPLETED)
            with pytest.raises(errors.Forbidden, match="scope submit"):
                await remote.enqueue_job(new_job(queue="mail"))
            with pytest.raises(errors.JobNotFound):
                await remote.get_job("not mine")
            assert await remote.dequeue_jobs("w", limit=10) == []
            await store.revoke_token(token.id)

            async def refusal() -> str:
                while True:  # it counts as valid for one more second
                    try:
                        await remote.count_jobs("mail")
                    except Unauthenticated as error:
                        return str(error)

            assert secret not in await asyncio.wait_for(refusal(), 25)
    assert (await store.get_job("not mine")).status is S.INITIAL_PENDING


def test_blocking_code_and_tasks_reach_a_server_too(server: RemoteServer, tmp_path: Path) -> None:
    with server.serving(connect(f"sqlite:///{tmp_path / 'jobs.db'}")) as address:
        queue = Queue(connect(address))
        job = queue.sync.add("x", {"n": 1})
        assert queue.sync.get_job(job.id).data == {"n": 1}
        queue.sync.close()

        async def run() -> str:
            harbor = Harbor(address)

            @harbor.task
            async def greet(name: str) -> str:
                return f"hello {name}"

            async with harbor:
                handle = await greet.enqueue("Ada")
                worker = harbor.worker()
                try:
                    return await handle.result(timeout=25)
                finally:
                    await worker.close()

        assert asyncio.run(run()) == "hello Ada"


def test_commands_reach_a_server_and_say_so_if_they_may_not(
    server: RemoteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = connect(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert isinstance(store, SupportsTokens)
    with server.serving(store) as address:
        monkeypatch.setenv("LONGSHORE_URL", address)
        added = longshore("enqueue", "shout", "--job-id", "a")
        assert added.code == 0, added
        assert longshore("list", "-q").out == "a\n"
        with server.behind(TokenGate(store)):
            assert longshore("list").code == Exit.NOT_ALLOWED
            monkeypatch.setenv("LONGSHORE_TOKEN", server.do(store.issue_token("reader", ["read"]))[1])
            assert longshore("list", "-q").out == "a\n"
            refused = longshore("cancel", "a")
            assert (refused.code, "scope submit" in refused.err) == (Exit.NOT_ALLOWED, True), refused


async def test_a_server_is_spoken_to_over_tls_if_it_proves_who_it_is(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key, trusted = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.private_key_pem.write_to_path(key)
    for certificate in issued.cert_chain_pems:
        certificate.write_to_path(chain, append=True)
    authority.cert_pem.write_to_path(trusted)
    server = ApiServer(create_app(connect("memory://")), certificate=str(chain), private_key=str(key))
    running = asyncio.create_task(server.run())
    await server.ready()
    async with (
        connect(server.address, ca_file=str(trusted)) as trusting,
        connect(server.address, wait_seconds=0.2) as wary,
        connect(server.address, ca_file=str(tmp_path / "none.pem")) as mistaken,
        connect(server.address.replace("https:", "http:"), wait_seconds=0.2) as in_the_open,
    ):
        largest = b"x" * 3_000_000
        await trusting.enqueue_job(new_job("a", payload=largest))
        assert (await trusting.get_job("a")).payload == largest
        with pytest.raises(BackendUnavailable, match=r"certificate.*ca_file=.*SSL_CERT_FILE"):
            await wary.count_jobs()
        with pytest.raises(BackendUnavailable, match="if the server uses TLS, use https://"):
            await in_the_open.count_jobs()
        with pytest.raises(InvalidArgument, match=r"none\.pem"):
            await mistaken.count_jobs()
    await server.close()
    await running


# -- errors are the same on both sides


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("limit", "must be less"),
        errors.JobNotFound("a"),
        errors.ScheduleNotFound("nightly"),
        errors.TokenNotFound("0f3a9c51b27e"),
        DuplicateJob(["a", "b"]),
        errors.KeyReused("order-1047", "a"),
        InvalidTransition("a", S.COMPLETED, S.RUNNING, "it has ended"),
        InvalidTransition("a", S.COMPLETED, "removed"),
        JobNotInflight("a", S.DEAD, S.COMPLETED),
        LeaseLost("a", "expired"),
        LeaseLost("a", "mismatch"),
        errors.MoveRefused("no"),
        errors.CursorExpired("gone"),
        BackendUnavailable("locked"),
        Unauthenticated("who?"),
        errors.Forbidden("not you"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_with_its_class_its_words_and_what_it_carries(error: LongshoreError) -> None:
    read = error_in(problem_of(error))
    assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))
    assert KNOWN[kind_of(type(error)).name] is type(error)


def test_every_error_of_the_table_is_known_on_the_other_side_or_the_servers_own() -> None:
    other_errors = {errors.QueueClosed, LongshoreError}  # for a client both mean that the server cannot be used
    for kind, row in TABLE.items():
        if kind not in other_errors and not kind.__module__.startswith("longshore.server"):
            assert KNOWN[row.name] is kind


async def test_fields_of_a_newer_server_are_ignored(store: Backend) -> None:
    await store.enqueue_job(new_job("a"))
    await store.put_schedule(Schedule(id="s", job=Job(type="x"), repeat=Repeat(every=60)))
    [event] = await store.read_events()
    cases: list[tuple[Form[Any], Any]] = [
        (JOB, await store.get_job("a")),
        (EVENTS, [event]),
        (SCHEDULES, await store.get_schedules()),
    ]
    for form, known in cases:
        reported = json.loads(json.dumps(form.write("answer", known)))
        for record in reported if isinstance(reported, list) else [reported]:
            record["mood"] = "serene"
        assert form.read("answer", reported) == known


# -- a remote worker


async def test_a_worker_over_http_does_what_any_worker_does(remote: Backend, store: Backend) -> None:
    gate, reported = Gate(), list[str]()

    async def process(job: RunningJob) -> str:
        await job.update_progress(0.5)
        await job.log("at work")
        await job.save_checkpoint(b"\x00page 3")
        await gate(job)
        return f"{job.data} done"

    queue = Queue(remote)
    queue.on("job.completed", lambda event: reported.append(str(event.job_id)))
    async with working(queue, process, concurrency=4):
        await Queue(store).add("x", {"n": 1}, job_id="a")  # from another process: the worker is woken over the network
        await gate.has_begun()
        running = await store.get_job("a")
        assert (running.progress, running.checkpoint) == (0.5, b"\x00page 3")
        assert [line.message for line in await remote.read_logs("a")] == ["at work"]
        gate.open.set()
        assert (await comes_to(store, "a", S.COMPLETED)).result == b"\"{'n': 1} done\""
        await until(lambda: reported == ["a"])


async def test_a_listener_over_http_gets_the_job_and_its_result(remote: Backend, store: Backend) -> None:
    # M3 M6 M-EV-02 M-EV-04
    heard: list[JobEvent] = []
    queue, removed = Queue(remote), Queue(store)
    for name in ("job.added", "job.completed"):
        queue.on(name, heard.append)
    job = await removed.add("x", {"n": 1}, remove_on_complete=True)
    await until(lambda: len(heard) == 1)
    [claimed] = await store.dequeue_jobs("w")
    await store.complete_job(job.id, b"[1]", lease=claimed.lease)
    await until(lambda: len(heard) == 2)
    assert heard[0].detail["job"].data == {"n": 1}
    assert heard[1].detail == {"result": [1]}


async def test_a_job_cancelled_by_another_process_is_stopped_on_a_remote_worker(
    remote: Backend, store: Backend
) -> None:
    gate = Gate()
    async with working(Queue(remote), gate, lock_duration=2, lock_renew_time=0.2):
        await store.enqueue_job(new_job("a"))
        await gate.has_begun()
        await store.cancel_jobs(job_ids=["a"])
        assert (await comes_to(store, "a", S.STOPPED)).executions == 1


async def test_a_worker_survives_a_network_that_fails_repeatedly(
    proxy: TcpProxy, store: Backend, server: RemoteServer
) -> None:
    # F08 M-WRK-11
    await store.enqueue_jobs([new_job(f"job {number}") for number in range(60)])

    async def process(job: RunningJob) -> str:
        await asyncio.sleep(0.001)
        return job.id

    async with (
        connect(proxy.url, wait_seconds=2, answer_seconds=2) as remote,
        working(Queue(remote), process, concurrency=6, lock_duration=3),
    ):
        for blow in (proxy.reset, proxy.cut):
            before = (await store.count_jobs())[S.COMPLETED]
            proxy.lost_answer = ANSWERED
            await until(lambda: proxy.lost_answer is None)
            blow()

            async def goes_on(since: int = before) -> bool:
                return (await store.count_jobs())[S.COMPLETED] > since or since == 60

            await until(goes_on)
        await all_come_to(store, S.COMPLETED, count=60)
    for number in range(60):
        reported = [event.event for event in await history(store, f"job {number}")]
        assert reported.count("job.completed") == 1
        assert reported.count("job.failed") == 0


async def test_a_server_that_is_gone_for_a_while_is_waited_for(store: Backend, server: RemoteServer) -> None:
    gate = Gate()
    with TcpProxy(server.address) as proxy:
        with server.serving(store):
            remote = connect(proxy.url, wait_seconds=0.3)
            worker = working(Queue(remote), gate, lock_duration=2, concurrency=2)
            await worker.__aenter__()
            await store.enqueue_job(new_job("a"))
            await gate.has_begun()
        # the server restarted on the same store
        with server.serving(store):
            gate.open.set()
            assert (await comes_to(store, "a", S.COMPLETED)).executions == 1
            await store.enqueue_job(new_job("b"))
            await comes_to(store, "b", S.COMPLETED)
            await worker.__aexit__(None, None, None)
            await remote.close()


async def test_a_waiting_caller_is_notified_at_once_and_after_a_network_failure(
    remote: Backend, store: Backend, proxy: TcpProxy
) -> None:
    await remote.wait_for_change(0)
    for number in range(3):
        waiting = asyncio.create_task(remote.wait_for_change(25))
        await asyncio.sleep(0)
        await store.enqueue_job(new_job(f"j{number}"))
        assert await waiting is True
        proxy.cut()


def test_a_backend_far_away_joins_no_transaction() -> None:
    async def refused() -> None:
        async with connect("http://127.0.0.1:9") as remote:
            await remote.add_jobs([Job(type="x")], connection=object())

    with pytest.raises(InvalidArgument, match="idempotency_key"):
        asyncio.run(refused())
