-- Statements of running and settled jobs. Every statement locks jobs in the order of their uids, so that no two
-- transactions deadlock.

-- name: jobs_by_ids(ids)
SELECT {job_columns} FROM {schema}.jobs WHERE id = ANY(:ids::text[]) ORDER BY uid FOR UPDATE

-- name: jobs_by_uids(uids)
SELECT {job_columns} FROM {schema}.jobs WHERE uid = ANY(:uids::bigint[]) ORDER BY uid FOR UPDATE

-- name: jobs_to_renew(ids)
-- A renewal ends no job, so this lock does not wait for `held_statuses`.
SELECT {job_columns} FROM {schema}.jobs WHERE id = ANY(:ids::text[]) ORDER BY uid FOR NO KEY UPDATE

-- name: save_lease(expires_at, uids, epochs)
UPDATE {schema}.jobs SET lease_expires_at = new.expires_at
FROM unnest(:expires_at::bigint[], :uids::bigint[], :epochs::bigint[]) AS new (expires_at, uid, epoch)
WHERE jobs.uid = new.uid AND jobs.epoch = new.epoch

-- name: save_progress(progress, job_seq, now, uid)
UPDATE {schema}.jobs SET progress = :progress, job_seq = :job_seq, updated_at = :now, last_event_xid = {next_event_xid}
WHERE uid = :uid

-- name: save_log_mark(job_seq, uid)
UPDATE {schema}.jobs SET job_seq = :job_seq, last_event_xid = {next_event_xid} WHERE uid = :uid

-- name: complete_jobs(ids, epochs, tokens, results, now, lock_ids, held_queues)
-- The fence, the job's end, its event, its count and the released slots of its key, in one statement. A completion that
-- does not match is left to the caller, as are slots of queues whose settings are not held. The fence compares rows
-- that are locked already: as a condition on the table it would lead the planner to the index of leases.
WITH locked AS MATERIALIZED (
    SELECT uid, id, epoch, coalesce(lease_token, '') AS token, retry_count, job_seq + 1 AS next_seq, executions,
        {next_event_xid} AS event_xid, queue, type, status, assignee_id, concurrency_key, tags <> '' AS tagged,
        status IN ({bulk_complete_sources}) AND lease_owner = assignee_id
        AND (lease_expires_at IS NULL OR lease_expires_at > :now)
        AND position('"remove_on_complete"' IN options) = 0 AS may_complete
    FROM {schema}.jobs WHERE id = ANY(:lock_ids::text[]) ORDER BY uid FOR UPDATE
),
done AS MATERIALIZED (
    SELECT locked.*, given.result
    FROM unnest(:ids::text[], :epochs::bigint[], :tokens::text[], :results::bytea[]) AS given (id, epoch, token, result)
    JOIN locked USING (id, epoch, token) WHERE may_complete
),
completed AS (
    UPDATE {schema}.jobs SET
        status = {complete_target}, result = done.result, error_message = '', finalized_at = :now, updated_at = :now,
        job_seq = next_seq, started_at = coalesce(started_at, :now), lease_owner = NULL, lease_token = NULL,
        lease_expires_at = NULL, last_event_xid = event_xid
    FROM done WHERE jobs.uid = done.uid
),
logged AS (
    INSERT INTO {schema}.job_events (xid, {event_columns})
    SELECT event_xid, uid, id, next_seq, queue, type, 'job.completed', status, {complete_target}, epoch, executions,
        assignee_id, '', :now::bigint, NULL
    FROM done
),
counted AS (
    INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
    SELECT queue, status, -count(*), -sum(retry_count) FROM done GROUP BY queue, status
    UNION ALL
    SELECT queue, {complete_target}, count(*), sum(retry_count) FROM done GROUP BY queue
),
released AS (
    INSERT INTO {schema}.released_slots (queue, keys, jobs)
    SELECT queue, array_agg(concurrency_key), array_agg(jobs) FROM (
        SELECT queue, concurrency_key, count(*) AS jobs FROM done
        WHERE concurrency_key IS NOT NULL AND queue = ANY(:held_queues::text[]) GROUP BY queue, concurrency_key
    ) AS given JOIN {schema}.queues ON name = queue AND (per_key IS NOT NULL OR key_rate_count IS NOT NULL)
    GROUP BY queue
)
SELECT uid, id, queue, assignee_id, concurrency_key, tagged FROM done

