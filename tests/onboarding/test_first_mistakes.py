"""The first mistakes: a harbor that is not there, a file that cannot be used; one line that says what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longshore.cli.exit_codes import Exit
from longshore.cli.main import main

FILES = {
    "spelled.py": "def x(:\n",
    "divides.py": "x = 1 / 0\n",
    "lacks.py": "import a_library_that_is_not_there\n",
    "forgets.py": "from longshore import Harbor\n\nharbor = Harbor('memory://')\n",
    "junk.db": "this is no database, and long enough to be looked at\n" * 20,
}
HARBORS = {
    "nowhere:harbor": "start the command in the folder that contains nowhere.py, or set PYTHONPATH",
    "nowhere.jobs:harbor": "start the command in the folder that contains nowhere/, or set PYTHONPATH",
    "spelled:harbor": "cannot import spelled from the working directory: SyntaxError: invalid syntax",
    "divides:harbor": "cannot import divides from the working directory: ZeroDivisionError: division by zero",
    "lacks:harbor": "lacks was found, but it imports a_library_that_is_not_there, which is not installed here",
    "forgets:haven": "forgets has no haven; name the variable with the Harbor",
    "forgets:harbor": "has a store that one process only can use, and `up` starts several; use sqlite:///longshore.db",
}


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with typical files and with modules that no other test imports."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in FILES:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return tmp_path


@pytest.mark.parametrize(("harbor", "told"), HARBORS.items())
def test_an_unusable_harbor_is_one_line(harbor: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--harbor", harbor]) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("longshore: harbor: ")
    assert told in line


@pytest.mark.parametrize("command", ["up", "serve", "worker"])
@pytest.mark.parametrize(
    ("url", "told"),
    [("sqlite:///nowhere/jobs.db", "nowhere does not exist"), ("sqlite:///junk.db", "is not a SQLite database")],
    ids=["folder", "junk"],
)
def test_an_unusable_file_is_refused_before_the_start(
    command: str, url: str, told: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--url", url]) == Exit.UNREACHABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert (workdir / "junk.db").read_text(encoding="utf-8") == FILES["junk.db"]
