"""The `longshore` command: output, exit codes and errors."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore import Job, JobStatus, Queue, __version__, connect, errors
from longshore.cli import enqueue
from longshore.cli.exit_codes import Exit, exit_code_of
from longshore.cli.inspect import print_job
from tests.cli.terminal import PROGRAM, longshore, on_a_terminal


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with three waiting jobs and one cancelled job; LONGSHORE_URL names it."""
    address = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("LONGSHORE_URL", address)

    async def fill() -> None:
        async with connect(address) as backend:
            await backend.enqueue_jobs([Job(id=f"j{number}", type="t", queue="mail") for number in range(4)])
            await backend.cancel_jobs(job_ids=["j0"])

    asyncio.run(fill())
    return address


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("group", [(), ("dlq",), ("schedule",), ("flow",), ("token",), ("pipeline",)])
def test_a_group_without_a_command_prints_its_help(group: tuple[str, ...]) -> None:
    done = longshore(*group)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert done.err.splitlines()[0].startswith(" ".join(("Usage: longshore", *group)))
    assert "Commands:" in done.err.splitlines()
    assert longshore(*group, "--help").out.strip() == done.err.strip()


# -- inspecting


def test_version_is_the_packages() -> None:
    assert process("--version").stdout == f"longshore {__version__}\n"


def test_stats_counts_every_status(url: str) -> None:
    rows = dict(line.split()[:2] for line in longshore("stats").out.splitlines()[1:-1])
    assert rows["INITIAL_PENDING"] == "3"
    assert rows["UNSCHEDULED"] == "1"
    assert set(rows) == set(JobStatus)
    assert json.loads(longshore("stats", "--queue", "mail", "--json").out)["counts"]["INITIAL_PENDING"] == 3
    assert json.loads(longshore("stats", "--queue", "other", "--json").out)["total_jobs"] == 0


def test_pages_follow_each_other_by_cursor_and_all_are_one_document(url: str) -> None:
    first = longshore("list", "-q", "--limit", "3")
    assert first.out.split() == ["j3", "j2", "j1"]
    cursor = first.err.removeprefix("next page: --cursor ").strip()
    assert longshore("list", "-q", "--cursor", cursor).out == "j0\n"
    told = json.loads(longshore("list", "--all", "--json").out)
    assert ([job["id"] for job in told["items"]], told["next_cursor"]) == (["j3", "j2", "j1", "j0"], None)
    assert longshore("list", "-q", "--status", "unscheduled", "--type", "t").out == "j0\n"
    assert longshore("list", "--text", "nowhere").err == "no jobs match\n"


def test_show_lists_every_attempt_of_a_job(url: str) -> None:
    async def fail_twice() -> None:
        async with Queue(connect(url)) as queue:
            for worker in ("w1", "w2"):
                [job] = await queue.dequeue_jobs(worker)
                assert job.id == "j1"
                await queue.fail_job(job.id, f"broken by {worker}", lease=job.lease)
                await queue.cancel_jobs(job_ids=["j2", "j3"])

    asyncio.run(fail_twice())
    told = json.loads(longshore("show", "j1", "--json").out)
    attempts = [(one["worker"], one["outcome"], one["error"]) for one in told["attempts"]]
    assert attempts == [("w1", "job.failed", "broken by w1"), ("w2", "job.failed", "broken by w2")]
    shown = longshore("show", "j1").out
    assert "broken by w2" in shown
    assert "longshore explain j1" in shown
    assert "longshore worker --queue mail" in longshore("explain", "j1").out


# -- acting


def test_a_command_with_filters_needs_yes_without_a_terminal(url: str) -> None:
    assert longshore("cancel", "--queue", "mail", "--dry-run").out == "3 jobs match; nothing was changed\n"
    refused = longshore("cancel", "--queue", "mail")
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert "yes: no terminal to confirm on, so nothing was changed; add --yes to cancel 3 jobs" in refused.err
    assert longshore("cancel").code == Exit.USAGE
    assert json.loads(longshore("stats", "--json").out)["counts"]["UNSCHEDULED"] == 1
    done = longshore("cancel", "--queue", "mail", "--yes")
    assert done == (0, "3 jobs cancelled\n", "100 %  cancel, 3 of 3 jobs\n")


