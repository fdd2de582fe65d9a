"""Arguments are checked on enqueue, stored as plain JSON, and passed as the annotated types."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_serializer
from typing_extensions import TypedDict

from longshore.app.arguments import Signature
from longshore.core.errors import InvalidArgument


class Colour(enum.Enum):
    RED = "red"


class Line(BaseModel):
    price: Decimal
    count: int = 1


class Order(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)
    number: int = Field(alias="orderNumber")
    at: datetime
    lines: tuple[Line, ...] = ()


@dataclasses.dataclass(frozen=True)
class Address:
    city: str
    since: date | None = None


class Point(NamedTuple):
    x: int
    y: int


class Settings(TypedDict, total=False):
    depth: int


class Later:
    """A class that a task cannot take."""


def signature_of(function: Any) -> Signature:
    return Signature(function.__name__, function, {})


def round_trip(function: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the function is called with in the worker."""
    arguments = signature_of(function).arguments
    return arguments.read(arguments.write(arguments.bind(args, kwargs))[0])


NOON = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        (str, "ada", "ada"),
        (int, 7, 7),
        (float, 1.5, 1.5),
        (bool, True, True),
        (str | None, None, None),
        (bytes, b"abc", "abc"),
        (datetime, NOON, "2026-03-01T12:00:00.000250Z"),
        (date, date(2026, 3, 1), "2026-03-01"),
        (timedelta, timedelta(seconds=90), "PT1M30S"),
        (UUID, UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Colour, Colour.RED, "red"),
        (Path, Path("a/b"), "a/b"),
        (Literal["a", "b"], "b", "b"),
        (list[int], [1, 2], [1, 2]),
        (set[int], {1}, [1]),
        (dict[int, str], {1: "a"}, {"1": "a"}),
        (Point, Point(1, 2), [1, 2]),
        (Settings, {"depth": 2}, {"depth": 2}),
        (Address, Address("Bergen", date(2020, 1, 2)), {"city": "Bergen", "since": "2020-01-02"}),
        (Line, Line(price=Decimal("2.50")), {"price": "2.50", "count": 1}),
        (
            Order,
            Order(orderNumber=7, at=NOON, lines=(Line(price=Decimal(1)),)),
            {"number": 7, "at": "2026-03-01T12:00:00.000250Z", "lines": [{"price": "1", "count": 1}]},
        ),
        (list[Address | None], [Address("Oslo"), None], [{"city": "Oslo", "since": None}, None]),
    ],
    ids=str,
)
def test_a_value_is_stored_as_plain_json_and_read_as_the_annotated_type(type_: Any, value: Any, stored: Any) -> None:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = type_
    arguments = signature_of(work).arguments
    payload, seen = arguments.write(arguments.bind((value,), {}))
    assert json.loads(payload) == {"value": stored}
    assert seen == {"value": value}
    assert round_trip(work, value) == ((), {"value": value})
    assert type(round_trip(work, value)[1]["value"]) is type(value)


def send_email(to: str, count: int = 1, *, order: Order | None = None) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "problem"),
    [
        ((5,), {}, "send_email.to", "should be a valid string; got 5 (int)"),
        ((), {}, "send_email.to", "is missing"),
        (("a",), {"cuont": 2}, "send_email.cuont", "Did you mean 'count'?"),
        (("a",), {"zzz": 2}, "send_email.zzz", "unexpected argument; send_email takes (to"),
        (("a", "many"), {}, "send_email.count", "should be a valid integer"),
        (("a", 1, None), {}, "send_email", "too many positional arguments"),
        (("a",), {"to": "b"}, "send_email", "multiple values for argument 'to'"),
        (("a",), {"order": {"orderNumber": 1}}, "send_email.order.at", "is missing"),
        (("a",), {"order": {"number": "x", "at": NOON}}, "send_email.order.number", "should be a valid integer"),
        (
            ("a",),
            {"order": {"number": 1, "at": NOON, "lines": ({"price": "?"},)}},
            "send_email.order.lines[0].price",
            "should be a valid decimal",
        ),
    ],
)
def test_a_wrong_argument_is_reported_with_its_field_task_and_file(
    args: tuple[Any, ...], kwargs: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        round_trip(send_email, *args, **kwargs)
    assert refused.value.field == field
    assert problem in refused.value.problem
    place = f"send_email is declared in {__file__}:{send_email.__code__.co_firstlineno}"
    assert place in refused.value.problem


def test_all_wrong_arguments_are_reported_at_once() -> None:
    with pytest.raises(InvalidArgument, match=r"send_email\.to: .*; and send_email\.count: "):
        round_trip(send_email, 1, "x")


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidArgument) as refused:
        round_trip(send_email, "a", "x" * 1_000_000)
    assert len(str(refused.value)) < 1_000


