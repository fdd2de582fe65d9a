"""The rule that each verb follows for a caller who is bound to some queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from longshore.backends.base import Backend
from longshore.server.access import Caller
from longshore.server.heaviest import Heaviest
from longshore.server.unread import told_of_added
from longshore.server.within_queues import looking, removal, schedules, submission, working
from longshore.server.within_queues.call import (
    Arguments,
    Bound,
    as_it_is,
    for_all_queues,
    of_many_jobs,
    of_one_job,
    of_one_queue,
)


async def carry_out(backend: Backend, caller: Caller, verb: str, arguments: Arguments, heaviest: Heaviest) -> Any:
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
    **dict.fromkeys(_ONE_SCHEDULE, schedules.of_one_schedule),
    **dict.fromkeys(("now", "end_of_events", "wait_for_change"), as_it_is),
    "enqueue_job": submission.enqueue_job,
    "enqueue_jobs": submission.enqueue_jobs,
    "enqueue_new_jobs": submission.enqueue_jobs,
    "add_jobs": submission.add_jobs,
    "accept_jobs": of_many_jobs,
    "dequeue_jobs": working.dequeue,
    "extend_leases": working.extend,
    "settle_jobs": working.settle,
    "settle_and_dequeue": working.turn,
    "heartbeat_worker": working.heartbeat,
    "record_worker_event": working.worker_event,
    "reclaim_expired_leases": working.visible_jobs,
    "cancel_jobs": removal.cancel,
    "delete_jobs": removal.delete,
    "set_retention": removal.retention,
    "facts_about": looking.facts,
    "list_jobs": looking.job_list,
    "next_due": looking.next_due,
    "get_job_stats": looking.stats,
    "count_jobs": looking.counts,
    "count_delayed": looking.delayed,
    "read_events": looking.events,
    "list_queues": looking.queue_list,
    "list_workers": looking.worker_list,
    "put_schedule": schedules.put_schedule,
    "get_schedules": schedules.schedule_list,
    "remove_schedule": schedules.remove_schedule,
}
"""For every verb that such a caller may use; all others are for callers who may use all queues."""
