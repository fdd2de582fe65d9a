"""The repository keeps its own rules: the lock, the targets, the generated pages, the reasons, no machine's traces."""

import io
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest
import yaml

from tests import postgres_versions
from tests.prove import PARTS
from tests.release import obstacle

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "lock.txt"
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==")


def output_of(*command: str) -> str:
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{' '.join(command)} failed:\n{finished.stderr}"
    return finished.stdout


def tracked_files() -> list[Path]:
    names = output_of("git", "ls-files", "-z").split("\0")
    # a file may be removed from the tree before the index
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def locked_requirements(lock: Path = LOCK) -> dict[str, str]:
    """Each locked package with its whole entry, continuation lines included."""
    entries = re.split(r"^(?=\S)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {match[1]: entry for entry in entries if (match := PINNED.match(entry))}


# --- the lock ---


def test_every_locked_requirement_carries_a_hash() -> None:
    requirements = locked_requirements()
    assert requirements
    assert [name for name, entry in requirements.items() if "--hash=sha256:" not in entry] == []


def test_the_lock_holds_requirements_and_comments_only_and_no_address() -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    strange = [line for line in lines if line and not line.startswith(("#", "    #", "    --hash=sha256:"))]
    assert [line for line in strange if not PINNED.match(line)] == []
    assert [line for line in lines if "://" in line] == []


def test_the_lock_holds_every_dependency_of_the_project_and_every_tool() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tools = (ROOT / "requirements" / "lock.in").read_text(encoding="utf-8").splitlines()
    wanted = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["postgres"],
        *(line for line in tools if line and not line.startswith("#")),
    ]
    names = {re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower() for requirement in wanted}
    assert names - locked_requirements().keys() == set(), "run `make lock`"


@pytest.mark.parametrize(
    ("lock", "has", "not_there"),
    [
        ("run.txt", {"fastapi", "hatchling", "uvicorn"}, {"psycopg"}),
        ("image.txt", {"psycopg", "opentelemetry-api"}, set()),
    ],
)
def test_runtime_and_test_requirements_lock_the_same_versions(lock: str, has: set[str], not_there: set[str]) -> None:
    def pinned(lock: Path) -> dict[str, str]:
        """Version, marker and hashes, without who asked for it."""
        return {name: re.sub(r"\s*#.*", "", entry).strip() for name, entry in locked_requirements(lock).items()}

    everything, running = pinned(LOCK), pinned(LOCK.with_name(lock))
    assert {name: entry for name, entry in running.items() if everything.get(name) != entry} == {}, "run `make lock`"
    assert has <= running.keys()
    assert {"pyspark", "pytest", "mypy", *not_there} & running.keys() == set()


# --- traces of a machine ---


def test_no_tracked_file_names_a_path_of_some_machine_or_a_package_index() -> None:
    # in pieces, so that this file does not find itself
    folders = "|".join(("wo" + "rk", "ro" + "ot"))
    hosts = "|".join(
        ("py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.", r"deb\.deb" + "ian", "py" + "pi/simple")
    )
    trace = re.compile(rf"(?<![\w.])/(?:{folders})/|{hosts}")
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if trace.search(line)
        ]
    assert not found, "\n".join(found)


# --- the targets ---


def test_plain_make_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    declared = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert declared
    # this test may itself run under make, whose flags must not reach the make it asks
    listed = output_of("env", "-u", "MAKEFLAGS", "-u", "MFLAGS", "-u", "MAKELEVEL", "make", "--no-print-directory")
    described = dict(re.findall(r"^  make (\S+) +(\S.*)$", listed, re.MULTILINE))
    assert set(described) == set(declared[1].split())


def test_automation_runs_the_same_target_as_a_person() -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in script.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert any(re.search(r"\bmake test\b", line) for line in commands)
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"


def test_the_workflow_runs_targets_of_the_makefile_on_every_supported_version() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {word for run in runs for word in re.findall(r"make ([a-z-]+)", run)}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"check-lint", "test", "test-postgres", "test-sqlite", "prove"} == called
    assert called <= set(targets)
    matrix = jobs["postgres"]["strategy"]["matrix"]
    assert matrix["python"] == jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    known = {*postgres_versions.PINNED, postgres_versions.DEBIAN, postgres_versions.WHEEL}
    assert sorted(map(int, matrix["postgres"])) == sorted(known) == [14, 15, 16, 17, 18]


def test_a_commit_is_released_only_with_its_changelog_and_once(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t.example", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.0\n", encoding="utf-8")
    assert obstacle("1.2.0", tmp_path) == "the work tree has changes; commit them first"
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    assert obstacle("1.2.0", tmp_path) == ""
    assert obstacle("1.3.0", tmp_path) == "CHANGELOG.md has no section for 1.3.0"
    git("tag", "v1.2.0")
    assert "v1.2.0 exists" in obstacle("1.2.0", tmp_path)


# --- generated pages ---


def test_the_page_of_states_is_what_the_transition_table_says() -> None:
    page = ROOT / "docs" / "states.md"
    assert page.is_file(), "docs/states.md is missing: run `make docs`"
    told = output_of(sys.executable, "-m", "longshore.core.status")
    assert page.read_text(encoding="utf-8") == told, "docs/states.md is stale: run `make docs`"


# --- ignores ---

IGNORE = re.compile(r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[^]]*\])?)")


@pytest.mark.parametrize("part", ["src", "tests", "benchmarks", "examples"])
def test_every_ignored_finding_has_its_reason_in_words(part: str) -> None:
    bare = []
    for path in sorted((ROOT / part).rglob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.COMMENT and IGNORE.search(token.string):
                words = re.findall(r"[A-Za-z]{2,}", IGNORE.sub("", token.string))
                if len(words) < 2:
                    bare.append(f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}")
    assert not bare, "say why, after the code, on the same line:\n" + "\n".join(bare)


# --- the proofs ---


def test_every_proof_with_a_long_form_belongs_to_a_part_of_make_prove() -> None:
    proofs = {
        path.parent.name for path in (ROOT / "tests").rglob("test_*.py") if "mark.prove" in path.read_text("utf-8")
    }
    assert proofs - {"repo"} - {folder for folders in PARTS.values() for folder in folders} == set()
