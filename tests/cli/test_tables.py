"""Tables on terminals of every width: ids stay whole and no text is lost."""

from __future__ import annotations

import pytest

from longshore.cli.output import Column, format_table
from longshore.cli.rows import JOBS

ID = "01a1e4d2-9647-7111-a1fd-8e35e735baf8"
ERROR = "ConnectionError: the mail server at mail.example.org did not answer within thirty seconds"
ROW = [ID, "FAILED_RETRY", "send_the_monthly_report", "reports", "2/5", "3 min ago", ERROR]


@pytest.mark.parametrize("columns", [1, 10, 36, 40, 80, 100, 132, 250])
def test_ids_stay_whole_and_no_text_is_lost_at_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = list(format_table(JOBS, [ROW, ROW], header=True, terminal=True))
    assert sum(ID in line for line in lines) == 2
    for cell in ROW:
        for word in cell.split():
            assert word[:12] in "".join(lines) or word in "".join("".join(lines).split()), word
    if columns >= 110:
        assert max(map(len, lines)) <= columns


def test_without_a_terminal_nothing_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    head, line = format_table(JOBS, [ROW], header=True, terminal=False)
    assert line.split("  ")[0] == ID
    assert line.endswith(ERROR)
    assert head.split() == [column.name for column in JOBS]


def test_wide_letters_are_measured_as_a_terminal_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = format_table(
        [Column("A", whole=True), Column("B")], [["船船", "x"], ["abcd", "y"]], header=False, terminal=False
    )
    assert list(lines) == ["船船  x", "abcd  y"]
