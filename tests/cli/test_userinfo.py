"""No part of the user name or password of an address appears in an error, a log, a repr or the output of a command."""

# X4, F59
from __future__ import annotations

import asyncio
import subprocess
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.backends.connect import connect
from longshore.cli.open_store import Store
from longshore.core.errors import LongshoreError
from longshore.core.validation import shown_address
from longshore.spark.options import Address
from tests.cli.terminal import PROGRAM, longshore

SECRET = ("xcapn", "xhunter", "xsesame", "XCAPN")
CLOSED_PORT = "127.0.0.1:1/jobs"

BETWEEN = ["/", "@", "#", "?", "%", ":", "//", "@[", "[", "]", "%2", "/?", "?=", "/a?b=c", "@#/%?", ",", " ", "\\", "℀"]
PASSWORDS = [
    *(f"xhunter{between}xsesame" for between in BETWEEN),
    "5432/xsesame",
    "/xsesame",
    "xhunter/",
    "xhunter@",
    "://xsesame",
]


def address(password: str, scheme: str = "postgresql") -> str:
    return f"{scheme}://xcapn:{password}@{CLOSED_PORT}"


def check_hidden(text: str) -> None:
    found = [part for part in SECRET if part in text]
    assert not found, text


def use(url: str) -> str:
    """Return all text that the SDK shows: errors with their causes, and the repr of each object."""

    async def tried() -> str:
        backend = connect(url, wait_seconds=0.01)
        async with backend:
            try:
                await backend.count_jobs()
            except LongshoreError as error:
                return repr(backend) + "".join(traceback.format_exception(error))
        return repr(backend)

    try:
        return asyncio.run(tried())
    except LongshoreError as error:  # any other error fails the test
        return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "https", "sqlite", "mysql"])
def test_the_sdk_shows_no_part_of_the_password(password: str, scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        check_hidden(use(address(password, scheme)))
    check_hidden(caplog.text)


@pytest.mark.parametrize("url", ["xcapn:xhunter@db/jobs", "xhunter@db/jobs", "postgresql:xcapn:xhunter@db", "xhunter/"])
def test_an_address_without_its_scheme_is_not_repeated_where_it_may_hold_a_password(url: str) -> None:
    if url == "xhunter/":
        assert "'xhunter/' has no scheme" in use(url)
    else:
        check_hidden(use(url))


@given(st.lists(st.sampled_from(["xhunter", "xsesame", "5432", *"/@#?%:=&,[]+;'\"\\ ~℀\n"]), min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_part_of_any_password_is_shown(pieces: list[str]) -> None:
    url = address("".join(pieces))
    check_hidden(shown_address(url))
    check_hidden(f"{Store(url)!r}{Address(url, {})!r}")
    check_hidden(use(url))


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("command", [["stats"], ["doctor"], ["migrate"], ["enqueue", "t"], ["events"]])
def test_commands_show_no_part_of_the_password(command: list[str], password: str) -> None:
    done = longshore("--traceback", *command, "--url", address(password))
    assert done.code not in (0, 70)
    assert "this is a bug" not in done.err
    check_hidden(done.err + done.out)


@pytest.mark.parametrize("command", ["serve", "worker", "scheduler", "up"])
@pytest.mark.parametrize("password", ["xhunter/xsesame", "xhunter@xsesame", "5432/xsesame", "xhunter@[xsesame"])
def test_a_process_that_cannot_use_the_address_says_so_at_its_start(command: str, password: str) -> None:
    done = longshore(command, "--url", address(password), *(["--port", "0"] if command in ("serve", "up") else []))
    assert done.code == 2
    assert "percent-encode them" in done.err
    check_hidden(done.err + done.out)


@pytest.mark.parametrize("password", ["xhunter#xsesame", "xhunter%2Fxsesame", "xhunter?xsesame"])
def test_a_server_on_an_unreachable_store_shows_no_part_of_the_password(password: str, tmp_path: Path) -> None:
    command = [*PROGRAM, "serve", "--port", "0", "--url", address(password)]
    with (tmp_path / "told").open("w+") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT, text=True)
        try:
            while "serves" not in (tmp_path / "told").read_text():
                assert process.poll() is None
        finally:
            process.terminate()
            process.wait(60)
        check_hidden((tmp_path / "told").read_text())


def test_a_user_that_the_server_refuses_is_not_repeated(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    url = postgres_url.replace("postgres@", "xcapn:xhunter@")
    assert url != postgres_url
    with caplog.at_level("DEBUG"):
        told = use(url)
    assert "rejects this user; check the user and the database in the URL" in told
    check_hidden(told + caplog.text)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://me:s3cret@db/jobs?password=s3cret", "postgresql://db/jobs"),
        ("postgresql://db:5432,other:5433/jobs", "postgresql://db:5432,other:5433/jobs"),
        ("postgresql://me:a/b@[::1]:5432/jobs", "postgresql://[::1]:5432/jobs"),
        ("postgresql:///jobs?host=/run/postgresql", "postgresql:///jobs"),
        ("postgresql://me:s3cret", "postgresql://…"),
        ("postgresql://db/jobs?user=me@org", "postgresql://…"),
        ("https://jobs.example.org/queue", "https://jobs.example.org/queue"),
        ("sqlite:////home/a@b/jobs.db", "sqlite:////home/a@b/jobs.db"),
        ("sqlite://me:s3cret@/jobs.db", "sqlite://…"),
        ("memory://", "memory://"),
        ("me:s3cret@db", "…"),
    ],
)
def test_what_is_shown_of_an_address(url: str, seen: str) -> None:
    assert shown_address(url) == seen