def test_an_action_on_several_ids_changes_those_it_can_and_reports_the_others(url: str) -> None:
    done = longshore("cancel", "j1", "j0", "missing")
    assert (done.code, done.out) == (Exit.NOT_FOUND, "j1 cancelled\n")
    assert len(done.err.splitlines()) == 2
    assert longshore("delete", "j2").code == Exit.CONFLICT
    assert longshore("dlq", "purge", "j0").code == Exit.CONFLICT, "it is final, but not a dead letter"
    assert longshore("delete", "j0").out == "j0 deleted\n"


def test_requeue_records_the_actor(url: str) -> None:
    asyncio.run(_bury(url))
    assert longshore("dlq", "requeue", "--all").code == Exit.USAGE
    assert longshore("dlq", "requeue", "--all", "--dry-run").out == "1 job matches; nothing was changed\n"
    assert longshore("dlq", "requeue", "--all", "--yes").out == "1 job returned to the queue\n"
    told = json.loads(longshore("events", "--event", "job.retried", "--json").out)
    assert told["job_id"] == "j1"
    assert told["actor"].startswith("cli")
    assert longshore("dlq", "list").err == "no jobs match\n"


def test_dry_run_counts_the_jobs_the_action_applies_to(url: str) -> None:
    def counted(*words: str) -> int:
        return int(json.loads(longshore(*words, "--dry-run", "--json").out)["matched"])

    for words, number in (
        (("cancel", "--all"), 3),
        (("cancel", "--queue", "mail", "--queue", "mail", "--queue", "other"), 3),
        (("cancel", "--queue", "mail", "--type", "t"), 3),
        (("cancel", "--status", "initial_pending"), 3),
        (("cancel", "--status", "dead"), 0),
        (("cancel", "j1", "j2", "j0"), 2),
        (("delete", "--all"), 1),
        (("retry", "--all"), 0),
        (("promote", "--all"), 0),
    ):
        assert counted(*words) == number, words


@pytest.mark.parametrize(
    "words",
    [
        "show no",
        "explain no",
        "logs no",
        "cancel no",
        "retry no",
        "promote no",
        "delete no",
        "dlq purge no",
        "flow show no",
    ]
    + [f"schedule {verb} no" for verb in ("run", "pause", "resume", "remove", "preview")]
    + ["token revoke no"],
)
def test_an_unknown_id_is_one_line_and_exit_code_4(url: str, words: str) -> None:
    done = longshore(*words.split())
    assert (done.code, done.out, done.err.count("\n")) == (Exit.NOT_FOUND, "", 1)
    assert "'no'" in done.err

    assert longshore("delete", "j0").out == "j0 deleted\n"


def test_an_invalid_id_is_refused_before_any_job_changes(url: str) -> None:
    refused = longshore("cancel", "j1", "x" * 300)
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert json.loads(longshore("show", "j1", "--json").out)["job"]["status"] == "INITIAL_PENDING"


