"""The arguments by which a caller names dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.core.dependencies import Dependency, dependencies_from, edge_policies
from longshore.core.errors import InvalidArgument
from longshore.core.flows import policy_of
from longshore.core.job import Job


def test_ids_jobs_and_dependencies_may_be_mixed() -> None:
    job = Job(id="b", type="x")
    given = ["a", job, Dependency("c", on_failure="ignore"), Dependency(job), Dependency("d", on_failure="wait")]
    assert dependencies_from(given, "wait") == (("a", "b", "c", "d"), {"c": "ignore"})
    assert dependencies_from(iter(["a"]), "stop") == (("a",), {})


def test_a_mapping_gives_each_its_policy_and_keeps_only_what_is_not_usual() -> None:
    assert dependencies_from({"a": "stop", "b": "wait"}, "stop") == (("a", "b"), {"b": "wait"})


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("abc", "must be a list of ids or jobs, not str"),
        (5, "must be a list of ids or jobs, not int"),
        ([5], "got int"),
        ([""], "got empty text"),
        ({"a": "explode"}, "depends_on.a: must be one of wait, stop, ignore"),
        (["a", Dependency("a", on_failure="stop")], "names 'a' twice, with different policies"),
    ],
)
def test_what_names_no_jobs_is_refused(given: Any, reported: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^depends_on") as refused:
        dependencies_from(given, "wait")
    assert reported in str(refused.value)


def test_a_dependency_has_a_policy_that_there_is() -> None:
    wrong: Any = "explode"
    with pytest.raises(InvalidArgument, match="on_failure: must be one of wait, stop, ignore; got 'explode'"):
        Dependency("a", on_failure=wrong)


def test_an_edge_has_its_own_policy_or_that_of_the_job() -> None:
    job = Job(type="x", on_dependency_failure="stop", options={"dependency_policies": {"a": "ignore"}})
    assert (policy_of(job, "a"), policy_of(job, "b")) == ("ignore", "stop")
    assert edge_policies('{"dependency_policies":{"a":"ignore"}}') == {"a": "ignore"}
    assert edge_policies("{}") == {}
