"""A store without numbers left for jobs or events reports it with the same message on every backend."""

from pathlib import Path

import apsw
import pytest

from longshore.backends.base import Backend
from longshore.backends.connect import connect
from longshore.core.errors import BackendUnavailable
from longshore.core.filters import JobFilter
from longshore.core.job import Job
from tests.postgres_server import connect as connect_to

LAST = 2**63 - 1


async def _refuses(backend: Backend) -> None:
    for lifo in (False, True):
        with pytest.raises(BackendUnavailable, match="has no numbers left for jobs or events; create a new store"):
            await backend.enqueue_job(Job(type="t", lifo=lifo))
    assert sum((await backend.count_jobs()).values()) == 0


@pytest.mark.parametrize("counter", ["next_uid", "next_event"])
async def test_a_file_whose_numbers_are_used_up_says_so(tmp_path: Path, counter: str) -> None:
    # R8
    file = tmp_path / "jobs.db"
    await (backend := connect(f"sqlite:///{file}")).now()
    await backend.close()
    connection = apsw.Connection(str(file))
    connection.execute(f"UPDATE meta SET {counter} = {LAST}")
    connection.close()
    backend = connect(f"sqlite:///{file}")
    await _refuses(backend)
    await backend.close()


@pytest.mark.parametrize("sequence", ["job_uids", "job_events_n_seq"])
async def test_a_schema_whose_numbers_are_used_up_says_so(postgres_url: str, sequence: str) -> None:
    # R8
    backend = connect(postgres_url)
    await backend.now()
    with connect_to(postgres_url) as connection:
        connection.execute(f"SELECT setval('longshore.{sequence}', {LAST})")
    await _refuses(backend)
    await backend.close()


async def test_a_page_after_a_job_with_a_long_number_can_be_read(tmp_path: Path) -> None:
    # R8
    file = tmp_path / "jobs.db"
    await (backend := connect(f"sqlite:///{file}")).now()
    await backend.close()
    connection = apsw.Connection(str(file))
    connection.execute(f"UPDATE meta SET next_uid = {10**18}")
    connection.close()
    backend = connect(f"sqlite:///{file}")
    await backend.enqueue_jobs([Job(id=name, type="t") for name in ("a", "b")])
    page = await backend.list_jobs(JobFilter(), limit=1)
    assert [job.id for job in (await backend.list_jobs(JobFilter(), limit=1, cursor=page.next_cursor)).items] == ["a"]
    await backend.close()
