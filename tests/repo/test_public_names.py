"""Public names resolve, importing the package loads nothing heavy, and guides and examples use public names only."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import longshore

ROOT = Path(__file__).parents[2]
HEAVY = ("fastapi", "httpx", "psycopg", "pydantic", "pyspark", "uvicorn")
PUBLIC = (
    "longshore",
    "longshore.errors",
    "longshore.backends",
    "longshore.server",
    "longshore.spark",
    "longshore.testing",
)
DEEPER = r"longshore\.(?:app|cli|core|runtime)\.\w+|longshore\.(?:backends|server|spark|testing)\.\w+ import"
PAGES = [
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    if path.suffix in {".md", ".py"} and path.parent.name not in {"decisions", "proofs"}
]


def test_importing_longshore_loads_no_server_no_driver_and_no_spark() -> None:
    # a fresh interpreter: this one has loaded whatever other tests needed
    program = f"import sys, longshore; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == []


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_of_a_package_resolves(package: str) -> None:
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if getattr(module, name) is None] == []


def test_public_names_are_shown_by_dir_and_others_are_refused() -> None:
    assert set(longshore.__all__) <= set(dir(longshore))
    with pytest.raises(AttributeError, match="module 'longshore' has no attribute 'nothing'"):
        _ = longshore.nothing


def test_guides_and_examples_import_public_names_only() -> None:
    deeper = {
        f"{path.relative_to(ROOT)}: {found}"
        for path in PAGES
        for found in re.findall(DEEPER, path.read_text(encoding="utf-8"))
    }
    assert deeper == set()
