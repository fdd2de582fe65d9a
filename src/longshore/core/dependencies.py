"""What a job may say of the jobs it waits for: their ids, and what the end of each means to it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from longshore.core.errors import InvalidArgument
from longshore.core.names import check_name

if TYPE_CHECKING:
    from longshore.core.job import Job

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
    """Refuses what is no policy."""
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
    """Refuses policies of edges that there are not, and what is no policy."""
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


def policy_of(job: Job, job_id: str) -> str:
    """What the end of this dependency means to the job."""
    policies = job.options.get(EDGE_POLICIES) or {}
    return str(policies.get(job_id, job.on_dependency_failure))


def edge_policies(options: str) -> Mapping[str, str]:
    """The policies of single edges, from options as they are stored."""
    if f'"{EDGE_POLICIES}"' not in options:
        return {}
    return json.loads(options).get(EDGE_POLICIES) or {}
