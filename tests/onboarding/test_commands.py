"""The shell commands of a page run one after the other, as a reader would type them; see `stage.sh`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.pages import PAGES, ROOT, commands_of, name_of, to_run
from tests.repo.stage import Stage

WITH_SPARK = [ROOT / "docs" / f"{name}.md" for name in ("audit", "pipeline", "report")]
"""Pages whose commands would start Spark a dozen times; tests/spark runs their code."""
ELSEWHERE = {*WITH_SPARK, ROOT / "examples" / "nightly_pipeline" / "README.md", ROOT / "docs" / "cli.md"}
"""The example needs Spark, and tests/examples runs its commands; the last has many, and tests/cli runs them."""


@pytest.mark.timeout(180)  # a page starts servers and programs, one after the other
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE and commands_of(page)], ids=name_of)
def test_the_commands_on_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    Stage(tmp_path, request).run_shell(commands_of(page), to_run(page, "python"))
