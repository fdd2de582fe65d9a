"""What a filter matches: each condition alone, and all together."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.errors import InvalidArgument
from longshore.core.filters import JobFilter, check_filter, matches, matches_data
from longshore.core.job import Job
from longshore.core.job_record import Record
from longshore.core.status import JobStatus
from longshore.core.times import from_micros
from longshore.core.validation import check_status
from tests.core.staging import BORN, NOON, NOW, new_record, record_in

S = JobStatus
MICROSECOND = timedelta(microseconds=1)


def record_with(payload: bytes = b"null", **changes: Any) -> Record:
    return new_record(Job(id="invoice-7", type="email", payload=payload), **changes)


def test_an_empty_filter_matches_every_job() -> None:
    # B-CON-06
    for status in JobStatus:
        assert matches(JobFilter(), record_in(status))


# -- one condition at a time: (filter, changes to the record, whether it matches)
CONDITIONS: list[tuple[JobFilter, dict[str, Any], bool]] = [
    (JobFilter(statuses=[S.RUNNING]), {"status": S.RUNNING}, True),
    (JobFilter(statuses=[S.RUNNING, S.DEAD]), {"status": S.DEAD}, True),
    (JobFilter(statuses=[S.RUNNING]), {"status": S.CANCELLING}, False),
    (JobFilter(queues=["default", "other"]), {}, True),
    (JobFilter(queues=["other"]), {}, False),
    (JobFilter(types=["email"]), {}, True),
    (JobFilter(types=["Email"]), {}, False),
    (JobFilter(types=["emai"]), {}, False),
    (JobFilter(tags=["a"]), {"tags": ("b", "a")}, True),
    (JobFilter(tags=["a", "b"]), {"tags": ("b", "a")}, True),
    (JobFilter(tags=["a", "c"]), {"tags": ("b", "a")}, False),
    (JobFilter(tags=["A"]), {"tags": ("a",)}, False),
    (JobFilter(tags=["a"]), {"tags": ()}, False),
    (JobFilter(ids=["invoice-7"]), {}, True),
    (JobFilter(ids=["invoice-8", "invoice-7"]), {}, True),
    (JobFilter(ids=["invoice"]), {}, False),
    (JobFilter(assignee_id="w"), {"assignee_id": "w"}, True),
    (JobFilter(assignee_id="w"), {"assignee_id": "w2"}, False),
    (JobFilter(assignee_id="w"), {"assignee_id": None}, False),
    (JobFilter(parent_id="p"), {"parent_id": "p"}, True),
    (JobFilter(parent_id="p"), {"parent_id": None}, False),
    (JobFilter(schedule_id="s"), {"schedule_id": "s"}, True),
    (JobFilter(schedule_id="s"), {"schedule_id": None}, False),
    (JobFilter(concurrency_key="k"), {"concurrency_key": "k"}, True),
    (JobFilter(concurrency_key="k"), {"concurrency_key": "other"}, False),
    (JobFilter(created_after=from_micros(BORN) - MICROSECOND), {}, True),
    (JobFilter(created_after=from_micros(BORN)), {}, False),
    (JobFilter(created_before=from_micros(BORN) + MICROSECOND), {}, True),
    (JobFilter(created_before=from_micros(BORN)), {}, False),
    (JobFilter(error="disk"), {"error_message": "the disk is full"}, True),
    (JobFilter(error="Disk"), {"error_message": "the disk is full"}, False),
    (JobFilter(error="email"), {"error_message": ""}, False),
    (JobFilter(text="voice"), {}, True),
    (JobFilter(text="mail"), {}, True),
    (JobFilter(text="disk"), {"error_message": "the disk is full"}, True),
    (JobFilter(text="Ørsted"), {"payload": '{"to":"Ørsted"}'.encode()}, True),
    (JobFilter(text="%"), {}, False),
    (JobFilter(text="_"), {}, False),
    (JobFilter(text="*"), {}, False),
    (JobFilter(text="VOICE"), {}, False),
    (JobFilter(text="\ud800"), {}, False),
]


@pytest.mark.parametrize(("wanted", "changes", "found"), CONDITIONS)
def test_one_condition_finds_what_it_says_and_nothing_else(
    wanted: JobFilter, changes: dict[str, Any], found: bool
) -> None:
    # B-CON-06 B-INV-04 Q-TAG-01 Q-TAG-03 Q-TAG-04
    assert matches(wanted, record_with(**changes)) is found


PAYLOAD = {
    "city": "Bergen",
    "address": {"city": "Oslo", "lines": ["a", {"zip": 5003}]},
    "none": None,
    "yes": True,
    "one": 1,
    "half": 0.5,
    "": "empty key",
    "0": "zero",
}
# path, value -> whether it matches
DATA: list[tuple[str, Any, bool]] = [
    ("city", "Bergen", True),
    ("city", "bergen", False),
    ("address.city", "Oslo", True),
    ("address.city", "Bergen", False),
    ("address", {"city": "Oslo", "lines": ["a", {"zip": 5003}]}, True),
    ("address.lines.0", "a", True),
    ("address.lines.1.zip", 5003, True),
    ("address.lines.2", "a", False),
    ("address.lines.-1", "a", False),
    ("address.lines.first", "a", False),
    ("none", None, True),
    ("absent", None, False),
    ("city.length", 6, False),
    ("yes", True, True),
    ("yes", 1, False),
    ("one", 1, True),
    ("one", True, False),
    ("one", 1.0, True),
    ("half", 0.5, True),
    ("one", "1", False),
    ("", "empty key", True),
    ("0", "zero", True),
]


@pytest.mark.parametrize(("path", "value", "found"), DATA)
def test_a_path_into_the_payload_finds_its_value(path: str, value: object, found: bool) -> None:
    assert matches_data(JobFilter(data={path: value}), json.dumps(PAYLOAD).encode()) is found


def test_every_path_of_a_filter_must_hold() -> None:
    payload = json.dumps(PAYLOAD).encode()
    assert matches_data(JobFilter(data={"city": "Bergen", "one": 1}), payload)
    assert not matches_data(JobFilter(data={"city": "Bergen", "one": 2}), payload)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00\xff", b"not json", b"[" * 100_000, b'{"a":' * 100_000, b'"text"', b"9" * 5000],
    ids=lambda payload: repr(payload)[:14],
)
def test_a_payload_that_cannot_be_read_matches_no_path_and_breaks_no_search(payload: bytes) -> None:
    assert matches_data(JobFilter(data={"a": 1}), payload) is False
    assert matches_data(JobFilter(), payload) is True


FEW = st.sampled_from(["a", "b"])
SOME = st.lists(FEW, max_size=2)
MAYBE = st.none() | FEW


@st.composite
def records(draw: st.DrawFn) -> Record:
    job = Job(
        id=draw(FEW),
        type=draw(FEW),
        queue=draw(FEW),
        tags=tuple(dict.fromkeys(draw(SOME))),
        payload=json.dumps({"k": draw(FEW)}).encode(),
        parent_id=draw(MAYBE),
        schedule_id=draw(MAYBE),
        concurrency_key=draw(MAYBE),
    )
    changes: dict[str, Any] = {"status": draw(st.sampled_from([S.RUNNING, S.DEAD])), "assignee_id": draw(MAYBE)}
    return new_record(job, created_at=NOW + draw(st.integers(-1, 1)), error_message=draw(FEW), **changes)


FILTERS = st.builds(
    JobFilter,
    statuses=st.lists(st.sampled_from([S.RUNNING, S.DEAD]), max_size=1),
    queues=SOME,
    types=SOME,
    tags=SOME,
    ids=SOME,
    text=st.sampled_from(["", "a", "b"]),
    data=st.sampled_from([{}, {"k": "a"}]),
    error=st.sampled_from(["", "a"]),
    assignee_id=MAYBE,
    parent_id=MAYBE,
    schedule_id=MAYBE,
    concurrency_key=MAYBE,
    created_after=st.none() | st.just(NOON),
    created_before=st.none() | st.just(NOON),
)


def holds(wanted: JobFilter, record: Record) -> bool:
    """The reference, condition by condition, as documented."""
    said: list[bool] = []
    for chosen, value in (
        (wanted.statuses, record.status),
        (wanted.queues, record.queue),
        (wanted.types, record.type),
        (wanted.ids, record.id),
    ):
        said.append(len(chosen) == 0 or value in set(chosen))
    said.append(set(wanted.tags).issubset(record.tags))
    for name in ("assignee_id", "parent_id", "schedule_id", "concurrency_key"):
        asked = getattr(wanted, name)
        said.append(asked is None or getattr(record, name) == asked)
    created = from_micros(record.created_at)
    said.append(wanted.created_after is None or created > wanted.created_after)
    said.append(wanted.created_before is None or created < wanted.created_before)
    said.append(wanted.error in record.error_message)
    places = (record.id, record.type, record.error_message, record.payload.decode())
    said.append(any(wanted.text in place for place in places))
    payload = json.loads(record.payload)
    said.append(all(payload[path] == value for path, value in wanted.data.items()))
    return all(said)


@given(FILTERS, records())
def test_a_filter_matches_exactly_where_every_condition_holds(wanted: JobFilter, record: Record) -> None:
    assert matches(wanted, record) == holds(wanted, record)


@given(FILTERS, records())
def test_any_well_formed_filter_passes_its_check_unchanged(wanted: JobFilter, record: Record) -> None:
    assert check_filter(wanted) is wanted


ODD_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"statuses": ["GONE"]}, "filter.statuses"),
    ({"statuses": "RUNNING"}, "filter.statuses"),
    ({"statuses": S.RUNNING}, "filter.statuses"),
    ({"statuses": None}, "filter.statuses"),
    ({"statuses": 5}, "filter.statuses"),
    ({"queues": "default"}, "filter.queues"),
    ({"queues": None}, "filter.queues"),
    ({"types": [""]}, "filter.types"),
    ({"tags": [5]}, "filter.tags"),
    ({"ids": [["a"]]}, "filter.ids"),
    ({"text": None}, "filter.text"),
    ({"text": b"a"}, "filter.text"),
    ({"error": 5}, "filter.error"),
    ({"assignee_id": ""}, "filter.assignee_id"),
    ({"parent_id": 5}, "filter.parent_id"),
    ({"schedule_id": "\n"}, "filter.schedule_id"),
    ({"concurrency_key": ""}, "filter.concurrency_key"),
    ({"created_after": "yesterday"}, "filter.created_after"),
    ({"created_before": datetime(2026, 1, 1)}, "filter.created_before"),  # noqa: DTZ001  # naive on purpose
    ({"data": [("a", 1)]}, "filter.data"),
    ({"data": {5: 1}}, "filter.data"),
    ({"data": {"a": float("nan")}}, "filter.data.a"),
    ({"data": {"a": NOON}}, "filter.data.a"),
]


@pytest.mark.parametrize(("odd", "field"), ODD_FILTERS)
def test_an_odd_condition_is_refused_by_name(odd: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_filter(JobFilter(**odd))
    assert refusal.value.field == field


@pytest.mark.parametrize("name", ["queues", "types", "tags", "ids"])
def test_names_that_can_be_read_only_once_are_refused_or_still_there_after_the_check(name: str) -> None:
    values: dict[str, Any] = {name: (value for value in ["a"])}
    try:
        checked = check_filter(JobFilter(**values))
    except InvalidArgument:
        return
    record = new_record(Job(id="a", type="a", queue="a", tags=("a",)))
    assert matches(checked, record)


@pytest.mark.parametrize("thing", [None, {}, "RUNNING", S.RUNNING])
def test_what_is_no_filter_is_refused(thing: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_filter(thing)
    assert refusal.value.field == "filter"


def test_a_status_is_a_member_or_its_name() -> None:
    assert check_status("status", S.RUNNING) is S.RUNNING
    assert check_status("status", "RUNNING") is S.RUNNING
    for odd in ("running", "", None, 5, ["RUNNING"]):
        with pytest.raises(InvalidArgument, match="INITIAL_PENDING") as refusal:
            check_status("status", odd)
        assert refusal.value.field == "status"


def test_a_filter_may_name_statuses_in_words() -> None:
    assert matches(check_filter(JobFilter(statuses=["DEAD"])), record_in(S.DEAD))  # type: ignore[list-item]  # as JSON gives it
