"""A network that fails between us and PostgreSQL: answers that never arrive, or arrive too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from time import monotonic

import pytest

from longshore.backends.base import Backend, Outcome
from longshore.backends.connect import connect
from longshore.core.clock import HeldClock
from longshore.core.errors import BackendUnavailable, JobNotFound, JobNotInflight, LeaseLost
from longshore.core.job import Job
from longshore.core.status import JobStatus
from tests.backends.audit import audit
from tests.tcp_proxy import COMMITTED, TcpProxy

ANSWER, WAIT = 1.0, 2.0
"""Seconds for which this backend waits for an answer, and for a connection."""
SLACK = 5.0
"""More seconds for a busy machine."""
LONG = 30.0
"""Seconds: a wait that ends only by its timeout."""


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[TcpProxy]:
    with TcpProxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
async def direct(postgres_url: str, clock: HeldClock) -> AsyncIterator[Backend]:
    """Another process's connection to the same jobs, over a network that works."""
    async with connect(postgres_url, clock=clock) as backend:
        yield backend


def through(proxy: TcpProxy, clock: HeldClock | None = None, poll_seconds: float = LONG) -> Backend:
    # a new connection is abandoned as soon as PostgreSQL's library allows
    url = f"{proxy.url}?connect_timeout=2"
    return connect(url, clock=clock, answer_seconds=ANSWER, wait_seconds=WAIT, poll_seconds=poll_seconds)


# --- half-open connections ---


async def test_a_connection_on_which_nothing_arrives_is_given_up_and_later_verbs_work(proxy: TcpProxy) -> None:
    async with through(proxy) as backend:
        await backend.enqueue_job(Job(id="before", type="t"))
        proxy.half_open()
        began = monotonic()
        with pytest.raises(BackendUnavailable):
            await backend.enqueue_job(Job(id="lost", type="t"))
        with pytest.raises(BackendUnavailable):
            await backend.get_job("before")
        assert monotonic() - began < 2 * (ANSWER + WAIT) + SLACK
        proxy.forward()
        began = monotonic()
        while True:
            try:
                await backend.enqueue_job(Job(id="after", type="t"))
                break
            except BackendUnavailable:
                assert monotonic() - began < SLACK
        assert {job.id for job in (await audit(backend))[0]} == {"before", "after"}


async def test_a_listener_without_answers_reconnects(proxy: TcpProxy, direct: Backend) -> None:
    """A poll shows that the connection is dead; then hints arrive again."""
    async with through(proxy, poll_seconds=2) as backend:
        await direct.enqueue_job(Job(id="first", type="t"))
        assert not await backend.wait_for_change(0)
        proxy.half_open()
        proxy.forward()
        # only the old connections are dead: it notifies when it detects that, and again for what was missed
        assert await backend.wait_for_change(LONG)
        for number in range(3):
            await settled_down(backend)
            waiting = asyncio.create_task(backend.wait_for_change(LONG))
            await backend.count_jobs()  # by now the wait has begun
            began = monotonic()
            await direct.enqueue_job(Job(id=f"j{number}", type="t"))
            assert await waiting
            assert monotonic() - began < 1.5, "it was a look that woke it, not a hint"


async def test_commits_without_a_listener_are_detected_by_the_next_one(proxy: TcpProxy, direct: Backend) -> None:
    async with through(proxy) as backend:
        await direct.count_jobs()
        assert not await backend.wait_for_change(0)
        proxy.delay = ANSWER / 5
        waiting = asyncio.ensure_future(backend.wait_for_change(LONG))
        await asyncio.sleep(0)  # it waits from here on
        proxy.cut()
        assert await waiting  # the loss itself wakes waiting callers
        await direct.enqueue_job(Job(id="meanwhile", type="t"))  # long before the slow network lets it listen again
        began = monotonic()
        assert await backend.wait_for_change(LONG)
        assert monotonic() - began < SLACK


async def settled_down(backend: Backend) -> None:
    while await backend.wait_for_change(0.3):
        continue


