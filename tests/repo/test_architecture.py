"""`docs/architecture.md` describes the path that a job really takes, and the imports that are really allowed."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "longshore"
_STEP = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.<>]+)` \| (.+) \|$", re.MULTILINE)
_OTHER = re.compile(r"^\| `([\w/]+\.py)` \| ([^`|]+) \|$", re.MULTILINE)
STORES = ("sqlite", "postgres")


@cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def entered(url: str) -> list[tuple[str, str]]:
    """The functions that one job enters on this store, in order; traced in a separate process."""
    program = [sys.executable, "-m", "tests.repo.job_trace", url]
    printed = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True).stdout
    return [(file, function) for file, function in (line.split() for line in printed.splitlines())]


def parts(store: str) -> list[list[tuple[str, str]]]:
    """The steps of each part of the path (enqueue, claim, run, settle, result, retry) that this store takes."""
    others = tuple(f"backends/{other}/" for other in STORES if other != store)
    found = [_STEP.findall(part) for part in page().split("\n### ")]
    return [[(file, function) for file, function, _ in part if not file.startswith(others)] for part in found if part]


def files_named() -> set[str]:
    return {file for file, _, _ in _STEP.findall(page())} | {file for file, _ in _OTHER.findall(page())}


@pytest.mark.parametrize("store", STORES)
def test_a_job_takes_the_steps_of_the_page_in_their_order(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else str(request.getfixturevalue("postgres_url"))
    trace = entered(url)
    for part in parts(store):  # each alone: the worker may be about to claim when the job is stored
        remaining = iter(trace)
        out_of_order = [step for step in part if step not in remaining]  # `in` consumes the trace up to the step
        assert not out_of_order, f"a job on {store} does not enter these after the steps before them: {out_of_order}"
    unnamed = {file for file, _ in trace} - files_named()
    assert not unnamed, f"a job on {store} enters files that the page does not name: {sorted(unnamed)}"


def test_the_page_names_only_files_that_exist() -> None:
    assert len(parts("sqlite")) == len(parts("postgres")) == 6
    assert not [file for file in files_named() if not (SOURCE / file).is_file()]


def test_the_table_of_packages_is_the_one_that_the_linter_checks() -> None:
    """Each package of the page names the packages below it, in the order of the import contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "imports look down only")
    names = [re.findall(r"longshore\.(\w+)", layer) for layer in layers]
    for level, packages in enumerate(names):
        below = [name for lower in names[level + 1 :] for name in lower]
        for package in packages:
            row = re.search(rf"^\| `{package}` \| .+ \| (.+) \|$", page(), re.MULTILINE)
            assert row is not None, f"the page has no row for {package}"
            assert re.findall(r"`(\w+)`", row[1]) == below, package