def test_enqueue_from_a_file_names_an_invalid_line(url: str, tmp_path: Path) -> None:
    lines = tmp_path / "jobs.ndjson"
    lines.write_text('{"type": "a", "data": 1, "job_id": "n1"}\n\n{"type": "b", "queue": "other", "job_id": "n2"}\n')
    assert longshore("enqueue", "--from", str(lines), "--queue", "mail", "-q").out == "n1\nn2\n"
    assert longshore("list", "-q", "--queue", "other").out == "n2\n"
    lines.write_text('{"type": "a", "job_id": "n3"}\n{"type": "b", "job_id": "n4"}\n')
    assert json.loads(longshore("enqueue", "--from", str(lines), "--json").out) == {"job_ids": ["n3", "n4"]}
    lines.write_text('{"type": "a"}\n{"type": "b", "prio": 1}\n')
    refused = longshore("enqueue", "--from", str(lines))
    assert refused.code == Exit.USAGE
    assert (
        refused.err
        == "longshore: line 2.prio: is not an option of a job; did you mean priority?; nothing was enqueued\n"
    )


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"{", "line 3"),
        (b'{"type": "c", "queue": null}', "line 3.queue"),
        (b'{"type": "\xff"}', "from"),
        (b"[" * 100_000, "line 3"),
    ],
)
def test_an_unreadable_line_is_reported_with_the_number_of_jobs_enqueued_before_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, field: str
) -> None:
    monkeypatch.setattr(enqueue, "BATCH_SIZE", 2)
    lines = tmp_path / "jobs.ndjson"
    lines.write_bytes(b'{"type": "a", "job_id": "n1"}\n{"type": "b", "job_id": "n2"}\n' + line)
    refused = longshore("enqueue", "--from", str(lines), "--queue", "new")
    assert refused.code == Exit.USAGE
    assert refused.err.startswith(f"longshore: {field}: ")
    stored = 0 if field == "from" else 2  # the whole of a small file is decoded at once
    kept = "; 2 jobs of earlier batches enqueued" if stored else "; nothing was enqueued"
    assert refused.err.endswith(f"{kept}\n")
    assert len(longshore("list", "-q", "--queue", "new").out.split()) == stored


def test_enqueue_passes_every_option_on(url: str) -> None:
    options = (
        "--priority -5 --delay 1h --attempts 3 --backoff exponential:2s --lifo --tag a --tag b --timeout 5m "
        "--depends-on j1 --on-dependency-failure stop --remove-on-complete 10 --concurrency-key k --max-crashes none "
        "--idempotency-key once --job-id mine --queue mail --expires-at 2h"
    )
    told = json.loads(longshore("enqueue", "t", '{"to": "ada"}', *options.split(), "--json").out)
    assert (told["id"], told["queue"], told["data"], told["status"]) == (
        "mine",
        "mail",
        {"to": "ada"},
        "WAITING_CHILDREN",
    )
    assert (told["priority"], told["delay"], told["max_attempts"], told["timeout"]) == (-5, 3600, 3, 300)
    assert (told["lifo"], told["tags"], told["depends_on"], told["max_crashes"]) == (True, ["a", "b"], ["j1"], None)
    backoff = {"type": "exponential", "delay": 2.0, "cap": None, "jitter": 0.0}
    assert told["options"] == {"backoff": backoff, "remove_on_complete": 10}
    assert longshore("enqueue", "t", "--idempotency-key", "once", "--queue", "mail", "-q").out == "mine\n"


@pytest.mark.parametrize("option", ["--idempotency-key", "--job-id"])
def test_enqueue_says_if_the_job_exists_already(url: str, option: str) -> None:
    first = json.loads(longshore("enqueue", "t", "1", option, "once", "--json").out)
    again = json.loads(longshore("enqueue", "t", "2", option, "once", "--json").out)
    assert (first["replayed"], again["replayed"], again["id"], again["data"]) == (False, True, first["id"], 1)
    told = f"{first['id']} is the job that already has this key or id (INITIAL_PENDING)"
    unchanged = "; nothing was added and its data was not changed\n"
    assert longshore("enqueue", "t", "2", option, "once").out == told + unchanged


@pytest.mark.parametrize(("command", "out"), [("pause", "is paused"), ("resume", "is active"), ("limits", "no limits")])
def test_a_queue_that_the_store_does_not_know_is_pointed_out(url: str, command: str, out: str) -> None:
    done = longshore(command, "mial")
    assert (done.code, out in done.out) == (0, True)
    assert done.err.startswith("longshore: queue 'mial' has no jobs yet; known queues: mail. If you meant 'mail', ")
    assert longshore(command, "mail").err == ""


