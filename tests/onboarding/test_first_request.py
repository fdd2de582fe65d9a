"""The first request: what `make run` prints to paste into another terminal is answered, run and seen to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.repo.pages import ROOT, Block
from tests.repo.stage import Stage

PASTED = """
make run
eval "$(grep -o 'curl .*' "$said")" > answer
id=$(python -c 'import json; print(json.load(open("answer"))["id"])')
curl -s "http://127.0.0.1:8470/v1/jobs/$id?wait=30"
"""


@pytest.mark.timeout(180)
def test_the_request_that_make_run_prints_is_run_to_its_end(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shown = Stage(tmp_path, request).run_shell([Block(ROOT / "README.md", 1, "sh", PASTED)], [])
    job = json.loads(shown)
    assert (job["status"], job["result"]) == ("COMPLETED", {"say": "hello"}), job["error_message"]
