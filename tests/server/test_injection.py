"""Text that would be SQL, a pattern, a path, a header or markup anywhere else: here it is text, on every store."""

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.backends.base import Backend
from longshore.core.filters import JobFilter, matches
from longshore.core.job import Job
from longshore.core.job_record import record_of
from tests.conftest import PROVING
from tests.server.test_serving import head, said, served

CORPUS = (
    "'",
    "''",
    '"',
    "\\",
    "\\'",
    "' OR '1'='1",
    "' OR 1=1 --",
    "'; DROP TABLE jobs; --",
    "1); DELETE FROM jobs; --",
    "x' UNION SELECT hash FROM api_tokens --",
    "$1",
    "?1",
    ":name",
    "%s",
    "%(x)s",
    "{schema}",
    "{}",
    "%",
    "_",
    "[a-z]",
    "a%b_c",
    "*",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/",
    "//x",
    "$.a",
    "$[0]",
    "a.b",
    '"a".b',
    "a[0]",
    "=cmd|' /C calc'!A0",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "<script>alert(1)</script>",
    "NULL",
    "null",
    "é",
    "e\u0301",
    "\u202e",
    "\U0001d54f",
    " ",
)


async def test_every_text_matches_literally(client: httpx.AsyncClient, backend: Backend) -> None:
    # F57: each filter against the same question asked in Python
    jobs = [
        Job(id=f"{n} {text}", type=text, queue=text, tags=[text], payload=json.dumps({"at": {text: text}}).encode())
        for n, text in enumerate(CORPUS)
    ]
    await backend.enqueue_jobs(jobs)
    records = {job.id: record_of(job, 0) for job in jobs}
    before = await backend.count_jobs()
    for text in CORPUS:
        questions: dict[str, tuple[dict[str, str], JobFilter]] = {
            "type": ({"type": text}, JobFilter(types=[text])),
            "queue": ({"queue": text}, JobFilter(queues=[text])),
            "tag": ({"tag": text}, JobFilter(tags=[text])),
            "text": ({"text": text}, JobFilter(text=text)),
            "error": ({"error": text}, JobFilter(error=text)),
            "parent": ({"parent_id": text}, JobFilter(parent_id=text)),
            "data": ({"data": json.dumps({"at": text})}, JobFilter(data={"at": text})),
        }
        for name, (asked, meant) in questions.items():
            answer = await client.get("/v1/jobs", params=asked)
            assert answer.status_code == 200, (name, text, answer.text)
            found = {job["id"] for job in answer.json()["items"]}
            assert found == {job_id for job_id, record in records.items() if matches(meant, record)}, (name, text)
    assert await backend.count_jobs() == before


@settings(max_examples=200 if PROVING else 25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.lists(st.sampled_from([*CORPUS, "a", "0"]), min_size=1, max_size=3), value=st.sampled_from(CORPUS))
@pytest.mark.prove
def test_a_path_into_data_means_the_same_everywhere(path: list[str], value: str) -> None:
    # F57: the reference itself never raises, whatever the path looks like
    inside: Any = value
    for step in reversed(path):
        inside = {step: inside}
    record = record_of(Job(type="t", payload=json.dumps(inside).encode()), 0)
    if not any("." in step for step in path):
        assert matches(JobFilter(data={".".join(path): value}), record)


@pytest.mark.parametrize(
    "sort", ["order=newest;DROP", "order=id", "cursor=' OR 1", "limit=1;2", "created_after=' OR 1", "status=' OR 1"]
)
async def test_invalid_text_is_refused(client: httpx.AsyncClient, sort: str) -> None:
    # F57
    refused = await client.get(f"/v1/jobs?{quote(sort, safe='=')}")
    assert refused.status_code == 422


async def test_clients_cannot_inject_headers(memory: Backend) -> None:
    # F57: CRLF
    async with served(memory) as server:
        evil = "x%0d%0aSet-Cookie:%20a=b"
        for sent in (
            head("GET", f"/v1/jobs/{evil}"),
            head("GET", f"/{evil}"),
            head("GET", f"/v1/jobs?text={evil}"),
            head("GET", "/healthz", "X-Request-ID: a\tb"),
            head("GET", "/healthz", f"X-Request-ID: {'x' * 500}"),
        ):
            answer = await said(server, sent)
            headers = answer.partition(b"\r\n\r\n")[0].lower()
            assert b"set-cookie" not in headers
            assert b"x" * 100 not in headers
        body = json.dumps({"type": "t", "id": "a\u2028b é"}).encode()
        made = await said(
            server,
            head("POST", "/v1/jobs", "Content-Type: application/json", f"Content-Length: {len(body)}") + body,
        )
        assert made.startswith(b"HTTP/1.1 202")
        location = next(line for line in made.split(b"\r\n") if line.lower().startswith(b"location"))
        assert location.isascii(), "what stands in a header is escaped"


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/v1/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/jobs/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/jobs/..%2f..%2fetc%2fpasswd/logs",
        "/sign-in/../../etc/passwd",
        "/static/../app.py",
        "//etc/passwd",
        "/v1/jobs/%00",
        "/v1/jobs/..;/",
    ],
)
async def test_paths_cannot_leave_the_application(memory: Backend, path: str) -> None:
    # F57
    async with served(memory) as server:
        answer = await said(server, head("GET", path))
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 422")), answer[:60]
        assert b"root:" not in answer