-- name: save_job(rows, uids)
-- The fence: a row is written only if it still has the version that the change was made from. The uids as an array keep
-- the planner at the primary key.
UPDATE {schema}.jobs SET
    deps_left = new.deps_left, status = new.status, run_at = new.run_at, eligible_at = new.eligible_at,
    sort_key = new.sort_key, blocked = new.blocked, executions = new.executions, retry_count = new.retry_count,
    crashes = new.crashes, epoch = new.epoch, job_seq = new.job_seq, updated_at = new.updated_at,
    started_at = new.started_at, finalized_at = new.finalized_at, last_retry_at = new.last_retry_at,
    assigned_at = new.assigned_at, assignee_id = new.assignee_id, lease_owner = new.lease_owner,
    lease_token = new.lease_token, lease_expires_at = new.lease_expires_at, announce_at = new.announce_at,
    cancel_asked_at = new.cancel_asked_at, result = decode(new.result, 'base64'), error_message = new.error_message,
    last_event_xid = {next_event_xid}
FROM json_to_recordset(:rows::json) AS new (
    deps_left bigint, status text, run_at bigint, eligible_at bigint, sort_key bigint, blocked boolean,
    executions bigint, retry_count bigint, crashes bigint, epoch bigint, job_seq bigint, updated_at bigint,
    started_at bigint, finalized_at bigint, last_retry_at bigint, assigned_at bigint, assignee_id text,
    lease_owner text, lease_token text, lease_expires_at bigint, announce_at bigint, cancel_asked_at bigint,
    result text, error_message text, uid bigint, was_seq bigint
)
WHERE jobs.uid = ANY(:uids::bigint[]) AND jobs.uid = new.uid AND jobs.job_seq = new.was_seq

-- name: save_tag(uids)
-- Copies from the jobs, which the same transaction has written.
UPDATE {schema}.job_tags SET
    sort_key = jobs.sort_key, claimable = jobs.status IN ({claim_sources}), status = jobs.status,
    retry_count = jobs.retry_count
FROM {schema}.jobs
WHERE jobs.uid = ANY(:uids::bigint[]) AND job_tags.uid = ANY(:uids::bigint[]) AND jobs.uid = job_tags.uid

-- name: note_released_slots(queue, keys, jobs)
INSERT INTO {schema}.released_slots (queue, keys, jobs) VALUES (:queue, :keys::text[], :jobs::bigint[])

-- name: open_edges(depends_on)
SELECT {edge_columns} FROM {schema}.job_dependencies
WHERE depends_on = ANY(:depends_on::text[]) AND state <> 'satisfied' ORDER BY dependent_uid, depends_on

-- fragment: open_edges_to
-- OFFSET 0 in the queries around this makes the planner answer job by job, from the index of open edges.
SELECT edge.* FROM {schema}.jobs
JOIN {schema}.job_dependencies AS edge ON edge.depends_on = jobs.id AND edge.state <> 'satisfied'

-- name: edges_that_stop(uids)
-- The edges along which stopped jobs stop their dependents, and those stop theirs.
WITH RECURSIVE stopped AS (
    SELECT edge.* FROM unnest(:uids::bigint[]) AS given (uid) CROSS JOIN LATERAL (
        {open_edges_to}
        WHERE jobs.uid = given.uid AND jobs.status IN ({dependency_failed_sources})
        AND edge.state = 'waiting' AND edge.policy = 'stop' OFFSET 0
    ) AS edge
    UNION
    SELECT edge.* FROM stopped CROSS JOIN LATERAL (
        {open_edges_to}
        WHERE jobs.uid = stopped.dependent_uid AND jobs.status IN ({dependency_failed_sources})
        AND edge.state = 'waiting' AND edge.policy = 'stop' OFFSET 0
    ) AS edge
)
SELECT {edge_columns} FROM stopped ORDER BY dependent_uid, depends_on

-- name: jobs_and_dependents(ids, uids)
-- Jobs, and all dependents that end with them or become claimable without them.
WITH RECURSIVE concerned AS (
    SELECT uid FROM {schema}.jobs WHERE id = ANY(:ids::text[]) OR uid = ANY(:uids::bigint[])
    UNION
    SELECT edge.dependent_uid FROM concerned CROSS JOIN LATERAL (
        {open_edges_to}
        WHERE jobs.uid = concerned.uid AND edge.state = 'waiting' AND edge.policy <> 'wait' OFFSET 0
    ) AS edge
)
SELECT uid, queue, lease_token IS NOT NULL FROM {schema}.jobs WHERE uid = ANY (ARRAY(SELECT uid FROM concerned))

-- name: lock_jobs(uids)
SELECT uid FROM {schema}.jobs WHERE uid = ANY(:uids::bigint[]) ORDER BY uid FOR UPDATE

-- name: count_down(uids, satisfied)
WITH fewer AS MATERIALIZED (
    SELECT held.uid, given.satisfied FROM unnest(:uids::bigint[], :satisfied::bigint[]) AS given (uid, satisfied)
    JOIN {schema}.jobs AS held ON held.uid = given.uid ORDER BY held.uid FOR UPDATE OF held
)
UPDATE {schema}.jobs SET deps_left = jobs.deps_left - fewer.satisfied FROM fewer WHERE jobs.uid = fewer.uid
RETURNING jobs.uid, jobs.deps_left