def test_show_hides_the_option_that_the_server_adds(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    for options, shown in (({"request": "37ec8216"}, False), ({"request": "37ec8216", "remove_on_complete": 10}, True)):
        print_job(Job(id="j", type="t", options=options), [], now)
        told = capsys.readouterr().out
        assert ("37ec8216" in told, "remove_on_complete" in told) == (False, shown)


def test_data_may_be_a_file_and_an_unquoted_string_is_explained(url: str, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"to": "ada"}')
    told = longshore("enqueue", "t", f"@{tmp_path / 'data.json'}", "--json").out
    assert json.loads(told)["data"] == {"to": "ada"}
    assert "quote a string as JSON" in longshore("enqueue", "t", "hello").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["enqueue", "t", "--delay", "soon"], "delay: must be a duration such as 90s"),
        (["enqueue", "t", "--delay", "-5s"], "delay: must not be negative; got '-5s'"),
        (["enqueue", "t", "@none.json"], "No such file or directory; the path is relative to the working directory"),
        (["enqeue", "t"], "Did you mean 'enqueue', 'queues'? See longshore --help"),
        (["enqueue", "t", "--run-at", "2026-05-01T12:00"], "run-at: needs a time zone; write 2026-05-01T12:00Z"),
        (["enqueue", "t", "--attempts", "-1"], "attempts: must be between 0 and"),
        (["enqueue"], "type: give either a TYPE, or --from FILE"),
        (["list", "--status", "lost"], "status: unknown status 'lost'; use one of"),
        (["list", "--created-after", "monday"], "created-after: must be a time"),
        (["limits", "mail", "--rate", "many"], "rate: must be a rate such as 10/1m"),
        (["limits", "mail", "--running", "0"], "running"),
        (["schedule", "add", "s", "t"], "give either cron or every"),
        (["schedule", "add", "s", "t", "--cron", "61 * * * *"], "cron: "),
        (["pause"], "queue: give either names of queues or --all"),
        (["events", "--event", "job.dad"], "did you mean"),
        (["nonsense"], "No such command 'nonsense'"),
        (["list", "--nonsense"], "--nonsense"),
    ],
)
def test_an_invalid_value_is_one_line_that_names_it_and_changes_nothing(
    url: str, arguments: list[str], words: str
) -> None:
    before = longshore("events", "--json").out
    done = longshore(*arguments)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert done.err.count("\n") == 1
    assert words in done.err
    assert longshore("events", "--json").out == before


# -- exit codes


def test_every_error_has_an_exit_code_and_every_exit_code_a_meaning() -> None:
    assert all(code.meaning for code in Exit)
    assert exit_code_of(errors.JobNotInflight) is Exit.CONFLICT
    assert exit_code_of(ZeroDivisionError) is Exit.INTERNAL
    for name in set(errors.__all__) - {"JobInterrupted"}:  # only tasks raise it
        assert exit_code_of(getattr(errors, name)) is not Exit.INTERNAL


def test_the_documentation_has_the_table_of_exit_codes() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert documented == {str(int(code)): code.meaning for code in Exit}


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("sqlite:///{}/missing/jobs.db", Exit.UNREACHABLE, "does not exist"),
        ("sqlite:///{}/typo.db", Exit.UNREACHABLE, "longshore migrate"),
        ("postgresql://nobody@127.0.0.1:1/none", Exit.UNREACHABLE, "cannot be reached"),
        ("http://127.0.0.1:1", Exit.UNREACHABLE, "nothing answers at http://127.0.0.1:1; check the address"),
        ("redis://localhost", Exit.USAGE, "'redis' is not a known backend"),
        ("\x1b]8;;http://evil\x1b\\click", Exit.USAGE, "is not a known backend"),
    ],
)
def test_an_unusable_store_is_one_line_and_its_exit_code(address: str, code: Exit, words: str, tmp_path: Path) -> None:
    done = longshore("stats", "--url", address.format(tmp_path))
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1
    assert words in done.err
    assert "\x1b" not in done.err
    assert list(tmp_path.iterdir()) == [], "a mistyped address created a file"