def test_a_default_that_is_not_given_is_not_stored_so_that_the_workers_own_holds() -> None:
    arguments = signature_of(send_email).arguments
    assert arguments.write(arguments.bind(("ada",), {}))[0] == b'{"to":"ada"}'
    assert round_trip(send_email, "ada") == ((), {"to": "ada"})


def test_a_model_is_taken_as_a_dict_too_by_name_and_by_alias() -> None:
    expected = Order(orderNumber=1, at=NOON)
    for given in ({"number": 1, "at": NOON}, {"orderNumber": 1, "at": NOON}):
        assert round_trip(send_email, "a", order=given)[1]["order"] == expected


def test_parameters_of_every_kind_are_kept_by_name() -> None:
    def work(first: int, /, second: int = 2, *rest: int, key: str = "k", **more: float) -> None: ...

    arguments = signature_of(work).arguments
    payload, _ = arguments.write(arguments.bind((1, 5, 6, 7), {"key": "x", "extra": 1.5}))
    assert json.loads(payload) == {"first": 1, "second": 5, "rest": [6, 7], "key": "x", "more": {"extra": 1.5}}
    assert round_trip(work, 1, 5, 6, 7, key="x", extra=1.5) == ((1, 5, 6, 7), {"key": "x", "extra": 1.5})
    assert round_trip(work, 1) == ((1, 2), {"key": "k"})
    assert arguments.read(b'{"first":1,"rest":[3]}') == ((1, 2, 3), {"key": "k"})
    with pytest.raises(InvalidArgument, match=r"work\.rest\[1\]: should be a valid integer"):
        round_trip(work, 1, 2, 3, "x")
    with pytest.raises(InvalidArgument, match=r"work\.more\.extra: should be a valid number"):
        round_trip(work, 1, extra="x")


def test_keywords_may_be_described_by_a_typed_dict() -> None:
    def work(**options: Unpack[Settings]) -> None: ...

    assert round_trip(work, depth=3) == ((), {"depth": 3})
    with pytest.raises(InvalidArgument, match=r"work\.options\.depth"):
        round_trip(work, depth="deep")


def test_json_may_name_extra_arguments_directly() -> None:
    def echo(first: int = 0, **data: Any) -> None: ...

    arguments = signature_of(echo).arguments
    assert arguments.read(b'{"say":"hello","first":1}') == ((1,), {"say": "hello"})
    assert arguments.read(b'{"data":{"say":"hello"},"loud":true}') == ((0,), {"say": "hello", "loud": True})
    assert arguments.read(b'{"data":5}') == ((0,), {"data": 5})
    assert round_trip(echo, say="hello") == ((0,), {"say": "hello"})


def test_a_parameter_without_a_type_takes_any_json_and_nothing_else() -> None:
    def work(anything, some: Any = None) -> None: ...  # type: ignore[no-untyped-def]  # that is the point

    assert round_trip(work, {"a": [1, None]}, some="x") == ((), {"anything": {"a": [1, None]}, "some": "x"})
    with pytest.raises(InvalidArgument, match=r"work\.anything: is of the Python type datetime, which is not JSON"):
        round_trip(work, NOON)
    with pytest.raises(InvalidArgument, match=r"work\.some\.x: is of the Python type set"):
        round_trip(work, 1, some={"x": {1}})


def test_values_without_json_form_are_refused() -> None:
    class Reading(BaseModel):
        value: float

    def work(number: float = 0.0, big: int = 0, raw: bytes = b"", reading: Reading | None = None) -> None: ...

    signature = Signature("work", work, {"Reading": Reading})
    for bad in ({"number": math.nan}, {"big": 2**64}, {"raw": b"\xff"}, {"reading": Reading(value=math.inf)}):
        with pytest.raises(InvalidArgument, match="work"):
            signature.arguments.write(signature.arguments.bind((), bad))


def test_a_value_that_cannot_be_read_back_is_refused_before_it_is_stored() -> None:
    class OneWay(BaseModel):
        value: int

        @field_serializer("value")
        def in_words(self, value: int) -> str:
            return f"number {value}"

    def work(one: OneWay) -> None: ...

    signature = Signature("work", work, {"OneWay": OneWay})
    with pytest.raises(InvalidArgument, match=r"work\.one\.value: cannot be read back from JSON"):
        signature.arguments.write({"one": OneWay(value=1)})


@pytest.mark.parametrize(
    ("type_", "value", "came_back"),
    [
        (SecretStr, SecretStr("sesame"), "SecretStr"),
        (date | str, "2026-03-01", "datetime.date(2026, 3, 1)"),
        (dict[str, Any], {"at": NOON}, "'2026-03-01T12"),
        (list[Any], [Address("Oslo")], "'city': 'Oslo'"),
        (dict[Any, int], {1: 1}, "{'1': 1}"),
    ],
    ids=str,
)
def test_a_value_that_would_come_back_as_another_one_is_refused(type_: Any, value: Any, came_back: str) -> None:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = type_
    with pytest.raises(InvalidArgument, match=r"work\.value: would reach the function as") as refused:
        round_trip(work, value)
    assert came_back in refused.value.problem


