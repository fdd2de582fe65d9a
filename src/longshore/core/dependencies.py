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
"""The job option with policies by dependency id, where they differ from the job's policy."""
RESULTS_FROM = "results_from"
"""The job option with the queues whose results the job may receive; a server sets it for its caller. Absent: all."""


class HasId(Protocol):
    """A job or a job handle."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...


@dataclass(frozen=True, slots=True)
class Dependency:
    """One job to wait for, with its own policy: `depends_on=["a", Dependency("b", on_failure="ignore")]`.

    The policy applies if the dependency ends without completing. `wait` keeps the dependent waiting (the dependency may
    be retried), `stop` cancels the dependent, `ignore` lets it run.
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
"""Jobs to wait for: ids, jobs, handles or Dependency objects; or a mapping of ids to policies."""


def check_policy(field: str, value: object) -> None:
    """Reject an unknown policy."""
    if not isinstance(value, str) or value not in POLICIES:
        raise InvalidArgument(field, f"must be one of {', '.join(POLICIES)}; got {value!r}")


def dependencies_from(given: object, usual: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the ids to wait for, and the policies that differ from the usual one."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidArgument("depends_on", f"must be a list of ids or jobs, not {type(given).__name__}")
    policies: dict[str, str] = {}
    for one in given:
        name = check_name("depends_on", getattr(one, "id", one))
        policy: Any = given[one] if isinstance(given, Mapping) else getattr(one, "on_failure", usual)
        if isinstance(given, Mapping):
            check_policy(f"depends_on.{name}", policy)
        if policies.setdefault(name, policy) != policy:
            raise InvalidArgument("depends_on", f"names {name!r} twice, with different policies")
    return tuple(policies), {name: policy for name, policy in policies.items() if policy != usual}


def check_edge_policies(options: Mapping[str, Any], depends_on: Collection[str]) -> None:
    """Reject unknown policies, and policies for jobs that this job does not depend on."""
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
    """The policies by dependency id, from options as stored."""
    if f'"{EDGE_POLICIES}"' not in options:
        return {}
    return json.loads(options).get(EDGE_POLICIES) or {}


INPUTS = "inputs"
"""The job option that says where results of dependencies go in the arguments."""

Step = str | int
Path = tuple[Step, ...]


def packed(wanted: Iterable[tuple[Path, int]]) -> list[list[Any]]:
    """Encode paths in the arguments and indexes of dependencies as the option stores them."""
    entries: list[list[Any]] = []
    for path, number in wanted:
        if entries and _follows(entries[-1], path, number):
            entries[-1][2] += 1
        else:
            entries.append([list(path), number, 1])
    return entries


def _follows(entry: list[Any], path: Path, number: int) -> bool:
    start, first, count = entry
    *within, index = start
    return (
        type(index) is int
        and number == first + count
        and list(path[:-1]) == within
        and type(path[-1]) is int
        and path[-1] == index + count
    )


def unpacked(inputs: object) -> Iterator[tuple[Path, int]]:
    """Decode the option to paths and indexes of dependencies; raise InvalidArgument if it is malformed."""
    if not isinstance(inputs, list):
        raise InvalidArgument(f"options.{INPUTS}", f"must be a list of [path, first, count], not {inputs!r}")
    for position, entry in enumerate(inputs):
        match entry:
            case [[*within, int(index)], int(first), int(count)] if first >= 0 and count > 0:
                for offset in range(count):
                    yield (*within, index + offset), first + offset
            case [[*within, str(name)], int(first), 1] if first >= 0:
                yield (*within, name), first
            case _:
                raise InvalidArgument(f"options.{INPUTS}[{position}]", f"must be [path, first, count], not {entry!r}")


def fill_in(data: Any, inputs: object, value_of: Callable[[int], Any]) -> None:
    """Insert the results into the arguments, which must be null at each of these paths."""
    for path, number in unpacked(inputs):
        *within, last = path
        container = data
        try:
            for step in within:
                container = container[step]
            if container[last] is not None:
                raise KeyError(last)
        except (LookupError, TypeError):
            shown = "".join(f"[{step!r}]" for step in path)
            raise InvalidArgument(f"options.{INPUTS}", f"the arguments have no null for a result at {shown}") from None
        container[last] = value_of(number)


def spliced(payload: bytes, inputs: object, result_of: Callable[[int], bytes | None]) -> bytes:
    """Insert results into the payload as stored bytes, so that large ones are not decoded and encoded again."""
    data = json.loads(payload)
    mark = "\x00"
    while json.dumps(mark)[1:-1].encode() in payload:  # the placeholder must not occur in the payload
        mark += "\x00"
    fill_in(data, inputs, lambda number: f"{mark}{number}")
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    placeholder = re.compile(rb'"' + re.escape(json.dumps(mark)[1:-1].encode()) + rb'(\d+)"')
    pieces = placeholder.split(written)
    pieces[1::2] = [result_of(int(number)) or b"null" for number in pieces[1::2]]
    return b"".join(pieces)
