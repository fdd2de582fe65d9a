"""How SQLite answers the statements that must stay fast: through the index made for them, reading nothing in vain."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw
import pytest

from longshore.backends.sqlite import SQL
from longshore.backends.sqlite.backend import SQLiteBackend

INDEXES = {
    "claimable_with_free_slots": "jobs_claimable (queue=? AND priority=? AND place>? AND place<?)",
    "look_ahead": "jobs_claimable (queue=? AND priority=? AND place<?)",
    "claimable": "jobs_claimable (queue=? AND priority=? AND place>? AND place<?)",
    "first_in_line": "jobs_claimable (queue=? AND priority=? AND place<?)",
    "first_of_type": "jobs_of_type (queue=? AND type=? AND priority=? AND place<?)",
    "claimable_of_type": "jobs_of_type (queue=? AND type=? AND priority=? AND place<?)",
    "first_priorities_of_types": "jobs_of_type (queue=? AND type=?)",
    "next_priority_of_type": "jobs_of_type (queue=? AND type=? AND priority>?)",
    "jobs_to_complete": "jobs_by_id (id=?)",
    "delayed_in_line": "jobs_claimable (queue=? AND priority=? AND place>?)",
    "delayed_lifo": "jobs_claimable (queue=? AND priority=? AND place<?)",
    "delayed_blocked": "jobs_blocked (queue=?)",
    "next_due": "jobs_claimable (queue=? AND priority=? AND place>?)",
    "next_priority": "jobs_claimable (queue=? AND priority>?)",
    "tagged_claimable": "job_tags_claimable (tag=? AND queue=? AND priority=? AND place<?)",
    "next_tagged_priority": "job_tags_claimable (tag=? AND queue=? AND priority>?)",
    "waiting_with_tag": "job_tags_claimable (tag=?)",
    "leases_ended": "jobs_held (lease_owner=? AND lease_expires_at<?)",
    "jobs_held_by": "jobs_held (lease_owner=?)",
    "jobs_to_announce": "jobs_to_announce (announce_at<?)",
    "cancellations_since": "jobs_cancelling (cancel_asked_at<?)",
    "jobs_outlived": "jobs_expiring (expires_at<?)",
    "jobs_ended_before": "jobs_by_end (queue=? AND status=? AND finalized_at<?)",
    "recent_ends": "jobs_by_end (queue=? AND status=? AND finalized_at>?)",
    "jobs_beyond": "jobs_by_end (queue=? AND status=? AND finalized_at>?)",
    "open_edges": "job_dependencies_open (depends_on=?)",
    "first_blocked": "jobs_blocked (queue=? AND concurrency_key=? AND type=?)",
    "any_blocked": "jobs_blocked (queue=?)",
    "ahead_of": "jobs_claimable (queue=? AND (priority,place)<(?,?))",
    "types_with_blocked": "jobs_blocked (queue=? AND concurrency_key=? AND type>?)",
    "keys_waking": "concurrency_keys_waking (queue=? AND window_ends_at<?)",
    "jobs_of_keys": "jobs_by_key (queue=? AND idempotency_key=?)",
    "removed_jobs_of_keys": "tombstones_by_key (queue=? AND idempotency_key=?)",
    "job_behind_key": "jobs_by_key (queue=? AND idempotency_key=?)",
    "tombstone_behind_key": "tombstones_by_key (queue=? AND idempotency_key=?)",
    "jobs_seen": "jobs_by_id (id=?)",
    "job_by_id": "jobs_by_id (id=?)",
    "events_of_job": "job_events_by_job (job_id=? AND rowid>?)",
    "schedules_due": "schedules_due (next_run_at>? AND next_run_at<?)",
}

GROWING = ("jobs", "job_tags", "job_events", "job_logs", "job_dependencies", "tombstones", "concurrency_keys", "first")
"""Tables that grow with the work done (`first` is how statements call job_tags); none is ever walked through."""

DATA_MIGRATION = "asked once in a move to another store, where everything is counted or read"
STEP = "run once when the machine's clock was set, over indexes that hold only what waits or runs"
WALKED = {
    "digest_of_job_tags": DATA_MIGRATION,
    "fill_counts": DATA_MIGRATION,
    "recount": DATA_MIGRATION,
    "row_counts": DATA_MIGRATION,
    "rows_of_concurrency_keys": DATA_MIGRATION,
    "leases_in_force": "the index holds only what runs now, and it is asked once in a move",
    "jobs_held": "the index holds only what runs now, and all of it is wanted",
    "holding_by_key": "the index holds only what runs now, and it is asked only when limits change",
    "holders": "the index holds only what runs now, and a few of it are wanted",
    "any_open_edge": "asks for one row of an index that holds only what waits",
    "uids_in_line": STEP,
    "shift_relative_times": STEP,
    "insert_shifted_events": STEP,
    "count_shifted_events": STEP,
    "shift_places": STEP,
    "shift_tags": STEP,
    "shift_leases": STEP,
}
SORTED = {
    "fill_counts": DATA_MIGRATION,
    "recount": DATA_MIGRATION,
    "jobs_held": "all that runs now, once",
    "jobs_held_by": "all that one worker holds, once",
    "open_edges": "those who wait for the jobs that just ended, from several walks of the index",
    "edges_that_stop": "those whom a failure stops, from one walk of the index to the next",
    "edges_from": "one job's own dependencies",
    "dependencies_of": "the dependencies of the few jobs that are read",
    "jobs_created_before": "jobs stored and never accepted: few, and looked for only by retention",
    "removed_statuses": "the few ids that were asked for",
    "removed_jobs_of_keys": "the few keys that were asked for, from one step in the index to the next",
    "tallies": "one row per queue and status",
    "tallies_with_tag": "grouped by status: twelve rows",
    "tallies_with_tags": "grouped by status: twelve rows",
    "holding_by_key": "grouped by key, when limits change",
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    opened = SQLiteBackend(tmp_path_factory.mktemp("plans") / "jobs.db").new_connection()
    opened.execute(SQL.make_note_of_move)  # a table that only a file in the making has
    yield opened
    opened.close()


def plan(connection: apsw.Connection, name: str) -> list[str]:
    """SQLite's own account, a line for each table it visits."""
    statement: str = getattr(SQL, name)
    numbered = re.findall(r"\?(\d+)", statement)
    values = max(map(int, numbered)) if numbered else statement.count("?")
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * values)]


def statements() -> list[str]:
    """All that can be run; the others are pieces of these."""
    return sorted(name for name in SQL.names() if re.match("SELECT|INSERT|UPDATE|DELETE|WITH", getattr(SQL, name)))


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_what_must_be_fast_leans_on_its_index(name: str, connection: apsw.Connection) -> None:
    lines = plan(connection, name)
    assert any(INDEXES[name] in line and line.startswith("SEARCH") for line in lines), lines


@pytest.mark.parametrize("name", statements())
def test_no_statement_walks_through_a_table_that_grows(name: str, connection: apsw.Connection) -> None:
    walked = [line for line in plan(connection, name) if re.match(rf"SCAN ({'|'.join(GROWING)})\b", line)]
    assert bool(walked) == (name in WALKED), walked


@pytest.mark.parametrize("name", statements())
def test_no_statement_sorts_what_an_index_has_in_order(name: str, connection: apsw.Connection) -> None:
    sorted_apart = [line for line in plan(connection, name) if "TEMP B-TREE" in line]
    assert bool(sorted_apart) == (name in SORTED), sorted_apart


def test_a_guard_for_a_statement_that_is_gone_is_noticed() -> None:
    assert INDEXES.keys() | WALKED.keys() | SORTED.keys() <= set(statements())
