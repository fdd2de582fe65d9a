-- name: jobs_by_ids(ids)
SELECT {job_columns} FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: jobs_by_uids(uids)
SELECT {job_columns} FROM jobs WHERE uid IN (SELECT value FROM json_each(:uids)) ORDER BY uid

-- name: save_lease(expires_at, uid, epoch)
UPDATE jobs SET lease_expires_at = :expires_at WHERE uid = :uid AND epoch = :epoch

-- name: save_progress(progress, job_seq, now, uid)
UPDATE jobs SET progress = :progress, job_seq = :job_seq, updated_at = :now WHERE uid = :uid

-- name: save_log_mark(job_seq, uid)
UPDATE jobs SET job_seq = :job_seq WHERE uid = :uid

-- name: jobs_to_complete(ids, now)
-- The jobs, in the order of :ids, that complete in bulk: running under a valid lease, and kept after completion.
-- The caller compares epoch and token with those of the outcome.
SELECT given.key AS number, epoch, lease_token, uid, lease_owner, queue, concurrency_key, status, retry_count, sort_key,
    tags
FROM json_each(:ids) AS given CROSS JOIN jobs ON jobs.id = given.value
WHERE status IN ({bulk_complete_sources}) AND (lease_expires_at IS NULL OR lease_expires_at > :now)
AND lease_owner = assignee_id AND instr(options, '"remove_on_complete"') = 0

-- name: insert_completed_events(first_event, now, uids)
-- Before the jobs are completed: that changes the status that the event records.
INSERT INTO job_events (n, {event_columns})
SELECT :first_event + completed.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.completed', status,
    {complete_target}, epoch, executions, assignee_id, '', :now, NULL
FROM json_each(:uids) AS completed JOIN jobs ON uid = completed.value

-- fragment: completion
status = {complete_target}, result = :result, error_message = '', finalized_at = :now, updated_at = :now,
job_seq = job_seq + 1, started_at = coalesce(started_at, :now), lease_owner = NULL, lease_token = NULL,
lease_expires_at = NULL

-- name: complete_jobs(result, now, uids)
-- The condition on the status is the fence: the caller compares the number of changed rows.
UPDATE jobs SET {completion} WHERE uid IN (SELECT value FROM json_each(:uids)) AND status IN ({bulk_complete_sources})

-- name: complete_span(result, now, first, last)
UPDATE jobs SET {completion} WHERE uid BETWEEN :first AND :last AND status IN ({bulk_complete_sources})

-- name: complete_job(result, now, uid)
UPDATE jobs SET {completion} WHERE uid = :uid AND status IN ({bulk_complete_sources})

-- name: save_job(relative, deps_left, status, run_at, eligible_at, sort_key, blocked, executions, retry_count, crashes,
--     epoch, job_seq, updated_at, started_at, finalized_at, last_retry_at, assigned_at, assignee_id, lease_owner,
--     lease_token, lease_expires_at, announce_at, cancel_asked_at, result, error_message, uid, previous_job_seq)
-- The fence: nothing is written unless the row is still the version that the change was made from.
UPDATE jobs SET
    relative = :relative, deps_left = :deps_left, status = :status, run_at = :run_at, eligible_at = :eligible_at,
    sort_key = :sort_key, blocked = :blocked, executions = :executions, retry_count = :retry_count, crashes = :crashes,
    epoch = :epoch, job_seq = :job_seq, updated_at = :updated_at, started_at = :started_at,
    finalized_at = :finalized_at, last_retry_at = :last_retry_at, assigned_at = :assigned_at,
    assignee_id = :assignee_id, lease_owner = :lease_owner, lease_token = :lease_token,
    lease_expires_at = :lease_expires_at, announce_at = :announce_at, cancel_asked_at = :cancel_asked_at,
    result = :result, error_message = :error_message
WHERE uid = :uid AND job_seq = :previous_job_seq

-- name: save_tag(sort_key, claimable, status, retry_count, tag, uid)
UPDATE job_tags SET sort_key = :sort_key, claimable = :claimable, status = :status, retry_count = :retry_count
WHERE tag = :tag AND uid = :uid

