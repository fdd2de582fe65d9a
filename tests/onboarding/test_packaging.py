"""What people install: the wheel holds the package and nothing else, and works with the few packages it asks for."""

from __future__ import annotations

import email.message
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.pages import ROOT, blocks_of

pytestmark = pytest.mark.timeout(180)  # environments are made here, and a type checker reads the libraries
FEW = 20
HEAVY = {"fastapi", "httpx", "jinja2", "numpy", "pandas", "psycopg", "pyarrow", "pyspark", "starlette", "uvicorn"}


def output_of(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(target: str, source: Path, workdir: Path) -> Path:
    """A wheel or an sdist, by the build backend of the lock."""
    output_of(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", workdir, cwd=source)
    (built,) = workdir.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def files_in(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(wheel: Path) -> email.message.Message:
    (text,) = [content for name, content in files_in(wheel).items() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(text)


# --- what is in it ---


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    named = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src").split("\0")
    wanted = {name.removeprefix("src/") for name in named if name and (ROOT / name).is_file()}
    held = {name for name in files_in(wheel) if ".dist-info/" not in name}
    assert held == wanted
    # what a build that only knows Python files would leave behind
    assert {"longshore/py.typed", "pyspark_longshore/__init__.py"} <= held
    for folder in ("sql", "migrations"):
        assert [name for name in held if f"/{folder}/" in name and name.endswith(".sql")]


def test_the_wheel_has_metadata_dependencies_and_extras(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"postgres", "server", "spark", "otel", "all"} <= set(metadata.get_all("Provides-Extra", []))
    versions = {word.rpartition(" ")[2] for word in metadata.get_all("Classifier", []) if "Python :: 3." in word}
    assert versions == {"3.11", "3.12", "3.13"}
    names = files_in(wheel)
    (entry_points,) = [content for name, content in names.items() if name.endswith("/entry_points.txt")]
    assert b"longshore = longshore.cli.main:run" in entry_points
    assert [name for name in names if name.endswith("/licenses/LICENSE")]


def test_the_source_archive_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    (folder,) = {name.partition("/")[0] for name in names}
    tops = {name.split("/")[1] for name in names if "/" in name}
    assert tops <= {
        "src",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "pyproject.toml",
        "hatch_build.py",
        ".gitignore",
    }
    assert files_in(build("wheel", tmp_path / folder, tmp_path / "again")) == files_in(wheel)


# --- what it brings along ---


def packages_brought_by(requirements: list[str]) -> dict[str, Distribution]:
    """Everything an installer would fetch for these requirements, on this machine and without extras."""
    brought: dict[str, Distribution] = {}
    ahead = [Requirement(text) for text in requirements]
    while ahead:
        wanted = ahead.pop()
        name = canonicalize_name(wanted.name)
        if name in brought or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        brought[name] = distribution(name)
        ahead += [Requirement(text) for text in brought[name].requires or []]
    return brought


def test_few_packages_come_along_and_no_heavy_one(wheel: Path) -> None:
    brought = packages_brought_by(metadata_of(wheel).get_all("Requires-Dist", []))
    assert len(brought) <= FEW, sorted(brought)
    assert HEAVY & set(brought) == set()


# --- a clean environment ---


class Environment:
    """A fresh interpreter with the wheel, the packages it brings along and no other."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self.workdir = folder / "workdir"
        venv.create(folder / "venv", symlinks=True)
        self.workdir.mkdir()
        self.packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
        for found in packages_brought_by(metadata_of(wheel).get_all("Requires-Dist", [])).values():
            self._link(found)
        install = (sys.executable, "-m", "pip", "--python", self.python, "install", "--no-index", "--no-deps")
        output_of(*install, "--quiet", "--disable-pip-version-check", wheel, cwd=self.workdir)

    @property
    def python(self) -> Path:
        return self._folder / "venv" / "bin" / "python"

    @property
    def longshore(self) -> Path:
        return self._folder / "venv" / "bin" / "longshore"

    def run(self, program: str) -> str:
        """What it printed; warnings are errors."""
        (self.workdir / "program.py").write_text(program, encoding="utf-8")
        return output_of(self.python, "-W", "error", "program.py", cwd=self.workdir)

    def refused(self, *command: str | Path) -> str:
        """The one line on the error output of a command that could not do it."""
        done = subprocess.run(command, cwd=self.workdir, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def _link(self, found: Distribution) -> None:
        for top in {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            source, target = Path(str(found.locate_file(top))), self.packages / top
            if source.exists() and not target.exists():
                target.symlink_to(source)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


def test_the_first_job_of_the_readme_runs_where_only_the_wheel_is_installed(environment: Environment) -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    assert environment.run(first.text) == "hello Ada\n"


def test_importing_the_wheel_loads_little_and_from_itself_alone(environment: Environment) -> None:
    program = "import json, sys; before = set(sys.modules); import longshore; "
    program += "print(json.dumps([longshore.__file__, sorted(set(sys.modules) - before)]))"
    place, loaded = json.loads(environment.run(program))
    assert Path(place).is_relative_to(environment.packages)
    own = {name for name in loaded if name.partition(".")[0] == "longshore"}
    assert own == {"longshore", "longshore.lazy_exports"}
    assert {name.partition(".")[0] for name in loaded} & {"apsw", "asyncio", "pydantic", "rich", "typer"} == set()


def test_the_command_is_there(environment: Environment) -> None:
    told = output_of(environment.longshore, "--help", cwd=environment.workdir)
    assert "durable job queue" in told
    assert "..." not in told.partition("Commands:")[2], "what a command does is said whole, or shorter"
    version = metadata_of(next(environment.workdir.parent.parent.glob("wheel*/*.whl")))["Version"]
    assert output_of(environment.longshore, "--version", cwd=environment.workdir) == f"longshore {version}\n"


def test_the_command_line_needs_no_extra_on_sqlite(environment: Environment) -> None:
    workdir = environment.workdir.with_name("shell")
    workdir.mkdir()

    def say(*words: str) -> str:
        return output_of(environment.longshore, *words, cwd=workdir)

    say("migrate")
    job_id = say("enqueue", "echo", '{"say": "hello"}', "-q").strip()
    say("worker", "--until-empty")
    assert json.loads(say("show", job_id, "--json"))["job"]["result"] == {"say": "hello"}
    assert job_id in say("list", "--json")
    for command in (["explain", job_id], ["stats", "--json"], ["queues", "--json"], ["schedule", "list", "--json"]):
        say(*command)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["up"], "server"),
        (["serve", "--url", "sqlite:///jobs.db"], "server"),
        (["stats", "--url", "postgresql://app@db.example/app"], "postgres"),
        (["migrate-data", "sqlite:///jobs.db", "postgresql://app@db.example/app"], "postgres"),
        (["pipeline", "run", "--url", "sqlite:///jobs.db", "--lake", "lake"], "spark"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    command: list[str], extra: str, environment: Environment
) -> None:
    said = environment.refused(environment.longshore, *command)
    assert said.endswith(f' needs an extra: pip install "longshore[{extra}]"\n')


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from longshore import connect\nconnect('postgresql://app@db.example/app')", "postgres"),
        ("from longshore.app.tracing import Tracing\nTracing()", "otel"),
        ("from longshore.server.app import create_app", "server"),
        ("from longshore.spark.spark_session import session\nsession()", "spark"),
    ],
    ids=["postgres", "otel", "server", "spark"],
)
def test_a_program_without_an_extra_names_the_package_to_install(
    program: str, extra: str, environment: Environment
) -> None:
    done = subprocess.run([environment.python, "-c", program], cwd=environment.workdir, capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search(rf'pip install "longshore\[{extra}\]"', done.stderr.splitlines()[-1]), done.stderr


def test_type_checkers_read_the_wheel(environment: Environment, tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(
        "from longshore import Harbor\n\nharbor = Harbor('memory://')\n\n\n"
        "@harbor.task\nasync def greet(name: str) -> int:\n    return len(name)\n\n\n"
        "async def main() -> None:\n"
        "    reveal_type(await (await greet.enqueue('Ada')).result())\n"
        "    await greet.enqueue(naem='Ada')\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        f"--python-executable={environment.python}",
    ]
    done = subprocess.run([*command, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Revealed type is "int"' in done.stdout.replace("builtins.", ""), done.stdout
    assert "naem" in done.stdout
    assert "import-untyped" not in done.stdout


def test_links_of_the_readme_are_absolute_on_a_package_page(wheel: Path) -> None:
    page = metadata_of(wheel).get_payload()
    assert isinstance(page, str)
    assert page.startswith("# Longshore")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
