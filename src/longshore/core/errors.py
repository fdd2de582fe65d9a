"""The errors that Longshore raises on purpose, with fields for the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from longshore.core.status import JobStatus


class LongshoreError(Exception):
    """The base class of all Longshore errors. See docs/reference/errors.md."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the fields, whatever arguments `__init__` takes."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[LongshoreError], args: tuple[object, ...], fields: dict[str, object]) -> LongshoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class InvalidArgument(LongshoreError, ValueError):
    """A value was rejected and nothing changed. `field` names it; the message says why. See docs/input.md."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class JobNotFound(LongshoreError):
    """No job has this id: it was never enqueued here, or it was removed. See docs/queue.md."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job has the id {job_id!r}; it was never enqueued here, or it has been removed")
        self.job_id = job_id


class ScheduleNotFound(LongshoreError):
    """No schedule has this id: it was never stored here, or it was removed. See docs/schedules.md."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"no schedule has the id {schedule_id!r}; it was never stored here, or it has been removed")
        self.schedule_id = schedule_id


class TokenNotFound(LongshoreError):
    """No token has this id. See docs/security.md."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token has the id {token_id!r}; `longshore token list` shows the ids")
        self.token_id = token_id


class DuplicateJob(LongshoreError):
    """Ids that exist already, or that occur twice in one batch. The whole batch was rejected. See docs/backend.md."""

    def __init__(self, job_ids: Sequence[str]) -> None:
        shown = ", ".join(repr(job_id) for job_id in job_ids[:10])
        more = f" and {len(job_ids) - 10} more" if len(job_ids) > 10 else ""
        super().__init__(
            f"ids already in use: {shown}{more}; nothing was stored. Choose other ids, or pass an idempotency_key "
            "to make repeated enqueues safe"
        )
        self.job_ids = list(job_ids)


class KeyReused(LongshoreError):
    """The idempotency key belongs to the different request that created `job_id`. See docs/backend.md."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used before for a different request (job {job_id!r}); "
            "repeat that request exactly, or choose a new key"
        )
        self.job_id = job_id


class InvalidTransition(LongshoreError):
    """The transition table does not allow this change of the job's status. See docs/states.md."""

    def __init__(self, job_id: str, status: JobStatus, target: JobStatus | str, why: str = "") -> None:
        change = f"become {target}" if target.isupper() else f"be {target}"  # a JobStatus, or a participle
        super().__init__(f"job {job_id!r} is {status} and cannot {change}{': ' + why if why else ''}")
        self.job_id = job_id
        self.status = status
        self.target = target


class JobNotInflight(InvalidTransition):
    """The call needs a RUNNING or CANCELLING job, and no worker holds this one. See docs/states.md."""


class LeaseLost(LongshoreError):
    """The lease is no longer valid. Stop the job: another worker reports its outcome. See docs/guarantees.md."""

    def __init__(self, job_id: str, reason: Literal["expired", "mismatch"]) -> None:
        why = "its lease expired before this call" if reason == "expired" else "it was claimed again since this lease"
        super().__init__(f"job {job_id!r}: {why}; nothing was changed. Stop working on the job")
        self.job_id = job_id
        self.reason = reason


class QueueClosed(LongshoreError):
    """The queue or backend was closed; open a new one with `connect(url)`."""


class BackendUnavailable(LongshoreError):
    """The store cannot be used now, for example locked or full; the message says why. See docs/operations.md."""


class MissingExtra(LongshoreError, ImportError):
    """Packages of a feature are missing; the message names the extra to install. See docs/reference/errors.md."""

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(f'{part} needs an extra: pip install "longshore[{extra}]"')
        self.extra = extra


class Unauthenticated(LongshoreError):
    """The server cannot identify the caller: the token is missing, wrong, expired or revoked. See docs/security.md."""


class Forbidden(LongshoreError):
    """The caller may not do this; the message names the missing scope or queue. See docs/security.md."""


class MoveRefused(LongshoreError):
    """A copy between stores would lose or duplicate data, or failed. See docs/data-migration.md."""


class CursorExpired(LongshoreError):
    """The cursor's events were pruned, or it is from another log. Start again from None. See docs/backend.md."""


class Fatal(LongshoreError):
    """Raise this in a processor to bury the job at once, even if it has attempts left. See docs/tasks.md."""


class Snooze(LongshoreError):
    """Raise this in a task to run the job again later, without using up an attempt: `raise Snooze(60)`."""

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay} seconds")
        self.delay = delay
        self.reason = reason


class JobFailed(LongshoreError):
    """The job failed permanently and has no result; `error` is its last error. See docs/tasks.md."""

    def __init__(self, job_id: str, error: str) -> None:
        first = error.partition("\n")[0] or "no reason given"
        super().__init__(f"job {job_id!r} failed permanently: {first}")
        self.job_id = job_id
        self.error = error


class JobCancelled(LongshoreError):
    """The job was cancelled, so it has no result. See docs/tasks.md."""

    def __init__(self, job_id: str, status: JobStatus, reason: str = "") -> None:
        super().__init__(f"job {job_id!r} was cancelled and is {status}{': ' + reason if reason else ''}")
        self.job_id = job_id
        self.status = status
        self.reason = reason


for _kind in [one for one in globals().values() if isinstance(one, type) and issubclass(one, LongshoreError)]:
    _kind.__module__ = "longshore.errors"  # where callers import it from, as tracebacks show
