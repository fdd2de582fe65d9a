"""From what a client said to the jobs it means, held until they are accepted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from longshore.core.job import Job
from longshore.core.job_record import REQUEST, Likeness
from longshore.core.validation import check_name, compact, new_id, written_json
from longshore.runtime.job_options import job_from
from longshore.server.models.new_jobs import NewJob

_ITS_OWN = frozenset({"data", "id", "idempotency_key"})
"""What each job has for itself; most jobs of a batch share all the rest."""


class _Pattern(NamedTuple):
    likeness: Likeness
    options: Mapping[str, Any]


class Patterns:
    """Makes the jobs of one request, whose body was read strictly: what they share is worked out and checked once."""

    def __init__(self, write: Callable[[object], str] = compact) -> None:
        self._write = write
        self._known: dict[Hashable, _Pattern] = {}

    def job(self, said: NewJob, key: str | None, fingerprint: str) -> Job:
        """A job to be stored as CREATED, which keeps the fingerprint of its request if there is one."""
        fields = said.__dict__
        shared = tuple([(name, _hashable(fields[name])) for name in said.model_fields_set if name not in _ITS_OWN])
        pattern = self._known.get(shared)
        if pattern is None:
            options = said.options()
            for name in ("data", "job_id", "idempotency_key"):
                options.pop(name, None)
            made = job_from(**options, hold=True)
            pattern = self._known[shared] = _Pattern(Likeness(made), made.options)
        return pattern.likeness.job(
            id=new_id() if said.id is None else check_name("id", said.id),
            payload=written_json("data", said.data, write=self._write),
            idempotency_key=None if key is None else check_name("idempotency_key", key),
            options={**pattern.options, REQUEST: fingerprint} if fingerprint else pattern.options,
        )


def _hashable(value: object) -> Hashable:
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, Hashable) else repr(value)
