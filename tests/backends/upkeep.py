"""What must hold inside a store between two transactions: copies equal their originals."""

from __future__ import annotations

from typing import Any

import apsw
import psycopg

_ELIGIBLE = "('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')"

_COUNTS = """
SELECT 'queue_counts of ' || queue || ' ' || status || ': ' || sum(kept) || ' kept, ' || sum(real) || ' real; retries '
    || sum(kept_retries) || ' kept, ' || sum(real_retries) || ' real'
FROM (
    SELECT queue, status, jobs AS kept, 0 AS real, retries AS kept_retries, 0 AS real_retries FROM queue_counts
    UNION ALL
    SELECT queue, status, 0, count(*), 0, sum(retry_count) FROM jobs GROUP BY queue, status
) AS both_ways
GROUP BY queue, status HAVING sum(kept) <> sum(real) OR sum(kept_retries) <> sum(real_retries)
"""

_TAG_COLUMNS = "tag, uid, queue, priority, sort_key, claimable, status, retry_count"
_TAGS = f"""
WITH real AS (
    SELECT carried.value AS tag, uid, queue, priority, sort_key, status IN {_ELIGIBLE} AS claimable, status, retry_count
    FROM jobs, %(each_tag)s
),
kept AS (SELECT {_TAG_COLUMNS} FROM job_tags)
SELECT 'job_tags has too much: ' || tag || ' of uid ' || uid
FROM (SELECT {_TAG_COLUMNS} FROM kept EXCEPT SELECT {_TAG_COLUMNS} FROM real) AS more
UNION ALL
SELECT 'job_tags lacks: ' || tag || ' of uid ' || uid
FROM (SELECT {_TAG_COLUMNS} FROM real EXCEPT SELECT {_TAG_COLUMNS} FROM kept) AS less
"""

_LEASES = """
SELECT 'uid ' || uid || ' is ' || status || ' and its lease is ' || coalesce(lease_token, 'none') FROM jobs
WHERE (status IN ('RUNNING', 'CANCELLING')) <> (lease_token IS NOT NULL)
"""

_LEFTOVERS = """
SELECT 'job_dependencies of a job that is gone: ' || dependent_uid FROM job_dependencies
WHERE dependent_uid NOT IN (SELECT uid FROM jobs)
UNION ALL
SELECT 'job_logs of a job that is gone: ' || uid FROM job_logs WHERE uid NOT IN (SELECT uid FROM jobs)
UNION ALL
SELECT 'deps_left of uid ' || uid || ' is ' || deps_left FROM jobs WHERE deps_left <> (
    SELECT count(*) FROM job_dependencies WHERE dependent_uid = uid AND state <> 'satisfied')
UNION ALL
SELECT 'uid ' || uid || ' is blocked as ' || status FROM jobs WHERE blocked AND status NOT IN
    ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')
"""

_KEYS = f"""
WITH real AS (
    SELECT queue, concurrency_key AS key,
        sum(CASE WHEN status IN ('RUNNING', 'CANCELLING') THEN 1 ELSE 0 END) AS holding,
        sum(CASE WHEN blocked THEN 1 ELSE 0 END) AS blocked,
        sum(CASE WHEN status IN {_ELIGIBLE} AND NOT blocked THEN 1 ELSE 0 END) AS in_line
    FROM jobs WHERE concurrency_key IS NOT NULL GROUP BY queue, concurrency_key
),
reported AS (
    SELECT real.*, coalesce(k.running_count, 0) - %(noted)s AS kept_holding, %(noted)s AS noted, k.window_ends_at,
        q.per_key, q.key_rate_count
    FROM real JOIN queues AS q ON q.name = real.queue
    LEFT JOIN concurrency_keys AS k ON k.queue = real.queue AND k.key = real.key
    WHERE q.per_key IS NOT NULL OR q.key_rate_count IS NOT NULL
)
SELECT 'key ' || key || ' of ' || queue || ': holding ' || kept_holding || ' kept, ' || holding || ' real'
FROM reported WHERE kept_holding <> holding
UNION ALL
SELECT 'key ' || key || ' of ' || queue || ' has free slots and strands ' || blocked || ' blocked jobs' FROM reported
WHERE blocked > 0 AND window_ends_at IS NULL AND noted = 0 -- the next claim applies noted slots
    -- the free slots under a rate are unknown here, but not 0: a full key would have a window end
    AND in_line < %(least)s(
        blocked + in_line, coalesce(per_key - holding, 1),
        CASE WHEN key_rate_count IS NULL THEN blocked + in_line ELSE 1 END
    )
UNION ALL
SELECT 'blocked where no key is limited: ' || real.queue FROM real LEFT JOIN queues AS q ON q.name = real.queue
WHERE real.blocked > 0 AND q.per_key IS NULL AND q.key_rate_count IS NULL
"""


_NAMES = """
SELECT 'queue_names lacks ' || queue FROM jobs WHERE queue NOT IN (SELECT name FROM queue_names) GROUP BY queue
"""

_SQLITE = {
    "each_tag": "json_each(CASE tags WHEN '' THEN '[]' ELSE tags END) AS carried",
    "noted": "0",
    "least": "min",
}
_POSTGRES = {
    # slots that completed jobs released, and no transaction has applied yet (docs/decisions/0022)
    "noted": """(
        SELECT coalesce(sum(given.jobs), 0) FROM released_slots AS r, unnest(r.keys, r.jobs) AS given (key, jobs)
        WHERE r.queue = real.queue AND given.key = real.key
    )""",
    "each_tag": "json_array_elements_text(CASE tags WHEN '' THEN '[]' ELSE tags END :: json) AS carried (value)",
    "least": "least",
}


def internal_faults(connection: apsw.Connection | psycopg.Connection[Any]) -> list[str]:
    """Every error in the store's counts and indexes, as a sentence; empty if there is none.

    On PostgreSQL the connection's search path must lead to the schema.
    """
    statements = [_COUNTS, _TAGS, _LEASES, _LEFTOVERS, _KEYS]
    dialect = _SQLITE
    if isinstance(connection, psycopg.Connection):
        statements.append(_NAMES)  # only there the names of queues are stored separately
        dialect = _POSTGRES
    found: list[str] = []
    for statement in statements:
        found += [text for (text,) in connection.execute(statement % dialect)]
    return found


def integrity_faults(connection: apsw.Connection) -> list[str]:
    """What SQLite reports about the file."""
    found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check")]
    return [] if found == ["ok"] else found