@pytest.mark.parametrize("messages", [1, 2, 3, 4, 6, 8, 10, 13, 16])
async def test_a_connection_that_dies_at_any_moment_blocks_no_caller_forever(
    proxy: TcpProxy, direct: Backend, messages: int
) -> None:
    await direct.count_jobs()  # a migration may take long and has no timeout
    proxy.deaf_after = messages
    async with through(proxy) as backend:
        began = monotonic()
        for number in range(2):
            try:
                await asyncio.wait_for(backend.enqueue_job(Job(id=f"j{number}", type="t")), LONG)
                await asyncio.wait_for(backend.wait_for_change(0), LONG)
            except BackendUnavailable:
                continue
        assert proxy.deaf_after is None, "so much was never said"
        assert monotonic() - began < 2 * (ANSWER + WAIT) + SLACK
        assert (await backend.get_job("j1")).id == "j1"


async def test_a_client_that_vanishes_in_a_transaction_does_not_block_others_forever(
    proxy: TcpProxy, direct: Backend, clock: HeldClock
) -> None:
    await direct.set_limits("q", running=5)
    await direct.enqueue_jobs([Job(id=f"j{number}", type="t", queue="q") for number in range(3)])
    async with through(proxy, clock) as backend:
        await backend.count_jobs()
        proxy.half_open_after = b"UPDATE"
        with pytest.raises(BackendUnavailable):
            await backend.dequeue_jobs("vanished", limit=3)
        assert proxy.half_open_after is None, "it was never said"
        # its session still exists on the server, with all its locks: the server does not know
        began = monotonic()
        claimed = await asyncio.wait_for(direct.dequeue_jobs("alive", limit=3), LONG)
        assert [job.id for job in claimed] == ["j0", "j1", "j2"]
        assert monotonic() - began < ANSWER + SLACK


# --- the answer is lost after the commit, or the request before it ---


@pytest.mark.parametrize("stored", [True, False], ids=["after the commit", "before the commit"])
@pytest.mark.parametrize("key", [None, "once"], ids=["no key", "a key"])
async def test_an_enqueue_whose_answer_was_lost_says_so_and_exists_at_most_once(
    proxy: TcpProxy, direct: Backend, clock: HeldClock, stored: bool, key: str | None
) -> None:
    async with through(proxy, clock) as backend:
        await backend.count_jobs()
        lose_the_commit(proxy, stored)
        with pytest.raises(BackendUnavailable, match="may be stored or not"):
            await backend.enqueue_job(Job(id="j", type="t", idempotency_key=key))
        if stored:
            assert (await direct.get_job("j")).status is JobStatus.INITIAL_PENDING
        else:
            with pytest.raises(JobNotFound):
                await direct.get_job("j")
        if key is not None:
            again = await backend.enqueue_job(Job(id="again", type="t", idempotency_key=key))
            assert again == ("j" if stored else "again")
            assert {job.id for job in (await audit(direct, clock))[0]} == {again}


@pytest.mark.parametrize("jobs", [3, 200], ids=["a few", "by COPY"])
async def test_a_batch_whose_answer_was_lost_is_there_whole(
    proxy: TcpProxy, direct: Backend, clock: HeldClock, jobs: int
) -> None:
    async with through(proxy, clock) as backend:
        await backend.count_jobs()
        lose_the_commit(proxy, stored=True)
        with pytest.raises(BackendUnavailable, match="may be stored or not"):
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t") for number in range(jobs)])
        assert len((await audit(direct, clock))[0]) == jobs


async def test_a_job_whose_claim_was_lost_returns_when_its_lease_expires(
    proxy: TcpProxy, direct: Backend, clock: HeldClock
) -> None:
    await direct.enqueue_job(Job(id="j", type="t"))
    async with through(proxy, clock) as backend:
        await backend.count_jobs()
        lose_the_commit(proxy, stored=True)
        with pytest.raises(BackendUnavailable, match="may be stored or not"):
            await backend.dequeue_jobs("w", lease=30)
        assert await backend.dequeue_jobs("w") == []
        clock.advance(31)
        assert [job.id for job in await direct.reclaim_expired_leases()] == ["j"]
        (job,) = await backend.dequeue_jobs("w")
        assert (job.epoch, job.crashes) == (2, 1)


