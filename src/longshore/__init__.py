"""Longshore: a durable job queue and job-orchestration platform for Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Dependency": "longshore.core.dependencies",
    "Harbor": "longshore.app.harbor",
    "HeldClock": "longshore.core.clock",
    "Job": "longshore.core.job",
    "JobEvent": "longshore.core.job",
    "JobFilter": "longshore.core.filters",
    "JobStats": "longshore.core.job",
    "JobStatus": "longshore.core.status",
    "Lease": "longshore.core.job",
    "Middleware": "longshore.app.middleware",
    "Outcome": "longshore.backends.base",
    "Queue": "longshore.runtime.queue",
    "Rate": "longshore.core.limits",
    "Repeat": "longshore.core.repeat",
    "Scheduler": "longshore.runtime.scheduler",
    "Snooze": "longshore.core.errors",
    "Worker": "longshore.runtime.worker",
    "by_error": "longshore.runtime.retry_strategy",
    "connect": "longshore.backends.connect",
    "current_job": "longshore.runtime.running_job",
    "exponential": "longshore.core.retry",
    "fixed": "longshore.core.retry",
}

if TYPE_CHECKING:
    from longshore.app.harbor import Harbor
    from longshore.app.middleware import Middleware
    from longshore.backends.base import Outcome
    from longshore.backends.connect import connect
    from longshore.core.clock import HeldClock
    from longshore.core.dependencies import Dependency
    from longshore.core.errors import Snooze
    from longshore.core.filters import JobFilter
    from longshore.core.job import Job, JobEvent, JobStats, Lease
    from longshore.core.limits import Rate
    from longshore.core.repeat import Repeat
    from longshore.core.retry import exponential, fixed
    from longshore.core.status import JobStatus
    from longshore.runtime.queue import Queue
    from longshore.runtime.retry_strategy import by_error
    from longshore.runtime.running_job import current_job
    from longshore.runtime.scheduler import Scheduler
    from longshore.runtime.worker import Worker

__all__ = [
    "Dependency",
    "Harbor",
    "HeldClock",
    "Job",
    "JobEvent",
    "JobFilter",
    "JobStats",
    "JobStatus",
    "Lease",
    "Middleware",
    "Outcome",
    "Queue",
    "Rate",
    "Repeat",
    "Scheduler",
    "Snooze",
    "Worker",
    "by_error",
    "connect",
    "current_job",
    "exponential",
    "fixed",
]


def __getattr__(name: str) -> Any:
    """Loads a public name from its home when it is first asked for, so that importing longshore stays light."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'longshore' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
