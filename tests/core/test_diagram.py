"""The page of states, generated from the table."""

from __future__ import annotations

import re

import pytest

from longshore.core.status import ELIGIBLE, FINAL, JobStatus, Verb, page
from tests.core.staging import ARROWS, PAIRS, STATUSES


@pytest.mark.parametrize("status", STATUSES)
def test_the_page_shows_for_every_status_whether_it_is_eligible_and_final_and_its_meaning(status: JobStatus) -> None:
    row = re.search(rf"^\| {status} \| (yes|) \| (yes|) \| (.+) \|$", page(), re.MULTILINE)
    assert row
    assert (row[1] == "yes", row[2] == "yes") == (status in ELIGIBLE, status in FINAL)
    assert len(row[3]) > 10


def test_the_picture_has_one_edge_for_every_legal_move_and_no_other() -> None:
    edges = re.findall(r"^    (\w+) --> (\w+): ", page(), re.MULTILINE)
    assert len(edges) == len(set(edges))
    assert set(edges) == PAIRS


def test_the_picture_names_on_each_edge_every_verb_that_goes_along_it() -> None:
    for source, target, name in ARROWS:
        edge = re.search(rf"^    {source} --> {target}: (.+)$", page(), re.MULTILINE)
        assert edge
        assert Verb[name].value in edge[1]


def test_a_job_begins_where_the_picture_says_and_nowhere_else() -> None:
    begins = re.findall(r"^    \[\*\] --> (\w+)", page(), re.MULTILINE)
    assert sorted(begins) == ["CREATED", "INITIAL_PENDING", "WAITING_CHILDREN"]


def test_the_list_below_the_picture_is_the_table_row_by_row() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z_]+) \| (.+) \|$", page(), re.MULTILINE)
    assert {(source, target, Verb(verb).name) for source, target, verb in rows} == ARROWS
    assert len(rows) == len(ARROWS)


def test_the_page_is_the_same_every_time_and_ends_with_one_newline() -> None:
    assert page() == page()
    assert page().endswith("\n")
    assert not page().endswith("\n\n")
