"""The rule that each operation follows for a scoped caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from longshore.backends.base import Backend
from longshore.server.auth import Caller
from longshore.server.queue_scoping import operations
from longshore.server.queue_scoping.call import (
    Arguments,
    Bound,
    as_it_is,
    for_all_queues,
    of_many_jobs,
    of_one_job,
    of_one_queue,
)
from longshore.server.redaction import told_of_added
from longshore.server.response_limits import JobSizes


async def carry_out(backend: Backend, caller: Caller, verb: str, arguments: Arguments, heaviest: JobSizes) -> Any:
    """The verb, within the caller's queues; of jobs that were there before, only a caller who reads is told all."""
    if caller.queues is None:
        found = await getattr(backend, verb)(**arguments)
    else:
        found = await GUARDS.get(verb, for_all_queues)(Bound(backend, caller, verb, arguments, heaviest))
    return told_of_added(caller, arguments["jobs"], found) if verb == "add_jobs" and not caller.reads else found


_ONE_JOB = (
    *("release_lease", "set_progress", "append_log", "save_checkpoint", "complete_job", "fail_job", "bury_job"),
    *("stop_job", "stop_job_with_retry", "mark_job_unknown_stopped", "update_job_status", "acknowledge_cancellation"),
    *("get_job", "read_logs", "retry_job", "promote_job"),
)
_ONE_QUEUE = ("reset_running_jobs", "pause_queue", "resume_queue", "set_limits", "cleanup_expired_jobs")
_ONE_SCHEDULE = ("get_schedule", "pause_schedule", "resume_schedule", "run_schedule")
GUARDS: dict[str, Callable[[Bound], Awaitable[Any]]] = {
    **dict.fromkeys(_ONE_JOB, of_one_job),
    **dict.fromkeys(_ONE_QUEUE, of_one_queue),
    **dict.fromkeys(_ONE_SCHEDULE, operations.of_one_schedule),
    **dict.fromkeys(("now", "end_of_events", "wait_for_change"), as_it_is),
    "enqueue_job": operations.enqueue_job,
    "enqueue_jobs": operations.enqueue_jobs,
    "enqueue_new_jobs": operations.enqueue_jobs,
    "add_jobs": operations.add_jobs,
    "accept_jobs": of_many_jobs,
    "dequeue_jobs": operations.dequeue,
    "extend_leases": operations.extend,
    "settle_jobs": operations.settle,
    "settle_and_dequeue": operations.turn,
    "heartbeat_worker": operations.heartbeat,
    "record_worker_event": operations.worker_event,
    "reclaim_expired_leases": operations.visible_jobs,
    "cancel_jobs": operations.cancel,
    "delete_jobs": operations.delete,
    "set_retention": operations.retention,
    "facts_about": operations.facts,
    "list_jobs": operations.job_list,
    "next_due": operations.next_due,
    "get_job_stats": operations.stats,
    "count_jobs": operations.counts,
    "count_delayed": operations.delayed,
    "read_events": operations.events,
    "list_queues": operations.queue_list,
    "list_workers": operations.worker_list,
    "put_schedule": operations.put_schedule,
    "get_schedules": operations.schedule_list,
    "remove_schedule": operations.remove_schedule,
}
"""For every verb that such a caller may use; all others are for callers who may use all queues."""
