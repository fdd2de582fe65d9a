"""Longshore: a durable job queue and job-orchestration platform for Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longshore.lazy_exports import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longshore.app.flows import Flow as Flow
    from longshore.app.harbor import Harbor as Harbor
    from longshore.app.middleware import Middleware as Middleware
    from longshore.app.results import FlowHandle as FlowHandle
    from longshore.app.results import JobHandle as JobHandle
    from longshore.app.step import Step as Step
    from longshore.app.task import Call as Call
    from longshore.app.task import Task as Task
    from longshore.app.tracing import Tracing as Tracing
    from longshore.backends.base import Outcome as Outcome
    from longshore.backends.connect import connect as connect
    from longshore.core.actor import acting as acting
    from longshore.core.clock import HeldClock as HeldClock
    from longshore.core.dependencies import Dependency as Dependency
    from longshore.core.errors import Snooze as Snooze
    from longshore.core.filters import JobFilter as JobFilter
    from longshore.core.job import Job as Job
    from longshore.core.job import JobEvent as JobEvent
    from longshore.core.job import JobStats as JobStats
    from longshore.core.job import Lease as Lease
    from longshore.core.limits import Rate as Rate
    from longshore.core.repeat import Repeat as Repeat
    from longshore.core.retry import exponential as exponential
    from longshore.core.retry import fixed as fixed
    from longshore.core.schedule import Schedule as Schedule
    from longshore.core.status import JobStatus as JobStatus
    from longshore.runtime.executors.process import ProcessExecutor as ProcessExecutor
    from longshore.runtime.logs import set_up_logging as set_up_logging
    from longshore.runtime.queue import Queue as Queue
    from longshore.runtime.retry_strategy import by_error as by_error
    from longshore.runtime.running_job import RunningJob as RunningJob
    from longshore.runtime.running_job import current_job as current_job
    from longshore.runtime.scheduler import Scheduler as Scheduler
    from longshore.runtime.signals import run_until_stopped as run_until_stopped
    from longshore.runtime.supervisor import Supervisor as Supervisor
    from longshore.runtime.worker import Worker as Worker

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "longshore.app.flows": ["Flow"],
        "longshore.app.harbor": ["Harbor"],
        "longshore.app.middleware": ["Middleware"],
        "longshore.app.results": ["FlowHandle", "JobHandle"],
        "longshore.app.step": ["Step"],
        "longshore.app.task": ["Call", "Task"],
        "longshore.app.tracing": ["Tracing"],
        "longshore.backends.base": ["Outcome"],
        "longshore.backends.connect": ["connect"],
        "longshore.core.actor": ["acting"],
        "longshore.core.clock": ["HeldClock"],
        "longshore.core.dependencies": ["Dependency"],
        "longshore.core.errors": ["Snooze"],
        "longshore.core.filters": ["JobFilter"],
        "longshore.core.job": ["Job", "JobEvent", "JobStats", "Lease"],
        "longshore.core.limits": ["Rate"],
        "longshore.core.repeat": ["Repeat"],
        "longshore.core.retry": ["exponential", "fixed"],
        "longshore.core.schedule": ["Schedule"],
        "longshore.core.status": ["JobStatus"],
        "longshore.runtime.executors.process": ["ProcessExecutor"],
        "longshore.runtime.logs": ["set_up_logging"],
        "longshore.runtime.queue": ["Queue"],
        "longshore.runtime.retry_strategy": ["by_error"],
        "longshore.runtime.running_job": ["RunningJob", "current_job"],
        "longshore.runtime.scheduler": ["Scheduler"],
        "longshore.runtime.signals": ["run_until_stopped"],
        "longshore.runtime.supervisor": ["Supervisor"],
        "longshore.runtime.worker": ["Worker"],
    },
)
