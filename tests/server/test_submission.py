"""A job over HTTP: stored, accepted, answered; and one job for one key, whatever happens in between."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from longshore.backends.base import Backend
from longshore.core.errors import BackendUnavailable, DuplicateJob
from longshore.core.job import Job
from longshore.core.status import JobStatus
from longshore.server.accept import Acceptor, fingerprint
from longshore.server.app import create_app
from tests.server.conftest import Serve

KEY = "Idempotency-Key"


async def all_jobs(backend: Backend) -> list[Job]:
    from longshore.core.filters import JobFilter

    return (await backend.list_jobs(JobFilter(), limit=1000)).items


async def test_a_job_is_acknowledged_at_once_and_was_created_before_it_was_accepted(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # O-GOAL-01, O-TR-01, O-ST-01, O-DM-01
    body = {"type": "mail", "data": {"to": "ada", "æ": [1, None]}, "queue": "mail", "tags": ["eu"], "priority": -3}
    answered = await client.post("/v1/jobs", json=body)
    assert answered.status_code == 202
    told = answered.json()
    assert told == {
        "id": told["id"],
        "queue": "mail",
        "type": "mail",
        "status": "INITIAL_PENDING",
        "replayed": False,
    }
    assert answered.headers["location"] == f"/v1/jobs/{told['id']}"
    job = await backend.get_job(told["id"])
    assert (job.data, job.tags, job.priority, job.max_attempts, job.max_crashes) == (body["data"], ("eu",), -3, 1, 3)
    history = [(event.event, event.to_status) for event in await backend.read_events(job_id=job.id)]
    assert history == [("job.added", JobStatus.CREATED), ("job.accepted", JobStatus.INITIAL_PENDING)]


async def test_a_repeated_request_gives_the_same_job_and_changes_nothing(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # O-GOAL-03, X-64
    first = await client.post("/v1/jobs", json={"type": "t", "data": {"a": 1, "b": 2}}, headers={KEY: "k"})
    again = await client.post("/v1/jobs", content=b'{"data":{"b":2, "a":1},"type":"t"}', headers={KEY: "k"} | JSON)
    assert again.status_code == 202
    assert again.json() == {**first.json(), "replayed": True}
    assert len(await all_jobs(backend)) == 1


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "other", [{"type": "t", "data": 2}, {"type": "u", "data": 1}, {"type": "t", "data": 1, "priority": 1}]
)
async def test_the_same_key_with_another_body_is_refused(
    client: httpx.AsyncClient, backend: Backend, other: dict[str, Any]
) -> None:
    # F46
    first = await client.post("/v1/jobs", json={"type": "t", "data": 1}, headers={KEY: "k"})
    refused = await client.post("/v1/jobs", json=other, headers={KEY: "k"})
    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:longshore:idempotency-key-reused"
    assert refused.json()["job_id"] == first.json()["id"]
    assert len(await all_jobs(backend)) == 1
    elsewhere = await client.post("/v1/jobs", json={**other, "queue": "other"}, headers={KEY: "k"})
    assert elsewhere.status_code == 202, "a key belongs to its queue"


async def test_two_hundred_requests_at_once_with_one_key_make_one_job(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # F46
    answers = await asyncio.gather(
        *(client.post("/v1/jobs", json={"type": "t"}, headers={KEY: "k"}) for _ in range(200))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    (job,) = await all_jobs(backend)
    assert job.status is JobStatus.INITIAL_PENDING
    assert [event.event for event in await backend.read_events()] == ["job.added", "job.accepted"]


async def test_a_job_orphaned_between_the_two_steps_waits_for_the_retry_with_its_key(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # O-FAIL-04, O-ST-02, X-64: as a server leaves it that died after it stored the job
    body = {"type": "t", "data": 1}
    orphan = Job(
        id="orphan",
        type="t",
        payload=b"1",
        status=JobStatus.CREATED,
        idempotency_key="k",
        options={"request": fingerprint(body)},
    )
    await backend.enqueue_job(orphan)
    assert await backend.dequeue_jobs("w") == [], "it never runs by itself"
    other = await client.post("/v1/jobs", json={**body, "data": 2}, headers={KEY: "k"})
    assert other.status_code == 422
    assert (await backend.get_job("orphan")).status is JobStatus.CREATED, "another request does not accept it"
    answered = await client.post("/v1/jobs", json=body, headers={KEY: "k"})
    assert answered.json() == {
        "id": "orphan",
        "queue": "default",
        "type": "t",
        "status": "INITIAL_PENDING",
        "replayed": True,
    }
    assert [job.id for job in await backend.dequeue_jobs("w")] == ["orphan"]
    assert len(await all_jobs(backend)) == 1


async def test_two_servers_that_accept_the_same_orphan_both_answer(backend: Backend) -> None:
    held = [Job(id=f"j{n}", type="t", status=JobStatus.CREATED, idempotency_key=f"k{n}") for n in range(20)]
    await backend.enqueue_jobs(held)
    acceptors = [Acceptor(backend), Acceptor(backend)]
    answers = await asyncio.gather(*(acceptor.submit([job]) for job in held for acceptor in acceptors))
    assert {answer.id for (answer,) in answers} == {job.id for job in held}
    assert {job.status for job in await all_jobs(backend)} == {JobStatus.INITIAL_PENDING}


async def test_the_key_of_a_removed_job_returns_its_summary(client: httpx.AsyncClient, backend: Backend) -> None:
    first = (await client.post("/v1/jobs", json={"type": "t"}, headers={KEY: "k"})).json()
    await backend.cancel_jobs(job_ids=[first["id"]])
    await backend.delete_jobs(job_ids=[first["id"]])
    again = await client.post("/v1/jobs", json={"type": "t"}, headers={KEY: "k"})
    assert again.json() == {**first, "status": "UNSCHEDULED", "replayed": True}
    another = await client.post("/v1/jobs", json={"type": "t", "data": 777}, headers={KEY: "k"})
    assert (another.status_code, another.json()["type"]) == (422, "urn:longshore:idempotency-key-reused")


async def test_a_batch_is_recognised_after_its_first_job_was_removed(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    jobs: list[dict[str, Any]] = [{"type": "t", "data": 1}, {"type": "t", "data": 2}]
    first, _ = (await client.post("/v1/jobs/batch", json={"jobs": jobs}, headers={KEY: "b"})).json()["jobs"]
    await backend.cancel_jobs(job_ids=[first["id"]])
    await backend.delete_jobs(job_ids=[first["id"]])
    longer = {"jobs": [*jobs, {"type": "t", "data": 3}]}
    assert (await client.post("/v1/jobs/batch", json=longer, headers={KEY: "b"})).status_code == 422
    again = (await client.post("/v1/jobs/batch", json={"jobs": jobs}, headers={KEY: "b"})).json()["jobs"]
    assert [job["replayed"] for job in again] == [True, True]
    assert len(await all_jobs(backend)) == 1


async def test_an_id_chosen_by_the_client_makes_a_request_repeatable(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    body = {"type": "t", "id": "mine", "data": 1}
    assert (await client.post("/v1/jobs", json=body)).json()["replayed"] is False
    assert (await client.post("/v1/jobs", json=body)).json()["replayed"] is True
    refused = await client.post("/v1/jobs", json={**body, "data": 2})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:longshore:duplicate-job")
    assert (await backend.get_job("mine")).data == 1


async def test_a_job_that_waits_for_others_says_so(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs", json={"type": "t", "id": "first"})
    waits = await client.post("/v1/jobs", json={"type": "t", "depends_on": ["first"]})
    assert waits.json()["status"] == "WAITING_CHILDREN"
    await client.post("/v1/jobs/first/cancel")
    given_up = {"type": "t", "depends_on": ["first"], "on_dependency_failure": "stop"}
    assert (await client.post("/v1/jobs", json=given_up)).json()["status"] == "UNSCHEDULED"


# -- batches


async def test_a_thousand_jobs_come_in_one_request_and_in_order(client: httpx.AsyncClient, backend: Backend) -> None:
    answered = await client.post("/v1/jobs/batch", json={"jobs": [{"type": "t", "data": n} for n in range(1000)]})
    assert answered.status_code == 202
    told = answered.json()["jobs"]
    assert len({job["id"] for job in told}) == 1000
    assert {job["status"] for job in told} == {"INITIAL_PENDING"}
    claimed = await backend.dequeue_jobs("w", limit=1000)
    assert [(job.id, job.data) for job in claimed] == [(job["id"], n) for n, job in enumerate(told)]
    too_many = await client.post("/v1/jobs/batch", json={"jobs": [{"type": "t"}] * 1001})
    assert (too_many.status_code, too_many.json()["field"]) == (422, "jobs")


async def test_a_batch_with_a_key_is_safe_to_repeat_unchanged(client: httpx.AsyncClient, backend: Backend) -> None:
    batch = {"jobs": [{"type": "t", "data": 1}, {"type": "t", "data": 2, "idempotency_key": "own"}]}
    first = (await client.post("/v1/jobs/batch", json=batch, headers={KEY: "b"})).json()["jobs"]
    again = (await client.post("/v1/jobs/batch", json=batch, headers={KEY: "b"})).json()["jobs"]
    assert again == [{**job, "replayed": True} for job in first]
    changed = {"jobs": [{"type": "t", "data": 1}, {"type": "t", "data": 3, "idempotency_key": "new"}]}
    refused = await client.post("/v1/jobs/batch", json=changed, headers={KEY: "b"})
    assert refused.status_code == 422
    assert {job.id for job in await all_jobs(backend)} == {job["id"] for job in first}
    longest = await client.post("/v1/jobs/batch", json=batch, headers={KEY: "x" * 251})
    assert (longest.status_code, longest.json()["field"]) == (422, "Idempotency-Key")
    assert (await client.post("/v1/jobs/batch", json=batch, headers={KEY: "x" * 250})).status_code == 202


async def test_whichever_job_of_a_batch_has_changed_its_key_lets_no_other_body_pass(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # F46
    one, two = {"type": "t", "data": 1, "queue": "a"}, {"type": "t", "data": 2, "queue": "a"}
    batch = {"jobs": [one, two, {**one, "queue": "b"}]}
    first = (await client.post("/v1/jobs/batch", json=batch, headers={KEY: "k"})).json()["jobs"]
    again = (await client.post("/v1/jobs/batch", json=batch, headers={KEY: "k"})).json()["jobs"]
    assert again == [{**job, "replayed": True} for job in first]
    for jobs in (
        [{**one, "queue": "b"}, two],  # the first job is in another queue now,
        [{**one, "idempotency_key": "own", "data": 9}, two],  # or has its own key,
        [{**one, "idempotency_key": "own"}, {**two, "idempotency_key": "too"}, one],  # or all that were in that place
        [{**one, "queue": "c"}, {**one, "queue": "c"}, {**one, "queue": "c"}, two],
        [two],
    ):
        refused = await client.post("/v1/jobs/batch", json={"jobs": jobs}, headers={KEY: "k"})
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:longshore:idempotency-key-reused"), jobs
    assert {job.id for job in await all_jobs(backend)} == {job["id"] for job in first}


async def test_a_refused_batch_uses_up_no_key(client: httpx.AsyncClient, backend: Backend) -> None:
    # F46
    await client.post("/v1/jobs", json={"type": "t", "data": 1}, headers={KEY: "known"})
    spoiled = [
        {"type": "t", "data": 2, "idempotency_key": "known"},
        {"type": "t", "data": 3, "idempotency_key": "fresh"},
    ]
    assert (await client.post("/v1/jobs/batch", json={"jobs": spoiled})).status_code == 422
    assert len(await all_jobs(backend)) == 1, "all of them or none"
    fresh = await client.post("/v1/jobs", json={"type": "t", "data": 4}, headers={KEY: "fresh"})
    assert (fresh.status_code, fresh.json()["replayed"]) == (202, False)


async def test_a_key_and_an_id_together_are_compared_with_the_stored_job(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # F46
    body = {"type": "t", "id": "mine", "data": 1}
    first = (await client.post("/v1/jobs", json=body, headers={KEY: "k"})).json()
    again = (await client.post("/v1/jobs", json=body, headers={KEY: "k"})).json()
    assert again == {**first, "replayed": True}
    for other in ({"data": 2}, {"type": "u"}, {"priority": 1}):
        refused = await client.post("/v1/jobs", json={**body, **other}, headers={KEY: "k"})
        assert (refused.status_code, refused.json()["job_id"]) == (422, "mine")
        batch = {"jobs": [{"type": "new"}, {**body, **other, "idempotency_key": "k"}]}
        assert (await client.post("/v1/jobs/batch", json=batch)).status_code == 422
    assert [(job.id, job.data) for job in await all_jobs(backend)] == [("mine", 1)]
    await backend.cancel_jobs(job_ids=["mine"])
    await backend.delete_jobs(job_ids=["mine"])
    refused = await client.post("/v1/jobs", json={**body, "data": 5}, headers={KEY: "k"})
    assert refused.status_code == 422, "never acknowledged and not stored"


async def test_a_key_is_acknowledged_only_with_a_job_that_keeps_it(client: httpx.AsyncClient, backend: Backend) -> None:
    # F46
    body = {"type": "t", "id": "mine", "data": 1}
    await client.post("/v1/jobs", json=body, headers={KEY: "k"})
    for address, told in (("/v1/jobs", body), ("/v1/jobs/batch", {"jobs": [{"type": "t"}, body]})):
        refused = await client.post(address, json=told, headers={KEY: "another"})
        assert (refused.status_code, refused.json()["job_ids"]) == (409, ["mine"])
    assert (await client.post("/v1/jobs", json=body)).json()["replayed"] is True
    other = await client.post("/v1/jobs", json={"type": "t", "data": 2}, headers={KEY: "another"})
    assert (other.status_code, other.json()["replayed"]) == (202, False)
    assert len(await all_jobs(backend)) == 2


async def test_a_request_with_two_keys_is_refused(quick: httpx.AsyncClient, memory: Backend) -> None:
    for address, body in (("/v1/jobs", {"type": "t"}), ("/v1/jobs/batch", {"jobs": [{"type": "t"}]})):
        refused = await quick.post(address, json=body, headers=[(KEY, "a"), (KEY, "b")])
        assert (refused.status_code, refused.json()["field"]) == (422, KEY)
    assert await all_jobs(memory) == []


async def test_a_refused_batch_stores_nothing(client: httpx.AsyncClient, backend: Backend) -> None:
    await client.post("/v1/jobs", json={"type": "t", "id": "taken"})
    bad: list[tuple[dict[str, Any], int, str | None]] = [
        ({"type": "a\x00b"}, 422, "jobs[1].type"),
        ({"type": "t", "data": {"deep": 2**70}}, 422, "jobs[1].data.deep"),
        ({"type": "t", "backoff": {"type": "fixed", "delay": -1}}, 422, "jobs[1].backoff.delay"),
        ({"type": "t", "id": "taken", "data": "other"}, 409, None),
    ]
    for spec, status, field in bad:
        refused = await client.post("/v1/jobs/batch", json={"jobs": [{"type": "good"}, spec]})
        assert (refused.status_code, refused.json().get("field")) == (status, field)
        assert [job.id for job in await all_jobs(backend)] == ["taken"]


# -- many at once, and several servers


async def test_a_refused_batch_takes_no_job_away_that_another_server_is_about_to_accept(backend: Backend) -> None:
    # F02, F46
    await backend.enqueue_job(Job(id="taken", type="t"))
    body = {"type": "t", "id": "mine"}
    printed = {"request": fingerprint(body)}
    mine = Job(id="mine", type="t", status=JobStatus.CREATED, options=printed)
    await backend.enqueue_jobs([mine])  # one server has stored it, and not accepted it yet
    batch = [mine, Job(id="taken", type="t", payload=b"1", status=JobStatus.CREATED)]
    with pytest.raises(DuplicateJob, match="taken"):
        await Acceptor(backend).submit(batch)
    assert (await backend.get_job("mine")).status is JobStatus.CREATED
    (answer,) = await Acceptor(backend).submit([mine])
    assert (answer.id, (await backend.get_job("mine")).status) == ("mine", JobStatus.INITIAL_PENDING)


async def test_a_change_between_storing_and_accepting_is_reported(memory: Backend) -> None:
    acceptor = Acceptor(memory)
    accept = memory.accept_jobs

    async def called_off_before(job_ids: Sequence[str]) -> None:
        await memory.cancel_jobs(job_ids=["called off", "removed"])
        await memory.delete_jobs(job_ids=["removed"])
        await accept(job_ids)

    memory.accept_jobs = called_off_before  # type: ignore[method-assign]  # another process acts between the two steps
    held = [Job(id=name, type="t", status=JobStatus.CREATED) for name in ("called off", "removed", "well")]
    told = await asyncio.gather(*(acceptor.submit([job]) for job in held), return_exceptions=True)
    assert [answer.status for (answer,) in (told[0], told[2])] == [JobStatus.UNSCHEDULED, JobStatus.INITIAL_PENDING]  # type: ignore[misc]  # no errors
    assert isinstance(told[1], BackendUnavailable), "nothing is acknowledged that is gone"
    assert "send the request again" in str(told[1])


async def test_an_invalid_job_does_not_affect_concurrent_requests(client: httpx.AsyncClient, backend: Backend) -> None:
    await client.post("/v1/jobs", json={"type": "t", "id": "taken"})
    bodies = [{"type": "t", "data": n} for n in range(30)] + [{"type": "t", "id": "taken", "data": 1}, {"type": "\x07"}]
    answers = await asyncio.gather(*(client.post("/v1/jobs", json=body) for body in bodies))
    assert [answer.status_code for answer in answers] == [202] * 30 + [409, 422]
    assert len(await all_jobs(backend)) == 31


async def test_an_aborted_request_does_not_affect_concurrent_requests(memory: Backend) -> None:
    await memory.enqueue_job(Job(id="first", type="t"))
    acceptor = Acceptor(memory)
    held: list[asyncio.Task[Any]] = []
    really = memory.get_job

    async def leaves_meanwhile(job_id: str) -> Job:
        if job_id == "a":
            held[2].cancel()
        return await really(job_id)

    memory.get_job = leaves_meanwhile  # type: ignore[method-assign]  # the last step of an answer to a job that waits
    names = ("turn 1", "turn 2", "a", "b")  # the last two wait together, and so come together
    jobs = [Job(id=name, type="t", status=JobStatus.CREATED, depends_on=["first"]) for name in names]
    held += [asyncio.create_task(acceptor.submit([job])) for job in jobs]
    *_, left, stayed = await asyncio.gather(*held, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert [answer.id for answer in stayed] == ["b"]  # type: ignore[union-attr]  # no error
    assert {job.status for job in await all_jobs(memory) if job.id != "first"} == {JobStatus.WAITING_CHILDREN}


async def test_jobs_that_come_at_the_same_time_share_transactions(memory: Backend) -> None:
    calls: list[int] = []
    enqueue_new_jobs = memory.enqueue_new_jobs

    async def counted(jobs: Any) -> list[str]:
        calls.append(len(jobs))
        await asyncio.sleep(0)  # as a store that has to wait for its disk
        return await enqueue_new_jobs(jobs)

    memory.enqueue_new_jobs = counted  # type: ignore[method-assign]  # to look on, nothing else
    acceptor = Acceptor(memory)
    held = [Job(type="t", status=JobStatus.CREATED) for _ in range(50)]
    await asyncio.gather(*(acceptor.submit([job]) for job in held))
    assert sum(calls) == 50
    assert len(calls) <= 3
    await acceptor.close()


async def test_an_unavailable_store_acknowledges_nothing(memory: Backend, serve: Serve) -> None:
    client: httpx.AsyncClient = await serve(memory)

    async def full(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("the disk is full")

    accept_jobs, memory.accept_jobs = memory.accept_jobs, full  # type: ignore[method-assign]  # as a full disk would
    refused = await client.post("/v1/jobs", json={"type": "t"}, headers={KEY: "k"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (await all_jobs(memory))[0].status is JobStatus.CREATED
    memory.accept_jobs = accept_jobs  # type: ignore[method-assign]  # it works again
    assert (await client.post("/v1/jobs", json={"type": "t"}, headers={KEY: "k"})).json()["replayed"] is True
    assert [job.status for job in await all_jobs(memory)] == [JobStatus.INITIAL_PENDING]


def test_a_server_needs_a_store() -> None:
    with pytest.raises(ValueError, match="the result of connect"):
        create_app("memory://")  # type: ignore[arg-type]  # the mistake under test


async def test_an_id_in_another_queue_is_in_the_way_and_its_job_is_left_as_it_was(
    client: httpx.AsyncClient, backend: Backend
) -> None:
    # guessing the data of a held job of another queue does not accept it
    await backend.enqueue_job(Job(id="held", type="pay", queue="bills", payload=b"1", status=JobStatus.CREATED))
    same = {"id": "held", "type": "pay", "queue": "mail", "data": 1}
    for path, body in (("/v1/jobs", same), ("/v1/jobs/batch", {"jobs": [{"type": "x"}, same]})):
        refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json().get("job_ids")) == (409, ["held"]), refused.text
    assert [(job.id, job.status) for job in await all_jobs(backend)] == [("held", JobStatus.CREATED)]
