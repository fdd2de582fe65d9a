"""Dependencies of a job: the jobs it waits for, what happens when one fails, and where their results go."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from longshore.core.errors import InvalidArgument
from longshore.core.validation import check_name

DependencyPolicy = Literal["wait", "stop", "ignore"]
POLICIES: tuple[str, ...] = get_args(DependencyPolicy)

EDGE_POLICIES = "dependency_policies"
"""The job option that holds the policies of single edges, by the id they lead to: only those that are not the job's."""
RESULTS_FROM = "results_from"
"""The job option that names the queues whose results it may be given: a server's note of its caller. Left out: all."""


class HasId(Protocol):
    """A job, or a handle of one."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...


@dataclass(frozen=True, slots=True)
class Dependency:
    """One job to wait for, with a policy of its own: `depends_on=["a", Dependency("b", on_failure="ignore")]`.

    What its end means if it is not COMPLETED: `wait` goes on waiting (it may be retried), `stop` gives the waiting job
    up, `ignore` lets it run.
    """

    job: str | HasId
    on_failure: DependencyPolicy = "wait"

    def __post_init__(self) -> None:
        check_policy("on_failure", self.on_failure)

    @property
    def id(self) -> str:
        """The id of the job to wait for."""
        return self.job if isinstance(self.job, str) else self.job.id


Dependencies = Iterable[str | HasId] | Mapping[str, DependencyPolicy]
"""Jobs to wait for: ids, jobs, handles, or Dependency for a policy of its own; or a mapping of ids to policies."""


def check_policy(field: str, value: object) -> None:
    """Refuses an unknown policy."""
    if not isinstance(value, str) or value not in POLICIES:
        raise InvalidArgument(field, f"must be one of {', '.join(POLICIES)}; got {value!r}")


def dependencies_from(given: object, usual: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Ids to wait for as a caller named them, and the policies of those that have another one than usual."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidArgument("depends_on", f"must be a list of ids or jobs, not {type(given).__name__}")
    told: dict[str, str] = {}
    for one in given:
        name = check_name("depends_on", getattr(one, "id", one))
        policy: Any = given[one] if isinstance(given, Mapping) else getattr(one, "on_failure", usual)
        if isinstance(given, Mapping):
            check_policy(f"depends_on.{name}", policy)
        if told.setdefault(name, policy) != policy:
            raise InvalidArgument("depends_on", f"names {name!r} twice, with different policies")
    return tuple(told), {name: policy for name, policy in told.items() if policy != usual}


def check_edge_policies(options: Mapping[str, Any], depends_on: Collection[str]) -> None:
    """Refuses unknown policies, and policies for jobs that this job does not depend on."""
    policies = options.get(EDGE_POLICIES)
    if policies is None:
        return
    field = f"options.{EDGE_POLICIES}"
    if not isinstance(policies, Mapping):
        raise InvalidArgument(field, f"must map ids to policies; got {policies!r}")
    waited_for = set(depends_on)
    for name, policy in policies.items():
        if name not in waited_for:
            raise InvalidArgument(field, f"names {name!r}, which the job does not depend on")
        check_policy(f"{field}.{name}", policy)


def edge_policies(options: str) -> Mapping[str, str]:
    """The policies of single edges, from options as they are stored."""
    if f'"{EDGE_POLICIES}"' not in options:
        return {}
    return json.loads(options).get(EDGE_POLICIES) or {}


INPUTS = "inputs"
"""The job option."""

Step = str | int
Path = tuple[Step, ...]


def packed(wanted: Iterable[tuple[Path, int]]) -> list[list[Any]]:
    """Places and numbers of dependencies as the option holds them."""
    entries: list[list[Any]] = []
    for path, number in wanted:
        if entries and _follows(entries[-1], path, number):
            entries[-1][2] += 1
        else:
            entries.append([list(path), number, 1])
    return entries


def _follows(entry: list[Any], path: Path, number: int) -> bool:
    begun, first, count = entry
    *within, place = begun
    return (
        type(place) is int
        and number == first + count
        and list(path[:-1]) == within
        and type(path[-1]) is int
        and path[-1] == place + count
    )


def unpacked(inputs: object) -> Iterator[tuple[Path, int]]:
    """The option as places and numbers of dependencies; InvalidArgument for what was never packed."""
    if not isinstance(inputs, list):
        raise InvalidArgument(f"options.{INPUTS}", f"must be a list of [path, first, count], not {inputs!r}")
    for position, entry in enumerate(inputs):
        match entry:
            case [[*within, int(place)], int(first), int(count)] if first >= 0 and count > 0:
                for offset in range(count):
                    yield (*within, place + offset), first + offset
            case [[*within, str(name)], int(first), 1] if first >= 0:
                yield (*within, name), first
            case _:
                raise InvalidArgument(f"options.{INPUTS}[{position}]", f"must be [path, first, count], not {entry!r}")


def fill_in(data: Any, inputs: object, value_of: Callable[[int], Any]) -> None:
    """Puts the results into the arguments, which have a null at each of these places."""
    for path, number in unpacked(inputs):
        *within, last = path
        place = data
        try:
            for step in within:
                place = place[step]
            if place[last] is not None:
                raise KeyError(last)
        except (LookupError, TypeError):
            told = "".join(f"[{step!r}]" for step in path)
            raise InvalidArgument(f"options.{INPUTS}", f"the arguments have no place for a result at {told}") from None
        place[last] = value_of(number)


def spliced(payload: bytes, inputs: object, result_of: Callable[[int], bytes | None]) -> bytes:
    """The payload with results in their places, as they were stored: large ones are not read and written again."""
    data = json.loads(payload)
    mark = "\x00"
    while json.dumps(mark)[1:-1].encode() in payload:  # so that nothing in it can be taken for a place
        mark += "\x00"
    fill_in(data, inputs, lambda number: f"{mark}{number}")
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    place = re.compile(rb'"' + re.escape(json.dumps(mark)[1:-1].encode()) + rb'(\d+)"')
    pieces = place.split(written)
    pieces[1::2] = [result_of(int(number)) or b"null" for number in pieces[1::2]]
    return b"".join(pieces)
