"""A step of a flow, its pending result, and how results of earlier steps reach its arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Never, TypeVar, cast

from pydantic_core import to_jsonable_python

from longshore.backends.base import Backend
from longshore.core.dependencies import INPUTS, Path, spliced, unpacked
from longshore.core.errors import BackendUnavailable, Fatal, InvalidArgument, JobNotFound, Snooze
from longshore.core.job import Job
from longshore.core.validation import read_json
from longshore.runtime.running_job import RunningJob, stored_results_of

R_co = TypeVar("R_co", covariant=True)


class Step(Generic[R_co]):
    """A call of a task in a flow: `rows = flow.add(extract.call(url))`, then `rows.result`. See docs/flows.md."""

    __slots__ = ("flow_id", "id", "name", "task")

    def __init__(self, flow_id: str, job_id: str, name: str, task: str) -> None:
        self.flow_id = flow_id
        self.id = job_id
        """The id of its job."""
        self.name = name
        self.task = task
        """The name of its task."""

    def __repr__(self) -> str:
        return f"<step {self.name} {self.id}>"

    @property
    def result(self) -> R_co:
        """Its result, as an argument of a later step, which waits for it: `flow.add(load.call(rows.result))`."""
        return cast(R_co, PendingResult(self, optional=False))

    @property
    def result_or_none(self) -> R_co | None:
        """Like `result`, for a step that can run without it: None if this step fails or is cancelled."""
        return cast("R_co | None", PendingResult(self, optional=True))


class PendingResult:
    """A placeholder for a result in the arguments of a call. You can only pass it whole."""

    __slots__ = ("optional", "step")
    ever_made: ClassVar[bool] = False
    """Whether arguments must be searched at all."""

    def __init__(self, step: Step[Any], *, optional: bool) -> None:
        PendingResult.ever_made = True
        self.step = step
        self.optional = optional

    def __repr__(self) -> str:
        return f"<the result of {self.step.name}>"

    def _not_yet(self, *_: object) -> Never:
        raise InvalidArgument(
            f"result of {self.step.name}",
            "does not exist before the flow has run; pass it whole to another task, and read its parts there",
        )

    __str__ = __bool__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = __add__ = __radd__ = _not_yet
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __format__ = _not_yet


Taken = list[tuple[Path, PendingResult]]


def results_in(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Taken]:
    """Return the arguments that hold pending results, with None in their places, and those places."""
    blanks: dict[str, Any] = {}
    taken: Taken = []
    for name, value in arguments.items():
        before = len(taken)
        blank = _blank(value, (name,), taken)
        if len(taken) > before:
            blanks[name] = blank
    return blanks, taken


def _blank(value: Any, path: Path, taken: Taken) -> Any:
    if isinstance(value, PendingResult):
        taken.append((path, value))
        return None
    if isinstance(value, list | tuple):
        return [_blank(inner, (*path, place), taken) for place, inner in enumerate(value)]
    if isinstance(value, dict):
        written = {key: _as_written(key, path) for key in value}
        if len(set(written.values())) < len(written):
            raise InvalidArgument(".".join(map(str, path)), "has keys that are equal in JSON; use distinct text keys")
        return {key: _blank(inner, (*path, written[key]), taken) for key, inner in value.items()}
    return value


def _as_written(key: Any, path: Path) -> str:
    """Return the key as it is stored: in JSON all keys are text."""
    if type(key) is str:
        return key
    try:
        (written,) = to_jsonable_python({key: None}, by_alias=False, round_trip=True)
    except ValueError as error:
        raise InvalidArgument(".".join(map(str, path)), f"the key {key!r} cannot be stored as JSON: {error}") from None
    return str(written)


_PAUSE = 5.0
"""Seconds before the next attempt of a job whose arguments could not be read; the attempt is not counted."""


async def inject_results(job: RunningJob, backend: Backend) -> None:
    """Fill the results that the job takes into its arguments; a result that is gone makes the job DEAD."""
    try:
        results = await stored_results_of(backend, job.record, _taken(job.record))
    except BackendUnavailable as error:
        raise Snooze(_PAUSE, f"cannot read the results of its dependencies: {error}") from error
    except JobNotFound as error:
        raise Fatal(str(error)) from error
    job.inject_payload(await asyncio.to_thread(filled, job.record, results))  # in a thread: they may be large


def _taken(job: Job) -> list[str]:
    """Return the jobs whose result it takes; a job that it only waits for may be gone."""
    try:
        return list(dict.fromkeys(job.depends_on[number] for _, number in unpacked(job.options[INPUTS])))
    except (InvalidArgument, IndexError) as error:
        raise Fatal(f"cannot fill the results of its dependencies into its arguments: {error}") from error


def filled(job: Job, results: Mapping[str, bytes | None]) -> bytes:
    """Return the payload with the results in their places; null where there is none."""
    for job_id, result in results.items():
        if result is not None:
            read_json(f"result of {job_id}", result)  # other bytes would break the JSON around it
    try:
        return spliced(job.payload, job.options[INPUTS], lambda number: results.get(job.depends_on[number]))
    except (ValueError, IndexError) as error:  # not as a flow stores it
        raise Fatal(f"cannot fill the results of its dependencies into its arguments: {error}") from error
