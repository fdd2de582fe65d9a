"""Every Python snippet in the README and the guides runs as it stands; the examples have a room of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
ELSEWHERE = {ROOT / "docs" / name for name in ("spark.md", "audit.md", "pipeline.md")}
"""Their snippets run in tests/spark, beside everything else that starts Spark."""
SNIPPETS = [
    pytest.param(found[1], id=f"{page.relative_to(ROOT)}:{page.read_text()[: found.start()].count(chr(10)) + 2}")
    for page in PAGES
    if page not in ELSEWHERE
    for found in re.finditer(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
]

SERVER = "postgresql://app@db.example/app"
"""The database that the guides speak of; each snippet gets one of its own."""


def run_python(*arguments: str, cwd: Path) -> str:
    """What the program printed; fails the test with what it complained about."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_snippet(snippet: str, cwd: Path) -> str:
    """As whoever copied it into a file would."""
    (cwd / "snippet.py").write_text(snippet)
    return run_python("snippet.py", cwd=cwd)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs_as_it_stands(snippet: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if SERVER in snippet:
        snippet = snippet.replace(SERVER, request.getfixturevalue("postgres_url"))
    run_snippet(snippet, tmp_path)


def test_the_readme_has_a_first_job_that_greets_ada(tmp_path: Path) -> None:
    snippet = next(
        found[1] for found in re.finditer(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    )
    assert run_snippet(snippet, tmp_path) == "hello Ada\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
