"""The options of a new job, checked, and the job that follows from them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Required, TypedDict

from longshore.backends.argument_checks import flag
from longshore.backends.base import Backend
from longshore.core.dependencies import EDGE_POLICIES, Dependencies, DependencyPolicy, dependencies_from
from longshore.core.errors import InvalidArgument
from longshore.core.job import DEFAULT_QUEUE, Job
from longshore.core.repeat import SHOWN, Repeat
from longshore.core.retry import Backoff, backoff_of, fixed
from longshore.core.schedule import Schedule
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment
from longshore.core.validation import check_json, check_name, check_number, new_id

BackoffLike = Backoff | Duration | Mapping[str, Any]
"""A wait between tries: `fixed(…)`, `exponential(…)`, seconds, or `{"type": "exponential", "delay": 2}`."""


class AddOptions(TypedDict, total=False):
    """What may be said of a job besides its type and data; the names and defaults are those of `Queue.add`."""

    priority: int
    delay: Duration | None
    run_at: Moment | None
    expires_at: Moment | None
    attempts: int
    backoff: BackoffLike | None
    retry_strategy: str | None
    lifo: bool
    job_id: str | None
    idempotency_key: str | None
    tags: Sequence[str]
    timeout: Duration | None
    depends_on: Dependencies
    on_dependency_failure: DependencyPolicy
    parent_id: str | None
    remove_on_complete: bool | int
    remove_on_fail: bool | int
    concurrency_key: str | None
    max_crashes: int | None
    hold: bool


class AddSpec(AddOptions, total=False):
    """One job of `Queue.add_bulk`: `{"type": "email", "data": {"to": "ada"}, "priority": 1}`."""

    type: Required[str]
    data: Any


AnySpec = AddSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, AddOptions]
"""A spec may also be written `("email", {"to": "ada"}, {"priority": 1})`, or `{"name": …, "data": …, "opts": {…}}`."""


def job_from(
    type: str,
    data: Any = None,
    *,
    priority: int = 0,
    delay: Duration | None = None,
    run_at: Moment | None = None,
    expires_at: Moment | None = None,
    attempts: int = 1,
    backoff: BackoffLike | None = None,
    retry_strategy: str | None = None,
    lifo: bool = False,
    job_id: str | None = None,
    idempotency_key: str | None = None,
    tags: Sequence[str] = (),
    timeout: Duration | None = None,
    depends_on: Dependencies = (),
    on_dependency_failure: DependencyPolicy = "wait",
    parent_id: str | None = None,
    remove_on_complete: bool | int = False,
    remove_on_fail: bool | int = False,
    concurrency_key: str | None = None,
    max_crashes: int | None = 3,
    hold: bool = False,
    queue: str | None = None,
) -> Job:
    """The job to store. What has the same name on a Job is checked by the store, the rest here."""
    options: dict[str, Any] = {}
    if backoff is not None:
        options["backoff"] = _backoff(backoff).as_options()
    if retry_strategy is not None:
        options["retry_strategy"] = check_name("retry_strategy", retry_strategy)
    for name, keep in (("remove_on_complete", remove_on_complete), ("remove_on_fail", remove_on_fail)):
        if keep is not False:
            options[name] = keep if keep is True else check_number(name, keep)
    waited_for: Sequence[str] = ()
    if depends_on != ():
        waited_for, policies = dependencies_from(depends_on, on_dependency_failure)
        if policies:
            options[EDGE_POLICIES] = policies
    return Job(
        id=new_id() if job_id is None else check_name("job_id", job_id),
        type=type,
        payload=check_json("data", data),
        queue=DEFAULT_QUEUE if queue is None else queue,
        tags=tags,
        status=JobStatus.CREATED if flag("hold", hold) else JobStatus.INITIAL_PENDING,
        priority=priority,
        lifo=lifo,
        run_at=run_at,
        delay=delay,
        expires_at=expires_at,
        timeout=timeout,
        max_attempts=check_number("attempts", attempts),
        max_crashes=max_crashes,
        idempotency_key=idempotency_key,
        concurrency_key=concurrency_key,
        parent_id=parent_id,
        depends_on=waited_for,
        on_dependency_failure=on_dependency_failure,
        options=options,
    )


def _backoff(given: object) -> Backoff:
    if isinstance(given, Backoff):
        return given
    if isinstance(given, Mapping):
        try:
            found = backoff_of({"backoff": dict(given)})
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("options."), error.problem) from None
        assert found is not None  # there is a backoff among these options
        return found
    if isinstance(given, timedelta | int | float) and not isinstance(given, bool):
        try:
            return fixed(given)
        except InvalidArgument as error:
            raise InvalidArgument("backoff", error.problem) from None
    raise InvalidArgument(
        "backoff", f"must be fixed(…), exponential(…), seconds or a dict with type and delay, not {given!r}"
    )


def jobs_from(specs: Iterable[AnySpec], queue: str | None) -> tuple[list[Job], list[str]]:
    """The jobs of a batch, and those ids among theirs that the caller chose; what is wrong names its spec."""
    if isinstance(specs, str | bytes | Mapping) or not isinstance(specs, Iterable):
        raise InvalidArgument("specs", f"must be a list of jobs to add, not {type(specs).__name__}")
    jobs: list[Job] = []
    chosen: list[str] = []
    for position, spec in enumerate(specs):
        try:
            fields = _fields_of(spec)
            jobs.append(job_from(**fields, queue=queue))
            if fields.get("job_id") is not None:
                chosen.append(jobs[-1].id)
        except InvalidArgument as error:
            raise InvalidArgument(f"specs[{position}].{error.field}", error.problem) from None
    return jobs, chosen


_KNOWN = frozenset(AddSpec.__annotations__)


def _fields_of(spec: object) -> dict[str, Any]:
    if isinstance(spec, tuple) and 1 <= len(spec) <= 3:
        fields: dict[str, Any] = dict(zip(("type", "data", "opts"), spec, strict=False))
    elif isinstance(spec, Mapping):
        fields = dict(spec)
    else:
        raise InvalidArgument("spec", f"must be a dict with a type, or (type, data, options), not {spec!r}")
    options = fields.pop("opts", None) or {}
    if not isinstance(options, Mapping):
        raise InvalidArgument("opts", f"must be a dict, not {options!r}")
    if "name" in fields and "type" not in fields:
        fields["type"] = fields.pop("name")
    fields |= options
    if "type" not in fields:
        raise InvalidArgument("type", "is missing: every job has one")
    for name in fields:
        if name not in _KNOWN:
            raise InvalidArgument(str(name), "is no option of a job in a batch")
    return fields


def schedule_from(job: Job, repeat: Repeat, schedule_id: str | None) -> Schedule:
    """A schedule that makes this job again and again.

    Without an id of the caller's it is known by its queue, type, data and times: adding it twice leaves one.
    """
    if not isinstance(repeat, Repeat):
        raise InvalidArgument("repeat", f"must be a Repeat, not {type(repeat).__name__}; {SHOWN}")
    if job.status is JobStatus.CREATED:
        raise InvalidArgument("hold", "cannot be set on a job that is made again and again")
    if schedule_id is None:
        described = repr((str(job.queue), job.type, job.payload, repeat)).encode("utf-8", "surrogatepass")
        schedule_id = f"repeat-{hashlib.sha256(described).hexdigest()[:32]}"
    return Schedule(id=schedule_id, job=job, repeat=repeat)


@contextmanager
def in_words_of_its_job(id_is: str) -> Iterator[None]:
    """What is wrong with a schedule, or with the job it makes, is named as the caller of this named it."""
    try:
        yield
    except InvalidArgument as error:
        field = error.field.removeprefix("schedule.job.")
        raise InvalidArgument(id_is if field == "schedule.id" else field, error.problem) from None


async def store(backend: Backend, jobs: Sequence[Job], connection: object, *, named: str = "") -> list[Job]:
    """Stores all of them or none, and answers with each as it is stored, or with the job whose key or id it has."""
    try:
        return await backend.add_jobs(jobs, connection=connection)
    except InvalidArgument as error:
        raise _in_callers_words(error, named) from None


def _in_callers_words(error: InvalidArgument, named: str) -> InvalidArgument:
    """The refusal of one job, under the name that the caller knows it by."""
    found = _POSITION.match(error.field)
    if found is None:
        return error
    return InvalidArgument(f"{named}{found[1] if named else ''}{found[2]}".lstrip("."), error.problem)


_POSITION = re.compile(r"jobs(\[\d+\])(\..*)")