@pytest.mark.parametrize("how", ["complete_job", "settle_jobs"])
async def test_a_finish_whose_answer_was_lost_may_be_repeated_and_changes_nothing(
    proxy: TcpProxy, direct: Backend, clock: HeldClock, how: str
) -> None:
    await direct.enqueue_job(Job(id="j", type="t"))
    async with through(proxy, clock) as backend:
        (job,) = await backend.dequeue_jobs("w")

        async def finish() -> None:
            if how == "complete_job":
                await backend.complete_job("j", b"1", lease=job.lease)
            else:
                report = await backend.settle_jobs([Outcome("j", job.lease, result=b"1")])
                for error in report.refused.values():
                    raise error

        lose_the_commit(proxy, stored=True)
        with pytest.raises(BackendUnavailable, match="may be stored or not"):
            await finish()
        before = await direct.get_job("j")
        with pytest.raises(JobNotInflight) as refused:
            await finish()
        assert refused.value.status is JobStatus.COMPLETED
        assert await direct.get_job("j") == before
        assert (before.status, before.result) == (JobStatus.COMPLETED, b"1")


async def test_a_renewal_whose_answer_was_lost_keeps_the_lease_or_loses_it_in_plain_words(
    proxy: TcpProxy, direct: Backend, clock: HeldClock
) -> None:
    await direct.enqueue_job(Job(id="j", type="t"))
    async with through(proxy, clock) as backend:
        (job,) = await backend.dequeue_jobs("w", lease=30)
        assert job.lease is not None
        lose_the_commit(proxy, stored=True)
        with pytest.raises(BackendUnavailable, match="may be stored or not"):
            await backend.extend_leases({"j": job.lease}, 60)
        clock.advance(50)
        await backend.set_progress("j", 1, lease=job.lease)  # the renewal is stored
        clock.advance(11)
        with pytest.raises(LeaseLost):
            await backend.complete_job("j", lease=job.lease)


def lose_the_commit(proxy: TcpProxy, stored: bool) -> None:
    if stored:
        proxy.lost_answer = COMMITTED
    else:
        proxy.lost_request = b"COMMIT\0"


# --- connections that end, and answers cut in the middle ---


@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_idle_connections_that_ended_are_replaced_without_an_error(proxy: TcpProxy, how: str) -> None:
    async with through(proxy) as backend:
        await backend.enqueue_job(Job(id="before", type="t"))
        assert not await backend.wait_for_change(0)
        getattr(proxy, how)()
        await asyncio.gather(*(backend.enqueue_job(Job(id=f"j{number}", type="t")) for number in range(5)))
        assert len((await audit(backend))[0]) == 6


@pytest.mark.prove
async def test_a_truncated_answer_is_an_error_or_is_retried_and_never_accepted(
    proxy: TcpProxy, direct: Backend, clock: HeldClock, proving: bool
) -> None:
    most = 1_500 if proving else 60
    reported: list[str] = []
    async with through(proxy, clock) as backend:
        await backend.count_jobs()
        for number in range(most):
            proxy.bytes_left = number * (1 if proving else 23)
            try:
                reported += [await backend.enqueue_job(Job(id=f"j{number}", type="t"))]
                reported += [job.id for job in await backend.dequeue_jobs("w", lease=None)]
            except BackendUnavailable:
                continue
        proxy.bytes_left = None
    jobs, history = await audit(direct, clock)
    assert set(reported) <= {job.id for job in jobs}
    print(f"{most} cuts, {len(jobs)} jobs, {history.events} events")


async def test_a_slow_network_is_no_fault(proxy: TcpProxy) -> None:
    proxy.delay = ANSWER / 20
    async with through(proxy) as backend:
        await backend.enqueue_job(Job(id="j", type="t"))
        assert [job.id for job in await backend.dequeue_jobs("w")] == ["j"]
