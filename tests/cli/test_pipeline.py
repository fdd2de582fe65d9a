"""`longshore pipeline …` without Spark: each error is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "pyarrow"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from importlib import util
there = util.find_spec
util.find_spec = lambda name, *rest: None if name in ("pyspark", "pyarrow") else there(name, *rest)
"""
"""An installation without the extra."""


def longshore(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    program = f"{before}\nfrom longshore.cli.main import run; run()"
    command = [sys.executable, "-W", "error", "-c", program, "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", ["run", "archive"])
def test_without_spark_the_extra_is_named(command: str, tmp_path: Path) -> None:
    done = longshore(command, "--url", "sqlite:///jobs.db", "--lake", str(tmp_path / "lake"), before=HIDDEN)
    assert 'pip install "longshore[spark]"' in refused(done, 5)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_date_or_setting_is_refused_before_spark_starts(tmp_path: Path) -> None:
    there = ["--url", "sqlite:///jobs.db", "--lake", str(tmp_path)]
    assert "from: must be a date such as 2026-05-01" in refused(longshore("run", *there, "--from", "yesterday"), 2)
    assert "conf: must be name=value" in refused(longshore("run", *there, "--conf", "memory"), 2)


def test_status_without_a_lake_names_the_command_and_needs_no_spark(tmp_path: Path) -> None:
    done = longshore("status", "--lake", str(tmp_path / "lake"), before=HIDDEN)
    assert "create one with: longshore pipeline run" in refused(done, 5)
