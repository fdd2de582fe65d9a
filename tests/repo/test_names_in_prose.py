"""What the guides call by name exists: commands and their options, and the members of what users hold in hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longshore import Harbor, Queue, Scheduler, Worker
from longshore.app.results import FlowHandle, JobHandle
from longshore.backends.base import Backend
from longshore.backends.sqlite.backend import SQLiteBackend
from longshore.cli.main import command
from longshore.runtime.events import EVENTS
from tests.repo.pages import PAGES, ROOT, commands_of, name_of, prose_of

GUIDES = [page for page in PAGES if page.parent.name not in ("decisions", "proofs") and page.stem != "CHANGELOG"]
"""Pages of the present; pages about the past may use old names."""
IN_HAND: dict[str, tuple[type, ...]] = {
    "backend": (Backend, SQLiteBackend),
    "handle": (JobHandle, FlowHandle),
    "harbor": (Harbor,),
    "queue": (Queue,),
    "scheduler": (Scheduler,),
    "worker": (Worker,),
}
MEMBER = re.compile(rf"(?<![\w./])({'|'.join(IN_HAND)})\.(?!py\b)([a-z]\w*)")


def code_in(page: Path) -> Iterator[str]:
    """What stands between backticks in a line."""
    return (code for line in prose_of(page) for code in re.findall(r"`([^`]+)`", line))


def unknown_in(words: list[str]) -> list[str]:
    """The words that are neither a command nor an option of the named command."""
    found: Any = command()
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words[0]]
        words = words[1:]
    if getattr(found, "commands", {}) and words and re.match(r"[a-z]+$", words[0]):
        return [words[0]]
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in options | {"--help"}]


def test_every_command_in_the_guides_exists_with_the_options_it_is_given() -> None:
    lost = []
    for page in GUIDES:
        lines = [code for code in code_in(page) if code.startswith("longshore ")]
        lines += [
            line for block in commands_of(page) for line in block.text.splitlines() if line.startswith("longshore ")
        ]
        for line in lines:
            words = shlex.split(line.replace("'", "").replace("|", " "), comments=True)[1:]
            lost += [f"{name_of(page)}: no {word} in {line}" for word in unknown_in(words)]
    assert not lost, "\n".join(lost)


def test_public_objects_have_the_members_that_the_guides_name() -> None:
    lost = []
    for page in GUIDES:
        for who, member in (named for code in code_in(page) for named in MEMBER.findall(code)):
            known = any(hasattr(kind, member) or member in kind.__annotations__ for kind in IN_HAND[who])
            if not known and f"{who}.{member}" not in EVENTS:
                lost.append(f"{name_of(page)}: {who}.{member}")
    assert not lost, "\n".join(lost)


def test_a_command_or_an_option_that_does_not_exist_would_be_noticed() -> None:
    assert unknown_in(["lst"]) == ["lst"]
    assert unknown_in(["list", "--statu", "dead"]) == ["--statu"]
    assert unknown_in(["dlq", "requeue", "--all", "--dry-run"]) == []
    assert (ROOT / "docs" / "cli.md") in GUIDES
