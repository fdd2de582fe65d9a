"""Every error Longshore raises on purpose; each carries what its reader needs to act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from longshore.core.status import JobStatus


class LongshoreError(Exception):
    """The root of all of them: catch this to catch whatever Longshore says no to."""

    def __reduce__(self) -> tuple[object, ...]:
        """Carries message and fields to another process as they are, whatever `__init__` asks for."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[LongshoreError], args: tuple[object, ...], fields: dict[str, object]) -> LongshoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class InvalidArgument(LongshoreError, ValueError):
    """A value was refused before anything changed; `field` names it and the message says what would be accepted."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class JobNotFound(LongshoreError):
    """No job has this id: it was never enqueued here, or it was removed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job has the id {job_id!r}; it was never enqueued here, or it has been removed")
        self.job_id = job_id


class ScheduleNotFound(LongshoreError):
    """No schedule has this id: it was never put here, or it was removed."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"no schedule has the id {schedule_id!r}; it was never put here, or it has been removed")
        self.schedule_id = schedule_id


class TokenNotFound(LongshoreError):
    """No token has this id."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token has the id {token_id!r}; list them to see which there are")
        self.token_id = token_id


class DuplicateJob(LongshoreError):
    """Ids that are stored already, or that came twice in one batch; nothing of the batch was stored."""

    def __init__(self, job_ids: Sequence[str]) -> None:
        shown = ", ".join(repr(job_id) for job_id in job_ids[:10])
        more = f" and {len(job_ids) - 10} more" if len(job_ids) > 10 else ""
        super().__init__(
            f"ids in use already: {shown}{more}; nothing was stored. Choose other ids, or use an idempotency_key "
            "to make repeating an enqueue safe"
        )
        self.job_ids = list(job_ids)


class KeyReused(LongshoreError):
    """An idempotency key that came before with another request; `job_id` is the job it belongs to."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used before, for another request (job {job_id!r}); "
            "repeat a request exactly, or choose a new key"
        )
        self.job_id = job_id


class InvalidTransition(LongshoreError):
    """No arrow in the table of legal transitions leads from the job's status to the one asked for."""

    def __init__(self, job_id: str, status: JobStatus, target: JobStatus | str, why: str = "") -> None:
        super().__init__(f"job {job_id!r} is {status} and cannot become {target}{': ' + why if why else ''}")
        self.job_id = job_id
        self.status = status
        self.target = target


class JobNotInflight(InvalidTransition):
    """The call needs a job that a worker holds (RUNNING or CANCELLING), and no worker holds this one."""


class LeaseLost(LongshoreError):
    """The lease is no longer the job's: stop working on it, because another worker reports its outcome."""

    def __init__(self, job_id: str, reason: Literal["expired", "mismatch"]) -> None:
        told = (
            "its lease ran out before this call"
            if reason == "expired"
            else "it has been claimed again since this lease"
        )
        super().__init__(f"job {job_id!r}: {told}; nothing was changed, and this worker should drop the job")
        self.job_id = job_id
        self.reason = reason


class QueueClosed(LongshoreError):
    """The queue or backend was closed; open a new one with `connect(url)`."""


class BackendUnavailable(LongshoreError):
    """The store cannot be used now (locked, full, read-only, corrupt, foreign, newer); the message says which."""


class MissingExtra(LongshoreError, ImportError):
    """A part of Longshore needs packages that are not installed; the message names the extra that brings them."""

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(f'{part} needs an extra: pip install "longshore[{extra}]"')
        self.extra = extra


class Unauthenticated(LongshoreError):
    """A server does not know who is calling: the token is missing, wrong, expired or revoked."""


class Forbidden(LongshoreError):
    """A server knows who is calling, and they may not do this; the message names the scope or queue that is missing."""


class MoveRefused(LongshoreError):
    """A copy of one store to another would lose or duplicate data, or failed; the message says how."""


class CursorExpired(LongshoreError):
    """The place in the event log this cursor points to is gone: pruned, or of another log. Start again from None."""


class Fatal(LongshoreError):
    """Raise this in a processor to bury the job at once, whatever attempts it has left."""


class Snooze(LongshoreError):
    """Raise this in a processor to have the job run again after `delay` seconds; no attempt is used up."""

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay} seconds")
        self.delay = delay
        self.reason = reason


class JobFailed(LongshoreError):
    """The job whose result was waited for failed for good; `error` is the whole text of its last failure."""

    def __init__(self, job_id: str, error: str) -> None:
        first = error.partition("\n")[0] or "no reason was given"
        super().__init__(f"job {job_id!r} failed for good: {first}")
        self.job_id = job_id
        self.error = error


class JobCancelled(LongshoreError):
    """The job was cancelled before it had the result that the caller waits for."""

    def __init__(self, job_id: str, status: JobStatus, reason: str = "") -> None:
        super().__init__(f"job {job_id!r} was cancelled and is {status}{': ' + reason if reason else ''}")
        self.job_id = job_id
        self.status = status
        self.reason = reason
