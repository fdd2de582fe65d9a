"""Every Python snippet of the pages on Spark runs as it stands, in the session of the tests."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("spark.md", ["|mails|send|INITIAL_PENDING|  100|", "1101 events"]),
        ("audit.md", ["18 events of 10 jobs: no findings"]),
        ("pipeline.md", ["155 new events", "|mails|send|ValueError: no mailbox 13|5    |5   |", "|mails|       45|"]),
    ],
)
def test_the_snippets_of_a_page_run_one_after_the_other(
    name: str,
    told: list[str],
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in re.findall(r"^```python\n(.*?)^```$", (PAGES / name).read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(snippet, name, "exec"), names)
    printed = capsys.readouterr().out
    assert [words for words in told if words not in printed] == []