-- name: any_open_edge()
SELECT EXISTS (SELECT 1 FROM job_dependencies WHERE state <> 'satisfied')

-- name: open_edges(ids)
SELECT {edge_columns} FROM job_dependencies
WHERE depends_on IN (SELECT value FROM json_each(:ids)) AND state <> 'satisfied'
ORDER BY dependent_uid, depends_on

-- fragment: edge_stops
-- `jobs` is the job that stops, `edge` leads to a job that stops with it; the condition on 'satisfied' is the index's.
jobs.status IN ({dependency_failed_sources})
AND edge.depends_on = jobs.id AND edge.state <> 'satisfied' AND edge.state = 'waiting' AND edge.policy = 'stop'

-- name: edges_that_stop(uids)
-- CROSS JOIN keeps the order of the tables: each is read by an index.
WITH RECURSIVE stopping AS (
    SELECT edge.* FROM json_each(:uids) AS given CROSS JOIN jobs CROSS JOIN job_dependencies AS edge
    WHERE jobs.uid = given.value AND {edge_stops}
    UNION
    SELECT edge.* FROM stopping CROSS JOIN jobs CROSS JOIN job_dependencies AS edge
    WHERE jobs.uid = stopping.dependent_uid AND {edge_stops}
)
SELECT {edge_columns} FROM stopping ORDER BY dependent_uid, depends_on

-- name: count_down(fewer, uid)
UPDATE jobs SET deps_left = deps_left - :fewer WHERE uid = :uid RETURNING deps_left

-- name: release_keys(queue, jobs, keys)
UPDATE concurrency_keys SET running_count = running_count - :jobs
WHERE queue = :queue AND key IN (SELECT value FROM json_each(:keys))

-- name: forget_idle_keys(queue, keys, window_start, window_end)
-- Keys without running jobs whose window is empty or is not the current one; after a clock step it can be a later one.
DELETE FROM concurrency_keys WHERE queue = :queue AND key IN (SELECT value FROM json_each(:keys)) AND running_count = 0
AND (window_count = 0 OR :window_start IS NULL OR window_start NOT BETWEEN :window_start AND :window_end)

-- name: any_blocked(queue)
SELECT 1 FROM jobs INDEXED BY jobs_blocked WHERE queue = :queue AND blocked = 1 LIMIT 1

-- name: types_with_blocked(queue, keys)
-- Each type with blocked jobs of each key: one step down jobs_blocked for each, and one more for each key.
WITH RECURSIVE found (key, type) AS (
    SELECT given.value, (
        SELECT type FROM jobs INDEXED BY jobs_blocked
        WHERE queue = :queue AND concurrency_key = given.value AND blocked = 1 ORDER BY type LIMIT 1
    ) FROM json_each(:keys) AS given
    UNION ALL
    SELECT found.key, (
        SELECT type FROM jobs INDEXED BY jobs_blocked
        WHERE queue = :queue AND concurrency_key = found.key AND type > found.type AND blocked = 1 ORDER BY type LIMIT 1
    ) FROM found WHERE found.type IS NOT NULL
)
SELECT key, type FROM found WHERE type IS NOT NULL

-- name: first_blocked(queue, key, type, limit)
SELECT uid FROM jobs INDEXED BY jobs_blocked
WHERE queue = :queue AND concurrency_key = :key AND type = :type AND blocked = 1
ORDER BY priority, sort_key, uid LIMIT :limit

-- name: unblock(uids)
UPDATE jobs SET blocked = 0 WHERE uid IN (SELECT value FROM json_each(:uids))

-- name: insert_tombstone(uid, id, queue, type, status, idempotency_key, removed_at, request)
INSERT INTO tombstones ({tombstone_columns}) VALUES ({parameters})

-- name: delete_tag(tag, uid)
DELETE FROM job_tags WHERE tag = :tag AND uid = :uid

-- name: delete_logs(uid)
DELETE FROM job_logs WHERE uid = :uid

-- name: delete_edges(uid)
DELETE FROM job_dependencies WHERE dependent_uid = :uid

-- name: delete_job(uid)
DELETE FROM jobs WHERE uid = :uid
