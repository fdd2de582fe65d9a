"""Every program in the pages runs as it stands, no block of code escapes, and every link leads somewhere.

- A block of `python` is a whole program. If it begins with the name of a file (`# shop.py`), that file is there for the
  shell commands of the page, too.
- The blocks of `sh` of one page are run one after the other in one folder: tests/onboarding does that.
- A block whose first line is `# not run: ` and a reason is not run. There should be few.
- Blocks in other languages are not run: output, data, drawings.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.repo.pages import (
    NOT_RUN,
    PAGES,
    ROOT,
    Block,
    anchors_of,
    blocks_of,
    links_of,
    name_of,
    programs_of,
    prose_of,
    to_run,
)
from tests.repo.stage import Stage

SPARK_PAGES = {ROOT / "docs" / name for name in ("spark.md", "audit.md", "pipeline.md", "report.md")}
"""Their Python runs in tests/spark, beside everything else that starts Spark."""
READS: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
NO_CODE = {"text", "mermaid", "markdown", "javascript", "sql", "ini", *READS}
FOREIGN = {
    "coming-from": ("Celery", "RQ", "Dramatiq", "Huey", "ARQ", "Taskiq", "Procrastinate", "PgQueuer"),
    "how-to": ("Docker", "Flask", "Kubernetes", "OTLP", "Prometheus", "Sentry", "systemd"),
}
"""Folders whose pages show code for programs that are not in the lock, and these programs."""


PYTHON_PAGES = [page for page in PAGES if page not in SPARK_PAGES and programs_of(page)]


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    return Stage(tmp_path, request)


# --- code ---


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name_of)
def test_every_program_on_a_page_runs_as_it_stands(page: Path, stage: Stage) -> None:
    stage.run_python(programs_of(page))


@pytest.mark.slow
def test_the_readme_has_a_first_job_that_greets_ada(stage: Stage) -> None:
    assert stage.run_python(to_run(ROOT / "README.md", "python")[:1]) == "hello Ada\n"


def test_every_block_is_run_or_has_a_reason() -> None:
    strays = []
    for block in (block for page in PAGES for block in blocks_of(page)):
        if block.language in READS:
            READS[block.language](block.text)
        elif block.language not in {"python", "sh", *NO_CODE}:
            strays.append(f"{block.place}: {block.language or 'no language'}; write python, sh, or text for output")
    # four spaces also make a block, which no test would run
    indented = re.compile(r"(?: {4,}|\t)(?:python|pip|longshore|curl|make|import|from|async) ")
    for page in PAGES:
        strays += [
            f"{name_of(page)}: indented code, fence it: {line.strip()}"
            for before, line in pairwise(["", *prose_of(page)])
            if not before.strip() and indented.match(line)
        ]
    assert not strays, "\n".join(strays)


def not_run(*folders: str) -> list[Block]:
    """The blocks that are shown without being run: of the pages in these folders of docs, or of all other pages."""
    chosen = {ROOT / "docs" / folder for folder in folders or FOREIGN}
    pages = [page for page in PAGES if (page.parent in chosen) == bool(folders)]
    return [block for page in pages for block in blocks_of(page) if NOT_RUN.match(block.text)]


def test_few_blocks_are_not_run() -> None:
    kept = [block.place for block in not_run()]
    assert len(kept) <= 6, f"run some of them: {kept}"


def test_a_page_about_another_program_leaves_out_only_what_needs_that_program() -> None:
    wrong = []
    for folder, programs in FOREIGN.items():
        needs = re.compile(rf"# not run: needs (?:{'|'.join(programs)})\b")
        wrong += [
            f"{block.place}: say which program it needs" for block in not_run(folder) if not needs.match(block.text)
        ]
    for block in not_run("coming-from"):
        if re.search(r"\blongshore\b", block.text):
            wrong.append(f"{block.place}: our side of the comparison is run")
    assert not wrong, "\n".join(wrong)


def test_python_that_is_not_run_is_python_all_the_same() -> None:
    for block in [*not_run(), *not_run(*FOREIGN)]:
        if block.language == "python":
            compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


# --- links ---


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_between_pages_leads_somewhere(page: Path) -> None:
    lost = []
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            lost.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            lost.append(f"{link}: no such heading; there are {', '.join(sorted(anchors_of(target)))}")
    assert not lost, "\n".join(lost)


def test_every_page_can_be_reached_from_the_readme_by_following_links() -> None:
    seen, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen:
            seen.add(page)
            linked = [(page.parent / link.partition("#")[0]).resolve() for link in links_of(page)]
            ahead += [target for target in linked if target.suffix == ".md" and target.exists()]
    numbered = {ROOT / "docs" / folder for folder in ("decisions", "proofs")}  # their file names are the index
    assert [name_of(page) for page in PAGES if page not in seen and page.parent not in numbered] == []


def test_every_guide_and_every_example_stands_in_its_index() -> None:
    guides, examples = ROOT / "docs" / "README.md", ROOT / "examples" / "README.md"
    wanted = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert wanted - set(links_of(guides)) == set()
    assert {f"{page.parent.name}/README.md" for page in PAGES if page.parent.parent == examples.parent} - set(
        links_of(examples)
    ) == set()


# --- decision records ---


def test_decision_records_are_numbered_once_each_and_name_their_number() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        assert record.read_text(encoding="utf-8").startswith(f"# {record.name[:4]}. "), record.name
