"""The options of a new job: one table that the SDK, CLI, HTTP API, flows and Spark sink share."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, Required, TypedDict, TypeVar, Unpack, get_args, get_type_hints

from longshore.core.dependencies import EDGE_POLICIES, Dependencies, DependencyPolicy, dependencies_from
from longshore.core.errors import InvalidArgument
from longshore.core.job import Job
from longshore.core.retry import Backoff, backoff_of, fixed
from longshore.core.status import JobStatus
from longshore.core.times import Duration, Moment
from longshore.core.validation import check_json, check_name, check_number, new_id

F = TypeVar("F", bound=Callable[..., Any])

BackoffLike = Backoff | Duration | Mapping[str, Any]
"""A wait between attempts: `fixed(…)`, `exponential(…)`, seconds, or `{"type": "exponential", "delay": 2}`."""


class Option(NamedTuple):
    """The default of an option, and one sentence that describes it everywhere."""

    default: Any
    help: str
    type: Any = None


class TaskOptions(TypedDict, total=False):
    """Options that a task may declare for all its jobs."""

    priority: Annotated[int, Option(0, "Smaller runs sooner; may be negative.")]
    attempts: Annotated[int, Option(1, "Attempts in all; 0 means no limit.")]
    backoff: Annotated[BackoffLike | None, Option(None, "How long to wait between attempts.")]
    lifo: Annotated[bool, Option(False, "Run before all others of its priority, the newest first.")]
    tags: Annotated[Sequence[str], Option((), "Labels to find it by; a worker may claim by them.")]
    timeout: Annotated[Duration | None, Option(None, "How long one attempt may take.")]
    remove_on_complete: Annotated[bool | int, Option(False, "Remove it once completed.")]
    remove_on_fail: Annotated[bool | int, Option(False, "Remove it once dead.")]
    max_crashes: Annotated[int | None, Option(3, "Crashes survived; one more buries it.")]


class RepeatedJobOptions(TaskOptions, total=False):
    """Options of a job that a schedule may enqueue repeatedly."""

    delay: Annotated[Duration | None, Option(None, "Do not start before this much time has passed.")]
    retry_strategy: Annotated[str | None, Option(None, "A retry strategy that its worker knows by this name.")]
    parent_id: Annotated[str | None, Option(None, "The job or flow it belongs to.")]
    concurrency_key: Annotated[str | None, Option(None, "Jobs that share it share its limits.")]


class JobOptions(RepeatedJobOptions, total=False):
    """Options of one job, as `Queue.add` takes them."""

    run_at: Annotated[Moment | None, Option(None, "Do not start before; overrides delay.")]
    expires_at: Annotated[Moment | None, Option(None, "Do not start after.")]
    job_id: Annotated[str | None, Option(None, "An id of your own; a UUID if left out.")]
    idempotency_key: Annotated[str | None, Option(None, "A repeat with the same key is the same job.")]
    depends_on: Annotated[Dependencies, Option((), "Jobs that must complete first.")]
    on_dependency_failure: Annotated[
        DependencyPolicy, Option("wait", "What to do if one of those does not complete: wait, stop or ignore.")
    ]
    hold: Annotated[bool, Option(False, "Store it, but do not run it until it is accepted.")]


class EnqueueOptions(JobOptions, total=False):
    """Options of one enqueue of a task. An omitted option has the task's declared value; tags are added to the
    task's."""

    queue: str
    connection: object


class JobSpec(JobOptions, total=False):
    """One job of `Queue.add_bulk`: `{"type": "email", "data": {"to": "ada"}, "priority": 1}`."""

    type: Required[str]
    data: Any


AnySpec = JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, JobOptions]
"""A spec may also be written `("email", {"to": "ada"}, {"priority": 1})`, or `{"name": …, "data": …, "opts": {…}}`."""


def options_of(table: type) -> dict[str, Option]:
    """The options of one of the tables above, each with its type."""
    hints = get_type_hints(table, include_extras=True)
    described = {name: get_args(hint) for name, hint in hints.items()}
    return {name: found[1]._replace(type=found[0]) for name, found in described.items()}


OPTIONS: Mapping[str, Option] = options_of(JobOptions)
_DEFAULTS = {name: option.default for name, option in OPTIONS.items()}


def with_options(table: type) -> Callable[[F], F]:
    """Show the options of a table in the signature of a function that takes them as `**options`."""

    options = options_of(table)

    def shown(name: str, hint: Any) -> inspect.Parameter:
        annotation = hint.__forward_arg__.removeprefix("Annotated[").partition(", Option(")[0]
        default = options[name].default
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        listed = [shown(name, hint) for name, hint in table.__annotations__.items()]
        by_name = next((at for at, one in enumerate(own) if one.kind is inspect.Parameter.KEYWORD_ONLY), len(own))
        parameters = [*own[:by_name], *listed, *own[by_name:]]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # inspect reads it
        return function

    return decorate


def check_options(given: Iterable[str], known: Collection[str] = OPTIONS) -> None:
    """Reject a name that is not a known option."""
    unknown = [name for name in given if name not in known]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(known))}"
        raise InvalidArgument(str(unknown[0]), f"is not an option of a job; {hint}")


def job_from(type: str, data: Any = None, *, queue: str | None = None, **options: Unpack[JobOptions]) -> Job:
    """Build the job to store. The store checks the fields of `Job`; this checks the others."""
    fields: dict[str, Any] = {**_DEFAULTS, **options}
    if len(fields) > len(_DEFAULTS):
        check_options(options)
    kept: dict[str, Any] = {}
    if (backoff := fields.pop("backoff")) is not None:
        kept["backoff"] = _backoff(backoff).as_options()
    if (strategy := fields.pop("retry_strategy")) is not None:
        kept["retry_strategy"] = check_name("retry_strategy", strategy)
    for name in ("remove_on_complete", "remove_on_fail"):
        if (keep := fields.pop(name)) is not False:
            kept[name] = keep if keep is True else check_number(name, keep)
    if fields["depends_on"] != ():
        fields["depends_on"], policies = dependencies_from(fields["depends_on"], fields["on_dependency_failure"])
        if policies:
            kept[EDGE_POLICIES] = policies
    if queue is not None:
        fields["queue"] = queue
    if not isinstance(hold := fields.pop("hold"), bool):
        raise InvalidArgument("hold", f"must be True or False, not {hold.__class__.__name__}")
    job_id = fields.pop("job_id")
    return Job(
        id=new_id() if job_id is None else check_name("job_id", job_id),
        type=type,
        payload=check_json("data", data),
        status=JobStatus.CREATED if hold else JobStatus.INITIAL_PENDING,
        max_attempts=check_number("attempts", fields.pop("attempts")),
        options=kept,
        **fields,
    )


def _backoff(given: object) -> Backoff:
    if isinstance(given, Backoff):
        return given
    if isinstance(given, Mapping):
        try:
            found = backoff_of({"backoff": dict(given)})
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("options."), error.problem) from None
        assert found is not None  # these options include a backoff
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
    """Build the jobs of a batch; also return the ids that the caller chose. An error names the spec."""
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
    check_options(fields, JobSpec.__annotations__)
    if "type" not in fields:
        raise InvalidArgument("type", "is missing; give every job a type")
    return fields
