"""A flow in the making: calls of tasks, which waits for which, and whose results go where; stored all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from longshore.app.flow_handle import FlowHandle
from longshore.app.flow_office import FlowOffice
from longshore.app.step import ResultToCome, Step
from longshore.app.task import Call
from longshore.core.dependencies import (
    INPUTS,
    Dependency,
    DependencyPolicy,
    HasId,
    Path,
    check_policy,
    dependencies_from,
    packed,
)
from longshore.core.errors import InvalidArgument
from longshore.core.flows import FLOW
from longshore.core.job import Job
from longshore.core.validation import LONGEST_NAME, check_name, new_id

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_ROOM_FOR_NUMBERS = 15
_FIXED = ("job_id", "idempotency_key", "parent_id")


class _Planned(NamedTuple):
    step: Step[Any]
    call: Call[Any]
    waits_for: dict[str, str]
    """The policies of its edges, by id."""
    on_failure: DependencyPolicy


class Flow(Generic[R_co]):
    """Steps that wait for each other, and hand their results on. Nothing is stored before `enqueue`.

    `rows = flow.add(extract.call(url))` is a step, and `rows.result` an argument for a later one. A flow with an `id`
    of the caller's is stored once: to enqueue it again answers with the one that is there.
    """

    def __init__(self, office: FlowOffice, name: str, flow_id: str | None, *, listed: bool = False) -> None:
        self.name = check_name("name", name)
        self.id = new_id() if flow_id is None else check_name("id", flow_id)
        if len(self.id) > LONGEST_NAME - _ROOM_FOR_NUMBERS:
            raise InvalidArgument("id", f"of a flow must be at most {LONGEST_NAME - _ROOM_FOR_NUMBERS} characters")
        self._office = office
        self._planned: dict[str, _Planned] = {}
        self._handed_on: set[str] = set()
        self._awaited: set[str] = set()
        self._patient: set[str] = set()
        """Steps that others wait for until they are retried."""
        self._listed = listed
        self._handle: FlowHandle[R_co] | None = None

    def __repr__(self) -> str:
        return f"<Flow {self.name} {self.id} with {len(self._planned)} steps>"

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        """The steps that were added so far, in their order."""
        return tuple(planned.step for planned in self._planned.values())

    def add(
        self,
        call: Call[R],
        *,
        after: HasId | str | Iterable[HasId | str] = (),
        on_failure: DependencyPolicy | None = None,
        name: str | None = None,
    ) -> Step[R]:
        """A step: a call of a task, which waits for the steps whose results it takes, and for those it comes `after`.

        `after` takes steps of this flow, handles, jobs and ids, or Dependency for a policy of its own. `on_failure` is
        what the end of such a step means if it did not complete: `wait` (until it is retried: the
        usual one), `stop` or `ignore`. A step that can do without a result takes `step.result_or_none`. `name` is for
        people; a task's name by itself.
        """
        if self._handle is not None:
            raise InvalidArgument("flow", f"{self.name} is enqueued already; a step cannot be added any more")
        if not isinstance(call, Call) or not self._office.owns(call.task):
            raise InvalidArgument("call", f"must be task.call(…) of a task of this harbor, not {call!r}")
        for option in _FIXED:
            if call.options.get(option) is not None:
                raise InvalidArgument(option, 'is the flow\'s to give; harbor.flow("…", id=…) makes enqueuing it safe')
        usual = call.options.get("on_dependency_failure", "wait") if on_failure is None else on_failure
        check_policy("on_failure", usual)
        waits_for = self._edges(call, after, usual)
        task = call.task.name
        step: Step[R] = Step(
            self.id, f"{self.id}.{len(self._planned)}", task if name is None else check_name("name", name), task
        )
        self._planned[step.id] = _Planned(step, call, waits_for, usual)
        self._awaited |= waits_for.keys()
        self._patient |= {job_id for job_id, policy in waits_for.items() if policy == "wait"}
        self._handed_on |= {to_come.step.id for _, to_come in call.taken}
        return step

    async def enqueue(self, *, connection: object = None) -> FlowHandle[R_co]:
        """Stores all its steps in one transaction, or none of them."""
        jobs = self._jobs()
        if self._office.eager:
            self._handle = FlowHandle(self.id, await self._office.run_now(jobs))
        else:
            await self._office.store(jobs, connection)
            self._handle = FlowHandle(self.id, self._office)
        return self._handle

    def enqueue_sync(self, *, connection: object = None) -> FlowHandle[R_co]:
        """Like `enqueue`, for code without an event loop."""
        jobs = self._jobs()
        if self._office.eager:
            self._handle = FlowHandle(self.id, self._office.run_now_sync(jobs))
        else:
            self._office.store_sync(jobs, connection)
            self._handle = FlowHandle(self.id, self._office)
        return self._handle

    # -- edges

    def _edges(self, call: Call[Any], after: object, usual: DependencyPolicy) -> dict[str, str]:
        """What it waits for, in order, each with its policy; a result that is needed goes before one that is not."""
        outside = call.options.get("depends_on", ())
        edges = _with_policies(outside, call.options.get("on_dependency_failure", usual))
        if isinstance(after, str | Step | Dependency) or not isinstance(after, Iterable):
            after = (after,)
        for one in after:
            if isinstance(one, Step):
                self._check_own("after", one)
            edges |= _with_policies((one,), usual)
        told = dict(edges)
        for _, to_come in call.taken:
            self._check_own(call.task.name, to_come.step)
            if to_come.optional:
                edges.setdefault(to_come.step.id, "ignore")
                continue
            policy = edges[to_come.step.id] = told.get(to_come.step.id, usual)
            if policy == "ignore":
                raise InvalidArgument(
                    "on_failure", f"is ignore, but {call.task.name} takes {to_come!r}: let it take result_or_none"
                )
        return edges

    def _check_own(self, field: str, step: Step[Any]) -> None:
        if step.id not in self._planned:
            raise InvalidArgument(field, f"{step!r} is a step of another flow; wait for its job: after=[handle[step]]")

    # -- jobs

    def _jobs(self) -> list[Job]:
        if not self._planned:
            raise InvalidArgument("flow", f"{self.name} has no steps; flow.add(task.call(…)) adds one")
        ends = self._planned.keys() - self._awaited
        last = {"last": "listed" if self._listed or len(ends) > 1 else "alone", "ends": len(ends)}
        return [self._job(planned, last if step_id in ends else {}) for step_id, planned in self._planned.items()]

    def _job(self, planned: _Planned, last: Mapping[str, Any]) -> Job:
        step, call, waits_for, on_failure = planned
        job = call.job_with(job_id=step.id, parent_id=self.id, depends_on=waits_for, on_dependency_failure=on_failure)
        if job.options.get("remove_on_complete", False) is not False and (last or step.id in self._handed_on):
            taker = "whoever asks for the flow's result" if last else "the step that takes its result"
            raise InvalidArgument(
                "remove_on_complete",
                f"would remove {step.name} before {taker}: {call.task.name}.options(remove_on_complete=False).call(…)",
            )
        if job.options.get("remove_on_fail", False) is not False and step.id in self._patient:
            raise InvalidArgument(
                "remove_on_fail",
                f"would remove {step.name} if it fails, and whoever waits for it to be retried would wait for ever: "
                f'{call.task.name}.options(remove_on_fail=False).call(…), or on_failure="stop" for those who wait',
            )
        about = {"name": self.name, "step": step.name, "steps": len(self._planned), **last}
        options: dict[str, Any] = {**job.options, FLOW: about}
        if call.taken:
            options[INPUTS] = packed(_numbered(call.taken, waits_for))
        return job.replace(options=options)


def _with_policies(given: object, usual: str) -> dict[str, str]:
    ids, policies = dependencies_from(given, usual)
    return {job_id: policies.get(job_id, usual) for job_id in ids}


def _numbered(taken: Sequence[tuple[Path, ResultToCome]], waits_for: Mapping[str, str]) -> Iterable[tuple[Path, int]]:
    numbers = {job_id: number for number, job_id in enumerate(waits_for)}
    return [(path, numbers[to_come.step.id]) for path, to_come in taken]
