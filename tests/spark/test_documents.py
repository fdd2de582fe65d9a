"""Every Python snippet of the page on Spark runs as it stands, in the session of the tests."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_snippets_of_the_page_run_one_after_the_other(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in SNIPPETS:
        exec(compile(snippet, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "|mails|send|INITIAL_PENDING|  100|" in printed
    assert "1100 events" in printed
