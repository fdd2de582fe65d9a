"""A PostgreSQL schema with some thousands of rows of each kind, and the planner's plans of our statements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from longshore.backends.postgres.connection import Server
from longshore.backends.postgres.schema import prepare, quoted
from longshore.backends.sql.statements import Statements

NOW = 1_000_000_000
JOBS = 20_000

GROWING = ("jobs", "job_tags", "job_events", "job_logs", "job_dependencies", "tombstones")
"""Tables that grow with the work done; no plan scans one. Concurrency keys exist only while they are in use."""

# Most jobs have ended; of the others each status has its share, in ten queues, three priorities and forty keys.
_FILL = f"""
INSERT INTO jobs (uid, id, queue, type, payload, options, tags, priority, lifo, max_attempts, deps_total, created_at,
    deps_left, status, eligible_at, sort_key, job_seq, updated_at, on_dependency_failure, blocked, finalized_at,
    expires_at,
    lease_owner, lease_token, lease_expires_at, idempotency_key, concurrency_key, announce_at)
SELECT g, 'job ' || g, 'q' || g / 20 % 10, 't', '', '{{}}', '["x", "y"]', g % 3, false, 0, 0, g, 0,
    (ARRAY['INITIAL_PENDING', 'INITIAL_PENDING', 'INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY', 'RUNNING', 'DEAD',
        'WAITING_CHILDREN', 'CREATED'])[g % 20 - 10],
    g, CASE g % 20 WHEN 12 THEN {NOW} + g ELSE g END, 1, g, 'wait', g % 20 = 13,
    CASE g % 20 WHEN 17 THEN g END, CASE g % 20 WHEN 11 THEN {NOW} + g END,
    CASE g % 20 WHEN 16 THEN 'w' || g % 7 END, CASE g % 20 WHEN 16 THEN 'token' END,
    CASE g % 20 WHEN 16 THEN {NOW} - 2000 + g % 4000 END, CASE g % 4 WHEN 0 THEN 'key ' || g END,
    CASE WHEN g % 20 IN (12, 13) THEN 'k' || g % 40 END, CASE g % 20 WHEN 12 THEN {NOW} + g - 10000 END
FROM generate_series(1, %(count)s::bigint) AS g WHERE g % 20 BETWEEN 11 AND 19;

INSERT INTO jobs (uid, id, queue, type, payload, options, tags, priority, lifo, max_attempts, deps_total, created_at,
    deps_left, status, eligible_at, sort_key, job_seq, updated_at, on_dependency_failure, finalized_at, idempotency_key)
SELECT g, 'job ' || g, 'q' || g / 20 % 10, 't', '', '{{}}', '', 0, false, 0, 0, g, 0, 'COMPLETED', g, g, 3, g, 'wait',
    g, CASE g % 4 WHEN 0 THEN 'key ' || g END
FROM generate_series(1, %(count)s::bigint) AS g WHERE g % 20 NOT BETWEEN 11 AND 19;

INSERT INTO job_tags (tag, uid, queue, priority, sort_key, claimable, status, retry_count)
SELECT tag, uid, queue, priority, sort_key, status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY'), status, 0
FROM jobs CROSS JOIN LATERAL (
    VALUES (CASE uid % 7 WHEN 0 THEN 'x' ELSE 'a' || uid % 100 END), (CASE uid % 2 WHEN 0 THEN 'y' ELSE 'b' || uid END)
) AS carried (tag) WHERE jobs.tags <> '';
INSERT INTO job_events (xid, job_uid, job_seq, epoch, execution, occurred_at, job_id, queue, event, actor)
SELECT (1000 + g / 5)::text::xid8, g, 1, 0, 0, g, 'job ' || g, 'q' || g / 20 % 10, 'job.added', ''
FROM generate_series(1, %(count)s::bigint) AS g;
INSERT INTO job_dependencies (dependent_uid, position, unsure, depends_on, policy, state)
SELECT g, 0, g % 100 = 0, 'job ' || g - 1, 'wait', CASE g % 5 WHEN 0 THEN 'waiting' ELSE 'satisfied' END
FROM generate_series(2, %(count)s::bigint, 3) AS g;
INSERT INTO tombstones (uid, removed_at, id, queue, type, status, idempotency_key)
SELECT g, g, 'gone ' || g, 'q' || g / 20 % 10, 't', 'COMPLETED', CASE g % 3 WHEN 0 THEN 'gone ' || g END
FROM generate_series(1, %(count)s::bigint, 2) AS g;
INSERT INTO job_logs (uid, number, at, level, message)
SELECT g, 1, g, 'info', 'a line' FROM generate_series(1, %(count)s::bigint) AS g;
INSERT INTO concurrency_keys (running_count, window_start, window_count, window_ends_at, queue, key)
SELECT g % 2, 0, 0, CASE g % 10 WHEN 0 THEN g END, 'q' || g / 20 % 10, 'key ' || g
FROM generate_series(1, %(count)s::bigint, 4) AS g;
INSERT INTO schedules (id, paused, next_run_at, body)
SELECT 's' || g, false, g, '{{}}' FROM generate_series(1, %(count)s::bigint, 5) AS g;
"""
_EMPTIED = "; ".join(f"DELETE FROM {table}" for table in (*GROWING, "concurrency_keys", "schedules"))

STATES = ("analysed", "never analysed", "analysed when small")
"""The planner's statistics of the tables: complete, missing, or outdated."""


