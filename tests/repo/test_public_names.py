"""The front door: every public name opens, and importing the package loads nothing heavy."""

import subprocess
import sys

import pytest

import longshore

HEAVY = ("fastapi", "httpx", "psycopg", "pydantic", "pyspark", "uvicorn")


def test_importing_longshore_loads_no_server_no_driver_and_no_spark() -> None:
    # a fresh interpreter: this one has loaded whatever other tests needed
    program = f"import sys, longshore; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == []


@pytest.mark.parametrize("name", longshore.__all__)
def test_a_public_name_resolves(name: str) -> None:
    assert getattr(longshore, name) is not None


def test_public_names_are_listed_once_and_shown_by_dir() -> None:
    assert len(set(longshore.__all__)) == len(longshore.__all__)
    assert set(longshore.__all__) <= set(dir(longshore))
