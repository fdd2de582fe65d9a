"""The options of a job for its removal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from longshore.core.errors import InvalidArgument
from longshore.core.job_record import check_removal, kept_after
from longshore.core.status import JobStatus

S = JobStatus
NAMES = ("remove_on_complete", "remove_on_fail")


@pytest.mark.parametrize(("value", "kept"), [(True, 0), (0, 0), (1, 1), (500, 500), (False, None)])
def test_true_removes_the_job_itself_and_a_number_is_how_many_are_kept(value: object, kept: int | None) -> None:
    #
    assert kept_after(S.COMPLETED, json.dumps({"remove_on_complete": value})) == kept
    assert kept_after(S.DEAD, json.dumps({"remove_on_fail": value})) == kept


@pytest.mark.parametrize("status", [status for status in S if status not in (S.COMPLETED, S.DEAD)])
def test_no_other_status_removes_anything(status: S) -> None:
    # M-OPT-08 M-OPT-09
    assert kept_after(status, json.dumps(dict.fromkeys(NAMES, True))) is None


@pytest.mark.parametrize(
    "options", [{}, {"remove_on_fail": True}, {"x": "remove_on_complete"}, {"x": {NAMES[0]: True}}]
)
def test_a_job_without_removal_options_stays(options: dict[str, Any]) -> None:
    #
    assert kept_after(S.COMPLETED, json.dumps(options)) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, 2**31, 1.5, "true", None, []])
def test_anything_else_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_removal({name: value})
    assert caught.value.field == f"options.{name}"


def test_what_is_good_passes() -> None:
    for value in (True, False, 0, 1, 2**31 - 1):
        check_removal(dict.fromkeys(NAMES, value))
    check_removal({})