def make_schema(url: str, state: str) -> Statements:
    """A filled schema of this name; return its statements."""
    prepare(Server(url), state)
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(f"SET search_path = {quoted(state)}")
        for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (state,)):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")  # no other session uses it
        if state == "analysed when small":
            connection.execute(_FILL.replace("%(count)s", "100"))
            connection.execute("ANALYZE")
            connection.execute(_EMPTIED)
        connection.execute(_FILL.replace("%(count)s", str(JOBS)))
        if state == "analysed":
            connection.execute("ANALYZE")
    return Statements("longshore.backends.postgres", schema=quoted(state))


def statements(sql: Statements) -> list[str]:
    """All statements that have a plan; the others are COPY or DDL."""
    plannable = re.compile("SELECT|INSERT|UPDATE|DELETE|WITH")
    return sorted(name for name in sql.names() if plannable.match(getattr(sql, name)))


class Node(NamedTuple):
    """One node of a plan."""

    kind: str
    table: str
    by: str
    """The index."""
    condition: str


def plan(connection: psycopg.Connection[Any], statement: str, values: Sequence[object] | None = None) -> list[Node]:
    """The plan: with these values, or a generic one, as after the fifth use."""
    return list(_nodes(explained(connection, statement, values)["Plan"]))


def explained(
    connection: psycopg.Connection[Any], statement: str, values: Sequence[object] | None = None
) -> dict[str, Any]:
    """The plan as JSON, with its cost and whether it would be compiled."""
    with planned(connection, statement, values) as execute:
        row = connection.execute(f"EXPLAIN (FORMAT json) {execute}".encode()).fetchone()
        assert row is not None
        found: dict[str, Any] = row[0][0]
        return found


@contextmanager
def planned(
    connection: psycopg.Connection[Any], statement: str, values: Sequence[object] | None = None
) -> Iterator[str]:
    """Prepare the statement, and return the text that executes it: with these values, or with a generic plan."""
    mode = "force_generic_plan" if values is None else "force_custom_plan"
    count = max(map(int, re.findall(r"\$(\d+)", statement)), default=0)
    given = ["NULL"] * count if values is None else [_literal(value) for value in values]
    assert len(given) == count, f"takes {count} values, not {len(given)}"
    connection.execute(f"PREPARE planned AS {statement}")
    try:
        connection.execute(f"SET plan_cache_mode = {mode}")
        yield f"EXECUTE planned({', '.join(given)})" if given else "EXECUTE planned"
    finally:
        connection.execute("DEALLOCATE planned")


def _literal(value: object) -> str:
    return psycopg.sql.Literal(value).as_string()


def _nodes(found: dict[str, Any]) -> Iterator[Node]:
    kind, index = found["Node Type"], found.get("Index Name", "")
    condition = found.get("Index Cond", "") or found.get("Recheck Cond", "")
    yield Node(kind, found.get("Relation Name", ""), index, condition)
    for part in found.get("Plans", ()):
        yield from _nodes(part)
