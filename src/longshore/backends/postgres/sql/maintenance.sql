-- Statements of the scheduler's sweeps. SKIP LOCKED leaves rows to the transaction that is working on them.

-- name: leases_ended(now, limit)
-- Walks the index jobs_held from one owner to the next and reads only the expired leases of each. A job that was set
-- running by update_job_status has no owner.
WITH RECURSIVE owners AS (
    (SELECT lease_owner FROM {schema}.jobs WHERE lease_token IS NOT NULL ORDER BY lease_owner LIMIT 1)
    UNION ALL
    SELECT (
        SELECT lease_owner FROM {schema}.jobs
        WHERE lease_owner > owners.lease_owner AND lease_token IS NOT NULL ORDER BY lease_owner LIMIT 1
    )
    FROM owners WHERE owners.lease_owner IS NOT NULL
),
ended AS MATERIALIZED (
    SELECT late.* FROM owners CROSS JOIN LATERAL (
        SELECT uid, lease_expires_at FROM {schema}.jobs
        WHERE lease_owner = owners.lease_owner AND lease_expires_at <= :now AND lease_token IS NOT NULL
        ORDER BY lease_expires_at, uid LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS late
    UNION ALL
    SELECT late.* FROM (
        SELECT uid, lease_expires_at FROM {schema}.jobs
        WHERE lease_owner IS NULL AND lease_expires_at <= :now AND lease_token IS NOT NULL
        ORDER BY lease_expires_at, uid LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS late
)
SELECT {job_columns} FROM {schema}.jobs
WHERE uid = ANY (ARRAY(SELECT uid FROM ended ORDER BY lease_expires_at, uid LIMIT :limit))
ORDER BY lease_expires_at, uid FOR UPDATE

-- name: cancellations_since(until, limit)
SELECT {job_columns} FROM {schema}.jobs
WHERE status IN ({acknowledge_sources}) AND cancel_asked_at <= :until
ORDER BY cancel_asked_at, uid LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: expired_jobs(now, limit)
SELECT {job_columns} FROM {schema}.jobs WHERE expires_at <= :now AND status IN ({expire_sources})
ORDER BY expires_at, uid LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: announce_jobs(now, limit)
-- One statement, so that a claim finds few of these jobs locked.
WITH due AS MATERIALIZED (
    SELECT uid, id, queue, type, job_seq + 1 AS next_seq, epoch, executions, assignee_id, {next_event_xid} AS event_xid
    FROM {schema}.jobs WHERE announce_at <= :now AND {eligible}
    ORDER BY announce_at, uid LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
),
announced AS (
    UPDATE {schema}.jobs SET
        announce_at = NULL, job_seq = job_seq + 1, updated_at = :now, last_event_xid = {next_event_xid}
    WHERE uid = ANY (ARRAY(SELECT uid FROM due))
),
logged AS (
    INSERT INTO {schema}.job_events (xid, {event_columns})
    SELECT event_xid, uid, id, next_seq, queue, type, 'job.promoted', NULL, NULL, epoch, executions, assignee_id, '',
        :now::bigint, NULL
    FROM due
)
SELECT id, queue FROM due

-- name: unverified_edges(limit)
SELECT {edge_columns} FROM {schema}.job_dependencies
WHERE unsure ORDER BY dependent_uid, depends_on LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: jobs_ended_before(queue, status, until, limit)
SELECT {job_columns} FROM {schema}.jobs
WHERE queue = :queue AND status = :status AND finalized_at <= :until
ORDER BY finalized_at, uid LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: jobs_beyond(queue, status, keep, limit)
-- The count of the queue limits the read to the jobs beyond :keep. They are chosen before any is locked: SKIP LOCKED in
-- the inner query would replace a locked job by one that is to be kept.
SELECT {job_columns} FROM {schema}.jobs WHERE uid = ANY (ARRAY(
    SELECT uid FROM {schema}.jobs
    WHERE queue = :queue AND status = :status AND finalized_at IS NOT NULL
    ORDER BY finalized_at, uid
    LIMIT greatest(0, least(:limit::bigint, (
        SELECT coalesce(sum(jobs), 0)::bigint FROM {schema}.queue_counts WHERE queue = :queue AND status = :status
    ) - :keep::bigint))
))
AND status = :status ORDER BY finalized_at, uid FOR UPDATE SKIP LOCKED

-- name: jobs_created_before(queue, until, limit)
SELECT {job_columns} FROM {schema}.jobs
WHERE queue = :queue AND status IN ({accept_sources}) AND created_at <= :until
ORDER BY created_at, uid LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: insert_tombstone(uids, now, requests)
INSERT INTO {schema}.tombstones (uid, removed_at, id, queue, type, status, idempotency_key, request)
SELECT uid, :now::bigint, id, queue, type, status, idempotency_key, gone.request
FROM unnest(:uids::bigint[], :requests::text[]) AS gone (uid, request) JOIN {schema}.jobs USING (uid)

-- name: delete_tag(uids)
DELETE FROM {schema}.job_tags WHERE uid = ANY(:uids::bigint[])

-- name: delete_logs(uids)
DELETE FROM {schema}.job_logs WHERE uid = ANY(:uids::bigint[])

-- name: delete_edges(uids)
DELETE FROM {schema}.job_dependencies WHERE dependent_uid = ANY(:uids::bigint[])

-- name: delete_job(uids)
DELETE FROM {schema}.jobs WHERE uid = ANY(:uids::bigint[])

-- name: forget_tombstones(until, limit)
DELETE FROM {schema}.tombstones WHERE uid = ANY (ARRAY(
    SELECT uid FROM {schema}.tombstones WHERE removed_at <= :until
    ORDER BY removed_at LIMIT :limit FOR UPDATE SKIP LOCKED
))

-- name: forget_workers(until, limit)
DELETE FROM {schema}.workers WHERE id IN (
    SELECT id FROM {schema}.workers WHERE seen_at <= :until LIMIT :limit FOR UPDATE SKIP LOCKED
)

-- name: merge_counts(limit)
-- Replaces many rows by a few with the same sums.
WITH gathered AS (
    DELETE FROM {schema}.queue_counts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.queue_counts LIMIT :limit FOR UPDATE SKIP LOCKED
    ))
    RETURNING queue, status, jobs, retries
)
INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
SELECT queue, status, sum(jobs), sum(retries) FROM gathered GROUP BY queue, status
HAVING sum(jobs) <> 0 OR sum(retries) <> 0

