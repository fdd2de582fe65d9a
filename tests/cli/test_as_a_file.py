"""The command as a file that another program runs, as `spark-submit` does."""

import subprocess
import sys
from pathlib import Path

import longshore.cli.__main__ as entry


def test_the_entry_file_runs_beside_modules_of_any_name_as_under_spark_submit(tmp_path: Path) -> None:
    command = [sys.executable, entry.__file__, "pipeline", "status", "--lake", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "there is no lake at" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_runs_as_a_module(tmp_path: Path) -> None:
    # M8
    command = [sys.executable, "-m", "longshore", "migrate", "--url", f"sqlite:///{tmp_path / 'jobs.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, (tmp_path / "jobs.db").exists()) == (0, True), done.stderr
