"""SQLite's query plans: statements that must be fast use their index, and no statement scans a table that grows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw
import pytest

from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.backend import SQLiteBackend

INDEXES = {
    "claimable_with_free_slots": "jobs_claimable (queue=? AND priority=? AND sort_key>? AND sort_key<?)",
    "look_ahead": "jobs_claimable (queue=? AND priority=? AND sort_key<?)",
    "claimable": "jobs_claimable (queue=? AND priority=? AND sort_key>? AND sort_key<?)",
    "first_claimable": "jobs_claimable (queue=? AND priority=? AND sort_key<?)",
    "first_of_type": "jobs_of_type (queue=? AND type=? AND priority=? AND sort_key<?)",
    "claimable_of_type": "jobs_of_type (queue=? AND type=? AND priority=? AND sort_key<?)",
    "first_priorities_of_types": "jobs_of_type (queue=? AND type=?)",
    "next_priority_of_type": "jobs_of_type (queue=? AND type=? AND priority>?)",
    "jobs_to_complete": "jobs_by_id (id=?)",
    "delayed_fifo": "jobs_claimable (queue=? AND priority=? AND sort_key>?)",
    "delayed_lifo": "jobs_claimable (queue=? AND priority=? AND sort_key<?)",
    "delayed_blocked": "jobs_blocked (queue=?)",
    "next_due": "jobs_claimable (queue=? AND priority=? AND sort_key>?)",
    "next_priority": "jobs_claimable (queue=? AND priority>?)",
    "tagged_claimable": "job_tags_claimable (tag=? AND queue=? AND priority=? AND sort_key<?)",
    "next_tagged_priority": "job_tags_claimable (tag=? AND queue=? AND priority>?)",
    "waiting_with_tag": "job_tags_claimable (tag=?)",
    "leases_ended": "jobs_held (lease_owner=? AND lease_expires_at<?)",
    "jobs_held_by": "jobs_held (lease_owner=?)",
    "jobs_to_announce": "jobs_to_announce (announce_at<?)",
    "cancellations_since": "jobs_cancelling (cancel_asked_at<?)",
    "expired_jobs": "jobs_expiring (expires_at<?)",
    "jobs_ended_before": "jobs_by_end (queue=? AND status=? AND finalized_at<?)",
    "recent_ends": "jobs_by_end (queue=? AND status=? AND finalized_at>?)",
    "jobs_beyond": "jobs_by_end (queue=? AND status=? AND finalized_at>?)",
    "open_edges": "job_dependencies_open (depends_on=?)",
    "first_blocked": "jobs_blocked (queue=? AND concurrency_key=? AND type=?)",
    "any_blocked": "jobs_blocked (queue=?)",
    "ahead_of": "jobs_claimable (queue=? AND (priority,sort_key)<(?,?))",
    "types_with_blocked": "jobs_blocked (queue=? AND concurrency_key=? AND type>?)",
    "keys_with_ended_windows": "concurrency_keys_by_window_end (queue=? AND window_ends_at<?)",
    "jobs_of_keys": "jobs_by_key (queue=? AND idempotency_key=?)",
    "removed_jobs_of_keys": "tombstones_by_key (queue=? AND idempotency_key=?)",
    "job_behind_key": "jobs_by_key (queue=? AND idempotency_key=?)",
    "tombstone_behind_key": "tombstones_by_key (queue=? AND idempotency_key=?)",
    "jobs_seen": "jobs_by_id (id=?)",
    "job_by_id": "jobs_by_id (id=?)",
    "events_of_job": "job_events_by_job (job_id=? AND rowid>?)",
    "schedules_due": "schedules_due (next_run_at>? AND next_run_at<?)",
}

GROWING = ("jobs", "job_tags", "job_events", "job_logs", "job_dependencies", "tombstones", "concurrency_keys", "tagged")
"""Tables that grow with the work done (`tagged` is an alias of job_tags); no statement scans one."""

DATA_MIGRATION = "runs once in a data migration, which counts or reads everything"
STEP = "runs once after a step of the clock, over indexes of waiting and running jobs"
WALKED = {
    "digest_of_job_tags": DATA_MIGRATION,
    "fill_counts": DATA_MIGRATION,
    "recount": DATA_MIGRATION,
    "row_counts": DATA_MIGRATION,
    "rows_of_concurrency_keys": DATA_MIGRATION,
    "leases_in_force": "the index has running jobs only, and it runs once in a data migration",
    "jobs_held": "the index has running jobs only, and all are needed",
    "running_by_key": "the index has running jobs only, and it runs when limits change",
    "holders": "the index has running jobs only, and a few are needed",
    "any_open_edge": "reads one row of an index of open edges",
    "shift_relative_times": STEP,
    "insert_shifted_events": STEP,
    "count_shifted_events": STEP,
    "shift_sort_keys": STEP,
    "shift_tags": STEP,
    "shift_leases": STEP,
}
SORTED = {
    "fill_counts": DATA_MIGRATION,
    "recount": DATA_MIGRATION,
    "jobs_held": "all running jobs",
    "jobs_held_by": "all jobs of one worker",
    "open_edges": "the dependents of jobs that just ended: one index lookup for each",
    "edges_that_stop": "the dependents that a failure stops: one index lookup for each",
    "edges_from": "the dependencies of one job",
    "dependencies_of": "the dependencies of the jobs that are read",
    "jobs_created_before": "jobs that were stored and never accepted: few, and read by retention only",
    "removed_statuses": "the ids that were asked for",
    "removed_jobs_of_keys": "the keys that were asked for: one index lookup for each",
    "tallies": "one row per queue and status",
    "tallies_with_tag": "grouped by status: twelve rows",
    "tallies_with_tags": "grouped by status: twelve rows",
    "running_by_key": "grouped by key, when limits change",
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    opened = SQLiteBackend(tmp_path_factory.mktemp("plans") / "jobs.db").new_connection()
    opened.execute(SQL.create_copy_state)  # a table that only a data migration creates
    yield opened
    opened.close()


def plan(connection: apsw.Connection, name: str) -> list[str]:
    """The rows of SQLite's query plan."""
    statement: str = getattr(SQL, name)
    values = (None,) * len(SQL.parameters[name])
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def statements() -> list[str]:
    """All statements that have a plan; the others are DDL."""
    return sorted(name for name in SQL.names() if re.match("SELECT|INSERT|UPDATE|DELETE|WITH", getattr(SQL, name)))


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_a_statement_that_must_be_fast_uses_its_index(name: str, connection: apsw.Connection) -> None:
    lines = plan(connection, name)
    assert any(INDEXES[name] in line and line.startswith("SEARCH") for line in lines), lines


@pytest.mark.parametrize("name", statements())
def test_no_statement_scans_a_table_that_grows(name: str, connection: apsw.Connection) -> None:
    walked = [line for line in plan(connection, name) if re.match(rf"SCAN (main\.)?({'|'.join(GROWING)})\b", line)]
    assert bool(walked) == (name in WALKED), walked


@pytest.mark.parametrize("name", statements())
def test_no_statement_sorts_what_an_index_has_in_order(name: str, connection: apsw.Connection) -> None:
    sorted_apart = [line for line in plan(connection, name) if "TEMP B-TREE" in line]
    assert bool(sorted_apart) == (name in SORTED), sorted_apart


def test_each_guard_names_a_statement() -> None:
    assert INDEXES.keys() | WALKED.keys() | SORTED.keys() <= set(statements())
