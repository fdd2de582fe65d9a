"""PostgreSQL's query plans: statements that must be fast use their index, with any statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
import pytest

from longshore.backends.postgres.schema import quoted
from longshore.backends.sql.statements import Statements
from tests.backends.postgres_plans import GROWING, NOW, STATES, Node, explained, make_schema, plan, statements
from tests.postgres_run import Clones

FIRST = -(2**63)
LATER = NOW + 1_000_000
CLAIMED = ("w", "token", LATER)
LIMITS = (1, None, 0)


class Guard(NamedTuple):
    """The index of a statement, the columns of its search, and realistic values."""

    by: str
    columns: str
    values: Sequence[object]
    in_order: bool = False
    """Whether rows come out of the index in order. With known values, the planner may sort a few."""


GUARDS = {
    # the claim
    "claim_next": Guard("jobs_claimable", "queue priority sort_key", ("q1", NOW, 10, *CLAIMED)),
    "claim_from_cursor": Guard(
        "jobs_claimable", "queue priority sort_key uid", ("q1", NOW, 10, *CLAIMED, [0, 1, 2], [5, 5, 5], [5, 5, 5])
    ),
    "claim_within_keys": Guard(
        "jobs_claimable", "queue priority sort_key", ("q1", NOW, 10, *CLAIMED, 20, 10, 1, 5, NOW, NOW + 1)
    ),
    "claim_types": Guard("jobs_of_type", "queue type priority sort_key", ("q1", NOW, 10, *CLAIMED, ["t", "u"])),  # S5
    "claim_types_from_cursor": Guard(
        "jobs_of_type",
        "queue type priority sort_key uid",
        ("q1", NOW, 10, *CLAIMED, ["t", "u"], [0, 1, 2], [5, 5, 5], [5, 5, 5]),
    ),
    "claim_types_within_keys": Guard(
        "jobs_of_type",
        "queue type priority sort_key",
        ("q1", NOW, 10, *CLAIMED, 20, 10, 1, 5, NOW, NOW + 1, ["t", "u"]),
    ),
    "shares_of_queues_by_type": Guard(
        "jobs_of_type", "queue type priority sort_key", (["q1", "q2"], NOW, 10, ["t", "u"])
    ),
    "candidates_of_types": Guard(
        "jobs_of_type", "queue type priority sort_key", ("q1", NOW, 20, FIRST, FIRST, 0, ["t", "u"])
    ),
    "next_due": Guard("jobs_claimable", "queue priority sort_key", (["q1", "q2"], NOW)),
    "count_delayed": Guard("jobs_claimable", "queue priority sort_key", (["q1", "q2"], NOW)),
    "shares_of_queues": Guard("jobs_claimable", "queue priority sort_key", (["q1", "q2"], NOW, 10)),
    "first_candidates": Guard("jobs_claimable", "queue priority sort_key", ("q1", NOW, 20)),
    "claimable": Guard("jobs_claimable", "queue priority sort_key", ("q1", 1, NOW, FIRST, 0, 20), in_order=True),
    "claimable_with_free_slots": Guard(
        "jobs_claimable", "queue priority sort_key", ("q1", 1, NOW, *LIMITS, FIRST, 0, 20), in_order=True
    ),
    "look_ahead": Guard("jobs_claimable", "queue priority sort_key", ("q1", 1, NOW, *LIMITS, 20), in_order=True),
    "next_priority": Guard("jobs_claimable", "queue priority", ("q1", 0), in_order=True),
    "tagged_claimable": Guard(
        "job_tags_claimable",
        "tag queue priority sort_key",
        ("x", "q1", 1, NOW, ["y"], FIRST, 0, 20, None, *LIMITS),
        in_order=True,
    ),
    "next_tagged_priority": Guard("job_tags_claimable", "tag queue priority", ("x", "q1", 0), in_order=True),
    "waiting_with_tag": Guard("job_tags_claimable", "tag", ("x", 16)),
    "unblock_first": Guard("jobs_blocked", "queue concurrency_key type", ("q1", ["k13", "k33"], [1, 2]), in_order=True),
    "any_blocked": Guard("jobs_blocked", "queue", ("q1",)),
    "ahead_of": Guard("jobs_claimable", "queue priority", ("q1", NOW, 1, NOW, 5, 1000)),
    "recent_ends": Guard("jobs_by_end", "queue status finalized_at", ("q1", 0, 200), in_order=True),
    "keys_with_ended_windows": Guard("concurrency_keys_by_window_end", "queue window_ends_at", ("q1", 500, 500)),
    # the sweep, and due jobs
    "leases_ended": Guard("jobs_held", "lease_owner lease_expires_at", (NOW, 100)),
    "jobs_held_by": Guard("jobs_held", "lease_owner", ("w1",)),
    "announce_jobs": Guard("jobs_to_announce", "announce_at", (NOW, 100)),
    "cancellations_since": Guard("jobs_cancelling", "cancel_asked_at", (NOW, 100)),
    "expired_jobs": Guard("jobs_expiring", "expires_at", (NOW, 100)),
    "schedules_due": Guard("schedules_due", "next_run_at", (0, 100, 100)),
    "unverified_edges": Guard("job_dependencies_unsure", "", (100,)),
    "open_edges": Guard("job_dependencies_open", "depends_on", (["job 4", "job 10"],)),
    # lookups
    "job_by_id": Guard("jobs_by_id", "id", ("job 5",)),
    "jobs_by_ids": Guard("jobs_by_id", "id", (["job 5", "job 6"],)),
    "jobs_by_uids": Guard("jobs_pkey", "uid", ([5, 6],)),
    "jobs_seen": Guard("jobs_by_id", "id", (["job 3"],)),
    "jobs_behind_keys": Guard("jobs_by_key", "queue idempotency_key", (["q1"], ["key 4"])),
    "tombstones_behind_keys": Guard("tombstones_by_key", "queue idempotency_key", (["q1"], ["gone 3"], 0)),
    "jobs_of_keys": Guard("jobs_by_key", "queue idempotency_key", (["q1"], ["key 4"])),
    "ids_taken": Guard("jobs_by_id", "id", (["job 5", "job 6"], [5])),
    "uids_with_tags": Guard("job_tags_by_tag", "tag", ("x", None, ["y"])),
    "dependencies_of": Guard("job_dependencies_pkey", "dependent_uid", ([5, 6],)),
    "logs": Guard("job_logs_pkey", "uid", (5, 0), in_order=True),
    # retention
    "jobs_ended_before": Guard("jobs_by_end", "queue status finalized_at", ("q1", "COMPLETED", 500, 100)),
    "jobs_beyond": Guard("jobs_by_end", "queue status", ("q1", "COMPLETED", 5, 100)),
    "jobs_created_before": Guard("jobs_by_status", "queue status", ("q1", 500, 100)),
    "forget_tombstones": Guard("tombstones_by_age", "removed_at", (500, 100)),
    # the log
    "events": Guard("job_events_pkey", "xid", ("1500", 5, "3000", 100), in_order=True),
    "events_of_queue": Guard("job_events_pkey", "xid", ("1500", 5, "3000", "q1", 100), in_order=True),
    "events_of_job": Guard("job_events_by_job", "job_id", ("1500", 5, "3000", "job 5", None, 100), in_order=True),
    "changes_since": Guard("job_events_pkey", "xid", ("3000:3100:3000,3050",)),
    "last_event": Guard("job_events_pkey", "xid", ("3000",), in_order=True),
    "oldest_events": Guard("job_events_pkey", "xid", ("1500", 5, "3000", 100), in_order=True),
}

CLAIMS = [
    *("held_settings", "held_settings_and_slots"),
    *(
        "claim_next",
        "claim_from_cursor",
        "claim_within_keys",
        "claimable",
        "claimable_with_free_slots",
        "first_candidates",
    ),
    *(
        "look_ahead",
        "next_priority",
        "tagged_claimable",
        "next_tagged_priority",
        "unblock_first",
    ),
    *("any_blocked", "keys_with_ended_windows", "claim_types", "claim_types_from_cursor"),
    *("candidates_of_types", "claim_types_within_keys"),
]
"""The statements of a claim, in a transaction without sequential scans."""

DATA_MIGRATION = "a data migration reads everything once"
WALKED = {
    "any_rows": DATA_MIGRATION,
    "blocks_of_events": DATA_MIGRATION,
    "digest_of_job_tags": DATA_MIGRATION,
    "fill_counts": DATA_MIGRATION,
    "recount": DATA_MIGRATION,
    "row_counts": DATA_MIGRATION,
    "tallies_with_tag": "all jobs that carry a tag, which may be most of them",
    "tallies_with_tags": "all jobs that carry a tag, which may be most of them",
}


Schemas = dict[str, tuple[psycopg.Connection[Any], Statements]]


@pytest.fixture(scope="module")
def url(postgres_clones: Clones) -> Iterator[str]:
    made = postgres_clones.add()
    yield made
    postgres_clones.drop(made)


@pytest.fixture(scope="module")
def schemas(url: str) -> Iterator[Schemas]:
    """For each state of the statistics a connection, and the statements."""
    filled = {state: make_schema(url, state) for state in STATES}
    opened = {state: (psycopg.connect(url, autocommit=True), sql) for state, sql in filled.items()}
    yield opened
    for connection, _ in opened.values():
        connection.close()


NAMES = statements(Statements("longshore.backends.postgres", schema="longshore"))


def leans_on_its_index(guard: Guard, nodes: Sequence[Node], *, sorts_a_few: bool = False) -> bool:
    searched = [node for node in nodes if node.by == guard.by]
    if not any(all(column in node.condition for column in guard.columns.split()) for node in searched):
        return False
    if walked(nodes):
        return False
    walked_in_order = not any("Sort" in node.kind for node in nodes) and all("Bitmap" not in n.kind for n in searched)
    return walked_in_order or not guard.in_order or sorts_a_few


def walked(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.kind == "Seq Scan" and node.table in GROWING]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", GUARDS)
def test_what_must_be_fast_leans_on_its_index(name: str, state: str, schemas: Schemas) -> None:
    # B-IDX-01 B-IDX-03 B-IDX-04 X-92
    connection, sql = schemas[state]
    nodes = plan(connection, getattr(sql, name))
    assert leans_on_its_index(GUARDS[name], nodes), nodes
    nodes = plan(connection, getattr(sql, name), GUARDS[name].values)
    assert leans_on_its_index(GUARDS[name], nodes, sorts_a_few=True), nodes


@pytest.mark.parametrize("name", GUARDS)
def test_the_guard_would_notice_if_the_index_were_gone(name: str, schemas: Schemas) -> None:
    connection, sql = schemas["analysed"]
    guard = GUARDS[name]
    with connection.transaction(force_rollback=True):
        if guard.by.endswith("_pkey"):
            table = guard.by.removesuffix("_pkey")
            connection.execute(f"ALTER TABLE analysed.{table} DROP CONSTRAINT {guard.by}")
        else:
            connection.execute(f"DROP INDEX analysed.{guard.by}")
        assert not leans_on_its_index(guard, plan(connection, getattr(sql, name), guard.values))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", CLAIMS)
def test_no_statement_of_a_claim_costs_enough_for_postgres_to_compile_it(
    name: str, state: str, schemas: Schemas
) -> None:
    """PostgreSQL before 18: without sequential scans, a table without an index has a cost of 1e10."""
    connection, sql = schemas[state]
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL enable_seqscan = off")
        found = explained(connection, getattr(sql, name))["Plan"]["Total Cost"]
    (limit,) = connection.execute("SHOW jit_above_cost").fetchone() or ("",)
    assert found < float(limit)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["claimable", "claimable_with_free_slots", "tagged_claimable"])
def test_a_claim_locks_no_more_jobs_than_it_takes(name: str, state: str, schemas: Schemas, url: str) -> None:
    """A concurrent claim skips locked jobs, and would claim fewer than there are."""
    connection, sql = schemas[state]
    statement = getattr(sql, name)
    values = list(GUARDS[name].values)
    limit = values.index(20)

    def claimed(connection: psycopg.Connection[Any], most: int) -> int:
        return len(
            psycopg.RawCursor(connection).execute(statement, [*values[:limit], most, *values[limit + 1 :]]).fetchall()
        )

    in_all = claimed(connection, 1000)
    with psycopg.connect(url) as other:
        assert claimed(other, 2) == 2
        assert claimed(connection, 1000) == in_all - 2 > 0


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", NAMES)
def test_no_statement_walks_through_a_table_that_grows(name: str, state: str, schemas: Schemas) -> None:
    connection, sql = schemas[state]
    nodes = plan(connection, getattr(sql, name))
    assert not walked(nodes) or name in WALKED, nodes


def test_a_guard_for_a_statement_that_is_gone_is_noticed() -> None:
    assert GUARDS.keys() | WALKED.keys() <= set(NAMES)
    assert quoted("longshore") in Statements("longshore.backends.postgres", schema=quoted("longshore")).claimable


def test_an_ended_flow_is_not_searched_among_all_later_jobs(schemas: Schemas) -> None:
    # M-SCH-08
    connection, sql = schemas["analysed"]
    statement = f"{sql.all_jobs} WHERE status = ANY($1::text[]) AND parent_id = $2 ORDER BY uid DESC LIMIT 1"
    values = (["INITIAL_PENDING", "RUNNING", "WAITING_CHILDREN"], "flow")
    guard = Guard("jobs_by_parent", "parent_id", values, in_order=True)
    with connection.transaction(force_rollback=True):
        connection.execute("UPDATE analysed.jobs SET parent_id = 'flow' WHERE status = 'COMPLETED' AND uid < 2000")
        connection.execute("ANALYZE analysed.jobs")
        assert leans_on_its_index(guard, plan(connection, statement, values))
