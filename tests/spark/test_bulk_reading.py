"""Bulk reads of a store, without Spark."""

import asyncio

import pytest

from longshore.backends.connect import connect
from longshore.backends.export import COLUMNS, Condition, Part, SupportsExport, Wanted
from tests.spark.stored import DONE, JOBS, fill

EVENTS = JOBS + 3 * DONE + 1
"""Every job was added; some were begun, logged and completed; one waits for its time."""


def rows_of(url: str, table: str, *, parts: int = 1, where: tuple[Condition, ...] = ()) -> list[dict[str, object]]:
    backend = connect(url)
    assert isinstance(backend, SupportsExport)
    with backend.bulk_reader() as reader:
        cut = reader.parts(table, parts)
        wanted = Wanted(table, list(COLUMNS[table]), where)
        return [row for part in cut for batch in reader.batches(wanted, part) for row in batch.to_pylist()]


@pytest.mark.parametrize("parts", [1, 3, 7, EVENTS + 1])
async def test_however_the_log_is_cut_every_event_is_in_one_part(store_url: str, parts: int) -> None:
    await fill(store_url)
    rows = rows_of(store_url, "events", parts=parts)
    assert len({row["number"] for row in rows}) == len(rows) == EVENTS


@pytest.mark.parametrize("parts", [1, 5])
async def test_however_jobs_and_logs_are_cut_every_one_is_in_one_part(store_url: str, parts: int) -> None:
    await fill(store_url)
    assert sorted(str(row["id"]) for row in rows_of(store_url, "jobs", parts=parts)) == sorted(
        f"job-{number}" for number in range(JOBS)
    )
    logs = rows_of(store_url, "logs", parts=parts)
    assert len(logs) == DONE
    assert all(row["message"] == f"about {row['job_id']}" for row in logs)


async def test_a_store_without_jobs_has_no_rows(store_url: str) -> None:
    async with connect(store_url) as backend:
        await backend.count_jobs()
    assert [rows_of(store_url, table, parts=4) for table in COLUMNS] == [[], [], []]


async def test_conditions_are_met_by_the_store(store_url: str) -> None:
    await fill(store_url)

    def ids(*where: Condition) -> set[object]:
        return {row["id"] for row in rows_of(store_url, "jobs", where=where)}

    assert ids(Condition("id", "=", "job-7' OR '1'='1")) == set()
    assert ids(Condition("id", "in", ("job-7", "job-8"))) == {"job-7", "job-8"}
    assert len(ids(Condition("status", "=", "COMPLETED"), Condition("finalized_at", "is not null"))) == DONE
    assert len(ids(Condition("finalized_at", "is null"), Condition("uid", "<=", 60))) < 60
    assert ids(Condition("created_at", "<", 0)) == set()


async def test_the_log_is_read_up_to_the_end_it_had_at_planning(store_url: str) -> None:
    await fill(store_url)
    backend = connect(store_url)
    assert isinstance(backend, SupportsExport)
    with backend.bulk_reader() as reader:
        cut = reader.parts("events", 2)
        async with connect(store_url) as other:
            await other.dequeue_jobs("worker-2", limit=5)
        wanted = Wanted("events", ["number"])
        assert sum(batch.num_rows for part in cut for batch in reader.batches(wanted, part)) == EVENTS


async def test_a_position_so_many_events_on_is_where_as_many_are_read(store_url: str) -> None:
    await fill(store_url)
    backend = connect(store_url)
    assert isinstance(backend, SupportsExport)
    with backend.bulk_reader() as reader:
        last = reader.log_ends().last
        middle = reader.position_after(0, 40, last)
        wanted = Wanted("events", ["number"])
        assert sum(batch.num_rows for batch in reader.batches(wanted, Part(0, middle))) == 40
        assert reader.position_after(middle, EVENTS, last) == last


def test_the_memory_store_is_not_read_from_elsewhere() -> None:
    backend = connect("memory://")
    assert not isinstance(backend, SupportsExport)
    asyncio.run(backend.close())
