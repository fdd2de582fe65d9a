"""Jobs that wait for jobs: what an edge is worth, circles refused, and what follows when one ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial

from longshore.backends.transaction import Edge, Transaction
from longshore.core import transitions
from longshore.core.change import Change
from longshore.core.errors import InvalidArgument
from longshore.core.flow import find_cycle
from longshore.core.lifecycle import JobStatus
from longshore.core.record import Record


def edge_state(status: JobStatus | None, policy: str) -> str:
    """What a dependency in this status means to a job under this policy; None is an id nobody knows, and waits."""
    if status is JobStatus.COMPLETED:
        return "satisfied"
    if status is None or not status.final or policy == "wait":
        return "waiting"
    return "satisfied" if policy == "ignore" else "failed"


def edges_for(tx: Transaction, records: Sequence[Record]) -> list[Edge]:
    """The edges of new jobs, their uids given already; sets `deps_left`. A circle is refused with its path."""
    dependent = [record for record in records if record.depends_on]
    if not dependent:
        return []
    _refuse_circles(tx, records, dependent)
    batch = {record.id for record in records}  # an older job with the same id, since removed, is not meant
    statuses = tx.held_statuses(list({name for record in dependent for name in record.depends_on} - batch))
    edges = []
    for record in dependent:
        for position, name in enumerate(record.depends_on):
            state = edge_state(statuses.get(name), record.on_dependency_failure)
            record.deps_left += state != "satisfied"
            edges.append(Edge(record.uid, name, record.on_dependency_failure, state, position))
    return edges


def _refuse_circles(tx: Transaction, records: Sequence[Record], dependent: Sequence[Record]) -> None:
    batch = {record.id: record for record in records}
    named = {name for record in dependent for name in record.depends_on}
    waited_for = {edge.depends_on for edge in tx.open_edges([record.id for record in dependent])}

    def dependencies_of(job_id: str) -> Sequence[str]:
        inside = batch.get(job_id)
        return inside.depends_on if inside else _awaited_by(tx, job_id)

    for record in dependent:
        if record.id in waited_for or record.id in named:  # nobody waits for it: no path can lead back
            path = find_cycle(record.id, dependencies_of)
            if path:
                raise InvalidArgument("depends_on", f"closes a circle: {' -> '.join(path)}")


def _awaited_by(tx: Transaction, job_id: str) -> Sequence[str]:
    status = tx.statuses([job_id]).get(job_id)
    if status is None or status.final:  # it waits for nothing any more
        return ()
    return [edge.depends_on for edge in tx.edges_from(job_id) if edge.state != "satisfied"]


def changes_that_follow(tx: Transaction, ended: Mapping[str, JobStatus]) -> list[Change]:
    """What becomes of the jobs that waited for the ones that just ended; their edges are settled here."""
    if not ended:
        return []
    by_dependent: dict[int, list[Edge]] = defaultdict(list)
    for edge in tx.open_edges(list(ended)):
        state = edge_state(ended[edge.depends_on], edge.policy)
        if state != edge.state:
            by_dependent[edge.dependent_uid].append(edge._replace(state=state))
    return _settle(tx, by_dependent)


def recheck_unsure_edges(tx: Transaction, limit: int) -> list[Change]:
    """What follows for jobs that came in while what they wait for was ending unseen, or was waiting for them."""
    unsure = tx.unsure_edges(limit)
    if not unsure:
        return []
    statuses = tx.held_statuses(list({edge.depends_on for edge in unsure}))
    dependents = tx.jobs_by_uid(list({edge.dependent_uid for edge in unsure}))
    awaited_by = cache(partial(_awaited_by, tx))

    @cache
    def closes_circle(job_id: str) -> bool:
        return find_cycle(job_id, awaited_by) is not None

    by_dependent: dict[int, list[Edge]] = defaultdict(list)
    for edge in unsure:
        if edge.state != "waiting":  # what it was worth when it was stored holds, whatever is remembered since
            continue
        state = edge_state(statuses.get(edge.depends_on), edge.policy)
        if edge.dependent_uid in dependents and state == "waiting":
            state = "failed" if closes_circle(dependents[edge.dependent_uid].id) else state
        if state != edge.state:
            by_dependent[edge.dependent_uid].append(edge._replace(state=state))
    tx.put_edges(unsure)
    return _settle(tx, by_dependent)


def _settle(tx: Transaction, by_dependent: Mapping[int, Sequence[Edge]]) -> list[Change]:
    """Stores the new states of edges, and moves on the jobs that waited."""
    if not by_dependent:
        return []
    following = []
    settled: list[Edge] = []
    for uid, record in tx.jobs_by_uid(list(by_dependent)).items():
        edges = by_dependent[uid]
        settled += edges
        change = Change(record, tx.now)
        record.deps_left -= sum(edge.state == "satisfied" for edge in edges)
        failed = next((edge.depends_on for edge in edges if edge.state == "failed"), None)
        if record.status is JobStatus.WAITING_CHILDREN:
            if failed is not None:
                transitions.dependency_failed(change, failed)
            elif record.deps_left == 0:
                transitions.dependencies_completed(change)
        following.append(change)
    tx.put_edges(settled)
    return following
