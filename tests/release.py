"""Builds the packages of a release, tries the wheel in an empty environment and tags the commit: `make release`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from tests.repo.pages import ROOT, blocks_of

DIST = ROOT / "dist"


def main() -> int:
    """Returns 1 and says what is missing if this commit cannot be released."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    problem = obstacle(version)
    if problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    for built in DIST.glob("*"):
        built.unlink()
    _run(sys.executable, "-m", "hatchling", "build", "--directory", DIST)
    (wheel,) = DIST.glob("*.whl")
    try_wheel(wheel, version)
    _run("git", "tag", "--annotate", f"v{version}", "--message", f"Longshore {version}")
    print(f"release: tagged v{version}; push the tag and upload {', '.join(path.name for path in DIST.iterdir())}")
    return 0


def obstacle(version: str, root: Path = ROOT) -> str:
    """What keeps this commit from being released; empty if nothing does."""
    if _output("git", "status", "--porcelain", cwd=root):
        return "the work tree has changes; commit them first"
    if _output("git", "tag", "--list", f"v{version}", cwd=root):
        return f"v{version} exists; raise the version in pyproject.toml and in src/longshore/__init__.py"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[?{re.escape(version)}\]?", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no section for {version}"
    return ""


def try_wheel(wheel: Path, version: str) -> None:
    """Installs the wheel in an empty environment and runs the README's first job there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "env"), with_pip=True)
        programs = Path(folder, "env", "bin")
        _run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        shown = _output(programs / "longshore", "--version")
        assert version in shown, shown
        (program,) = [block.text for block in blocks_of(ROOT / "README.md") if "# first.py" in block.text]
        Path(folder, "first.py").write_text(program, encoding="utf-8")
        assert _output(programs / "python", "first.py", cwd=Path(folder)) == "hello Ada\n"


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True)


def _output(*command: str | Path, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
