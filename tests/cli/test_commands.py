"""Every command: its help, and one use on SQLite, PostgreSQL and over HTTP, as text and as JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel

from longshore.cli.exit_codes import Exit
from longshore.cli.json_output import ActReport, Diagnosis, JobDetail, MigrationView, NewJob, Removed
from longshore.server.models.events import EventView
from longshore.server.models.jobs import ExplanationView, FlowView, JobPage, JobView, LogLine
from longshore.server.models.queues import QueueList, QueueView, StatsView, WorkerList
from longshore.server.models.schedules import ScheduleList, ScheduleView, Times
from longshore.server.models.tokens import NewTokenView, TokenList, TokenView
from tests.cli.scene import Names, Scene
from tests.cli.terminal import PROGRAM, check_inert, leaves, longshore, on_a_terminal
from tests.postgres_run import Clones

LEAVES = dict(leaves())
ELSEWHERE = {
    "up": "tests/cli/test_working.py",
    "serve": "tests/cli/test_working.py",
    "worker": "tests/cli/test_working.py",
    "scheduler": "tests/cli/test_working.py",
    "migrate-data": "tests/cli/test_migrate_data.py",
    "pipeline run": "tests/spark",
    "pipeline status": "tests/spark",
    "pipeline archive": "tests/spark",
    "pipeline audit": "tests/spark",
    "pipeline report": "tests/spark",
}
"""Commands that run until a signal, need two stores, or need Spark, with the tests that run them."""
HERE = sorted(LEAVES.keys() - ELSEWHERE.keys())

NASTY = Names(
    suffix=" [red]x[/red] ]8;;http://evil \u202egnp.exe \u200b:smile: 'q\" $(id)",
    text="\x1b[31mred\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\ \r\n[bold]fake line[/bold] \x07\x9b2J\u2066\u202e\x7f",
)
NOT_OVER_HTTP = {"backup", "migrate", "token create", "token list", "token revoke"}
"""Commands that need the store itself and refuse a server."""


@pytest.fixture(scope="module", params=["sqlite", "postgres", "http"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One store with the jobs that each command needs."""
    folder = tmp_path_factory.mktemp("store")
    if request.param == "sqlite":
        yield _prepared(Scene(f"sqlite:///{folder / 'jobs.db'}", folder))
        return
    if request.param == "http":
        with serving(_prepared(Scene(f"sqlite:///{folder / 'jobs.db'}", folder))) as scene:
            yield scene
        return
    clones: Clones = request.getfixturevalue("postgres_clones")
    url = clones.add()
    yield _prepared(Scene(url, folder))
    clones.drop(url)


@contextmanager
def serving(scene: Scene) -> Iterator[Scene]:
    """The same store, behind a server."""
    command = [*PROGRAM, "serve", "--url", scene.url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield dataclasses.replace(scene, url=json.loads(server.stdout.readline())["address"])
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def nasty_store(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("nasty")
    return _prepared(Scene(f"sqlite:///{folder / 'jobs.db'}", folder, NASTY))


SHAPES: dict[str, type[BaseModel]] = {
    "list": JobPage,
    "show": JobDetail,
    "explain": ExplanationView,
    "logs": LogLine,
    "stats": StatsView,
    "queues": QueueList,
    "workers": WorkerList,
    "limits": QueueView,
    "pause": QueueList,
    "resume": QueueList,
    "enqueue": NewJob,
    "cancel": ActReport,
    "retry": ActReport,
    "promote": ActReport,
    "delete": ActReport,
    "dlq list": JobPage,
    "dlq requeue": ActReport,
    "dlq purge": ActReport,
    "schedule list": ScheduleList,
    "schedule add": ScheduleView,
    "schedule run": JobView,
    "schedule pause": ScheduleView,
    "schedule resume": ScheduleView,
    "schedule preview": Times,
    "schedule remove": Removed,
    "flow show": FlowView,
    "events": EventView,
    "migrate": MigrationView,
    "doctor": Diagnosis,
    "token create": NewTokenView,
    "token list": TokenList,
    "token revoke": TokenView,
}
"""The model that `--json` prints, by command; `logs`, `events` and `stats --watch` print one per line.

`enqueue` prints a `JobResult` with `--wait`, and with `--from` an `Enqueued` per transaction.
"""


def _prepared(scene: Scene) -> Scene:
    asyncio.run(scene.prepare())
    return scene


def takes_json(command: str) -> bool:
    return any("--json" in parameter.opts for parameter in LEAVES[command].params)


def test_every_command_with_json_has_a_model() -> None:
    assert {command for command in HERE if takes_json(command)} == SHAPES.keys()
    assert not ELSEWHERE.keys() - LEAVES.keys()


@pytest.mark.parametrize("command", sorted(LEAVES))
def test_every_command_and_parameter_has_help(command: str) -> None:
    done = longshore(*command.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: longshore {command}")
    for parameter in LEAVES[command].params:
        assert getattr(parameter, "help", None), f"{command} has no help for {parameter.name}"


@pytest.mark.parametrize("command", HERE)
def test_every_command_succeeds_on_every_store(command: str, store: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_URL", store.url)
    done = longshore(*command.split(), *store.use(command, "plain"))
    if command == "backup" and store.url.startswith("postgres"):
        assert done.code == Exit.USAGE
        assert "must be a SQLite store" in done.err
        return
    if command in NOT_OVER_HTTP and store.url.startswith("http"):
        assert (done.code, done.out, done.err.count("\n")) == (Exit.USAGE, "", 1)
        return
    if command == "doctor" and store.url.startswith("postgres"):  # the test server runs without fsync
        assert done.code == Exit.FAILED
        assert "fsync is off" in done.out
        return
    assert (done.code, done.err if command not in ("token create", "pause") else "") == (0, "")
    assert done.out
    assert "\x1b" not in done.out
    if takes_json(command):
        told = longshore(*command.split(), *store.use(command, "json"), "--json")
        assert (told.code, told.err) == (0, "")
        fits = jsonschema_rs.validator_for(closed(SHAPES[command].model_json_schema(mode="serialization")))
        documents = [json.loads(line) for line in told.out.splitlines()]
        assert documents
        for document in documents:
            fits.validate(document)


def closed(schema: Any) -> Any:
    """The schema with additional properties forbidden."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made["additionalProperties"] = False
    return made


@pytest.mark.parametrize("command", HERE)
def test_user_text_cannot_control_the_terminal(
    command: str, nasty_store: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F58
    monkeypatch.setenv("LONGSHORE_URL", nasty_store.url)
    code, seen = on_a_terminal(*command.split(), *nasty_store.use(command, "terminal"))
    assert code == 0, seen
    check_inert(seen)
    if takes_json(command) and command not in ("enqueue", "backup"):
        _, seen = on_a_terminal(*command.split(), *nasty_store.use(command, "json"), "--json")
        check_inert(seen)
        for line in seen.splitlines():
            json.loads(line)


def test_user_text_is_shown_escaped_but_complete(nasty_store: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_URL", nasty_store.url)
    monkeypatch.setenv("COLUMNS", "400")
    _, seen = on_a_terminal("show", nasty_store.names.name("shown"))
    assert "shown [red]x[/red] ]8;;http://evil \\u202egnp.exe \\u200b:smile:" in seen
    _, seen = on_a_terminal("list", "--status", "dead")
    assert "[red]x[/red]" in seen
