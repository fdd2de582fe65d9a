"""What must hold inside the file between two transactions: copies agree with what they are copies of."""

from __future__ import annotations

import apsw

_ELIGIBLE = "('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')"

_COUNTS = """
SELECT 'queue_counts of ' || queue || ' ' || status || ': ' || sum(kept) || ' kept, ' || sum(real) || ' real; retries '
    || sum(kept_retries) || ' kept, ' || sum(real_retries) || ' real'
FROM (
    SELECT queue, status, jobs AS kept, 0 AS real, retries AS kept_retries, 0 AS real_retries FROM queue_counts
    UNION ALL
    SELECT queue, status, 0, count(*), 0, sum(retry_count) FROM jobs GROUP BY queue, status
)
GROUP BY queue, status HAVING sum(kept) <> sum(real) OR sum(kept_retries) <> sum(real_retries)
"""

_TAGS = f"""
WITH real AS (
    SELECT value AS tag, uid, queue, priority, place, status IN {_ELIGIBLE} AS claimable, status,
        retry_count
    FROM jobs, json_each(iif(tags = '', '[]', tags))
)
SELECT 'job_tags has too much: ' || tag || ' of uid ' || uid FROM (SELECT * FROM job_tags EXCEPT SELECT * FROM real)
UNION ALL
SELECT 'job_tags lacks: ' || tag || ' of uid ' || uid FROM (SELECT * FROM real EXCEPT SELECT * FROM job_tags)
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
SELECT 'uid ' || uid || ' is parked as ' || status FROM jobs WHERE parked = 1 AND status NOT IN
    ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')
"""

_KEYS = f"""
WITH real AS (
    SELECT queue, concurrency_key AS key, sum(status IN ('RUNNING', 'CANCELLING')) AS holding, sum(parked) AS parked,
        sum(status IN {_ELIGIBLE} AND parked = 0) AS in_line
    FROM jobs WHERE concurrency_key IS NOT NULL GROUP BY queue, concurrency_key
),
told AS (
    SELECT real.*, coalesce(k.holding, 0) AS kept_holding, k.wakes_at,
        q.per_key, q.key_rate_count
    FROM real JOIN queues AS q ON q.name = real.queue
    LEFT JOIN concurrency_keys AS k ON k.queue = real.queue AND k.key = real.key
    WHERE q.per_key IS NOT NULL OR q.key_rate_count IS NOT NULL
)
SELECT 'key ' || key || ' of ' || queue || ': holding ' || kept_holding || ' kept, ' || holding || ' real'
FROM told WHERE kept_holding <> holding
UNION ALL
SELECT 'key ' || key || ' of ' || queue || ' has room and strands ' || parked || ' parked jobs' FROM told
WHERE parked > 0 AND wakes_at IS NULL
    -- under a rate the room is not known here, but it is something: a key with none would have a time to wake at
    AND in_line < min(
        parked + in_line, coalesce(per_key - holding, 1), iif(key_rate_count IS NULL, parked + in_line, 1)
    )
UNION ALL
SELECT 'parked where no key is limited: ' || real.queue FROM real LEFT JOIN queues AS q ON q.name = real.queue
WHERE real.parked > 0 AND q.per_key IS NULL AND q.key_rate_count IS NULL
"""


def internal_faults(connection: apsw.Connection) -> list[str]:
    """Every way in which the file's own bookkeeping is off, as sentences; none if all is well."""
    found: list[str] = []
    for statement in (_COUNTS, _TAGS, _LEASES, _LEFTOVERS, _KEYS):
        found += [text for (text,) in connection.execute(statement)]
    return found


def integrity_faults(connection: apsw.Connection) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check")]
    return [] if found == ["ok"] else found
