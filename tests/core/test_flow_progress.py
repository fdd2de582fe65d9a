"""The progress of a flow, why it failed, its diagram, and its copy."""

from __future__ import annotations

from typing import Any

import pytest

from longshore.core.errors import InvalidArgument
from longshore.core.flows import MOST_DRAWN, copy_of_flow, drawing, status_of_flow, what_failed
from longshore.core.job import Job
from longshore.core.status import JobStatus

S = JobStatus


def step(name: str, status: JobStatus, *depends_on: str, policy: Any = "wait", last: str = "", **more: Any) -> Job:
    about = {"name": "voyage", "step": name} | ({"last": last} if last else {})
    return Job(
        id=f"f.{name}",
        type="work",
        status=status,
        parent_id="f",
        depends_on=[f"f.{other}" for other in depends_on],
        on_dependency_failure=policy,
        options={"flow": about, **more.pop("options", {})},
        **more,
    )


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        ((S.INITIAL_PENDING, S.WAITING_CHILDREN), "running"),
        ((S.RUNNING, S.WAITING_CHILDREN), "running"),
        ((S.CANCELLING, S.UNSCHEDULED), "running"),
        ((S.FAILED_RETRY, S.WAITING_CHILDREN), "running"),
        ((S.CREATED, S.CREATED), "running"),
        ((S.DEAD, S.WAITING_CHILDREN), "waiting"),
        ((S.COMPLETED, S.COMPLETED), "completed"),
        ((S.DEAD, S.COMPLETED), "completed"),
        ((S.COMPLETED, S.DEAD), "failed"),
        ((S.DEAD, S.UNSCHEDULED), "failed"),
    ],
)
def test_a_flow_is_in_the_state_its_steps_make(statuses: tuple[JobStatus, JobStatus], state: str) -> None:
    steps = [step("a", statuses[0]), step("b", statuses[1], "a", last="alone")]
    status = status_of_flow("f", steps)
    assert (status.state, status.name, status.total) == (state, "voyage", 2)
    assert status.ended == sum(one.final for one in statuses)


def test_the_step_that_failed_first_is_reported() -> None:
    waits = [
        step("a", S.DEAD),
        step("b", S.WAITING_CHILDREN, "a"),
        step("c", S.WAITING_CHILDREN, "b", policy="ignore", last="alone"),
    ]
    stopped = [
        step("a", S.DEAD),
        step("b", S.UNSCHEDULED, "a", policy="stop"),
        step("c", S.UNSCHEDULED, "b", policy="stop", last="alone"),
    ]
    for steps in (waits, stopped):
        failed = what_failed(steps)
        assert failed is not None
        assert failed.id == "f.a"


def test_what_may_fail_is_no_reason() -> None:
    steps = [step("a", S.DEAD), step("b", S.RUNNING, "a", policy="ignore", last="alone")]
    assert what_failed(steps) is None
    steps[1] = step("b", S.DEAD, "a", policy="ignore", last="alone")
    failed = what_failed(steps)
    assert failed is not None
    assert failed.id == "f.b"
    own = {"dependency_policies": {"f.a": "ignore"}}
    assert what_failed([steps[0], step("b", S.RUNNING, "a", options=own, last="alone")]) is None


def test_a_failure_that_no_last_step_waits_for_is_none_of_the_flow() -> None:
    steps = [step("a", S.DEAD), step("b", S.COMPLETED, "a", policy="ignore", last="alone"), step("c", S.COMPLETED)]
    assert what_failed(steps) is None


def test_a_job_that_is_no_step_is_passed_over() -> None:
    assert what_failed([step("a", S.WAITING_CHILDREN, "elsewhere", last="alone")]) is None


def test_names_that_would_be_taken_for_mermaid_are_drawn_as_what_they_are() -> None:
    steps = [step('a"]; b', S.DEAD), step("b", S.COMPLETED, 'a"]; b', policy="ignore")]
    assert drawing(steps) == (
        'flowchart TD\n    s0["a#34;#93;#59; b<br/>DEAD"]\n    s1["b<br/>COMPLETED"]\n    s0 -.-> s1\n'
    )


def test_a_picture_has_an_end() -> None:
    steps = [step(str(number), S.RUNNING) for number in range(MOST_DRAWN + 5)]
    assert drawing(steps).endswith('more["and 5 more"]\n')


def test_a_copy_waits_for_its_own_steps_and_for_what_completed_in_the_original() -> None:
    own = {"dependency_policies": {"f.b": "ignore", "elsewhere": "stop"}}
    steps = [
        step("a", S.COMPLETED),
        step("b", S.DEAD, "a"),
        step("c", S.UNSCHEDULED, "a", "b", last="alone", options=own).replace(depends_on=("f.a", "f.b", "elsewhere")),
    ]
    b, c = copy_of_flow("f", steps, completed_too=False)
    new = b.parent_id
    assert (b.id, c.id, c.parent_id) == (f"{new}.b", f"{new}.c", new)
    assert (b.depends_on, c.depends_on) == (("f.a",), ("f.a", b.id, "elsewhere"))
    assert c.options["dependency_policies"] == {b.id: "ignore", "elsewhere": "stop"}
    assert c.options["flow"]["of"] == "f"
    whole = copy_of_flow("f", steps, completed_too=True)
    assert whole[1].depends_on == (whole[0].id,)


def test_only_what_is_over_is_copied() -> None:
    with pytest.raises(InvalidArgument, match="flow: f is waiting, and 1 of its steps are unfinished"):
        copy_of_flow("f", [step("a", S.DEAD), step("b", S.WAITING_CHILDREN, "a")], completed_too=True)
    ending = [step("a", S.CANCELLING), step("b", S.UNSCHEDULED, "a")]
    with pytest.raises(InvalidArgument, match="flow: f: 1 of its steps is still being cancelled; try again when"):
        copy_of_flow("f", ending, completed_too=False)
    with pytest.raises(InvalidArgument, match="f has completed; rerun_whole"):
        copy_of_flow("f", [step("a", S.COMPLETED)], completed_too=False)


def test_a_flow_whose_last_steps_were_removed_is_judged_by_what_is_left() -> None:
    assert status_of_flow("f", [step("a", S.COMPLETED)]).state == "completed"
    assert status_of_flow("f", [step("a", S.COMPLETED), step("b", S.DEAD)]).state == "failed"
    for completed_too in (True, False):
        with pytest.raises(InvalidArgument, match="has lost its last step"):
            copy_of_flow("f", [step("a", S.DEAD)], completed_too=completed_too)
