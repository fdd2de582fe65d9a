"""Tables on terminals of every width: ids whole, nothing lost, and no line longer than it must be."""

from __future__ import annotations

import pytest

from longshore.cli.output import Column, drawn
from longshore.cli.rows import JOBS

ID = "01a1e4d2-9647-7111-a1fd-8e35e735baf8"
ERROR = "ConnectionError: the mail server at mail.example.org did not answer within thirty seconds"
ROW = [ID, "FAILED_RETRY", "send_the_monthly_report", "reports", "2/5", "3 m ago", ERROR]


@pytest.mark.parametrize("columns", [1, 10, 36, 40, 80, 100, 132, 250])
def test_an_id_is_whole_and_nothing_is_lost_however_narrow_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = list(drawn(JOBS, [ROW, ROW], heads=True, terminal=True))
    assert sum(ID in line for line in lines) == 2
    for cell in ROW:
        for word in cell.split():
            assert word[:12] in "".join(lines) or word in "".join("".join(lines).split()), word
    if columns >= 100:
        assert max(map(len, lines)) <= columns


def test_in_a_file_nothing_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    head, line = drawn(JOBS, [ROW], heads=True, terminal=False)
    assert line.split("  ")[0] == ID
    assert line.endswith(ERROR)
    assert head.split() == [column.name for column in JOBS]


def test_wide_letters_are_measured_as_a_terminal_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = drawn([Column("A", whole=True), Column("B")], [["船船", "x"], ["abcd", "y"]], heads=False, terminal=False)
    assert list(lines) == ["船船  x", "abcd  y"]