def test_values_without_a_comparison_and_non_fields_are_accepted() -> None:
    @dataclasses.dataclass(eq=False)
    class Crate:
        weight: int
        opened: int = dataclasses.field(default=0, compare=False)

    class Load(BaseModel):
        crates: list[Crate]
        _seen: list[int] = PrivateAttr(default_factory=list)

    def work(load: Load, anything: Any = None) -> None: ...

    signature = Signature("work", work, {"Load": Load, "Crate": Crate})
    load = Load(crates=[Crate(3)])
    load._seen.append(1)
    _, seen = signature.arguments.write({"load": load, "anything": {"size": (1, 2)}})
    assert seen["load"].crates[0].weight == 3
    load.crates[0].weight = 4
    assert signature.arguments.write({"load": load})[0] == b'{"load":{"crates":[{"weight":4,"opened":0}]}}'


def test_a_type_that_cannot_be_kept_is_refused_where_the_task_is_declared() -> None:
    def work(good: int, bad: Later) -> None: ...

    with pytest.raises(InvalidArgument, match=r"work\.bad: is annotated Later, which cannot be stored as JSON"):
        signature_of(work)

    def other() -> Later: ...  # type: ignore[empty-body]  # never called

    with pytest.raises(InvalidArgument, match=r"other\.return: is annotated Later"):
        signature_of(other)


def test_an_annotation_may_name_a_class_that_comes_later() -> None:
    signature = signature_of(takes_what_comes_later)
    globals()["ComesLater"] = Address
    try:
        _, seen = signature.arguments.write({"value": Address("Oslo")})
        assert seen == {"value": Address("Oslo")}
    finally:
        del globals()["ComesLater"]


def takes_what_comes_later(value: ComesLater) -> None: ...  # type: ignore[name-defined] # noqa: F821 # comes later


def test_an_annotation_that_cannot_be_resolved_is_reported_with_its_place() -> None:
    signature = signature_of(takes_what_comes_later)
    with pytest.raises(
        InvalidArgument, match=r"'ComesLater' is not defined; import it where the task is declared .*py:"
    ):
        _ = signature.arguments


def test_a_job_without_data_calls_with_no_arguments() -> None:
    def work(count: int = 3) -> None: ...

    assert signature_of(work).arguments.read(b"null") == ((), {})


def test_a_payload_that_no_longer_fits_is_refused_like_a_wrong_call() -> None:
    arguments = signature_of(send_email).arguments
    with pytest.raises(InvalidArgument, match=r"send_email\.subject: unexpected argument; send_email takes \("):
        arguments.read(b'{"to":"ada","subject":"hi"}')
    with pytest.raises(InvalidArgument, match="send_email: "):
        arguments.read(b"[1]")
    with pytest.raises(InvalidArgument, match="send_email: invalid JSON"):
        arguments.read(b"\x00")


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        (int, 3, 3),
        (None, None, None),
        (Address, Address("Oslo"), {"city": "Oslo", "since": None}),
        (Order, Order(orderNumber=1, at=NOON), {"number": 1, "at": "2026-03-01T12:00:00.000250Z", "lines": []}),
        (list[Colour], [Colour.RED], ["red"]),
        (datetime | None, NOON, "2026-03-01T12:00:00.000250Z"),
    ],
    ids=str,
)
def test_a_result_is_stored_as_json_and_read_as_the_annotated_type(type_: Any, value: Any, stored: Any) -> None:
    def work() -> Any: ...

    work.__annotations__["return"] = type_
    result = signature_of(work).result
    assert result.write(value) == stored
    assert result.read(None if stored is None else json.dumps(stored).encode()) == value


def test_a_result_without_an_annotation_is_stored_and_read_as_json() -> None:
    def work():  # type: ignore[no-untyped-def]  # that is the point
        ...

    result = signature_of(work).result
    assert result.write({"at": NOON, "who": Address("Oslo")}) == {
        "at": "2026-03-01T12:00:00.000250Z",
        "who": {"city": "Oslo", "since": None},
    }
    assert result.read(b'{"a":[1]}') == {"a": [1]}


def test_a_result_that_cannot_be_stored_is_a_readable_failure() -> None:
    def work() -> Any: ...

    with pytest.raises(InvalidArgument, match=r"work\.return: is or contains an object of type .*Later, which"):
        signature_of(work).result.write(Later())


def test_a_stored_result_that_does_not_match_the_annotation_is_refused() -> None:
    def work() -> int: ...  # type: ignore[empty-body]  # never called

    result = signature_of(work).result
    stored = result.write("seven")
    with pytest.raises(
        InvalidArgument, match=r"work\.return: should be a valid integer.*; the stored result does not match"
    ):
        result.read(json.dumps(stored).encode())
