"""The shell commands on a page run one after the other, as a reader would type them; `stage.sh` tells how."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from tests.house.pages import PAGES, ROOT, commands_of, name_of, to_run
from tests.house.stage import Stage

WITH_SPARK = [ROOT / "docs" / f"{name}.md" for name in ("audit", "pipeline", "report")]
"""tests/spark runs what these pages tell of; their commands would start Spark a dozen times, so here they are read."""
ELSEWHERE = {*WITH_SPARK, ROOT / "examples" / "nightly_pipeline" / "README.md", ROOT / "docs" / "cli.md"}
"""The example needs Spark, and tests/examples runs its commands; the last has many, and tests/cli runs them."""


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE and commands_of(page)], ids=name_of)
def test_the_commands_on_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    Stage(tmp_path, request).run_shell(commands_of(page), to_run(page, "python"))


@pytest.mark.parametrize("page", WITH_SPARK, ids=name_of)
def test_the_commands_that_start_spark_have_the_options_their_page_gives_them(page: Path) -> None:
    asked: dict[tuple[str, ...], set[str]] = {}
    for line in "".join(block.text for block in commands_of(page)).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["longshore"]:
            command = tuple(takewhile(lambda word: not word.startswith("-"), words[1:]))
            asked.setdefault(command, set()).update(word for word in words if word.startswith("--"))
    for command, options in asked.items():
        arguments = [sys.executable, "-m", "longshore.cli", *command, "--help"]
        told = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        assert options <= set(re.findall(r"--[a-z-]+", told)), f"longshore {' '.join(command)}"
