-- name: jobs_of_keys(queue, keys)
-- CROSS JOIN keeps the order: one index lookup for each key, however many jobs there are.
SELECT jobs.idempotency_key, jobs.id FROM json_each(:keys) AS wanted CROSS JOIN jobs INDEXED BY jobs_by_key
WHERE jobs.queue = :queue AND jobs.idempotency_key = wanted.value

-- name: removed_jobs_of_keys(queue, keys, since)
-- In the order of uid: if several removed jobs had one key, the caller keeps the last.
SELECT tombstones.idempotency_key, tombstones.id FROM json_each(:keys) AS wanted
CROSS JOIN tombstones INDEXED BY tombstones_by_key
WHERE tombstones.queue = :queue AND tombstones.idempotency_key = wanted.value AND tombstones.removed_at > :since
ORDER BY tombstones.uid

-- name: job_behind_key(queue, key)
SELECT {job_columns} FROM jobs WHERE queue = :queue AND idempotency_key = :key

-- name: tombstone_behind_key(queue, key, since)
SELECT uid, id, queue, type, status, idempotency_key, request FROM tombstones
WHERE queue = :queue AND idempotency_key = :key AND removed_at > :since
ORDER BY uid DESC LIMIT 1

-- name: ids_taken(ids, first_uid)
-- :first_uid is the first uid of the batch that is being stored.
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND uid < :first_uid

-- name: statuses(ids)
SELECT id, status FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: removed_statuses(ids, since)
-- In the order of uid: if several removed jobs had one id, the caller keeps the last.
SELECT id, status FROM tombstones WHERE id IN (SELECT value FROM json_each(:ids)) AND removed_at > :since ORDER BY uid

-- name: insert_job(uid, id, queue, type, payload, options, priority, lifo, delay, expires_at, timeout, max_attempts,
--     max_crashes, idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total,
--     created_at, deps_left, status, run_at, eligible_at, sort_key, announce_at, job_seq, updated_at, tags, relative)
-- If the id is taken, the number of changed rows is 0.
INSERT INTO jobs ({new_job_columns}, relative) VALUES ({parameters}) ON CONFLICT (id) DO NOTHING

-- name: put_edge(dependent_uid, depends_on, policy, state, position)
INSERT INTO job_dependencies ({edge_columns}) VALUES ({parameters})
ON CONFLICT (dependent_uid, depends_on) DO UPDATE SET state = excluded.state

-- name: insert_added_events(first_event, first_uid, now, actor)
-- One event for each job of the batch: the jobs from :first_uid on.
INSERT INTO job_events (n, {event_columns})
SELECT :first_event + uid - :first_uid, uid, id, 1, queue, type, 'job.added', NULL, status, 0, 0, NULL, :actor, :now,
    CASE WHEN concurrency_key IS NOT NULL OR schedule_id IS NOT NULL OR parent_id IS NOT NULL THEN json_patch(
        '{}', json_object('key', concurrency_key, 'schedule_id', schedule_id, 'parent_id', parent_id)
    ) END
FROM jobs WHERE uid >= :first_uid ORDER BY uid

-- name: insert_event(n, job_uid, job_id, job_seq, queue, type, event, from_status, to_status, epoch, execution,
--     assignee_id, actor, occurred_at, detail)
INSERT INTO job_events (n, {event_columns}) VALUES ({parameters})

-- name: add_to_count(queue, status, jobs, retries)
INSERT INTO queue_counts (queue, status, jobs, retries) VALUES ({parameters})
ON CONFLICT (queue, status) DO UPDATE SET jobs = jobs + excluded.jobs, retries = retries + excluded.retries

-- name: jobs_to_accept(ids, now)
-- The jobs, in the order of :ids, that are claimable as soon as they are accepted, with the sort key they get.
SELECT uid, queue, status, retry_count, min(created_at, :now) AS sort_key, tags
FROM json_each(:ids) AS given CROSS JOIN jobs ON jobs.id = given.value
WHERE status IN ({accept_sources}) AND deps_left = 0 AND run_at IS NULL AND last_retry_at IS NULL AND lifo = 0

-- name: insert_accepted_events(first_event, now, actor, uids)
-- Before `accept_jobs`, which changes the status that the event records.
INSERT INTO job_events (n, {event_columns})
SELECT :first_event + accepted.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.accepted', status,
    {accept_target}, epoch, executions, assignee_id, :actor, :now, NULL
FROM json_each(:uids) AS accepted JOIN jobs ON uid = accepted.value

-- name: accept_jobs(now, uids)
UPDATE jobs SET status = {accept_target}, eligible_at = min(created_at, :now), sort_key = min(created_at, :now),
    blocked = 0, announce_at = NULL, job_seq = job_seq + 1, updated_at = :now
WHERE uid IN (SELECT value FROM json_each(:uids)) AND status IN ({accept_sources})

-- name: touch_staged_run(run, now)
INSERT INTO staged_runs (run, touched_at) VALUES (:run, :now)
ON CONFLICT (run) DO UPDATE SET touched_at = excluded.touched_at

-- name: staged_jobs(run, parts)
SELECT job FROM staged_jobs WHERE run = :run AND part IN (SELECT value FROM json_each(:parts)) ORDER BY number
