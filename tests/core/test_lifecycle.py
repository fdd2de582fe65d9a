"""The table of legal transitions, compared with a second copy written by hand."""

from __future__ import annotations

import itertools

import pytest

from longshore.core.errors import InvalidTransition, JobNotInflight
from longshore.core.status import (
    ELIGIBLE,
    HOLDS_CAPACITY,
    LEGAL_PAIRS,
    TRANSITIONS,
    JobStatus,
    Verb,
    target_of,
    transitions_from,
    update_is_legal,
)
from longshore.core.transitions import after
from tests.core.staging import ARROWS, FINAL, IN_FLIGHT, PAIRS, STATUSES, arrow

# status: (eligible, final, holds capacity)
KINDS = {
    "CREATED": (False, False, False),
    "WAITING_CHILDREN": (False, False, False),
    "INITIAL_PENDING": (True, False, False),
    "RUNNING": (False, False, True),
    "CANCELLING": (False, False, True),
    "FAILED_RETRY": (True, False, False),
    "UNKNOWN_RETRY": (True, False, False),
    "COMPLETED": (False, True, False),
    "STOPPED": (False, True, False),
    "UNSCHEDULED": (False, True, False),
    "UNKNOWN_STOPPED": (False, True, False),
    "DEAD": (False, True, False),
}
# operations of the worker that holds the job; for a job without a worker they raise JobNotInflight
SAID_BY_A_WORKER = {
    "COMPLETE",
    "FAIL",
    "BURY",
    "STOP",
    "STOP_WITH_RETRY",
    "MARK_UNKNOWN_STOPPED",
    "RELEASE",
    "ACKNOWLEDGE",
    "DISOWN",
    "CRASH",
}
# legal by their own operation only, never by update_job_status
CLOSED_TO_UPDATES = {
    ("WAITING_CHILDREN", "INITIAL_PENDING"),
    ("DEAD", "FAILED_RETRY"),
    ("CREATED", "INITIAL_PENDING"),
    ("CREATED", "WAITING_CHILDREN"),
}
# accept_jobs has two targets, decided by the record's dependencies: see test_transitions
EVERY_QUESTION = [(status, verb) for status in STATUSES for verb in Verb if verb is not Verb.ACCEPT]


def test_the_statuses_are_the_twelve_that_are_promised_and_each_is_stored_under_its_own_name() -> None:
    assert {status.value for status in JobStatus} == set(KINDS)
    assert all(status.name == status.value for status in JobStatus)


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_is_eligible_final_or_holding_capacity_as_the_documents_say(status: JobStatus) -> None:
    # B-CON-07 Q-STS-01 Q-STS-02 Q-STS-03 Q-STS-04 Q-STS-05 Q-STS-06 Q-STS-07 Q-STS-08 Q-STS-09 X-06 O-ST-01
    assert (status.eligible, status.final, status.holds_capacity) == KINDS[status]


def test_the_table_has_every_arrow_of_the_hand_written_one_and_no_other() -> None:
    # O-SM-02 O-TR-01 O-TR-02 O-TR-03 O-TR-04 O-TR-06 B-COMP-02 B-COMP-03 B-COMP-04 B-COMP-05 B-FAIL-03 B-FAIL-04
    # B-STOP-02 B-STOP-03 B-STOP-04 B-SWR-02 B-MUS-02 B-MUS-03 B-MUS-04 B-CAN-03 B-CAN-04 B-CAN-05 B-CAN-06 B-ACK-02
    # B-ACK-03 B-MWU-02 B-MWU-03 B-RST-01 X-01 X-07 X-08 X-09
    reported = [(row.source.value, row.target.value, row.verb.name) for row in TRANSITIONS]
    assert set(reported) - ARROWS == set()
    assert ARROWS - set(reported) == set()
    assert len(reported) == len(set(reported)), "a transition is listed twice"


def test_a_move_is_legal_exactly_if_the_hand_written_table_has_it() -> None:
    # O-SM-02
    assert LEGAL_PAIRS == PAIRS


