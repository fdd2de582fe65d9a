"""Flows: steps, their dependencies, and the harbor's operations on flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from longshore.app.eager import FinishedFlow
from longshore.app.enqueue import Enqueuer
from longshore.app.middleware import Wait, blocking, enqueue_within, on_this_loop, run_sync
from longshore.app.results import FlowHandle, JobHandle
from longshore.app.step import PendingResult, Step
from longshore.app.task import Call, Task
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
from longshore.core.errors import BackendUnavailable, DuplicateJob, InvalidArgument, InvalidTransition, JobNotFound
from longshore.core.filters import JobFilter
from longshore.core.flows import FLOW, flow_conflict, last_steps, step_name, step_of, what_failed
from longshore.core.job import Job
from longshore.core.status import FINAL, JobStatus
from longshore.core.validation import LONGEST_NAME, check_name, new_id, read_json
from longshore.runtime.job_listing import jobs_by_id
from longshore.runtime.queue import Queue

_PAGE = 1_000
_TRIES = 3
"""Attempts to store a flow whose ids are in use while no job with them is found."""
_POLL = 1.0
"""Seconds between two reads without a notification."""
_SHORTEST_PAUSE = 0.02
"""Seconds between two reads of a busy store."""
_UNFINISHED = tuple(status for status in JobStatus if status not in FINAL)
_CANCELLED = frozenset({JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED})
_ENDED_OTHERWISE = tuple(FINAL - {JobStatus.COMPLETED})


class FlowStore:
    """Stores, reads, cancels and retries the flows of a harbor."""

    def __init__(self, enqueuer: Enqueuer, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._enqueuer = enqueuer
        self.tasks = tasks

    @property
    def _queue(self) -> Queue:
        return self._enqueuer.queue

    # -- store

    async def store(self, jobs: Sequence[Job], connection: object = None, wait: Wait = on_this_loop) -> None:
        """Store all or none; a flow that is already stored stays unchanged."""
        ids = [job.id for job in jobs]
        enqueue = self._enqueuer.enqueue_by(connection, wait)

        async def keep(steps: Sequence[Job]) -> list[str]:
            if [step.id for step in steps] != ids:
                raise InvalidArgument("before_enqueue", "must keep the id of a step, because others wait for it")
            for tries_left in reversed(range(_TRIES)):
                try:
                    return await enqueue(steps)
                except DuplicateJob as error:
                    known = await wait(jobs_by_id(self._queue.backend, error.job_ids))
                    _refuse_another(steps, error.job_ids, known)
                    if known or (connection is not None and len(error.job_ids) == len(ids)):
                        break  # stored before, or in this transaction of the caller, which other readers do not see
                    if not tries_left:  # the jobs with these ids exist, but cannot be read
                        raise
            return ids

        await enqueue_within(self._enqueuer.layers, jobs, keep, wait)

    @property
    def eager(self) -> bool:
        """Whether flows run where they are enqueued."""
        return self._enqueuer.eager.on

    async def run_now(self, jobs: Sequence[Job], wait: Wait) -> FinishedFlow:
        """Run the steps one after the other."""
        return FinishedFlow(await self._enqueuer.eager.run_steps(self.tasks, jobs, wait), self.read)

    # -- for handles

    async def steps(self, flow_id: str) -> list[Job]:
        """Return all steps in the order in which they were added.

        A job that only has the flow as its parent is not a step, unless all are such jobs.
        """
        found = await self._all(JobFilter(parent_id=flow_id))
        if not found:
            raise no_such_flow(flow_id)
        return [job for job in found if step_of(job)] or found

    async def settled(self, flow_id: str, timeout: float | None) -> list[Job]:
        """Return all steps once the flow has ended or needs a retry to continue; TimeoutError if that takes longer.

        It also waits while the store is unavailable.
        """
        async with asyncio.timeout(timeout):
            known: set[str] = set()
            while True:
                began = monotonic()
                changed = asyncio.ensure_future(self._queue.backend.wait_for_change(_POLL))
                await asyncio.sleep(0)  # the wait has started, so a change during the read is not missed
                try:
                    if not await self._is_unfinished(flow_id):
                        return await self.steps(flow_id)
                    ended = await self._all(JobFilter(parent_id=flow_id, statuses=_ENDED_OTHERWISE))
                    if not {job.id for job in ended} <= known:
                        known = {job.id for job in ended}
                        steps = await self.steps(flow_id)
                        if what_failed(steps) is not None:
                            return steps
                    took = monotonic() - began
                    await changed
                except BackendUnavailable:
                    await asyncio.sleep(_POLL)
                else:  # read for at most a twentieth of the time: a flow may have many steps
                    await asyncio.sleep(max(_SHORTEST_PAUSE, min(_POLL, 20 * took)) - (monotonic() - began))
                finally:
                    changed.cancel()
                    await asyncio.gather(changed, return_exceptions=True)

    async def cancel(self, flow_id: str) -> list[str]:
        """Cancel all steps that have not ended, in one transaction."""
        unfinished = [step for step in await self.steps(flow_id) if not step.status.final]
        if not unfinished:
            return []
        cancelled, _ = await self._queue.cancel_jobs(job_ids=[job.id for job in unfinished])
        return cancelled

    async def retry(self, flow_id: str, actor: str) -> list[str]:
        """Retry each dead step in its own transaction; return the ids of those that this call retried."""
        dead = await self._all(JobFilter(parent_id=flow_id, statuses=(JobStatus.DEAD,)))
        steps = await self.steps(flow_id)
        ids = {step.id for step in steps}
        if dead:
            _refuse_unretryable(flow_id, steps)
        retried = []
        for job in dead:
            if job.id not in ids:
                continue
            with suppress(InvalidTransition, JobNotFound):  # retried or removed by another process
                await self._queue.retry_job(job.id, actor=actor)
                retried.append(job.id)
        return retried

    def handle(self, job: Job) -> JobHandle[Any]:
        """Return the handle of a step."""
        return JobHandle(job.id, self._enqueuer.results, lambda stored: self.read(job.type, stored))

    def read(self, job_type: str, stored: bytes | None) -> Any:
        """Return a stored result as its task is annotated, or plain JSON if no task here has this name."""
        task = self.tasks.get(job_type)
        if task is not None:
            return task.signature.result.read(stored)
        return None if stored is None else read_json("result", stored)

    async def _is_unfinished(self, flow_id: str) -> bool:
        """Whether a step has not ended; nearly always the first job found decides."""
        first = (await self._queue.list_jobs(JobFilter(parent_id=flow_id, statuses=_UNFINISHED), limit=1)).items
        if not first or step_of(first[0]):
            return bool(first)
        return any(not step.status.final for step in await self.steps(flow_id))

    async def _all(self, wanted: JobFilter) -> list[Job]:
        found: list[Job] = []
        cursor = None
        while True:
            page = await self._queue.list_jobs(wanted, limit=_PAGE, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found[::-1]


def no_such_flow(flow_id: str) -> JobNotFound:
    """Return the error for an unknown flow."""
    missing = JobNotFound(flow_id)
    missing.args = (f"no flow has the id {flow_id!r}; it was never enqueued in this store, or its steps were removed",)
    return missing


def _refuse_unretryable(flow_id: str, steps: Sequence[Job]) -> None:
    """Refuse to retry a flow that has ended if one of its last steps was stopped or cancelled."""
    unretryable = [step for step in last_steps(steps) if step.status in _CANCELLED]
    if unretryable and all(step.status.final for step in steps):
        raise InvalidArgument(
            "flow",
            f"{flow_id}: its step {step_name(unretryable[0])} is {unretryable[0].status} and cannot be retried, so the "
            "flow cannot complete; rerun() creates a new flow of the steps that did not complete",
        )


def _refuse_another(steps: Sequence[Job], taken: Sequence[str], known: Sequence[Job]) -> None:
    flow_id = str(steps[0].parent_id)
    problem = flow_conflict(flow_id, {step.id: step for step in steps}, known)
    if problem:
        duplicate = DuplicateJob(taken)
        duplicate.args = (f"flow {flow_id!r}: {problem}; nothing was stored. Give the flow another id",)
        raise duplicate


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_STEP_NUMBER = 15
_FIXED = ("job_id", "idempotency_key", "parent_id")


class _Planned(NamedTuple):
    step: Step[Any]
    call: Call[Any]
    waits_for: dict[str, str]
    """The policies of its edges, by id."""
    on_failure: DependencyPolicy


class Flow(Generic[R_co]):
    """Steps that wait for each other and pass on results; `enqueue` stores them all. See docs/flows.md.

    `rows = flow.add(extract.call(url))` adds a step, and `rows.result` is an argument for a later one. A flow with an
    `id` is stored once: enqueuing it again returns the existing flow.
    """

    def __init__(self, store: FlowStore, name: str, flow_id: str | None, *, listed: bool = False) -> None:
        self.name = check_name("name", name)
        self.id = new_id() if flow_id is None else check_name("id", flow_id)
        if len(self.id) > LONGEST_NAME - _STEP_NUMBER:
            raise InvalidArgument("id", f"of a flow must be at most {LONGEST_NAME - _STEP_NUMBER} characters")
        self._store = store
        self._planned: dict[str, _Planned] = {}
        self._taken: set[str] = set()
        self._awaited: set[str] = set()
        self._retryable: set[str] = set()
        """Steps that others wait for with the policy `wait`, so that a retry can continue them."""
        self._listed = listed
        self._handle: FlowHandle[R_co] | None = None

    def __repr__(self) -> str:
        return f"<Flow {self.name} {self.id} with {len(self._planned)} steps>"

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        """The steps added so far, in order."""
        return tuple(planned.step for planned in self._planned.values())

    def add(
        self,
        call: Call[R],
        *,
        after: HasId | str | Iterable[HasId | str] = (),
        on_failure: DependencyPolicy | None = None,
        name: str | None = None,
    ) -> Step[R]:
        """Add a call of a task as a step. It waits for the steps whose results it takes, and for those in `after`.

        `after` takes steps of this flow, handles, jobs and ids, or Dependency for another policy. `on_failure` says
        what happens if such a step does not complete: `wait` for its retry (the default), `stop` or `ignore`. A step
        that can run without a result takes `step.result_or_none`. `name` is shown to people; by default the task's
        name.
        """
        if self._handle is not None:
            raise InvalidArgument("flow", f"{self.name} is already enqueued; add steps before you enqueue it")
        if not isinstance(call, Call) or self._store.tasks.get(call.task.name) is not call.task:
            raise InvalidArgument("call", f"must be task.call(…) of a task of this harbor, not {call!r}")
        for option in _FIXED:
            if call.options.get(option) is not None:
                raise InvalidArgument(option, 'cannot be set for a step; give the flow an id: harbor.flow("…", id=…)')
        usual = call.options.get("on_dependency_failure", "wait") if on_failure is None else on_failure
        check_policy("on_failure", usual)
        waits_for = self._edges(call, after, usual)
        task = call.task.name
        step: Step[R] = Step(
            self.id, f"{self.id}.{len(self._planned)}", task if name is None else check_name("name", name), task
        )
        self._planned[step.id] = _Planned(step, call, waits_for, usual)
        self._awaited |= waits_for.keys()
        self._retryable |= {job_id for job_id, policy in waits_for.items() if policy == "wait"}
        self._taken |= {to_come.step.id for _, to_come in call.taken}
        return step

    async def enqueue(self, *, connection: object = None) -> FlowHandle[R_co]:
        """Store all its steps in one transaction, all or none."""
        return await self._enqueue(connection, on_this_loop)

    def enqueue_sync(self, *, connection: object = None) -> FlowHandle[R_co]:
        """Like `enqueue`, for code without an event loop."""
        return run_sync(self._enqueue(connection, blocking))

    async def _enqueue(self, connection: object, wait: Wait) -> FlowHandle[R_co]:
        jobs = self._jobs()
        if self._store.eager:
            self._handle = FlowHandle(self.id, await self._store.run_now(jobs, wait))
        else:
            await self._store.store(jobs, connection, wait)
            self._handle = FlowHandle(self.id, self._store)
        return self._handle

    # -- edges

    def _edges(self, call: Call[Any], after: object, usual: DependencyPolicy) -> dict[str, str]:
        """Return the jobs it waits for, in order, each with its policy; a required result overrides an optional one."""
        outside = call.options.get("depends_on", ())
        edges = _with_policies(outside, call.options.get("on_dependency_failure", usual))
        if isinstance(after, str | Step | Dependency) or not isinstance(after, Iterable):
            after = (after,)
        for one in after:
            if isinstance(one, Step):
                self._check_own("after", one)
            edges |= _with_policies((one,), usual)
        named = dict(edges)
        for _, to_come in call.taken:
            self._check_own(call.task.name, to_come.step)
            if to_come.optional:
                edges.setdefault(to_come.step.id, "ignore")
                continue
            policy = edges[to_come.step.id] = named.get(to_come.step.id, usual)
            if policy == "ignore":
                raise InvalidArgument(
                    "on_failure", f"is ignore, but {call.task.name} takes {to_come!r}; use result_or_none instead"
                )
        return edges

    def _check_own(self, field: str, step: Step[Any]) -> None:
        if step.id not in self._planned:
            raise InvalidArgument(field, f"{step!r} is a step of another flow; depend on its job: after=[handle[step]]")

    # -- jobs

    def _jobs(self) -> list[Job]:
        if not self._planned:
            raise InvalidArgument("flow", f"{self.name} has no steps; add one with flow.add(task.call(…))")
        ends = self._planned.keys() - self._awaited
        last = {"last": "listed" if self._listed or len(ends) > 1 else "alone", "ends": len(ends)}
        return [self._job(planned, last if step_id in ends else {}) for step_id, planned in self._planned.items()]

    def _job(self, planned: _Planned, last: Mapping[str, Any]) -> Job:
        step, call, waits_for, on_failure = planned
        job = call.job_with(job_id=step.id, parent_id=self.id, depends_on=waits_for, on_dependency_failure=on_failure)
        if job.options.get("remove_on_complete", False) is not False and (last or step.id in self._taken):
            taker = "the flow's result is read" if last else "the step that takes its result runs"
            raise InvalidArgument(
                "remove_on_complete",
                f"would remove {step.name} before {taker}; use {call.task.name}.options(remove_on_complete=False)",
            )
        if job.options.get("remove_on_fail", False) is not False and step.id in self._retryable:
            raise InvalidArgument(
                "remove_on_fail",
                f"would remove {step.name} if it fails, and the steps that wait for its retry would never run; use "
                f'{call.task.name}.options(remove_on_fail=False).call(…), or on_failure="stop" for those steps',
            )
        about = {"name": self.name, "step": step.name, "steps": len(self._planned), **last}
        options: dict[str, Any] = {**job.options, FLOW: about}
        if call.taken:
            options[INPUTS] = packed(_numbered(call.taken, waits_for))
        return job.replace(options=options)


def _with_policies(given: object, usual: str) -> dict[str, str]:
    ids, policies = dependencies_from(given, usual)
    return {job_id: policies.get(job_id, usual) for job_id in ids}


def _numbered(taken: Sequence[tuple[Path, PendingResult]], waits_for: Mapping[str, str]) -> Iterable[tuple[Path, int]]:
    numbers = {job_id: number for number, job_id in enumerate(waits_for)}
    return [(path, numbers[to_come.step.id]) for path, to_come in taken]


def call_made_by(make: Callable[[Any], Call[R]], result: Any, field: str) -> Call[R]:
    """Return the call that `make` creates from the pending result."""
    if isinstance(make, Call | Task):
        task = make.task.name if isinstance(make, Call) else make.name
        raise InvalidArgument(
            field, f"must take the previous result: {task}.call, or lambda result: {task}.call(result, …)"
        )
    if not callable(make):
        raise InvalidArgument(field, f"must be task.call, or a function that returns a call, not {make!r}")
    return make(result)
