"""Dependencies between jobs: the state of an edge, rejection of cycles, and the effect when a dependency ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial

from longshore.backends.port import Edge, Transaction
from longshore.core import transitions
from longshore.core.dependencies import edge_policies
from longshore.core.errors import InvalidArgument
from longshore.core.flows import find_cycle, never_ready
from longshore.core.job_record import Record
from longshore.core.status import JobStatus
from longshore.core.transitions import Change


def edge_state(status: JobStatus | None, policy: str) -> str:
    """The state of an edge to a dependency in this status. None is an unknown id, which waits."""
    if status is JobStatus.COMPLETED:
        return "satisfied"
    if status is None or not status.final or policy == "wait":
        return "waiting"
    return "satisfied" if policy == "ignore" else "failed"


def edges_for(tx: Transaction, records: Sequence[Record]) -> list[Edge]:
    """Build the edges of new jobs, which have uids already, and set `deps_left`. A cycle is rejected with its path."""
    dependent = [record for record in records if record.depends_on]
    _reject_cycles(tx, records, dependent)
    batch = {record.id for record in records}  # not an older, removed job with the same id
    statuses = tx.statuses(list({name for record in dependent for name in record.depends_on} - batch), lock=True)
    edges = []
    for record in dependent:
        policies = edge_policies(record.options)
        for position, name in enumerate(record.depends_on):
            policy = policies.get(name, record.on_dependency_failure)
            state = edge_state(statuses.get(name), policy)
            record.deps_left += state != "satisfied"
            edges.append(Edge(record.uid, name, policy, state, position))
    return edges


def _reject_cycles(tx: Transaction, records: Sequence[Record], dependent: Sequence[Record]) -> None:
    batch = {record.id: record for record in records}
    waited_for = {edge.depends_on for edge in tx.open_edges([record.id for record in dependent])}
    named = {name for record in dependent for name in record.depends_on}
    suspects = [record.id for record in dependent if record.id in named or record.id in waited_for]

    @cache
    def dependencies_of(job_id: str) -> Sequence[str]:
        if job_id in batch:
            return batch[job_id].depends_on
        return _awaited_by(tx, job_id) if waited_for else ()  # no stored job waits for these, so no path leads back

    for job_id in never_ready(suspects, dependencies_of):
        path = find_cycle(job_id, dependencies_of)
        if path:
            raise InvalidArgument("depends_on", f"creates a cycle: {' -> '.join(path)}; remove one dependency")


def _awaited_by(tx: Transaction, job_id: str) -> Sequence[str]:
    status = tx.statuses([job_id]).get(job_id)
    if status is None or status.final:  # it waits for nothing
        return ()
    return [edge.depends_on for edge in tx.edges_from(job_id) if edge.state != "satisfied"]


def changes_that_follow(tx: Transaction, ended: Mapping[str, JobStatus]) -> list[Change]:
    """The changes of jobs that waited for these; also settles their edges."""
    if not ended:
        return []
    by_dependent: dict[int, list[Edge]] = defaultdict(list)
    for edge in tx.open_edges(list(ended)):
        state = edge_state(ended[edge.depends_on], edge.policy)
        if state != edge.state:
            by_dependent[edge.dependent_uid].append(edge._replace(state=state))
    return _settle(tx, by_dependent) if by_dependent else []


def recheck_unverified_edges(tx: Transaction, limit: int) -> tuple[list[Change], int]:
    """Check edges again that were stored while their dependency could end unseen, or could form a cycle. Return the
    changes that follow, and the number of edges."""
    unverified = tx.unverified_edges(limit)
    if not unverified:
        return [], 0
    statuses = tx.statuses(list({edge.depends_on for edge in unverified}), lock=True)
    dependents = tx.jobs_by_uid(list({edge.dependent_uid for edge in unverified}))
    awaited_by = cache(partial(_awaited_by, tx))

    @cache
    def is_in_cycle(job_id: str) -> bool:
        return find_cycle(job_id, awaited_by) is not None

    by_dependent: dict[int, list[Edge]] = defaultdict(list)
    for edge in unverified:
        if edge.state != "waiting":  # its state at the time of the insert counts
            continue
        state = edge_state(statuses.get(edge.depends_on), edge.policy)
        if edge.dependent_uid in dependents and state == "waiting":
            state = "failed" if is_in_cycle(dependents[edge.dependent_uid].id) else state
        if state != edge.state:
            by_dependent[edge.dependent_uid].append(edge._replace(state=state))
    tx.put_edges(unverified)
    return _settle(tx, by_dependent) if by_dependent else [], len(unverified)


def _settle(tx: Transaction, by_dependent: Mapping[int, Sequence[Edge]]) -> list[Change]:
    """Store the new states of edges, and change the jobs that waited.

    For a job that still waits, only a number changes, so the cost of one end does not grow with its other dependencies.
    A stopped job stops its dependents in turn: the whole chain is found, locked and changed together.
    """
    failed = [edge for edges in by_dependent.values() for edge in edges if edge.state == "failed"]
    onward = tx.edges_that_stop([edge.dependent_uid for edge in failed]) if failed else []
    fewer = {uid: sum(edge.state == "satisfied" for edge in edges) for uid, edges in by_dependent.items()}
    left = tx.count_down({edge.dependent_uid: 0 for edge in onward} | fewer)
    affected = {uid for uid in by_dependent if left.get(uid) == 0}.union(edge.dependent_uid for edge in failed + onward)
    records = tx.jobs_by_uid([uid for uid in left if uid in affected])
    waiting = {uid: record for uid, record in records.items() if record.status is JobStatus.WAITING_CHILDREN}
    stopped, stopping = stopped_in_turn(failed, onward, {uid: record.id for uid, record in waiting.items()})
    settled = [edge for edges in by_dependent.values() for edge in edges]
    by_ends = {
        (edge.dependent_uid, edge.depends_on): edge for edge in stopping + settled
    }  # in a cycle an edge may be in both
    tx.put_edges([edge for edge in by_ends.values() if edge.dependent_uid in left])
    following = []
    for uid in dict.fromkeys([*stopped, *(uid for uid in waiting if left[uid] == 0)]):
        change = Change(waiting[uid], tx.now)
        if uid in stopped:
            transitions.dependency_failed(change, stopped[uid])
        else:
            transitions.dependencies_completed(change)
        following.append(change)
    return following


def stopped_in_turn(
    failed: Sequence[Edge], onward: Sequence[Edge], waiting: Mapping[int, str]
) -> tuple[dict[int, str], list[Edge]]:
    """The waiting jobs to stop (uid to dependency id), nearest first, and the further edges that fail with them. A job
    that no longer waits is not stopped, and stops no other job."""
    beyond: dict[str, list[Edge]] = defaultdict(list)
    for edge in onward:
        beyond[edge.depends_on].append(edge)
    stopped: dict[int, str] = {}
    stopping: list[Edge] = []
    reached = list(failed)
    for edge in reached:  # the list grows during the loop
        uid = edge.dependent_uid
        if uid in waiting and uid not in stopped:
            stopped[uid] = edge.depends_on  # the first dependency is recorded
            further = [other._replace(state="failed") for other in beyond[waiting[uid]]]
            stopping += further
            reached += further
    return stopped, stopping