@pytest.mark.parametrize(("status", "verb"), EVERY_QUESTION)
def test_a_verb_leads_where_the_table_says_or_raises_the_error_that_says_why_not(status: JobStatus, verb: Verb) -> None:
    # B-ERR-02 O-SM-02 T-ERR-02
    wanted = arrow(status, verb.name)
    assert target_of(status, verb) == wanted
    if wanted is not None:
        assert after("j1", status, verb) is JobStatus(wanted)
        return
    with pytest.raises(InvalidTransition) as refusal:
        after("j1", status, verb)
    unheld = verb.name in SAID_BY_A_WORKER and status not in IN_FLIGHT
    assert type(refusal.value) is (JobNotInflight if unheld else InvalidTransition)
    assert refusal.value.job_id == "j1"
    assert refusal.value.status is status
    assert refusal.value.target in {to for _, to, by in ARROWS if by == verb.name}
    assert status in str(refusal.value)
    if unheld and status.final:
        assert str(refusal.value) == f"job 'j1' has already ended as {status}; nothing was changed"
    elif verb.name == "RETRY":
        again = ". To run it again, enqueue a new job" if status.final else ", and this one has not failed permanently"
        assert str(refusal.value) == f"job 'j1' is {status}; only a DEAD job can be retried{again}"
    else:
        possible = str(refusal.value).partition("possible from ")[2].split(", ")
        assert set(possible) == {of for of, _, by in ARROWS if by == verb.name}


def test_a_move_by_hand_follows_the_table_except_where_only_the_verb_itself_may_go() -> None:
    # B-UPD-01 X-10
    every_pair = itertools.product(STATUSES, STATUSES)
    assert {pair for pair in every_pair if update_is_legal(*pair)} == PAIRS - CLOSED_TO_UPDATES


def test_the_exceptions_to_moves_by_hand_are_all_legal_by_their_own_verb() -> None:
    assert CLOSED_TO_UPDATES <= PAIRS


def test_a_running_job_is_never_dead_in_one_step() -> None:
    #
    assert (JobStatus.RUNNING, JobStatus.DEAD) not in LEGAL_PAIRS


def reachable_from(status: JobStatus) -> set[JobStatus]:
    seen: set[JobStatus] = set()
    ahead = [status]
    while ahead:
        for source, target in LEGAL_PAIRS:
            if source is ahead[0] and target not in seen:
                seen.add(target)
                ahead.append(target)
        ahead.pop(0)
    return seen


def test_once_left_initial_pending_is_never_entered_again() -> None:
    # B-INV-03 Q-STS-10
    assert JobStatus.INITIAL_PENDING not in reachable_from(JobStatus.INITIAL_PENDING)


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in FINAL])
def test_every_status_that_is_not_final_leads_to_an_end(status: JobStatus) -> None:
    assert any(reached.final for reached in reachable_from(status))


def test_only_a_late_result_and_an_operator_open_what_is_final() -> None:
    # X-08 X-69 O-ST-06 B-COMP-12 B-STOP-06
    assert {(row.source, row.target, row.verb) for row in TRANSITIONS if row.source.final} == {
        (JobStatus.UNKNOWN_STOPPED, JobStatus.COMPLETED, Verb.COMPLETE),
        (JobStatus.DEAD, JobStatus.FAILED_RETRY, Verb.RETRY),
    }


def test_a_claim_is_possible_from_every_eligible_status_and_from_no_other() -> None:
    # B-DEQ-03 B-INV-05
    assert {status for status in STATUSES if target_of(status, Verb.CLAIM)} == ELIGIBLE


def test_a_job_comes_to_hold_capacity_by_a_claim_alone_and_a_cancelled_one_keeps_it() -> None:
    # Q-CAN-03
    into = {
        (row.source, row.verb) for row in TRANSITIONS if row.target in HOLDS_CAPACITY and row.verb is not Verb.CLAIM
    }
    assert into == {(JobStatus.RUNNING, Verb.CANCEL)}


@pytest.mark.parametrize("status", STATUSES)
def test_the_arrows_from_a_status_are_its_rows_of_the_table(status: JobStatus) -> None:
    found = {(row.source.value, row.target.value, row.verb.name) for row in transitions_from(status)}
    assert found == {row for row in ARROWS if row[0] == status}
