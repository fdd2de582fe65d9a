"""What deploy/ says is what the commands understand."""

import json
import re
import shlex
from pathlib import Path

import click
import typer

from longshore.cli.main import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def understood(arguments: list[str]) -> dict[str, object]:
    """The options as the command line reads them."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    command = group.commands[arguments[0]]
    found: dict[str, object] = command.make_context(arguments[0], arguments[1:]).params
    return found


def test_the_unit_of_systemd_starts_and_stops_it_in_order() -> None:
    unit = (DEPLOY / "longshore.service").read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=\S+/longshore (.+)$", unit, re.MULTILINE)
    assert understood(shlex.split(start))["log_format"] == "json"
    assert re.search(r"^KillSignal=SIGTERM$", unit, re.MULTILINE)
    assert re.search(r"^KillMode=mixed$", unit, re.MULTILINE), "the parent alone knows how to stop its workers"
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(patience) >= 50, "the grace of running jobs, and what it takes to hand them back"


def test_the_container_runs_it_without_privileges_and_asks_whether_it_is_ready() -> None:
    container = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^CMD (\[.+\])$", container, re.MULTILINE)
    assert understood(json.loads(command))["log_format"] == "json"
    assert re.search(r"^USER longshore$", container, re.MULTILINE)
    assert "/readyz" in container
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", container, re.MULTILINE):
        for name in source.split():
            assert (DEPLOY.parent / name).exists(), name