def test_migrate_creates_a_missing_schema(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_URL", postgres_url)
    monkeypatch.setenv("LONGSHORE_SCHEMA", "elsewhere")
    missing = longshore("stats")
    assert missing.code == Exit.UNREACHABLE
    assert "create it with longshore migrate" in missing.err
    assert "schema version" in longshore("migrate").out
    assert longshore("stats").code == 0


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Queue, "list_queues", broken)
    told = longshore("queues")
    assert told == (
        Exit.INTERNAL,
        "",
        "longshore: ZeroDivisionError: oops; this is a bug: longshore --traceback … shows where\n",
    )
    assert "Traceback" in longshore("--traceback", "queues").err
    monkeypatch.setenv("LONGSHORE_TRACEBACK", "1")
    assert "Traceback" in longshore("queues").err


def test_a_closed_pipe_ends_the_command_without_an_error(url: str) -> None:
    asyncio.run(_many(url))
    running = subprocess.Popen([*PROGRAM, "list", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    with running:
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == Exit.PIPE_CLOSED


async def _many(url: str) -> None:
    async with connect(url) as backend:
        await backend.enqueue_jobs([Job(type="t" * 200) for _ in range(2_000)])


RESTORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A shell starts background jobs with SIGINT ignored, and child processes inherit that."""


def test_ctrl_c_ends_a_repeated_view_without_an_error(url: str) -> None:
    ours, theirs = pty.openpty()
    program = [*PROGRAM[:-1], f"{RESTORE_SIGINT}; {PROGRAM[-1]}"]
    running = subprocess.Popen(
        [*program, "stats", "--watch", "--every", "0.1"], stdout=theirs, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    assert running.stderr is not None
    with running:
        seen = b""
        while seen.count(b"INITIAL_PENDING") < 2:  # it has refreshed at least once
            seen += os.read(ours, 4096)
        running.send_signal(signal.SIGINT)
        assert running.stderr.read() == ""
    os.close(ours)
    assert running.returncode == Exit.INTERRUPTED


def test_colour_appears_on_a_terminal_only_and_not_with_no_color(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    asyncio.run(_bury(url))
    assert "\x1b[" in on_a_terminal("list")[1]
    assert "\x1b" not in longshore("list").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal("list")[1]


async def _bury(url: str) -> None:
    async with connect(url) as backend:
        [job] = await backend.dequeue_jobs("w")
        await backend.bury_job(job.id, "no", lease=job.lease)


def test_help_loads_neither_stores_nor_pydantic_nor_rich() -> None:
    program = "import sys; from longshore.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not loaded & {"pydantic", "apsw", "psycopg", "rich", "asyncio", "fastapi", "pyspark", "cronsim", "logging"}


def test_commands_work_without_any_extra(url: str) -> None:
    program = """
import sys
EXTRAS = {"fastapi", "starlette", "uvicorn", "httpx", "jinja2", "prometheus_client", "psycopg", "pyspark", "pyarrow"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(name, name=name.partition(".")[0])
sys.meta_path.insert(0, Missing())
from longshore.cli.main import main
for command in sys.argv[1:]:
    code = main(command.split())
    assert code == 0, command
"""
    uses = [
        "list",
        "show j1",
        "explain j1",
        "logs j1",
        "events",
        "stats",
        "queues",
        "workers",
        "limits mail",
        "dlq list",
    ]
    uses += ["schedule list", "token list", "enqueue t", "cancel j1", "migrate"]
    command = [sys.executable, "-W", "error", "-c", program, *(f"{use} --json" for use in uses)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- backups


def test_backup_writes_a_copy_that_opens_and_refuses_to_overwrite(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert longshore("backup", str(copy)).code == 0
    assert longshore("list", "-q", "--url", f"sqlite:///{copy}").out.split() == ["j3", "j2", "j1", "j0"]
    again = longshore("backup", str(copy))
    assert (again.code, "exists already" in again.err) == (Exit.USAGE, True)
    assert "must be a SQLite store" in longshore("backup", "--url", "memory://", str(tmp_path / "other.db")).err