-- name: try_lock(space, lock)
SELECT pg_try_advisory_xact_lock(:space::integer, :lock::integer)

-- name: oldest_events(after_xid, after_n, end_xid, limit)
SELECT xid::text::bigint, n, queue, occurred_at FROM {schema}.job_events
WHERE {events_between} ORDER BY job_events.xid, job_events.n LIMIT :limit

-- name: delete_event(xid, n)
DELETE FROM {schema}.job_events WHERE xid = :xid::xid8 AND n = :n

-- name: pruned(queue)
SELECT deleted_xid::text::bigint, deleted_n, seen_xid::text::bigint, seen_n
FROM {schema}.pruned_events WHERE queue = :queue

-- name: put_pruned(queue, deleted_xid, deleted_n, seen_xid, seen_n)
INSERT INTO {schema}.pruned_events (queue, deleted_xid, deleted_n, seen_xid, seen_n)
VALUES (:queue, :deleted_xid::xid8, :deleted_n, :seen_xid::xid8, :seen_n)
ON CONFLICT (queue) DO UPDATE SET
    deleted_xid = excluded.deleted_xid, deleted_n = excluded.deleted_n, seen_xid = excluded.seen_xid,
    seen_n = excluded.seen_n

-- name: hint(channel, queues)
-- Runs after the commit. Losing it does no harm, so its commit does not wait for the disk.
SELECT pg_notify(:channel, name), set_config('synchronous_commit', 'off', true) FROM unnest(:queues::text[]) AS name

-- name: notify(channel, queues)
SELECT pg_notify(:channel, name) FROM unnest(:queues::text[]) AS name

-- name: snapshot()
SELECT pg_current_snapshot()::text

-- name: changes_since(snapshot)
-- A new snapshot, and whether anything was committed since the old one that a waiting process wants to know. Of the
-- events it reads only those of transactions that the old snapshot did not see, however old they are. ORDER BY DESC
-- keeps the planner from reading the log from its start.
SELECT
    pg_current_snapshot()::text,
    (
        SELECT true FROM {schema}.job_events WHERE xid >= pg_snapshot_xmax(:snapshot::pg_snapshot)
        ORDER BY xid DESC LIMIT 1
    ) IS NOT NULL
    OR EXISTS (
        SELECT 1 FROM {schema}.job_events WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip(:snapshot::pg_snapshot)))
    )
    OR EXISTS (SELECT 1 FROM {schema}.queues WHERE NOT pg_visible_in_snapshot(changed, :snapshot::pg_snapshot))
    OR EXISTS (SELECT 1 FROM {schema}.schedules WHERE NOT pg_visible_in_snapshot(changed, :snapshot::pg_snapshot))
